"""The device under a vendor's name: the example package `examples/vendor`, with the plugin that it
depends on if that is installed, otherwise with the default plugin."""

import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import tomllib
import unittest

EXAMPLE = pathlib.Path(__file__).resolve().parent.parent / "examples" / "vendor"
#: The package with the plugin of the example.
PLUGIN = "xla_plugins.xla_cpu_pjrt"
#: The variables that a test sets itself.
OWN = ("FUSELINE_TORCH_VENDOR", "PYTHONPATH", "TORCH_DEVICE_BACKEND_AUTOLOAD")


def is_installed(package):
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # The folder that it is in is missing.
        return False


def default_plugin():
    """Returns variables that select the default plugin, or raises ``SkipTest``."""
    if os.environ.get("FUSELINE_PJRT_PLUGIN"):
        return {}
    folder = pathlib.Path(os.environ.get("FUSELINE_SETUP_DIR", "/nowhere"), "plugins")
    for path in sorted(folder.glob("xla_cpu/*.so")):
        return {"FUSELINE_PJRT_PLUGIN": str(path)}
    raise unittest.SkipTest("no plugin: neither the example's nor the default one")


def install(folder, name, version, points):
    """Writes the metadata of a package with entry points, as pip does."""
    folder = pathlib.Path(folder) / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"[{group}]\n" + "".join(f"{point} = {value}\n" for point, value in entries.items()) for group, entries in points.items()]
    (folder / "entry_points.txt").write_text("\n".join(lines))


def run(text, *path, **variables):
    """Runs a program with these folders on its path, and returns how it ended."""
    environment = {name: value for name, value in os.environ.items() if name not in OWN}
    given = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([*map(str, path), *([given] if given else [])])
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        env={**environment, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        is_there = is_installed(PLUGIN)
        cls.plugin = {} if is_there else default_plugin()
        if not getattr(Case, "told", False):
            print(f"test_vendor: the plugin is that of {PLUGIN if is_there else 'the other tests'}", flush=True)
            Case.told = True
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
        install(cls.folder, project["name"], project["version"], project["entry-points"])
        # The module without what an installation from source leaves next to it.
        cls.source = cls.folder / "source"
        shutil.copytree(EXAMPLE / "torch_acme", cls.source / "torch_acme")

    def program(self, text, *path, **variables):
        """Returns the output of a program in which the example is installed."""
        done = run(text, *path, self.source, self.folder, **{**self.plugin, **variables})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def refused(self, text, *path, **variables):
        """Returns the error of a program that fails."""
        done = run(text, *path, **{**self.plugin, **variables})
        self.assertNotEqual(done.returncode, 0, done.stdout)
        return done.stderr


class Device(Case):
    def test_import_torch_is_enough_for_everything_under_the_name(self):
        self.program("""
            import sys, torch
            x = torch.ones(3, device="acme")
            assert str(x.device) == "acme:0" and x.is_acme and x.device == torch.device("acme:0")
            assert "device='acme:0'" in repr(x) and (x * 2).sum().item() == 6.0
            assert torch.zeros(2).acme().is_acme and torch.nn.Linear(2, 2).acme().weight.is_acme
            assert torch.zeros(2).untyped_storage().acme().device.type == "acme" and x.to("cpu").device.type == "cpu"
            assert torch.acme is sys.modules["torch.acme"] is torch.get_device_module("acme") and not hasattr(torch, "fuseline")
            assert torch.accelerator.current_accelerator().type == "acme" and torch.utils.backend_registration._privateuse1_backend_name == "acme"
            assert torch.acme.get_device_name() == torch.acme.get_device_properties().name == "Acme One"
            assert torch.acme.is_available() and torch.acme.device_count() == 1 and torch.acme.get_mode() == "fused"
            with torch.device("acme"):
                assert torch.empty(1).is_acme

            generator = torch.Generator(device="acme").manual_seed(3)
            one = torch.rand(4, device="acme", generator=generator)
            assert generator.device.type == "acme" and torch.equal(one, torch.rand(4, device="acme", generator=generator.manual_seed(3)))
            torch.manual_seed(5)
            state = torch.acme.get_rng_state()
            one = torch.rand(4, device="acme")
            torch.acme.set_rng_state(state)
            assert torch.equal(one, torch.rand(4, device="acme"))
            with torch.random.fork_rng(device_type="acme"):
                torch.rand(1, device="acme")

            with torch.autocast("acme", dtype=torch.bfloat16):
                assert (torch.ones(2, 2, device="acme") @ torch.ones(2, 2, device="acme")).dtype == torch.bfloat16
            torch.amp.GradScaler("acme")
            assert torch.acme.current_stream().device.type == torch.Stream("acme").device.type == "acme"
            event = torch.Event("acme")
            event.record(); event.synchronize(); torch.acme.synchronize()

            data = torch.utils.data.TensorDataset(torch.arange(4.0))
            for batch, in torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True):
                assert batch.is_pinned() and batch.to("acme", non_blocking=True).is_acme
            import numpy
            assert numpy.from_dlpack(x).tolist() == [1.0] * 3 and torch.from_dlpack(x).is_acme

            index = torch.acme.replica_index()
            assert index.is_acme and torch.acme.unshard(torch.acme.shard(torch.ones(2))).is_acme
            for name in ("fuseline", "privateuseone:0"):
                try:
                    assert torch.ones(1, device=name).device.type == "acme", name
                except RuntimeError as error:
                    assert name == "fuseline" and "fuseline" in str(error), error
        """)

    def test_training_eager_and_compiled_is_that_of_the_cpu(self):
        told = self.program("""
            import copy, torch
            first = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
            x = torch.randn(32, 8)

            def train(device, compiling=None):
                model = copy.deepcopy(first).to(device)
                step = torch.compile(model, **compiling) if compiling is not None else model
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
                inputs = x.to(device)
                for _ in range(5):
                    loss = (step(inputs) - inputs.sum(1, keepdim=True)).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                return loss.item()

            wanted = train("cpu")
            for compiling in (None, {}, {"backend": "acme"}, {"backend": "fuseline"}):
                found = train("acme", compiling)
                assert abs(found - wanted) < 1e-4 * abs(wanted), (compiling, found, wanted)
                torch._dynamo.reset()
            assert "acme" in torch._dynamo.list_backends() and not torch.acme.not_recorded()
            print(torch.acme.counters()["fallbacks"])
        """)
        self.assertEqual(told, "0")

    def test_distributed_of_one_process(self):
        self.program("""
            import torch, torch.distributed as dist
            from torch.nn.parallel import DistributedDataParallel
            for backend in (None, "acme", "cpu:gloo,acme:acme"):
                dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
                if backend == "acme":
                    assert dist.get_backend() == "acme"
                x = torch.arange(3.0, device="acme")
                dist.all_reduce(x)
                assert x.tolist() == [0.0, 1.0, 2.0] and x.is_acme
                model = DistributedDataParallel(torch.nn.Linear(3, 1).to("acme"))
                model(x).sum().backward()
                assert model.module.weight.grad.tolist() == [[0.0, 1.0, 2.0]]
                mesh = dist.init_device_mesh("acme", (1,))
                assert dist.tensor.distribute_tensor(x, mesh).full_tensor().sum().item() == 3.0
                try:
                    dist.distributed_c10d._get_default_group()._get_backend(torch.device("acme")).allreduce([torch.ones(2)])
                except RuntimeError as error:
                    assert "acme" in str(error) and "fuseline" not in str(error), error
                else:
                    raise AssertionError("a CPU tensor was reduced")
                dist.destroy_process_group()
            group = torch.acme.replica_group()
            assert dist.get_backend(group) == "acme"
        """)

    def test_errors_and_warnings_have_the_name(self):
        told = self.program("""
            import torch
            x = torch.ones(4, device="acme")
            def far():
                x.expand(1 << 46, 4).contiguous().sum().item()
            def fall_back():
                torch.acme.set_fallback(False)
                try:
                    torch.linalg.eig(torch.eye(2, device="acme"))
                finally:
                    torch.acme.set_fallback(True)
            for wrong in (
                lambda: torch.ones(2, device="acme:1"),
                lambda: torch.acme.set_device(1),
                lambda: torch.Event("acme:1"),
                lambda: torch.acme.synchronize("cpu"),
                lambda: x + torch.ones(4),
                lambda: torch.rand(2, device="acme", generator=torch.Generator()),
                lambda: torch.acme.configure(no_such_option=1),
                lambda: torch.acme.shard(torch.tensor(1.0)),
                lambda: torch.acme.custom_op("bad", 3),
                far,
                fall_back,
            ):
                try:
                    wrong()
                except (RuntimeError, ValueError, TypeError) as error:
                    print(str(error).splitlines()[0])
                else:
                    raise AssertionError("no error")
        """)
        lines = told.splitlines()
        self.assertEqual(len(lines), 11, told)
        for line in lines:
            with self.subTest(line=line):
                self.assertIn("acme", line)
                self.assertNotIn("fuseline", line)

    def test_saved_tensors(self):
        there = str(self.folder / "saved.pt")
        self.program("""
            import sys, torch, pickle
            layer = torch.nn.Linear(2, 2).to("acme")
            torch.save({"x": torch.arange(3.0, device="acme"), "layer": layer.state_dict()}, THERE)
            x = torch.load(THERE)
            assert x["x"].is_acme and x["layer"]["weight"].is_acme and x["x"].tolist() == [0.0, 1.0, 2.0]
            assert torch.load(THERE, map_location="cpu")["x"].device.type == "cpu"
            assert pickle.loads(pickle.dumps(x["x"])).is_acme
        """.replace("THERE", repr(there)))
        # Without the vendor, the location is unknown, and `map_location` says where to.
        told = self.program("""
            import torch
            for where in ("fuseline", "cpu", {"acme:0": "fuseline:0"}):
                assert torch.load(THERE, map_location=where)["x"].tolist() == [0.0, 1.0, 2.0], where
            try:
                torch.load(THERE)
            except RuntimeError as error:
                print(error)
        """.replace("THERE", repr(there)), FUSELINE_TORCH_VENDOR="fuseline")
        self.assertIn("acme:0", told)

    def test_safetensors_and_other_processes(self):
        self.program("""
            import torch, torch.multiprocessing
            if __name__ == "__main__":
                try:
                    from safetensors.torch import load_file, save_file
                except ImportError:
                    pass
                else:
                    save_file({"x": torch.arange(3.0)}, THERE)
                    assert load_file(THERE, device="acme")["x"].is_acme
                queue = torch.multiprocessing.SimpleQueue()
                queue.put(torch.arange(3.0, device="acme"))
                assert queue.get().is_acme
        """.replace("THERE", repr(str(self.folder / "x.safetensors"))))

    def test_it_costs_nothing_that_imports_do_not(self):
        told = self.program("""
            import sys, torch
            print(*(name for name in ("sympy", "torch._dynamo", "xla_plugins") if name in sys.modules))
        """)
        self.assertEqual(told, "")


USE = "import torch; print(torch.ones(2, device=torch._C._get_privateuse1_backend_name()).device)"


class Names(Case):
    """Which name the device gets."""

    def other(self, name, value="torch_acme.device:DEVICE", **points):
        """Returns a folder in which another vendor is installed."""
        folder = self.folder / f"other-{len(list(self.folder.iterdir()))}"
        install(folder, f"torch-{name}", "2.0", {"torch_fuseline.vendors": {name: value}, **points})
        return folder

    def test_without_a_vendor_it_is_fuseline(self):
        for line in (USE, "import torch_fuseline; " + USE):
            done = run(line, **self.plugin)
            self.assertEqual((done.stdout.strip(), done.returncode), ("fuseline:0", 0), done.stderr)

    def test_the_first_import_and_the_order_of_packages_do_not_matter(self):
        for line in ("", "import torch_fuseline; ", "import torch_acme; ", "import torch_acme.device; "):
            self.assertEqual(self.program(line + USE), "acme:0")
        self.assertEqual(self.program("import torch_fuseline; " + USE, TORCH_DEVICE_BACKEND_AUTOLOAD="0"), "acme:0")
        # A vendor may have an entry point for PyTorch too, before or after that of torch-fuseline.
        for name in ("aaa", "zzz"):
            folder = self.other(name, **{"torch.backends": {name: "torch_fuseline:_autoload_entry"}})
            done = run(USE, folder, self.source, **self.plugin)
            self.assertEqual((done.stdout.strip(), done.returncode), (f"{name}:0", 0), done.stderr)

    def test_of_two_vendors_the_user_chooses(self):
        beta = self.other("beta")
        for path in ((beta, self.folder), (self.folder, beta)):
            why = self.refused(USE, *path, self.source)
            for part in ("acme of torch-acme", "beta of torch-beta", "FUSELINE_TORCH_VENDOR", "only one name"):
                self.assertIn(part, why)
        for choice, name in (("acme", "acme"), ("beta", "beta"), ("fuseline", "fuseline"),
                             ("gamma=torch_acme.device:DEVICE", "gamma")):
            self.assertEqual(self.program(USE, beta, FUSELINE_TORCH_VENDOR=choice), f"{name}:0")
        why = self.refused(USE, self.source, self.folder, FUSELINE_TORCH_VENDOR="delta")
        self.assertIn("FUSELINE_TORCH_VENDOR is delta, but there is no such vendor; installed: acme", why)

    def test_what_a_vendor_says_wrong_is_an_error(self):
        modules = self.folder / "modules"
        modules.mkdir()
        (modules / "early.py").write_text("import torch\nDEVICE = {'plugin': '/nowhere.so'}\n")
        (modules / "wrong.py").write_text(
            "NO_PLUGIN = {'client_options': {}}\nOTHER_KEY = {'plugin': 'x', 'colour': 1}\n"
            "def OPTION(): return {'plugin': __file__, 'options': {'colour': 1}}\n"
            "NO_PACKAGE = {'plugin': 'no_such_package/x.so'}\nNO_FILE = {'plugin': 'xml/x.so'}\n"
            "PATH = {'plugin': lambda: '/nowhere/x.so'}\n"
        )
        for name, value, wanted in (
            ("beta", "wrong:NO_PLUGIN", "expected a dict with the key plugin"),
            ("beta", "wrong:OTHER_KEY", "colour"),
            ("beta", "wrong:OPTION", "there is no option colour"),
            ("beta", "wrong:NOT_THERE", "NOT_THERE"),
            ("beta", "no_such_module:X", "no_such_module"),
            ("relu", "wrong:PATH", "the device cannot be named 'relu': torch.relu exists"),
            ("cuda", "wrong:PATH", "the device cannot be named 'cuda': torch.cuda exists"),
            ("add_", "wrong:PATH", "the device cannot be named 'add_': torch.Tensor.add_ exists"),
            ("xla", "wrong:PATH", "the device cannot be named 'xla': PyTorch has such a device"),
            ("Beta", "wrong:PATH", "lower-case letters"),
            ("beta", "wrong:NO_PACKAGE",
             "beta: the package no_such_package with the plugin no_such_package/x.so is not installed"),
            ("beta", "wrong:NO_FILE", "beta: there is no plugin"),
            ("beta", "wrong:PATH", "beta: there is no plugin /nowhere/x.so"),
        ):
            variables = {"FUSELINE_PJRT_PLUGIN": ""} if "there is no plugin" in wanted or "is not installed" in wanted else {}
            with self.subTest(value=value, name=name):
                self.assertIn(wanted, self.refused(USE, modules, self.other(name, value), **variables))
        why = self.refused("import early", modules, self.other("beta", "early:DEVICE"))
        self.assertIn("move the object to a module", why)

    def test_options_are_defaults_and_reach_the_client(self):
        modules = self.folder / "options"
        modules.mkdir()
        (modules / "two.py").write_text(
            "TWO = {'plugin': 'x', 'options': {'replicas': 2}, 'client_options': {'cpu_device_count': 3}}\n"
            "ONE = {'plugin': 'x', 'options': {'replicas': 2}, 'client_options': {'cpu_device_count': 1}}\n"
        )
        use = "import torch; print(torch.ones(2, device='beta').sum().item(), torch.beta.replica_count())"
        two = self.other("beta", "two:TWO")
        environment = {**default_plugin(), **self.plugin}
        done = run(use, modules, two, **environment)
        self.assertEqual(done.stdout.strip(), "2.0 2", done.stderr)
        done = run(use, modules, two, **environment, FUSELINE_TORCH_REPLICAS="1")
        self.assertEqual(done.stdout.strip(), "2.0 1", done.stderr)
        # The client has too few devices.
        done = run(use, modules, self.other("beta", "two:ONE"), **environment)
        self.assertIn("beta: ", done.stderr)


class Tool(Case):
    """The command-line tool, which is in the package."""

    def test_the_command_is_installed_with_the_package(self):
        use = "import sys, _fuseline_command; sys.argv[1:] = ['ops', 'atan2']; _fuseline_command.main()"
        self.assertIn("atan2", self.program(use))
        # PyTorch is not imported for it.
        self.program("""
            import sys, _fuseline_command
            assert _fuseline_command.tool_path() and "torch" not in sys.modules
        """)

    def test_a_plugin_without_a_certificate_is_qualified_in_the_background(self):
        plugin = {**os.environ, **default_plugin()}.get("FUSELINE_PJRT_PLUGIN")
        # The loader ignores the additional byte, and no certificate has the digest of this file.
        other = self.folder / "other.so"
        other.write_bytes(pathlib.Path(plugin).read_bytes() + b"0")
        program = """
            import time, torch
            assert torch.ones(3, device="fuseline").sum().item() == 3.0
            end = time.monotonic() + 60
            while "qualification" not in (told := torch.fuseline.explain()) and time.monotonic() < end:
                time.sleep(0.05)
            print(told)
        """
        variables = {
            "FUSELINE_PJRT_PLUGIN": str(other),
            "FUSELINE_TORCH_VENDOR": "fuseline",
            "FUSELINE_CACHE": "on",
            "FUSELINE_CACHE_DIR": str(self.folder / "cache"),
            "FUSELINE_CACHE_KEY_FILE": str(self.folder / "state" / "key"),
        }
        child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], env={**os.environ, **variables},
                                 stdout=subprocess.PIPE, text=True, start_new_session=True)
        try:
            told = child.stdout.read()
        finally:
            # The qualification would go on for a minute.
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        self.assertIn("a quick qualification has started in the background", told)


if __name__ == "__main__":
    unittest.main()
