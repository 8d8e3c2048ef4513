"""Trains a small PyTorch model on the device `fuseline`, and compares it with the CPU and, if there
is one, PyTorch's own CUDA device. Prints one JSON object per finding, as it goes.

The exit status is an error if a loss differs from the CPU's by more than a thousandth.
"""

import json
import sys
import time

import torch
from torch import nn

STEPS = 40
TOLERANCE = 1e-3


def say(**what):
    print(json.dumps(what), flush=True)


def model():
    """A small classifier of 16x16 pictures."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 64, 64),
        nn.GELU(),
        nn.LayerNorm(64),
        nn.Linear(64, 10),
    )


def data():
    """Pictures whose class can be learned: each class has a pattern, and there is noise."""
    random = torch.Generator().manual_seed(1)
    labels = torch.randint(10, (64,), generator=random)
    patterns = torch.randn(10, 1, 16, 16, generator=random)
    return patterns[labels] + 0.3 * torch.randn(64, 1, 16, 16, generator=random), labels


def train(device):
    """Trains on a device. Returns the losses and the time of the first and of a steady step in
    milliseconds."""
    network = model().to(device)
    inputs, labels = (one.to(device) for one in data())
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    losses, times = [], []
    for _ in range(STEPS):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append((time.perf_counter() - start) * 1e3)
    return losses, times[0], sorted(times[STEPS // 2 :])[STEPS // 4]


def report(name, device, expected=None):
    """Trains and prints the outcome. Returns the losses."""
    losses, first, steady = train(device)
    differs = max((abs(one - other) for one, other in zip(losses, expected or losses)), default=0.0)
    say(what=name, first_loss=losses[0], last_loss=losses[-1], first_step_ms=first, step_ms=steady,
        differs_from_cpu=differs)
    return losses, differs


def main():
    say(what="versions", torch=torch.__version__, python=sys.version.split()[0], cuda=torch.cuda.is_available())
    expected, _ = report("cpu", "cpu")
    worst = report("fuseline, fused", "fuseline", expected)[1]
    say(what="device", name=torch.fuseline.get_device_name(), fallbacks=torch.fuseline.fallbacks(),
        counters=plain(torch.fuseline.counters()))
    say(what="memory", stats=plain(torch.fuseline.memory_stats()))
    if torch.cuda.is_available():
        report("cuda", "cuda", expected)
    # Last, because it compiles each op.
    with torch.fuseline.mode("strict"):
        worst = max(worst, report("fuseline, strict", "fuseline", expected)[1])
    return 0 if worst <= TOLERANCE and expected[-1] < expected[0] else 1


def plain(value):
    """A dictionary as JSON can hold it, without zeros."""
    return {name: one for name, one in json.loads(json.dumps(value, default=str)).items() if one != 0}


if __name__ == "__main__":
    sys.exit(main())
