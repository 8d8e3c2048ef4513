"""Recurrent networks have the CPU's results and gradients, and the CPU computes no call."""

import copy
import unittest

import torch

DEVICE = "fuseline"
LAYERS = [
    {"input_size": 4, "hidden_size": 3},
    {"input_size": 4, "hidden_size": 3, "num_layers": 2, "bidirectional": True, "batch_first": True},
    {"input_size": 4, "hidden_size": 3, "num_layers": 2, "bias": False},
]


class Recurrent(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.before = torch.fuseline.fallbacks()

    def same(self, module, run, *inputs):
        """Returns results of ``run(module, inputs)`` and all gradients, of the CPU's module and of
        its copy on the device."""
        there = copy.deepcopy(module).to(DEVICE)
        told = []
        for each, device in ((there, DEVICE), (module, "cpu")):
            leaves = [value.detach().to(device).requires_grad_() for value in inputs]
            results = torch.utils._pytree.tree_leaves(run(each, *leaves))
            results = [result for result in results if isinstance(result, torch.Tensor) and result.is_floating_point()]
            sum((result * result.detach().sin()).sum() for result in results).backward()
            told.append([result.detach().cpu() for result in results] + [leaf.grad.cpu() for leaf in leaves]
                        + [parameter.grad.cpu() for parameter in each.parameters()])
        self.assertEqual(len(told[0]), len(told[1]))
        for ours, theirs in zip(*told):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        self.assertEqual(torch.fuseline.fallbacks(), self.before)

    def test_layers(self):
        for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
            for options in LAYERS:
                with self.subTest(kind=kind.__name__, options=options):
                    self.same(kind(**options), lambda module, x: module(x), torch.randn(5, 2, 4))

    def test_layers_that_go_on_from_a_state(self):
        states = [torch.randn(1, 2, 3) for _ in range(2)]
        self.same(torch.nn.LSTM(4, 3), lambda module, x, h, c: module(x, (h, c)), torch.randn(5, 2, 4), *states)
        self.same(torch.nn.LSTM(4, 3, proj_size=2), lambda module, x: module(x), torch.randn(5, 2, 4))
        self.same(torch.nn.GRU(4, 3), lambda module, x, h: module(x, h), torch.randn(5, 2, 4), states[0])

    def test_packed_sequences(self):
        def run(module, x):
            packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 5, 1]), enforce_sorted=False)
            results, state = module(packed)
            return torch.nn.utils.rnn.pad_packed_sequence(results)[0], state

        for kind in (torch.nn.LSTM, torch.nn.GRU):
            for options in (LAYERS[0], {"input_size": 4, "hidden_size": 3, "bidirectional": True}):
                with self.subTest(kind=kind.__name__, options=options):
                    self.same(kind(**options), run, torch.randn(5, 3, 4))

    def test_cells(self):
        for kind in (torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell):
            for bias in (True, False):
                with self.subTest(kind=kind.__name__, bias=bias):
                    self.same(kind(4, 3, bias=bias), lambda module, x: module(x), torch.randn(2, 4))


if __name__ == "__main__":
    unittest.main()
