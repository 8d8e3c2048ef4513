"""``torch.compile`` on the device returns what eager code on the CPU returns, and its graphs are
one op each."""

import copy
import json
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import torch
from torch import nn

DEVICE = "fuseline"
HIT = """
import json, time, torch
torch.manual_seed(0)
model = torch.compile(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)).to("fuseline"))
model(torch.randn(5, 8).to("fuseline")).sum().backward()
torch.fuseline.synchronize()
# An executable is stored after it has been handed out.
while torch.fuseline.counters()["stores"] < torch.fuseline.counters()["compiles"]:
    time.sleep(0.01)
print(json.dumps({name: torch.fuseline.counters()[name] for name in ("compiles", "loads")}))
"""

VARY = """
import json, torch
from torch._dynamo.testing import CompileCounterWithBackend
counted = CompileCounterWithBackend("fuseline")
weights = torch.randn(8, 4)
function = torch.compile(lambda x, weights: (x @ weights).tanh().softmax(-1), backend=counted, dynamic=True)
for size in (*range(2, 25), 7):
    x = torch.randn(size, 8)
    made = function(x.to("fuseline"), weights.to("fuseline"))
    torch.testing.assert_close(made.cpu(), (x @ weights).tanh().softmax(-1), rtol=1e-5, atol=1e-5)
told = {name: torch.fuseline.counters()[name] for name in ("compiles", "padded")}
print(json.dumps({**told, "graphs": counted.frame_count, "fallbacks": torch.fuseline.fallbacks(), "not_recorded": torch.fuseline.not_recorded()}))
"""


def losses(model, device, steps=4, is_compiled=False, seed=0):
    torch.manual_seed(seed)
    model = copy.deepcopy(model).to(device)
    run = torch.compile(model) if is_compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    told = []
    for step in range(steps):
        x = torch.linspace(-1, 1, 5 * 8).reshape(5, 8).add(step).to(device)
        loss = run(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told.append(loss.item())
    return told, model


class _Interrupted:
    """A function with a graph break after its first op."""

    def __init__(self, module):
        self.graph = module.graph

    def __call__(self, x, *_):
        x + 1
        raise KeyboardInterrupt


class Compiled(unittest.TestCase):
    def setUp(self):
        torch._dynamo.reset()
        self.before = torch.fuseline.fallbacks(), torch.fuseline.not_recorded()

    def tearDown(self):
        torch.fuseline.mode("fused")

    def nothing_fell_back(self):
        self.assertEqual((torch.fuseline.fallbacks(), torch.fuseline.not_recorded()), self.before)

    def same(self, function, *inputs, **options):
        """Runs a function on CPU tensors, and compiled on the device, three times. Compares the
        inputs too, because it may write to them."""
        for device_inputs in ([value.to(DEVICE) if isinstance(value, torch.Tensor) else value for value in inputs],):
            compiled = torch.compile(function, **options)
            for _ in range(3):
                wanted = function(*inputs)
                made = compiled(*device_inputs)
                wanted, made = ([value] if isinstance(value, torch.Tensor) else list(value) for value in (wanted, made))
                for one, other in zip([*made, *device_inputs], [*wanted, *inputs]):
                    if isinstance(other, torch.Tensor):
                        torch.testing.assert_close(one.cpu(), other, rtol=1e-5, atol=1e-5)
                    else:
                        self.assertEqual(one, other)

    def test_training_is_that_of_the_cpu_in_every_mode(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
        wanted, trained = losses(model, "cpu")
        for mode in ("fused", "strict", "debug"):
            torch._dynamo.reset()
            with torch.fuseline.mode(mode):
                made, other = losses(model, DEVICE, is_compiled=True)
            torch.testing.assert_close(made, wanted, rtol=5e-4, atol=5e-5)
            for name, value in trained.state_dict().items():
                torch.testing.assert_close(other.state_dict()[name].cpu(), value, rtol=1e-3, atol=5e-5)
        self.nothing_fell_back()

    def test_a_call_is_one_op_and_nothing_is_compiled_twice(self):
        model = torch.compile(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(DEVICE))
        x = torch.randn(5, 8, device=DEVICE)
        with torch.no_grad():
            model(x), torch.fuseline.synchronize()
            before = torch.fuseline.counters()
            for _ in range(3):
                model(x)
            torch.fuseline.synchronize()
        after = torch.fuseline.counters()
        self.assertEqual([after[name] - before[name] for name in ("ops", "regions", "misses")], [3, 3, 0])
        self.nothing_fell_back()

    def test_random_numbers_are_drawn_by_each_call(self):
        function = torch.compile(lambda x: (torch.nn.functional.dropout(x, 0.5), torch.rand(3, device=x.device)))
        x = torch.ones(1000, device=DEVICE)
        torch.manual_seed(3)
        first, second = [[value.cpu() for value in function(x)] for _ in range(2)]
        torch.manual_seed(3)
        again = [value.cpu() for value in function(x)]
        for one, other, repeated in zip(first, second, again):
            self.assertFalse(torch.equal(one, other))
            self.assertTrue(torch.equal(one, repeated))
        self.assertAlmostEqual(first[0].mean().item(), 1.0, delta=0.15)
        self.nothing_fell_back()

    def test_what_is_written_and_shared_is_as_in_eager_code(self):
        def writes(x, y):
            x.mul_(2).add_(y)
            y[1:3] = 0
            return x.sum()

        self.same(writes, torch.randn(4, 3), torch.randn(4, 3))
        self.same(writes, torch.randn(4, 3).t().contiguous().t(), torch.randn(8, 3)[::2])
        self.same(lambda x: (x.t(), x[1:], x.view(-1), x), torch.randn(4, 3))
        x = torch.randn(4, 3, device=DEVICE)
        part = torch.compile(lambda x: x[1:])(x)
        part.zero_()
        self.assertEqual(x[1:].abs().sum().item(), 0.0)
        self.nothing_fell_back()

    def test_inputs_of_every_kind(self):
        self.same(lambda x, y: x @ y, torch.randn(4, 3).t(), torch.randn(4, 5))
        self.same(lambda x: x.sum(0), torch.randn(3, 1).expand(3, 4))
        self.same(lambda x: (x * 2).relu(), torch.randn(5, 6)[1:4, 2:])
        self.same(lambda x, number: x * number, torch.randn(3), 2.5)
        self.same(lambda x: (x.float().mean(), x.shape[0]), torch.arange(6))
        table = torch.arange(12.0).reshape(4, 3)
        self.same(lambda index: torch.nn.functional.embedding(index, table.to(index.device)), torch.tensor([2, 0, 3]))
        self.nothing_fell_back()

    def test_graphs_without_inputs_and_without_results(self):
        made = torch.compile(lambda: torch.arange(4, device=DEVICE) * 2)()
        self.assertEqual(made.tolist(), [0, 2, 4, 6])
        x = torch.ones(3, device=DEVICE)
        torch.compile(lambda: x.add_(1))()
        torch.compile(lambda y: y.mul_(3) and None)(torch.ones(1, device=DEVICE))
        self.assertEqual(x.tolist(), [2.0, 2.0, 2.0])

    def test_an_interruption_ends_the_recording(self):
        from torch_fuseline import _compile

        function = torch.compile(lambda x: x * 2)
        with unittest.mock.patch.object(_compile, "_fit", lambda module: _Interrupted(module)), self.assertRaises(KeyboardInterrupt):
            function(torch.ones(3, device=DEVICE))
        self.assertEqual((torch.ones(3, device=DEVICE) + 1).tolist(), [2.0, 2.0, 2.0])

    def test_sizes_that_vary_are_one_graph(self):
        # A process whose engine compiles every new region.
        environment = {**os.environ, "FUSELINE_TORCH_INTERPRET_COLD": "0"}
        run = subprocess.run([sys.executable, "-c", VARY], env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
        told = json.loads(run.stdout.splitlines()[-1])
        self.assertEqual((told["graphs"], told["fallbacks"], told["not_recorded"]), (1, {}, {}))
        # 23 sizes: the first two have their own executables, the rest share those of their buckets.
        self.assertLess(told["compiles"], 12)
        self.assertGreater(told["padded"], 10)

    def test_a_dimension_that_is_marked_is_a_symbol_at_once(self):
        from torch._dynamo.testing import CompileCounterWithBackend

        for is_marked, graphs in ((False, 2), (True, 1)):
            torch._dynamo.reset()
            counted = CompileCounterWithBackend("fuseline")
            function = torch.compile(lambda x: x.tanh().sum(1), backend=counted)
            for size in (3, 5, 9):
                x = torch.randn(size, 4)
                given = x.to(DEVICE)
                if is_marked:
                    torch.fuseline.mark_dynamic(given, 0)
                torch.testing.assert_close(function(given).cpu(), x.tanh().sum(1), rtol=1e-5, atol=1e-5)
            self.assertEqual(counted.frame_count, graphs)
        self.nothing_fell_back()

    def test_what_needs_data_runs_op_by_op(self):
        def function(x):
            return x[x > 0].sum()

        torch._dynamo.config.capture_dynamic_output_shape_ops = True
        try:
            self.same(function, torch.randn(10))
        finally:
            torch._dynamo.config.capture_dynamic_output_shape_ops = False
        self.same(lambda x: x * 2 if x.sum() > 0 else x - 1, torch.ones(3))

    def test_errors_leave_the_device_usable(self):
        function = torch.compile(lambda x, y: x @ y)
        with self.assertRaises(Exception):
            function(torch.ones(2, 3, device=DEVICE), torch.ones(2, 3, device=DEVICE))
        self.same(lambda x: x + 1, torch.ones(2))

    def test_graphs_of_other_devices_are_left_to_others(self):
        with unittest.mock.patch("torch._inductor.compile_fx.compile_fx", side_effect=lambda module, *_, **__: module) as compile_fx:
            self.assertEqual(torch.compile(lambda x: x + 1)(torch.ones(2)).tolist(), [2.0, 2.0])
        compile_fx.assert_called_once()

    def test_another_process_finds_the_executables(self):
        with tempfile.TemporaryDirectory() as folder:
            where = {"FUSELINE_CACHE": "on", "FUSELINE_CACHE_DIR": f"{folder}/entries", "FUSELINE_CACHE_KEY_FILE": f"{folder}/key"}
            environment = {**os.environ, **where, "FUSELINE_TORCH_INTERPRET_COLD": "0"}
            told = []
            for _ in range(2):
                run = subprocess.run([sys.executable, "-c", HIT], env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
                told.append(json.loads(run.stdout.splitlines()[-1]))
        self.assertGreater(told[0]["compiles"], 1)
        self.assertEqual((told[1]["compiles"], told[1]["loads"]), (0, told[0]["compiles"]))


if __name__ == "__main__":
    unittest.main()
