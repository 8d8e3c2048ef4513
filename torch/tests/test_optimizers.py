"""Optimizers that step over all parameters in one call agree with the CPU, and the CPU computes no
call."""

import itertools
import unittest

import torch

DEVICE = "fuseline"
OPTIMIZERS = {
    "Adam": [{"amsgrad": True, "weight_decay": 0.1}, {"maximize": True}],
    "AdamW": [{"weight_decay": 0.1}, {"amsgrad": True, "lr": torch.tensor(0.01)}],
    "SGD": [{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}],
    "Adagrad": [{"lr_decay": 0.1, "weight_decay": 0.1}],
}


def parameters(dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(shape).to(dtype) for shape in ((3, 4), (5,), ())]


def steps(device, name, options, form, values, count=4, scaler=None):
    """Returns the parameters after some steps with the same gradients everywhere."""
    params = [value.to(device).requires_grad_() for value in values]
    optimizer = getattr(torch.optim, name)(params, **options, **{form: True})
    for number in range(count):
        optimizer.zero_grad()
        loss = sum((param * (number + 1)).sin().sum() for param in params)
        if scaler is None:
            loss.backward()
            optimizer.step()
            continue
        # The second step finds an infinite gradient and changes nothing.
        scaler.scale(loss * (float("inf") if number == 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    return [param.detach().cpu() for param in params]


class Optimizers(unittest.TestCase):
    def same(self, found, wanted, **tolerance):
        for ours, theirs in zip(found, wanted):
            torch.testing.assert_close(ours, theirs, **tolerance)

    def native(self):
        self.assertEqual(torch.fuseline.fallbacks(), self.before)

    def setUp(self):
        self.before = torch.fuseline.fallbacks()

    def test_fused_and_foreach_steps_are_the_cpus(self):
        for name, form in itertools.product(OPTIMIZERS, ("fused", "foreach")):
            for options in OPTIMIZERS[name]:
                if form == "foreach" and isinstance(options.get("lr"), torch.Tensor):
                    # PyTorch allows such a learning rate for captured programs only.
                    continue
                with self.subTest(optimizer=name, form=form, options=options):
                    self.same(steps(DEVICE, name, options, form, parameters()), steps("cpu", name, options, form, parameters()))
        self.native()

    def test_fused_steps_of_short_floats_are_computed_in_long_ones(self):
        for name, options in OPTIMIZERS.items():
            with self.subTest(optimizer=name):
                values = parameters(torch.bfloat16)
                self.same(steps(DEVICE, name, options[0], "fused", values), steps("cpu", name, options[0], "fused", values))
        self.native()

    def test_a_scaler_leaves_out_steps_with_infinite_gradients(self):
        for name, form in (("Adam", "fused"), ("AdamW", "fused"), ("SGD", "fused"), ("Adagrad", "fused"), ("Adam", "foreach")):
            with self.subTest(optimizer=name, form=form):
                scalers = [torch.amp.GradScaler(device, init_scale=256.0) for device in (DEVICE, "cpu")]
                found = steps(DEVICE, name, OPTIMIZERS[name][0], form, parameters(), scaler=scalers[0])
                self.same(found, steps("cpu", name, OPTIMIZERS[name][0], form, parameters(), scaler=scalers[1]))
                self.assertEqual(scalers[0].get_scale(), scalers[1].get_scale())
                self.assertEqual(scalers[0].get_scale(), 128.0)
        self.native()


if __name__ == "__main__":
    unittest.main()
