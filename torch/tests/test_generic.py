"""PyTorch's own lists of modules and optimizers, by its device-generic tests: device and CPU agree,
forward, backward and after steps.

By default some of them run; ``FUSELINE_TORCH_ALL=1 python -m unittest test_generic`` runs all.
"""

import copy
import os
import unittest

import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_modules import module_db, modules
from torch.testing._internal.common_optimizers import optim_db, optims
from torch.testing._internal.common_utils import TestCase

# Modules that run by default, one of each kind.
SOME = {"BatchNorm2d", "Conv2d", "ConvTranspose1d", "BCEWithLogitsLoss", "Embedding", "GroupNorm", "GRU", "LSTM", "LSTMCell", "LayerNorm", "Linear",
        "MaxPool2d", "MultiheadAttention", "ReflectionPad2d", "SmoothL1Loss", "Softmax", "TransformerEncoderLayer", "Upsample", "AvgPool2d", "GELU"}
IS_ALL = os.environ.get("FUSELINE_TORCH_ALL", "") == "1"
# Tolerance for sums in another order.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
# Modules that draw random numbers in training.
RANDOM = ("Dropout", "RReLU", "FractionalMaxPool", "Transformer", "FeatureAlpha")
STEPS = 3
# The number of inputs to compare per module and per optimizer, spread evenly.
INPUTS = 8 if IS_ALL else 3


def over(value, device):
    """Returns the same structure on a device. A tensor that occurs twice stays shared."""
    moved = {}

    def move(x):
        if id(x) not in moved:
            moved[id(x)] = x.detach().clone().to(device).requires_grad_(x.requires_grad)
        return moved[id(x)]

    return torch.utils._pytree.tree_map_only(torch.Tensor, move, value)


def tensors(value):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def passed(module, args, kwargs):
    """Returns the results of a module and all gradients."""
    results = tensors(module(*args, **kwargs))
    leaves = [leaf for leaf in [*module.parameters(), *tensors((args, kwargs))] if leaf.requires_grad]
    wanted = [result for result in results if result.requires_grad]
    seeds = [torch.linspace(0.5, 1.5, result.numel()).reshape(result.shape).to(result.device) for result in wanted]
    gradients = torch.autograd.grad(wanted, leaves, seeds, allow_unused=True) if wanted and leaves else ()
    return results, gradients, list(module.buffers())


def is_lazy(module):
    return isinstance(module, torch.nn.modules.lazy.LazyModuleMixin)


def name_of(info):
    return info.module_cls.__name__


class Generic(TestCase):
    def alike(self, found, wanted):
        """Asserts equal sizes and types only, because the values are random."""
        about = lambda tensor: None if tensor is None else (tensor.shape, tensor.dtype)
        self.assertEqual([about(tensor) for tensor in found], [about(tensor) for tensor in wanted])
        self.assertTrue(all(tensor is None or tensor.device.type == "fuseline" for tensor in found))

    def same(self, found, wanted, tolerance=TOLERANCE):
        self.assertEqual(len(found), len(wanted))
        for ours, theirs in zip(found, wanted):
            self.assertEqual(ours is None, theirs is None)
            if theirs is not None:
                torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), equal_nan=True, **tolerance)

    @modules([info for info in module_db if IS_ALL or name_of(info) in SOME], allowed_dtypes=[torch.float32])
    def test_module(self, device, dtype, module_info, training):
        is_drawn = training and any(word in name_of(module_info) for word in RANDOM)
        compared = 0
        inputs = module_info.module_inputs_func(module_info, device="cpu", dtype=dtype, requires_grad=True, training=training)
        for given in inputs[:: max(1, len(inputs) // INPUTS)]:
            if given.forward_input is None:
                continue
            torch.manual_seed(0)
            module = module_info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs).to(dtype).train(training)
            args, kwargs = given.forward_input.args, given.forward_input.kwargs
            there = copy.deepcopy(module).to(device) if not is_lazy(module) else None
            try:
                wanted = passed(module, args, kwargs)
            except Exception:
                continue
            # A lazy module makes its parameters at its first call. Both sides need the same ones.
            there = copy.deepcopy(module).to(device) if there is None else there
            with self.subTest(inputs=given.desc):
                found = passed(there, *over((args, kwargs), device))
                for ours, theirs in zip(found, wanted):
                    (self.alike if is_drawn else self.same)(ours, theirs)
            compared += 1
        self.assertGreater(compared, 0)

    # The device has no sparse tensors.
    @optims([info for info in optim_db if not info.only_supports_sparse_grads], dtypes=[torch.float32])
    def test_optimizer(self, device, dtype, optim_info):
        # Muon makes matrices orthogonal in bfloat16.
        tolerance = {"rtol": 1.6e-2, "atol": 1e-3} if optim_info.optim_cls.__name__ == "Muon" else TOLERANCE
        inputs = optim_info.optim_inputs_func(device=device)
        for given in inputs[:: max(1, len(inputs) // INPUTS)]:
            with self.subTest(inputs=given.desc):
                self.same(*[self.stepped(optim_info, given.kwargs, place) for place in (device, "cpu")], tolerance)

    def stepped(self, optim_info, options, device):
        """Returns the parameters after some steps."""
        options = {name: value.to(device) if isinstance(value, torch.Tensor) and value.dim() else value for name, value in options.items()}
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(4, 3).to(device)) for _ in range(2)]
        data = torch.randn(4, 3).to(device)
        optimizer = optim_info.optim_cls(params, **options)

        def loss():
            optimizer.zero_grad()
            value = sum(((param - data) ** 2).sum() for param in params)
            value = -value if options.get("maximize") else value
            value.backward()
            return value

        for _ in range(STEPS):
            if optim_info.step_requires_closure:
                optimizer.step(loss)
            else:
                loss()
                optimizer.step()
        return params


instantiate_device_type_tests(Generic, globals(), only_for=("fuseline",))


if __name__ == "__main__":
    unittest.main()
