"""The Python module ``torch.fuseline``: call sites in errors, forks, streams and events, profiles,
ops from StableHLO, caches."""

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
    """Returns the caller's line as an error names it."""
    frame = inspect.stack()[1]
    return f"{pathlib.Path(frame.filename).name}:{frame.lineno} in {frame.function}"


def program(text, **environment):
    """Returns the output of a program in a process of its own."""
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
    """Allocates more than any machine has. Nothing recorded later could be blamed."""
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
        # The gradient of one row needs a gradient of all rows.
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
        from torch_fuseline._library import shim

        was = shim.fuseline_torch_sites_has()
        self.assertEqual(was, _sites.WALK, "frames of this Python are known")
        try:
            shim.fuseline_torch_sites_way(_sites.ASK)
            y, line = too_large(torch.ones(4, device=DEVICE))
            with self.assertRaisesRegex(RuntimeError, "an unknown line"):
                y.sum().item()
            # Call sites are on from the first error.
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
        self.assertRegex(told[0], r"log, recorded at <string>:4 in step, produced 1 NaN")
        self.assertRegex(told[1], r"recorded at <string>:11, backward \(SqrtBackward0\), produced .* 2 infinite")


class Forks(unittest.TestCase):
    def test_a_child_is_told_and_workers_of_the_cpu_work(self):
        told = program(
            """
            import os, torch

            class Squares(torch.utils.data.Dataset):
                def __len__(self):
                    return 8
                def __getitem__(self, at):
                    return torch.full((2,), float(at)) ** 2

            def in_child(do):
                read, write = os.pipe()
                child = os.fork()
                if child == 0:
                    try:
                        text = repr(do())
                    except BaseException as error:
                        text = f"{type(error).__name__}: {error}"
                    os.write(write, text.encode())
                    os._exit(0)
                os.close(write)
                with os.fdopen(read) as words:
                    print(words.read().splitlines()[0])
                os.waitpid(child, 0)

            # Before the engine is open, a child has one of its own.
            in_child(lambda: (torch.fuseline._is_in_bad_fork(), torch.ones(2, device="fuseline").tolist()))
            x = torch.ones(2, device="fuseline") + 1
            for do in (torch.fuseline._is_in_bad_fork, lambda: x + 1, lambda: x.tolist(), lambda: torch.ones(2, device="fuseline"),
                       torch.fuseline.synchronize, lambda: torch.manual_seed(1) and None):
                in_child(do)
            loader = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context="fork")
            print(sum(batch.to("fuseline").sum() for batch in loader).item(), torch.fuseline._is_in_bad_fork())
            """
        ).splitlines()
        self.assertEqual(told[:2], ["(False, [1.0, 1.0])", "True"])
        for line in told[2:6]:
            self.assertRegex(line, "RuntimeError: fuseline: .*forked")
        self.assertEqual(told[6:], ["None", "280.0 False"])


class Streams(unittest.TestCase):
    def test_there_is_one_stream(self):
        stream = torch.fuseline.Stream(priority=-1)
        self.assertEqual(stream, torch.fuseline.current_stream())
        self.assertEqual(torch.Stream(device=DEVICE), torch.accelerator.current_stream())
        self.assertEqual((torch.accelerator.device_count(), torch.accelerator.current_accelerator().type), (1, DEVICE))
        x = torch.ones(4, device=DEVICE)
        with torch.fuseline.stream(stream), torch.Stream(device=DEVICE):
            y = x + 1
            y.record_stream(stream)
        torch.fuseline.current_stream().wait_stream(stream)
        stream.wait_event(stream.record_event())
        torch.accelerator.set_stream(stream)
        torch.fuseline.set_stream(stream)
        torch.accelerator.synchronize()
        # A query waits for half a millisecond, which may be too short on a busy machine.
        self.assertTrue(any(stream.query() for _ in range(1000)))
        self.assertEqual(y.tolist(), [2] * 4)
        with self.assertRaises(RuntimeError):
            torch.fuseline.Stream(device="fuseline:1")

    def test_an_event_is_a_place_in_the_stream(self):
        first, last = (torch.fuseline.Event(enable_timing=True) for _ in range(2))
        self.assertTrue(first.query(), "who was never recorded has nothing to wait for")
        x = torch.rand(500, 500, device=DEVICE)
        torch.fuseline.synchronize()
        first.record()
        for _ in range(40):
            x = x @ x * 1e-2
        before = torch.fuseline.counters()["regions"]
        last.record()
        last.synchronize()
        self.assertTrue(first.query() and last.query())
        self.assertGreater(torch.fuseline.counters()["regions"], before, "recording has run what was before it")
        self.assertGreater(first.elapsed_time(last), 0.1)
        self.assertLess(last.elapsed_time(first), -0.1)
        last.record()
        last.synchronize()

    def test_an_event_waits_for_what_is_before_it_only(self):
        x = torch.rand(600, 600, device=DEVICE)
        torch.fuseline.synchronize()
        early, late = torch.Event(DEVICE), torch.Event(DEVICE)
        early.record()
        for _ in range(30):
            x = x @ x * 1e-3
        late.record()
        early.synchronize()
        self.assertEqual((early.query(), late.query()), (True, False))
        late.synchronize()
        self.assertTrue(late.query())

    def test_times_are_asked_of_events_that_have_them(self):
        plain, timed = torch.Event(DEVICE), torch.Event(DEVICE, enable_timing=True)
        for event in (plain, timed):
            event.record()
            event.synchronize()
        with self.assertRaisesRegex((RuntimeError, ValueError), "enable_timing"):
            plain.elapsed_time(timed)


class Profiles(unittest.TestCase):
    def work(self):
        w = torch.ones(8, 8, device=DEVICE, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        with torch.profiler.record_function("forward"):
            loss = (w @ w).relu().sum()
        loss.backward()
        optimizer.step()
        return loss.item(), here()

    def test_a_page_has_steps_and_lines(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "steps.html"
            with torch.fuseline.profile(page) as kept:
                kept.step("all of it")
                _, line = self.work()
            words = page.read_text()
        for name in ("all of it", "forward", "Optimizer.step#SGD.step"):
            self.assertIn(name, words)
        self.assertIn(line.split(" ")[0], kept.summary)
        with self.assertRaisesRegex(RuntimeError, "cannot be written"), torch.fuseline.profile("/nowhere/page.html"):
            pass

    def test_pytorchs_profiler_runs(self):
        from torch.profiler import ProfilerActivity, profile

        for activities in ([ProfilerActivity.CPU], [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]):
            with profile(activities=activities) as kept:
                self.work()
            self.assertIn("forward", {event.key for event in kept.key_averages()})
        with torch.autograd.profiler.profile(use_device=DEVICE) as kept:
            self.work()
        times = {event.key: event.cpu_time_total for event in kept.key_averages()}
        self.assertGreater(times["forward"], 0)
        self.assertLess(times["forward"], 60e6)


TYPE = "tensor<2xf32>"
GATE = f"""func.func @main(%x: {TYPE}, %y: {TYPE}) -> {TYPE} {{
  %0 = stablehlo.multiply %x, %y : {TYPE}
  %1 = stablehlo.tanh %0 : {TYPE}
  return %1 : {TYPE}
}}"""
# The gradient of tanh(x y) is (1 - tanh(x y)^2) times y and x.
GATE_BACKWARD = f"""func.func @main(%x: {TYPE}, %y: {TYPE}, %grad: {TYPE}) -> ({TYPE}, {TYPE}) {{
  %one = stablehlo.constant dense<1.000000e+00> : {TYPE}
  %0 = stablehlo.multiply %x, %y : {TYPE}
  %1 = stablehlo.tanh %0 : {TYPE}
  %2 = stablehlo.multiply %1, %1 : {TYPE}
  %3 = stablehlo.subtract %one, %2 : {TYPE}
  %4 = stablehlo.multiply %3, %grad : {TYPE}
  %5 = stablehlo.multiply %4, %y : {TYPE}
  %6 = stablehlo.multiply %4, %x : {TYPE}
  return %5, %6 : {TYPE}, {TYPE}
}}"""
# The output of jax.export for `lambda x: (x + 1, x.sum())`, cut to the relevant parts.
EXPORTED = """
#loc1 = loc("x")
module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x3xf32> loc("x")) -> (tensor<2x3xf32> {jax.result_info = "[0]"}, tensor<f32> {jax.result_info = "[1]"}) {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
    %1 = stablehlo.add %arg0, %0 : tensor<2x3xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %2 = stablehlo.reduce(%arg0 init: %cst_0) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<f32>
    return %1, %2 : tensor<2x3xf32>, tensor<f32>
  }
}
"""


class Exported:
    """The interface of what ``jax.export.export(f)(..)`` returns, as far as it is used."""

    out_avals = ("float32[2,3]", "float32[]")

    def mlir_module(self):
        return EXPORTED


class CustomOps(unittest.TestCase):
    def test_a_module_is_an_op_with_a_gradient(self):
        op = torch.fuseline.custom_op("test.gate", GATE, GATE_BACKWARD)
        values = [torch.tensor([0.5, -1.0]), torch.tensor([2.0, 0.25])]
        grads = []
        for device in ("cpu", DEVICE):
            x, y = (value.to(device).requires_grad_() for value in values)
            z = op(x, y * 2) if device == DEVICE else torch.tanh(x * (y * 2))
            grads.append([part.cpu().detach() for part in (z, *torch.autograd.grad((z * z).sum(), (x, y)))])
        for wanted, found in zip(*grads):
            torch.testing.assert_close(found, wanted)
        self.assertEqual(torch.fuseline.fallbacks().get("fuseline::custom_call", 0), 0)

    def test_what_jax_exports(self):
        op = torch.fuseline.custom_op("test.exported", Exported())
        x = torch.arange(6.0).view(2, 3)
        more, total = op(x.to(DEVICE).t().contiguous().t())
        torch.testing.assert_close(more.cpu(), x + 1)
        self.assertEqual(total.item(), 15.0)
        fake = op._forward([torch.empty(2, 3, device="meta")])
        self.assertEqual([tuple(one.shape) for one in fake], [(2, 3), ()])

    def test_what_does_not_fit_is_told(self):
        op = torch.fuseline.custom_op("test.plain", GATE.encode())
        x = torch.ones(2, device=DEVICE, requires_grad=True)
        with self.assertRaisesRegex(RuntimeError, "no gradient; pass a module"):
            op(x, x).sum().backward()
        for operands, why in (((x,), "takes 2 tensors, not 1"), ((x, x.double()), r"operand 1 .* is Float\[2\], not Double"),
                              ((x, torch.ones(3, device=DEVICE)), r"not Float\[3\]"), ((x, x.cpu()), "not on cpu")):
            with self.assertRaisesRegex(RuntimeError, why):
                op(*operands)
        with self.assertRaisesRegex(RuntimeError, "another function"):
            torch.fuseline.custom_op("test.plain", GATE.replace("tanh", "negate"))
        with self.assertRaisesRegex(RuntimeError, "test.wrong: .*%nowhere"):
            torch.fuseline.custom_op("test.wrong", GATE.replace("%x, %y :", "%x, %nowhere :"))
        with self.assertRaisesRegex(ValueError, "backward of test.half"):
            torch.fuseline.custom_op("test.half", GATE, GATE)
        with self.assertRaisesRegex(ValueError, "bytecode"):
            torch.fuseline.custom_op("test.bytes", b"ML\xefR\x0dStableHLO_v1.0.0")
        with self.assertRaises(TypeError):
            torch.fuseline.custom_op("test.number", 3)


class Caches(unittest.TestCase):
    def test_a_manifest_warms_a_cache(self):
        with tempfile.TemporaryDirectory() as folder:
            manifest = pathlib.Path(folder) / "regions"
            source = """
            import sys, torch
            torch.fuseline.configure(interpret_cold=False, shape_classes='off', size_buckets=16, {options})
            if {warms}:
                print(torch.fuseline.warm_cache({manifest!r}))
            x = torch.ones(7, device="fuseline")
            print((torch.tanh(x) * x).sum().item())
            stats = torch.fuseline.cache_stats()
            print(stats["compiles"], stats["loads"], stats["disk"])
            """
            first = source.format(options=f"cache='off', manifest={str(manifest)!r}", warms=False, manifest="")
            one = program(first).splitlines()
            second = source.format(options=f"cache={folder + '/cache'!r}", warms=True, manifest=str(manifest))
            two = program(second, FUSELINE_CACHE="").splitlines()
        self.assertEqual(two[1], one[0])
        compiles = int(one[1].split()[0])
        self.assertGreater(compiles, 0)
        self.assertEqual(two[0], str({"compiled": compiles, "present": 0, "failed": []}))
        self.assertEqual(two[2], f"0 {compiles} None", "each was compiled ahead, and then loaded")

    def test_options_are_checked(self):
        for options, why in (({"shape_classes": "some"}, "off, unmasked or masked"), ({"size_buckets": "thirds"}, "halves, powers or a number")):
            with self.assertRaisesRegex(RuntimeError, why):
                torch.fuseline.configure(**options)


if __name__ == "__main__":
    unittest.main()
