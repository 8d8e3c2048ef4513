"""Small programs of common kinds, trained on the device and on the CPU from the same weights, have
the same losses."""

import unittest

import torch
from models import Gpt, fallbacks_since
from torch import nn
from torch.nn import functional as F

DEVICE = "fuseline"


class Images(nn.Module):
    """Convolutions, batch norm, pooling."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(16)])
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norms[0](self.first(x))), 2)
        return self.head(F.relu(self.norms[1](self.second(x))).mean((2, 3)))


class Programs(unittest.TestCase):
    def train(self, make, data, optimizer, steps=8):
        """Returns the losses of some steps on both devices, the calls that fell back, and the
        compiles of the latest steps."""
        losses = {}
        for device in ("cpu", DEVICE):
            torch.manual_seed(0)
            model, (x, y) = make().to(device), (part.to(device) for part in data())
            tuner = optimizer(model.parameters())
            losses[device] = []
            before = torch.fuseline.fallbacks()
            for step in range(steps):
                out = model(x)
                loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
                tuner.zero_grad()
                loss.backward()
                tuner.step()
                losses[device].append(loss.item())
        torch.testing.assert_close(losses[DEVICE][:3], losses["cpu"][:3], rtol=1e-4, atol=1e-4)
        self.assertLess(losses[DEVICE][-1], losses[DEVICE][0])
        # Weights are made on the CPU.
        self.assertEqual(fallbacks_since(before), {}, "calls were computed by the CPU")
        return model

    def test_a_network_of_layers(self):
        def make():
            return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.0), nn.Linear(32, 10))

        def data():
            return torch.randn(24, 16), torch.randint(0, 10, (24,))

        model = self.train(make, data, lambda weights: torch.optim.AdamW(weights, lr=1e-2))
        # Running statistics are updated in training and used in evaluation.
        self.assertTrue((model[1].running_mean.abs().sum() > 0).item())
        model.eval()
        x = torch.randn(4, 16)
        torch.testing.assert_close(model(x.to(DEVICE)).cpu(), model.cpu()(x), rtol=1e-4, atol=1e-4)

    def test_a_network_for_images(self):
        def data():
            return torch.randn(8, 1, 12, 12), torch.randint(0, 10, (8,))

        self.train(Images, data, lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9, nesterov=True))

    def test_a_transformer(self):
        def data():
            tokens = torch.randint(0, 30, (4, 17))
            return tokens[:, :-1], tokens[:, 1:].contiguous()

        self.train(Gpt, data, lambda weights: torch.optim.AdamW(weights, lr=3e-3))


if __name__ == "__main__":
    unittest.main()
