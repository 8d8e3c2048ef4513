"""The Python module ``torch.fuseline``: lines of the program in errors, forks, streams and events, profiles, ops from StableHLO, caches."""

import contextlib
import inspect
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

import torch

DEVICE = "fuseline"


def here():
    """Where this is called from, as an error names it."""
    frame = inspect.stack()[1]
    return f"{pathlib.Path(frame.filename).name}:{frame.lineno} in {frame.function}"


def program(text, **environment):
    """What a program of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout.strip()


def too_large(x):
    """More than any machine has; nothing is recorded after it that could be blamed."""
    return x.expand(1 << 46, 4).contiguous(), here()


class Lines(unittest.TestCase):
    def tearDown(self):
        torch.fuseline.call_sites(None)

    def test_an_error_at_a_read_names_the_line_of_the_op(self):
        for mode in ("fused", "strict"):
            with torch.fuseline.mode(mode):
                y, line = too_large(torch.ones(4, device=DEVICE))
                total = (y * 2).sum()
                with self.assertRaisesRegex(RuntimeError, line):
                    total.item()

    def test_a_module_is_where_it_is_called(self):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Flatten(0)).to(DEVICE)
        with torch.no_grad():
            y, line = model(torch.ones(1, device=DEVICE).expand(1 << 44, 4)), here()
        with self.assertRaisesRegex(RuntimeError, line):
            y.sum().item()

    def test_a_line_that_ran_well_before_is_named_when_it_fails(self):
        def double(x):
            return x.mul(2), here()

        for _ in range(3):
            double(torch.ones(4, device=DEVICE))[0].sum().item()
        y, line = double(torch.ones(4, device=DEVICE).expand(1 << 46, 4))
        with self.assertRaisesRegex(RuntimeError, line):
            y.sum().item()

    def test_the_backward_thread_names_the_forward_line(self):
        w = torch.ones(4, device=DEVICE, requires_grad=True)
        # The gradient of one row is one of all rows.
        row, line = w.expand(1 << 46, 4)[0], here()
        row.sum().backward()
        with self.assertRaisesRegex(RuntimeError, line + r", backward \(SelectBackward0\)"):
            w.grad.cpu()

    def test_without_lines_it_is_said_how_to_get_them(self):
        torch.fuseline.call_sites(False)
        y, line = too_large(torch.ones(4, device=DEVICE))
        with self.assertRaisesRegex(RuntimeError, r"torch\.fuseline\.call_sites\(True\)") as raised:
            y.sum().item()
        self.assertNotIn(line, str(raised.exception))

    def test_python_is_asked_where_frames_are_not_known(self):
        from torch_fuseline import _sites
        from torch_fuseline._shim import shim

        was = shim.fuseline_torch_sites_has()
        self.assertEqual(was, _sites.WALK, "frames of this Python are known")
        try:
            shim.fuseline_torch_sites_way(_sites.ASK)
            y, line = too_large(torch.ones(4, device=DEVICE))
            with self.assertRaisesRegex(RuntimeError, "was not looked for"):
                y.sum().item()
            # From the first error on.
            y, line = too_large(torch.ones(4, device=DEVICE))
            with self.assertRaisesRegex(RuntimeError, line):
                y.sum().item()
        finally:
            shim.fuseline_torch_sites_way(was)

    def test_not_finite(self):
        told = program(
            """
            import torch
            def step(x):
                return torch.log(x)
            with torch.fuseline.mode("debug"):
                try:
                    step(torch.tensor([1.0, -1.0], device="fuseline"))
                except RuntimeError as error:
                    print(error)
                w = torch.ones(2, device="fuseline", requires_grad=True)
                loss = (w - 1).sqrt().sum()
                try:
                    loss.backward()
                except RuntimeError as error:
                    print(error)
            """,
            FUSELINE_TORCH_CHECK_FINITE="1",
        ).splitlines()
        self.assertRegex(told[0], r"log, recorded at <string>:4 in step, gave 1 NaN")
        self.assertRegex(told[1], r"recorded at <string>:11, backward \(SqrtBackward0\), gave .* 2 infinite")


if __name__ == "__main__":
    unittest.main()
