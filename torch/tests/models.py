"""Models by other authors, with weights made here and no downloads: one optimizer step on each, on
any device.

The models are ResNet-18 of torchvision on digits, a model in the style of nanoGPT, a Llama of
transformers in bfloat16 with gradient checkpointing, and a ViT of timm.

    python models.py resnet18 --steps 8  # trains on CPU and device, prints losses as JSON
"""

import argparse
import contextlib
import gzip
import json
import pathlib

import torch
from torch import nn
from torch.nn import functional as F

DIGITS = pathlib.Path(__file__).resolve().parents[2] / "examples/data/digits.csv.gz"


class Block(nn.Module):
    """A transformer block in the style of nanoGPT."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        split = [t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.attend(self.norms[0](x)).split(width, 2)]
        y = F.scaled_dot_product_attention(*split, is_causal=True)
        x = x + self.project(y.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    """Embeddings, blocks, and a head that shares its weights with the embeddings."""

    def __init__(self, words=30, length=16, width=32, depth=2, heads=4):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight
        # PyTorch's default for embeddings is too wide for a head.
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, x):
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.words(x) + self.places(places))))


class Program:
    """A model, its data and its optimizer on a device."""

    def __init__(self, device, model, batch, target, optimizer, *, loss=None, autocast=None):
        self.device, self.autocast = device, autocast
        self.model = model.to(device)
        self.batch, self.target = batch.to(device), target.to(device)
        self.optimizer = optimizer(self.model.parameters())
        self.loss = loss or (lambda out, target: F.cross_entropy(out.flatten(0, -2), target.flatten()))

    def step(self):
        """Runs one step and returns its loss without waiting for it."""
        lower = torch.autocast(self.device, dtype=self.autocast) if self.autocast else contextlib.nullcontext()
        with lower:
            loss = self.loss(self.model(self.batch), self.target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def sgd(parameters):
    # Slow enough that the CPU's losses of three steps match double precision to 1e-6: one ReLU that
    # rounding flips changes the next loss by a percent.
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def digits(count, size):
    """Returns handwritten digits (``examples/data``) as images ``[count, 3, size, size]``, and
    their classes."""
    with gzip.open(DIGITS, "rt") as file:
        rows = [[float(number) for number in line.split(",")] for line, _ in zip(file, range(count))]
    table = torch.tensor(rows)
    images = F.interpolate(table[:, :64].reshape(-1, 1, 8, 8) / 16, size=(size, size), mode="nearest")
    return images.repeat(1, 3, 1, 1), table[:, 64].long()


def resnet18(device, batch=16, size=32):
    import torchvision

    model = torchvision.models.resnet18(num_classes=10)
    return Program(device, model, *digits(batch, size), sgd)


def nanogpt(device, batch=4, length=64, width=128, depth=4, heads=4, words=256):
    text = torch.randint(0, words, (batch, length + 1))
    model = Gpt(words, length, width, depth, heads)
    return Program(device, model, text[:, :-1].contiguous(), text[:, 1:].contiguous(), adamw)


def llama(device, batch=2, length=32, width=64, depth=2, words=256):
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=words, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=depth, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=length, use_cache=False,
    )
    model = transformers.LlamaForCausalLM(config)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    text = torch.randint(0, words, (batch, length))
    return Program(device, model, text, text, adamw, loss=_next_word, autocast=torch.bfloat16)


def _next_word(out, text):
    return F.cross_entropy(out.logits[:, :-1].float().flatten(0, 1), text[:, 1:].flatten())


def vit(device, batch=4, size=32, width=64, depth=4):
    import timm

    model = timm.models.vision_transformer.VisionTransformer(
        img_size=size, patch_size=8, embed_dim=width, depth=depth, num_heads=4, num_classes=10
    )
    return Program(device, model, *digits(batch, size), adamw)


def fallbacks_since(before):
    """Returns the calls that the CPU has computed since ``torch.fuseline.fallbacks()`` returned
    ``before``."""
    now = torch.fuseline.fallbacks()
    return {name: count - before.get(name, 0) for name, count in now.items() if count != before.get(name, 0)}


def train(name, device, steps, is_compiled=False):
    """Returns the losses of this many steps, and on the device the number of cache misses after
    each."""
    torch.manual_seed(0)
    program, losses, misses = ALL[name](device), [], []
    if is_compiled:
        program.model = torch.compile(program.model)
    for _ in range(steps):
        losses.append(program.step().item())
        if device != "cpu":
            misses.append(torch.fuseline.counters()["misses"])
    return losses, misses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=ALL)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--compile", action="store_true", help="torch.compile the model on the device")
    args = parser.parse_args()
    wanted, _ = train(args.name, "cpu", args.steps)
    before = torch.fuseline.fallbacks()
    losses, misses = train(args.name, "fuseline", args.steps, args.compile)
    told = {"cpu": wanted, "fuseline": losses, "misses": misses, "fallbacks": fallbacks_since(before)}
    print(json.dumps({**told, "not_recorded": torch.fuseline.not_recorded()}))


ALL = {"resnet18": resnet18, "nanogpt": nanogpt, "llama": llama, "vit": vit}

if __name__ == "__main__":
    main()
