"""Runs every step of a trial on a device, each within a budget of time.

Input: the package that `benches/gpu/package` has built, a PJRT plugin, and a Python with JAX and
PyTorch. Output, in one folder: `gpu.json` with the outcome of each step, its time, its figures and
the end of its output; `bench.json`, `certificate.json`, and `log.txt` with all output.

A step that fails or runs out of time is recorded, and the next one goes on. `gpu.json` is written
after each step, and after each program of a long one, so that a run that is cut off keeps what it
has found. The package index and Rust are not needed. README.md describes the steps.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time

import steps
from processes import run_command

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Seconds for everything. What is left after the other steps belongs to the last one.
TOTAL = 470


def parse(arguments):
    parser = argparse.ArgumentParser(prog="benches/gpu/run", description=__doc__.split("\n")[0])
    parser.add_argument("--plugin", type=pathlib.Path, help="PJRT plugin [default: JAX's CUDA plugin]")
    parser.add_argument("--dry-run", action="store_true", help="try all steps on a CPU plugin")
    parser.add_argument("--only", action="append", choices=list(steps.ALL), metavar="STEP",
                        help=f"only this step; may be repeated: {', '.join(steps.ALL)}")
    parser.add_argument("--python", type=pathlib.Path, default=pathlib.Path(sys.executable),
                        help="a Python with JAX and PyTorch [default: this one]")
    parser.add_argument("--package", type=pathlib.Path, default=ROOT / "gpu-package", help="folder of the package")
    parser.add_argument("--output", type=pathlib.Path,
                        help="folder of the results [default: $OUT, else benches/results/DATE-cuda]")
    parser.add_argument("--seconds", type=float, help=f"time for everything [default: {TOTAL}]")
    parser.add_argument("--slower", type=float, default=1.0, metavar="FACTOR",
                        help="multiply every budget, on a machine that is slow or busy")
    options = parser.parse_args(arguments)
    if options.seconds is None:
        options.seconds = TOTAL * options.slower
    return options


def default_output(dry_run):
    """The folder for results: $OUT if it is set, else one with the date."""
    if os.environ.get("OUT"):
        return pathlib.Path(os.environ["OUT"])
    if dry_run:
        return ROOT / "bench-report-cuda" / "dry-run"
    return ROOT / "benches" / "results" / f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}-cuda"


def output_of(*command):
    """The output of a command, or None if it does not exist, fails, or takes longer than 30 s."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.strip()
    return None


def find_plugin(options):
    """The plugin's path, or an exit with the reason why there is none."""
    if options.plugin:
        found, hint = options.plugin.absolute(), "--plugin names no file"
    elif options.dry_run:
        found = ROOT / ".setup/plugins/xla_cpu/xla_cpu.so"
        hint = "there is no CPU plugin; run `cargo xtask setup`, or name one by --plugin"
    else:
        ask = "import jax_plugins.xla_cuda13 as plugin; print(plugin.__path__[0])"
        folder = output_of(options.python, "-c", ask)
        found = pathlib.Path(folder or "/nonexistent") / "xla_cuda_plugin.so"
        hint = f"{options.python} has no package jax_plugins.xla_cuda13; name a plugin by --plugin"
    if not found.is_file():
        sys.exit(f"gpu: {hint}")
    return found


def machine():
    """Processor, memory and device, as far as the system tells."""
    described = {"system": f"{platform.system()} {platform.release()} {platform.machine()}"}
    described["cores"] = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, StopIteration):
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        described["cpu"] = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    described["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    described["load"] = os.getloadavg()[0]
    described["device"] = output_of("nvidia-smi", "--query-gpu=name,driver_version,memory.total",
                                    "--format=csv,noheader")
    return described


def packaged(folder):
    """The manifest of the package, which is built if there is Rust and no package."""
    manifest = folder / "manifest.json"
    if not manifest.is_file() and shutil.which("cargo"):
        print("gpu: building the package", flush=True)
        subprocess.run([sys.executable, ROOT / "benches/gpu/package", "--output", folder], check=True)
    if not manifest.is_file():
        sys.exit(f"gpu: {folder} has no manifest.json; build it with benches/gpu/package where Rust is, and copy it")
    return json.loads(manifest.read_text())


class Trial:
    """A run: its options, the folders, and what was found so far."""

    def __init__(self, options, scratch):
        self.options = options
        self.scratch = scratch
        self.package = options.package.absolute()
        self.manifest = packaged(self.package)
        self.plugin = find_plugin(options)
        self.output = (options.output or default_output(options.dry_run)).absolute()
        self.output.mkdir(parents=True, exist_ok=True)
        self.start = time.monotonic()
        self.log = self.output / "log.txt"
        self.log.write_text("")
        self.result = {
            "format": 1,
            "started": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M UTC}",
            "commit": self.manifest["commit"],
            "dry_run": options.dry_run,
            "plugin": self.plugin.name,
            "machine": machine(),
            "steps": {},
        }

    def left(self):
        """Seconds until everything has to be done."""
        return self.options.seconds - (time.monotonic() - self.start)

    def client_options(self, *more):
        """Options of the plugin's client: on CUDA, not to take all memory at the start."""
        names = [] if self.options.dry_run else ["preallocate=false", *more]
        return [word for name in names for word in ("--client-option", name)]

    def tool(self, name):
        return self.package / "bin" / name

    def environment(self, **more):
        """Variables of each step. Nothing is left in the home folder, and every compile happens."""
        home = self.scratch / "home"
        home.mkdir(exist_ok=True)
        variables = {
            "FUSELINE_PJRT_PLUGIN": str(self.plugin),
            "FUSELINE_CACHE": "off",
            "TF_CPP_MIN_LOG_LEVEL": "1",
            "HOME": str(home),
            "TMPDIR": str(self.scratch),
            "PYTHONUNBUFFERED": "1",
        }
        return {**os.environ, **variables, **more}

    def run(self, command, budget, **kwargs):
        """Runs a command of a step in the root of the checkout, and keeps its output in the log."""
        environment = self.environment(**kwargs.pop("variables", {}))
        done = run_command(list(map(str, command)), budget, env=environment, cwd=ROOT, folder=self.scratch, **kwargs)
        with self.log.open("a") as log:
            words = self.clean(" ".join(map(str, command)))
            log.write(f"$ {words}\n{self.clean(done.stdout)[-100_000:]}\n{self.clean(done.stderr)[-100_000:]}\n")
            log.write(f"[{done.words()} after {done.took:.1f} s]\n\n")
        return done

    def clean(self, text):
        """Text without the paths of this machine."""
        python = self.options.python.absolute().parent.parent
        for path, name in ((self.package, "PACKAGE"), (self.scratch, "SCRATCH"), (self.output, "OUTPUT"), (ROOT, "."),
                           (self.plugin.parent, "PLUGIN"), (python, "PYTHON"), (pathlib.Path.home(), "~")):
            if len(str(path)) > 1:
                text = text.replace(str(path), name)
        return text

    def save(self):
        """Writes gpu.json, whole or not at all."""
        self.result["took_s"] = round(time.monotonic() - self.start, 1)
        new = self.output / "gpu.json.new"
        new.write_text(self.clean(json.dumps(self.result, indent=1)) + "\n")
        new.replace(self.output / "gpu.json")

    def step(self, name):
        """Runs one step and records it."""
        run, budget = steps.ALL[name]
        budget = self.left() if budget is None else min(budget * self.options.slower, self.left())
        began = time.monotonic()
        # What a step finds is in the file as soon as it calls `save`.
        outcome = self.result["steps"][name] = {"outcome": "cut off", "budget_s": round(budget, 1)}
        self.save()
        if budget < 3:
            outcome |= {"outcome": "left out", "why": "no time was left"}
        else:
            try:
                outcome |= run(self, budget, outcome)
            except Exception as error:  # A step that this script cannot read must not end the run.
                outcome |= {"outcome": "failed", "why": f"{type(error).__name__}: {error}"}
        outcome["took_s"] = round(time.monotonic() - began, 1)
        self.save()
        why = outcome.get("why")
        print(f"gpu: {name:12} {outcome['outcome']:9} {outcome['took_s']:6.1f} s{'  ' + self.clean(why) if why else ''}", flush=True)


def main(arguments=None):
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="fuseline-gpu-", ignore_cleanup_errors=True) as scratch:
        trial = Trial(options, pathlib.Path(scratch))
        print(f"gpu: commit {trial.result['commit']}, plugin {trial.plugin.name}, device {trial.result['machine']['device']}", flush=True)
        trial.result["package"] = steps.check_package(trial.package, trial.manifest)
        for name in options.only or steps.ALL:
            trial.step(name)
        took = trial.result["took_s"]
        print(f"gpu: {took:.0f} s in all; results in {trial.output}", flush=True)
        return 0 if all(step["outcome"] in ("ok", "skipped") for step in trial.result["steps"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
