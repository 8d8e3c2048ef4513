"""What PyTorch's Python and other packages expect of a device: module attributes, generators,
memory, device counts, pickling, DLPack, the end of a program."""

import copy
import io
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest
import warnings

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from test_module import DEVICE, program

TORCH = pathlib.Path(torch.__file__).parent
#: Attributes that PyTorch's Python reads from the module of a device, and where. Those with "if"
#: are read only if they exist.
EXPECTED = {
    "Event": "distributed/fsdp/_fully_shard/_fsdp_param_group.py",
    "Stream": "distributed/fsdp/_fully_shard/_fsdp_param_group.py",
    "_get_generator": "_functorch/_aot_autograd/utils.py",
    "_initialized": "utils/checkpoint.py",
    "_is_in_bad_fork": "random.py",
    "_lazy_call": "accelerator/_utils.py",
    "current_device": "distributed/fsdp/_init_utils.py",
    "current_stream": "distributed/fsdp/_runtime_utils.py",
    "default_generators": "_prims/rng_prims.py",
    "device": "utils/checkpoint.py",
    "device_count": "random.py",
    "empty_cache": "distributed/_tools/memory_tracker.py",
    "get_amp_supported_dtype": "amp/autocast_mode.py",
    "get_device_properties": "numa/binding.py",
    "get_rng_state": "utils/checkpoint.py",
    "is_available": "serialization.py",
    "is_initialized": "distributed/device_mesh.py",
    "manual_seed_all": "random.py",
    "memory_allocated": "distributed/_tools/memory_tracker.py",
    "memory_reserved": "distributed/_tools/memory_tracker.py",
    "memory_stats": "distributed/_tools/memory_tracker.py",
    "memory_summary": "distributed/fsdp/_optim_utils.py",
    "set_device": "distributed/device_mesh.py",
    "set_rng_state": "utils/checkpoint.py",
    "stream": "distributed/fsdp/_fully_shard/_fsdp_collectives.py",
    "synchronize": "autograd/profiler.py",
}
#: Attributes that are read from other devices only, with the reason.
NOT_HERE = {
    "MemPool": "pools of memory between devices of one kind",
    "use_mem_pool": "as MemPool",
    "set_rng_ctx": "asked of hpu",
    "unset_rng_ctx": "asked of hpu",
    "sparse": "storages of sparse tensors, asked for where they are",
    "_sleep": "tests of PyTorch's, which look for it first",
    "_utils": "looked for first; torch.device does the same",
    "is_triton_capable": "asked of inductor's interfaces, which this device has none of",
    "raise_if_triton_unavailable": "as is_triton_capable",
    "type": "a torch.device in a variable of the same name",
    "index": "as type",
}
#: Members that programs use of the modules of other devices.
USUAL = (
    "_exchange_device _lazy_init _maybe_exchange_device can_device_access_peer default_stream device_of exchange_device get_device_capability"
    " get_device_name get_rng_state_all init initial_seed is_bf16_supported manual_seed max_memory_allocated max_memory_reserved mem_get_info"
    " reset_accumulated_memory_stats reset_peak_memory_stats seed seed_all set_rng_state_all set_stream"
).split()
ASKED = re.compile(
    r"(?:\b(?:device_mod|device_module|custom_device_mod|_?device_handle)|get_device_module\([^()]*(?:\([^()]*\))?\))\.(\w+)"
    r"|(?:getattr|hasattr)\((?:self\.)?_?(?:device_mod|device_module|custom_device_mod|device_handle),\s*\"(\w+)\""
)


class Attributes(unittest.TestCase):
    def test_the_module_has_what_is_expected(self):
        for name, where in EXPECTED.items():
            with self.subTest(name):
                self.assertTrue(hasattr(torch.fuseline, name), f"{where} asks for it")
                self.assertIn(name, (TORCH / where).read_text(), "the table says where it is asked for")
        for name in USUAL:
            with self.subTest(name):
                self.assertTrue(hasattr(torch.fuseline, name))

    def test_nothing_else_is_asked_for(self):
        found = {}
        for path in TORCH.rglob("*.py"):
            where = path.relative_to(TORCH)
            if where.parts[0] in ("_inductor", "_dynamo", "_vendor", "cuda", "xpu", "mtia"):
                continue
            for match in ASKED.finditer(path.read_text(errors="replace")):
                found.setdefault(match[1] or match[2], str(where))
        self.assertGreater(len(found), 20, "places are found")
        missing = {name: where for name, where in found.items() if not hasattr(torch.fuseline, name) and name not in NOT_HERE}
        self.assertEqual(missing, {})

    def test_one_device(self):
        module = torch.fuseline
        self.assertEqual((module.device_count(), module.current_device(), module._exchange_device(0), module._maybe_exchange_device(-1)), (1, 0, 0, 0))
        self.assertTrue(module._initialized and module.is_initialized() and module.is_bf16_supported())
        self.assertIn(torch.float32, module.get_device_capability()["supported_dtypes"])
        self.assertNotIn(torch.qint8, torch.accelerator.get_device_capability()["supported_dtypes"])
        self.assertGreater(module.get_device_properties(0).total_memory, 0)
        self.assertIn("Fuseline", module.get_device_name("fuseline:0"))
        with module.device(0), module.device(-1), module.device(None), module.device_of(torch.ones(1)), torch.accelerator.device_index(0):
            torch.accelerator.synchronize()

    def test_a_device_that_does_not_exist(self):
        x, other = torch.ones(2, device=DEVICE), "fuseline:1"
        generator = torch.Generator(device=DEVICE)
        saved = io.BytesIO()
        torch.save(x, saved)

        def load():
            saved.seek(0)
            return torch.load(saved, map_location=other)

        class Inside:
            def __init__(self, context):
                self.context = context

            def __call__(self):
                with self.context():
                    torch.ones(1)

        calls = {
            "ones": lambda: torch.ones(1, device=other),
            "empty": lambda: torch.empty(1, device=other),
            "empty_strided": lambda: torch.empty_strided((1,), (1,), device=other),
            "tensor": lambda: torch.tensor([1.0], device=other),
            "rand": lambda: torch.rand(1, device=other),
            "rand with a generator": lambda: torch.rand(1, device=other, generator=generator),
            "arange": lambda: torch.arange(3, device=other),
            "full": lambda: torch.full((1,), 2, device=other),
            "zeros_like": lambda: torch.zeros_like(x, device=other),
            "new_empty": lambda: x.new_empty(1, device=other),
            "to": lambda: x.to(other),
            "to from the CPU": lambda: torch.ones(1).to(other),
            "to by number": lambda: torch.ones(1).fuseline(1),
            "module": lambda: nn.Linear(1, 1).to(other),
            "module made there": lambda: nn.Linear(1, 1, device=other),
            "storage": lambda: torch.UntypedStorage(4, device=other),
            "context": Inside(lambda: torch.device(other)),
            "module's context": Inside(lambda: torch.fuseline.device(1)),
            "accelerator's context": Inside(lambda: torch.accelerator.device_index(1)),
            "set_device": lambda: torch.fuseline.set_device(1),
            "accelerator.set_device_index": lambda: torch.accelerator.set_device_index(1),
            "exchange_device": lambda: torch.fuseline._exchange_device(1),
            "synchronize": lambda: torch.fuseline.synchronize(other),
            "accelerator.synchronize": lambda: torch.accelerator.synchronize(1),
            "generator": lambda: torch.Generator(device=other),
            "get_rng_state": lambda: torch.fuseline.get_rng_state(1),
            "set_rng_state": lambda: torch.fuseline.set_rng_state(torch.fuseline.get_rng_state(), other),
            "load": load,
            "stream": lambda: torch.Stream(device=other),
            "module's stream": lambda: torch.fuseline.Stream(other),
            "current_stream": lambda: torch.fuseline.current_stream(1),
            "accelerator.current_stream": lambda: torch.accelerator.current_stream(1),
            "event": lambda: torch.fuseline.Event(other),
            "memory": lambda: torch.fuseline.memory_allocated(1),
            "accelerator's memory": lambda: torch.accelerator.memory_allocated(1),
            "name": lambda: torch.fuseline.get_device_name(1),
        }
        for name, call in calls.items():
            with self.subTest(name), self.assertRaises(RuntimeError):
                call()
        self.assertEqual(torch.ones(1, device="fuseline:0").device, x.device)


class Memory(unittest.TestCase):
    def test_storages_are_counted(self):
        torch.fuseline.reset_peak_memory_stats()
        before = torch.accelerator.memory_allocated()
        x = torch.ones(1000, device=DEVICE)
        y = x[10:]
        self.assertEqual(torch.fuseline.memory_allocated(), before + 4000)
        del x
        self.assertEqual(torch.accelerator.memory_allocated(), before + 4000, "a view holds its storage")
        y.resize_(0)
        y.untyped_storage().resize_(400)
        self.assertEqual(torch.accelerator.memory_allocated(), before + 400)
        del y
        self.assertEqual(torch.accelerator.memory_allocated(), before)
        self.assertGreaterEqual(torch.accelerator.max_memory_allocated(), before + 4000)
        torch.accelerator.reset_peak_memory_stats()
        self.assertEqual(torch.fuseline.max_memory_reserved(), before)
        stats = torch.fuseline.memory_stats()
        self.assertEqual(stats["allocated_bytes.all.allocated"] - stats["allocated_bytes.all.freed"], stats["active_bytes.all.current"])
        self.assertIn("live_bytes", stats)
        free, total = torch.accelerator.get_memory_info()
        self.assertTrue(0 < free <= total == torch.fuseline.mem_get_info()[1])
        torch.accelerator.empty_cache()
        torch.accelerator.empty_host_cache()
        self.assertIn("allocated_bytes.all.peak", torch.fuseline.memory_summary())


class Generators(unittest.TestCase):
    def draw(self, device=DEVICE):
        return torch.cat([torch.rand(3, device=device), torch.randn(3, device=device), torch.nn.functional.dropout(torch.ones(9, device=device))]).cpu()

    def test_a_state_goes_round(self):
        torch.manual_seed(3)
        self.draw()
        state, states = torch.fuseline.get_rng_state(), torch.fuseline.get_rng_state_all()
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "state"
            torch.save({"fuseline": state}, path)
            first = self.draw()
            self.assertFalse(torch.equal(first, self.draw()))
            for again in (state, torch.load(path)["fuseline"], state.to(DEVICE), states[0], torch.stack([state, state], 1)[:, 0]):
                torch.fuseline.set_rng_state(again, torch.device(DEVICE, 0))
                self.assertTrue(torch.equal(first, self.draw()))
        torch.fuseline.set_rng_state_all(states)
        self.assertTrue(torch.equal(first, self.draw()))
        with self.assertRaises(RuntimeError):
            torch.fuseline.set_rng_state(torch.zeros(24, dtype=torch.uint8))

    def test_seeds(self):
        torch.manual_seed(-5)
        cpu = torch.initial_seed()
        self.assertEqual(torch.fuseline.initial_seed(), cpu)
        first = self.draw()
        torch.fuseline.manual_seed(cpu)
        self.assertTrue(torch.equal(first, self.draw()))
        torch.fuseline.default_generators[0].manual_seed(cpu)
        self.assertTrue(torch.equal(first, self.draw()))
        torch.fuseline.seed_all()
        self.assertNotEqual(torch.fuseline.initial_seed(), cpu)
        self.assertEqual(torch.fuseline.initial_seed(), torch.fuseline._get_generator().initial_seed())
        self.assertNotEqual(torch.seed(), cpu)

    def test_a_fork_of_the_generator_leaves_it(self):
        for options in ({}, {"device_type": DEVICE}, {"devices": [torch.device(DEVICE, 0)], "device_type": DEVICE}):
            torch.manual_seed(1)
            first = self.draw()
            torch.manual_seed(1)
            with torch.random.fork_rng(**options):
                torch.manual_seed(2)
                other = self.draw()
            self.assertFalse(torch.equal(first, other))
            self.assertTrue(torch.equal(first, self.draw()))


class Block(nn.Module):
    """Attention and layers, both with dropout; ``nested`` adds an inner checkpoint."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.reentrant = reentrant
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh())

    def attend(self, x):
        return x + nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.4)

    def forward(self, x):
        x = self.attend(x) if self.reentrant is None else checkpoint(self.attend, x, use_reentrant=self.reentrant)
        return self.layers(x) * torch.rand_like(x)


class Checkpoints(unittest.TestCase):
    def gradients(self, run, block):
        block.zero_grad()
        x = torch.linspace(-1, 1, 2 * 4 * 8).view(2, 1, 4, 8).to(DEVICE).requires_grad_()
        torch.manual_seed(7)
        y = run(block, x)
        y.square().sum().backward()
        after = torch.rand(2, device=DEVICE)
        return [value.detach().cpu() for value in (y, x.grad, after, *(parameter.grad for parameter in block.parameters()))]

    def compare(self, runs, plain=lambda block, x: block(x), nested=(None,)):
        for inner in nested:
            torch.manual_seed(0)
            block = Block().to(DEVICE)
            wanted = self.gradients(plain, block)
            self.assertTrue(wanted[1].abs().sum() > 0)
            block.reentrant = inner
            for name, run in runs.items():
                with self.subTest(run=name, inner=inner):
                    for a, b in zip(wanted, self.gradients(run, block), strict=True):
                        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)

    def test_gradients_are_those_without(self):
        runs = {reentrant: lambda block, x, reentrant=reentrant: checkpoint(block, x, use_reentrant=reentrant) for reentrant in (True, False)}
        self.compare(runs, nested=(None, True, False))

    def test_two_in_a_row_and_in_parts(self):
        def one(reentrant):
            return lambda block, x: checkpoint(block, checkpoint(block, x, use_reentrant=reentrant), use_reentrant=reentrant)

        runs = {reentrant: one(reentrant) for reentrant in (True, False)}
        runs["parts"] = lambda block, x: checkpoint_sequential([block, block], 2, x, use_reentrant=False)
        self.compare(runs, plain=lambda block, x: block(block(x)))

    def test_without_the_state_the_mask_is_another(self):
        """The comparison can fail."""
        torch.manual_seed(0)
        block = Block().to(DEVICE)
        wanted, found = (
            self.gradients(lambda block, x, keeps=keeps: checkpoint(block, x, use_reentrant=False, preserve_rng_state=keeps), block)
            for keeps in (True, False)
        )
        self.assertTrue(torch.equal(found[0], wanted[0]))
        self.assertFalse(torch.allclose(found[1], wanted[1]))

    def test_with_autocast(self):
        def run(block, x):
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                return checkpoint(block, x, use_reentrant=False)

        def plain(block, x):
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                return block(x)

        self.compare({"autocast": run}, plain=plain)

    def test_in_compiled_graphs(self):
        """A compiled forward draws in its own order, so each mask is compared with its own
        gradient."""
        drop = nn.Dropout(0.5)

        def step(x):
            return checkpoint(lambda x: drop(x.sin()).cos(), x, use_reentrant=False)

        x = torch.ones(256, device=DEVICE, requires_grad=True)
        for _ in range(3):
            y = torch.compile(step, fullgraph=True)(x)
            (grad,) = torch.autograd.grad(y.sum(), x)
            is_dropped = torch.isclose(y.detach().cpu(), torch.ones(256))
            self.assertTrue(64 < is_dropped.sum() < 192)
            self.assertTrue(torch.equal(is_dropped, grad.cpu() == 0))

    def test_in_fsdp2(self):
        told = program(
            """
            import torch, torch.distributed as dist
            from torch import nn
            from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
            from torch.distributed.fsdp import fully_shard
            dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
            losses = []
            for is_checkpointed in (False, True):
                torch.manual_seed(0)
                layers = [nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.ReLU()) for _ in range(2)]
                model = nn.Sequential(*(checkpoint_wrapper(layer) if is_checkpointed else layer for layer in layers)).to("fuseline")
                for layer in model:
                    fully_shard(layer)
                fully_shard(model)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                torch.manual_seed(1)
                for _ in range(3):
                    loss = model(torch.ones(4, 8, device="fuseline")).square().sum()
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    losses.append(loss.item())
            print(losses[:3], losses[3:], sep="\\n")
            dist.destroy_process_group()
            """
        ).splitlines()
        first, second = ([float(number) for number in line.strip("[]").split(",")] for line in told[-2:])
        for a, b in zip(first, second, strict=True):
            self.assertAlmostEqual(a, b, delta=1e-5 * max(1.0, abs(a)))


def tensors():
    """Tensors of many types, among them one with a NaN, views and an empty one."""
    base = torch.arange(12.0, device=DEVICE).view(3, 4)
    values = [torch.tensor([1.5, float("nan"), -0.0, 1e-42]), torch.arange(5), torch.tensor([True, False]), torch.tensor([1 + 2j, 3j])]
    values += [torch.tensor([1.5, -2], dtype=dtype) for dtype in (torch.bfloat16, torch.float16, torch.float64)]
    return [value.to(DEVICE) for value in values] + [base[1:], base.t(), base[0, 1:3], torch.empty(0, 3, device=DEVICE), torch.tensor(2.5, device=DEVICE)]


def legacy(value):
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=False)
    file.seek(0)
    return torch.load(file)


def zipped(value, **options):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


class Exchange(unittest.TestCase):
    def same(self, found, wanted, device=DEVICE):
        self.assertEqual((found.dtype, found.shape, found.device.type), (wanted.dtype, wanted.shape, device))
        found, wanted = found.detach().cpu().contiguous(), wanted.detach().cpu().contiguous()
        self.assertTrue(torch.equal(found.view(-1).view(torch.uint8), wanted.view(-1).view(torch.uint8)))
        if device == DEVICE:
            self.assertEqual((found.sum() + found.sum()).shape, ())

    def test_pickles(self):
        ways = {"pickle": lambda value: pickle.loads(pickle.dumps(value)), "deepcopy": copy.deepcopy, "legacy": legacy, "zip": zipped}
        ways["zip, to the device"] = lambda value: zipped(value.cpu(), map_location=DEVICE)
        for name, way in ways.items():
            for value in tensors():
                with self.subTest(name, value=value):
                    self.same(way(value), value)
        for value in tensors():
            self.same(zipped(value, map_location="cpu"), value, "cpu")
        weight = nn.Parameter(torch.ones(2, device=DEVICE))
        weight.grad = torch.full((2,), 3.0, device=DEVICE)
        for way in (ways["pickle"], ways["legacy"], copy.deepcopy):
            again = way(weight)
            self.assertTrue(isinstance(again, nn.Parameter) and again.requires_grad)
            self.same(again, weight)

    def test_copies_have_storages_of_their_own_and_views_share_them(self):
        base = torch.zeros(4, device=DEVICE)
        for way in (legacy, zipped, copy.deepcopy):
            again, view = way((base, base[1:3]))
            view.add_(1)
            again[0] = 5
            self.assertEqual((again.tolist(), base.tolist()), ([5, 1, 1, 0], [0] * 4))

    def test_what_is_loaded_is_computed_with(self):
        model = nn.Linear(3, 2)
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        loaded = torch.load(file, map_location=DEVICE)
        x = torch.ones(1, 3)
        y = x.to(DEVICE) @ loaded["weight"].t() + loaded["bias"]
        torch.testing.assert_close(y.cpu(), model(x).detach())

    def test_dlpack(self):
        import numpy

        x = torch.arange(6.0, device=DEVICE)
        for shared in (torch.from_dlpack(x), torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)), torch.from_dlpack(x, device=DEVICE)):
            shared.add_(1)
            self.assertEqual(shared.device, x.device)
            self.assertEqual(shared.tolist(), x.tolist())
        self.assertEqual(x.tolist(), [3.0, 4, 5, 6, 7, 8])
        copied = torch.from_dlpack(x, copy=True)
        copied.zero_()
        self.same(torch.from_dlpack(x, device="cpu"), x, "cpu")
        self.same(torch.utils.dlpack.from_dlpack(x[2:4].__dlpack__()), x[2:4], "cpu")
        self.same(torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x[2:4])), x[2:4])
        part = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x[:2]))
        part.mul_(2)
        self.assertEqual(x.tolist(), [6.0, 8, 5, 6, 7, 8], "a part is written and the rest stays")
        for value in tensors():
            if value.dtype != torch.bfloat16:
                array = numpy.from_dlpack(value)
                self.same(torch.from_numpy(numpy.array(array)), value, "cpu")
                self.same(torch.from_dlpack(array.copy(), device=DEVICE), value)
        self.assertEqual(tuple(x.__dlpack_device__()), (torch.utils.dlpack.DLDeviceType.kDLCPU, 0))
        with self.assertRaises(BufferError):
            x.__dlpack__(copy=False)
        with self.assertRaises(BufferError):
            torch.from_dlpack(x.clone().requires_grad_())
        with self.assertRaises(ValueError):
            torch.from_dlpack(x, device="cpu", copy=False)
        cpu = torch.ones(2)
        torch.from_dlpack(cpu).add_(1)
        self.assertEqual(cpu.tolist(), [2, 2])

    def test_other_processes(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "parent.py"
            path.write_text(
                textwrap.dedent(
                    """
                    import torch
                    import torch.multiprocessing as mp

                    def child(there, back, given, layer):
                        assert given[0].tolist() == [1.0, 2.0, 3.0] and given[1].tolist() == [2.0, 3.0], given
                        assert given[0].device.type == layer.weight.device.type == "fuseline" and not given[2].numel()
                        tensors = there.get()
                        base, view = tensors
                        view.add_(1)
                        back.put([base, view * 2, torch.nn.Parameter(base.clone())])
                        there.get()

                    if __name__ == "__main__":
                        spawn = mp.get_context("spawn")
                        there, back = spawn.Queue(), spawn.Queue()
                        ours = torch.arange(1.0, 4.0, device="fuseline")
                        given = [ours, ours[1:], torch.ones(0, device="fuseline")]
                        layer = torch.nn.Linear(300, 300, device="fuseline")
                        process = spawn.Process(target=child, args=(there, back, given, layer))
                        process.start()
                        x = torch.arange(4.0, device="fuseline")
                        there.put([x, x[1:3]])
                        told = [(value.device.type, type(value).__name__, value.tolist()) for value in back.get()]
                        there.put(None)
                        process.join()
                        print(told, x.tolist(), process.exitcode)
                    """
                )
            )
            done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=300)
        found = [("fuseline", "Tensor", [0.0, 2.0, 3.0, 3.0]), ("fuseline", "Tensor", [4.0, 6.0]), ("fuseline", "Parameter", [0.0, 2.0, 3.0, 3.0])]
        self.assertEqual(done.stdout.strip(), f"{found} [0.0, 1.0, 2.0, 3.0] 0", done.stderr)

    def test_safetensors(self):
        """Uses a package of the same names, because the real one may not be installed."""
        source = """
        import torch as pytorch
        class safe_open:
            def __init__(self, filename, framework, device="cpu"):
                assert device == "cpu", f"device {device} is invalid"
            def __enter__(self): return self
            def __exit__(self, *error): pass
            def keys(self): return ["a"]
            def get_tensor(self, name): return pytorch.arange(3)
            def get_slice(self, name): return pytorch.arange(3)
        """
        with tempfile.TemporaryDirectory() as folder:
            package = pathlib.Path(folder) / "safetensors"
            package.mkdir()
            (package / "__init__.py").write_text(textwrap.dedent(source))
            (package / "torch.py").write_text("from safetensors import safe_open\n")
            told = program(
                f"""
                import sys
                sys.path.insert(0, {folder!r})
                import torch, safetensors.torch
                for device in ("fuseline", torch.device("fuseline"), "cpu"):
                    with safetensors.torch.safe_open("file", framework="pt", device=device) as file:
                        print(file.keys(), file.get_tensor("a").device, file.get_slice("a")[1:].device)
                try:
                    safetensors.safe_open("file", framework="pt", device="fuseline:1")
                except RuntimeError as error:
                    print("no", "fuseline:1" in str(error))
                """
            ).splitlines()
        there = "['a'] fuseline:0 fuseline:0"
        self.assertEqual(told, [there, there, "['a'] cpu cpu", "no True"])


class TurnedOff(unittest.TestCase):
    def test_a_refused_disk_cache_is_a_warning(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = pathlib.Path(folder) / "keys"
            keys.mkdir()
            keys.chmod(0o777)
            told = program(
                """
                import warnings, torch
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    for _ in range(3):
                        (torch.ones(3, device="fuseline") + 1).cpu()
                        disk = torch.fuseline.cache_stats()["disk"]
                caught = [str(one.message) for one in caught if "fuseline" in str(one.message)]
                print(len(caught), "the disk cache is off" in caught[0], "777" in caught[0], "777" in disk)
                """,
                FUSELINE_CACHE="on",
                FUSELINE_CACHE_DIR=f"{folder}/entries",
                FUSELINE_CACHE_KEY_FILE=str(keys / "cache.key"),
            )
        self.assertEqual(told, "1 True True True")

    def test_nothing_is_warned_of_otherwise(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            (torch.ones(3, device=DEVICE) + 1).cpu()
            torch.fuseline.counters()


#: Ends after a backward pass, while background compiles run.
ENDS = """
import atexit, os, signal, sys, time, torch
how, device = sys.argv[1:]
# A shell starts background jobs with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(lambda: print("handler"))
w = torch.ones(16, 16, device=device, requires_grad=True)
for _ in range(3):
    x = w
    for _ in range(12):
        x = torch.tanh(x @ w).softmax(-1) + x.sin()
    x.sum().backward()
    w.grad.sum().item()
w.sin().sum().backward()
sys.stdout.write("last words")
if how == "status":
    sys.exit(3)
if how == "exception":
    raise ValueError("an end")
if how == "interrupt":
    os.kill(os.getpid(), signal.SIGINT)
    while True:  # Any thread may get the signal; this one looks for it between two sleeps.
        time.sleep(0.01)
"""
UNUSED = "import torch; x = torch.ones(2, requires_grad=True); x.sin().sum().backward()"


IMPORTS = """
import sys
import torch
from torch import nn
from torch.nn import functional as F

device = sys.argv[1]
before = set(sys.modules)
image = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
).to(device)
labels = torch.randint(0, 10, (4,), device=device)
F.cross_entropy(image(torch.randn(4, 3, 16, 16, device=device)), labels).backward()
words = nn.Sequential(
    nn.Embedding(50, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 50)
).to(device)
x = torch.randint(0, 50, (2, 8), device=device)
F.cross_entropy(words(x).view(-1, 50), x.view(-1)).backward()
query = torch.randn(2, 4, 8, 16, device=device, requires_grad=True)
attended = F.scaled_dot_product_attention(query, query, query, is_causal=True)
F.mse_loss(attended, torch.zeros_like(query)).backward()
with torch.no_grad():
    for parameter in [*image.parameters(), *words.parameters()]:
        parameter -= 0.1 * parameter.grad / parameter.grad.abs().max().clamp(min=1.0)
torch.where(query > 0, query, query.std()).masked_fill(query < 0, 0.0).sum().item()
packages = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(packages), "torch._dynamo" in sys.modules)
"""


class Imports(unittest.TestCase):
    def test_training_imports_no_compiler(self):
        """PyTorch's meta functions in Python import sympy and torch._dynamo
        (``csrc/structured.cpp``)."""
        done = subprocess.run([sys.executable, "-c", IMPORTS, DEVICE], capture_output=True, text=True, timeout=300, check=True)
        self.assertEqual(done.stdout, "['torch'] False\n")


class Ends(unittest.TestCase):
    """Status and output are those on the CPU. ``tests/ends.py`` does this a thousand times and
    measures how long it takes."""

    def end(self, source, *arguments, **environment):
        done = subprocess.run(
            [sys.executable, "-c", source, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
        )
        return done.returncode, done.stdout, done.stderr.strip().splitlines()[-1:]

    def test_behind_a_backward_pass(self):
        for how in ("status", "exception", "interrupt", "end"):
            wanted = self.end(ENDS, how, "cpu")
            self.assertEqual(wanted[1], "last wordshandler\n")
            for _ in range(3):
                with self.subTest(how):
                    self.assertEqual(self.end(ENDS, how, DEVICE), wanted)

    def test_unused(self):
        """The thread of the backward pass is counted out. Otherwise PyTorch waits for it at the
        end, longer than the limit of this test."""
        for _ in range(3):
            self.assertEqual(self.end(UNUSED, TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT="1000"), (0, "", []))

    def test_a_child_of_a_fork_ends(self):
        told = program(
            """
            import os, sys, torch
            w = torch.ones(2, device="fuseline", requires_grad=True)
            w.sum().backward()
            child = os.fork()
            if child == 0:
                sys.exit(5)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            """
        )
        self.assertEqual(told, "5")


if __name__ == "__main__":
    unittest.main()
