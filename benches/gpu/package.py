"""Builds the package for a machine without Rust and without a package index.

Output: a folder, `gpu-package/` by default, with

- `bin/`: the stripped tools `fuseline`, `harness`, `micro` and the example `digits`,
- `cases/`: some of the conformance cases, of every class,
- the wheel of `torch/` for CPython 3.12 and PyTorch 2.11,
- `manifest.json`: commit, date, size and SHA-256 of each file, and what is missing, with the
  reason.

No file may need a glibc newer than 2.35, and all together may have 45 MiB.
"""

import argparse
import contextlib
import datetime
import glob
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "benches" / "gpu"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))

# What cargo builds, and the files. Separate builds, because features of one would get into another.
TOOLS = [
    (["--package", "fuseline-cli", "--package", "fuseline-harness"], ["fuseline", "harness"]),
    (["--package", "fuseline", "--example", "digits"], ["examples/digits"]),
    (["--package", "fuseline-micro", "--bin", "micro"], ["micro"]),
]
GLIBC = (2, 35)
LARGEST = 45 << 20
# The PyTorch and Python of the machine that the package goes to.
PYTHON, TORCH = "3.12", "2.11"


def parse(arguments):
    parser = argparse.ArgumentParser(prog="benches/gpu/package", description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "gpu-package",
                        help="folder of the package [default: gpu-package]")
    parser.add_argument("--cases", type=pathlib.Path, default=ROOT.parent / "shared/conformance/cases",
                        help="folder of the conformance cases [default: ../shared/conformance/cases]")
    parser.add_argument("--every", type=int, default=6, help="take one in so many cases of each class [default: 6]")
    parser.add_argument("--torch-python", type=pathlib.Path, help=f"a Python {PYTHON} with PyTorch {TORCH} [default: an environment that is made under target/]")
    parser.add_argument("--no-torch", action="store_true", help="leave out the wheel")
    parser.add_argument("--jobs", type=int, default=0, help="parallel jobs of cargo")
    return parser.parse_args(arguments)


def run(*command, **kwargs):
    """Runs a command; its failure is an error with the end of its output."""
    line = [str(word) for word in command]
    print("+", " ".join(line), flush=True)
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, **kwargs)
    if done.returncode != 0:
        last = "\n".join(done.stdout.splitlines()[-20:])
        raise RuntimeError(f"{' '.join(line[:4])} failed ({done.returncode}):\n{last}")
    return done.stdout


def versions(text):
    """The newest version of each set of symbols that a library needs, from `readelf -V`."""
    newest = {}
    needs = text.partition("Version needs section")[2]
    for name, version in re.findall(r"Name: ([A-Z]+)_([\d.]+)", needs):
        newest[name] = max(newest.get(name, ()), tuple(map(int, version.split("."))))
    return newest


def check_glibc(path):
    """The newest glibc that a file needs, as text; an error if it is too new."""
    needed = versions(run("readelf", "-W", "-V", path)).get("GLIBC", ())
    if needed > GLIBC:
        raise RuntimeError(f"{path.name} needs glibc {needed}, which is newer than {GLIBC}")
    return ".".join(map(str, needed))


def sample(classes, every):
    """Names of one in `every` cases of each class, and at least one of each. `classes` maps the
    name of a case to its class."""
    of = {}
    for name in sorted(classes):
        of.setdefault(classes[name], []).append(name)
    return sorted(name for names in of.values() for name in names[:: max(every, 1)])


def add_cases(options, folder):
    """Copies some of the conformance cases."""
    paths = {path.name: path for path in options.cases.glob("*.json")}
    if not paths:
        raise RuntimeError(f"there are no conformance cases in {options.cases.name}")
    chosen = sample({name: json.loads(path.read_text())["class"] for name, path in paths.items()}, options.every)
    (folder / "cases").mkdir()
    for name in chosen:
        shutil.copyfile(paths[name], folder / "cases" / name)
    print(f"package: {len(chosen)} of {len(paths)} conformance cases", flush=True)


def add_tools(options, folder):
    """Builds and strips the tools."""
    (folder / "bin").mkdir()
    jobs = ["--jobs", str(options.jobs)] if options.jobs else []
    for arguments, files in TOOLS:
        run("cargo", "build", "--release", "--locked", *jobs, *arguments)
        for file in files:
            tool = folder / "bin" / pathlib.Path(file).name
            run("strip", "--strip-all", "-o", tool, TARGET / "release" / file)


def torch_python(options):
    """A Python with the right PyTorch: the given one, or that of an environment under target/."""
    if options.torch_python:
        return options.torch_python.absolute()
    environment = TARGET / "gpu-torch"
    python = environment / "bin" / "python"
    wanted = (HERE / "requirements-torch.txt").read_text()
    # Written last, so that its presence means a complete environment.
    ready = environment / "ready"
    if ready.is_file() and ready.read_text() == wanted:
        return python
    shutil.rmtree(environment, ignore_errors=True)
    run(base_python(), "-m", "venv", environment)
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r",
        HERE / "requirements-torch.txt")
    run(python, ROOT / "torch/tests/cuda_stubs.py")
    ready.write_text(wanted)
    return python


def base_python():
    """A CPython of the right version: in the PATH, or one of pyenv's."""
    found = shutil.which(f"python{PYTHON}")
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    candidates = [found] if found else []
    candidates += sorted(glob.glob(str(pyenv / "versions" / f"{PYTHON}.*" / "bin" / "python3")))
    for python in candidates:
        # A shim of pyenv is there even if the version is not selected.
        with contextlib.suppress(RuntimeError):
            run(python, "-c", f"import sys; sys.exit('{PYTHON}' != '%d.%d' % sys.version_info[:2])")
            return python
    raise RuntimeError(f"there is no Python {PYTHON}")


def add_wheel(options, folder):
    """Builds the wheel of torch/ and strips its libraries. The command-line tool is left out,
    because the package has it beside the wheel."""
    python = torch_python(options)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        # What an earlier build for another PyTorch has left.
        shutil.rmtree(ROOT / "torch" / "build", ignore_errors=True)
        run(python, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--wheel-dir", scratch,
            ROOT / "torch")
        shutil.rmtree(ROOT / "torch" / "build", ignore_errors=True)
        run(python, "-m", "wheel", "unpack", "--dest", scratch / "open", *scratch.glob("*.whl"))
        for tool in (scratch / "open").glob("*/torch_fuseline/bin"):
            shutil.rmtree(tool)
        for library in (scratch / "open").rglob("*.so"):
            run("strip", "--strip-unneeded", library)
            check_glibc(library)
        run(python, "-m", "wheel", "pack", "--dest-dir", folder, *(scratch / "open").iterdir())


def manifest(folder, missing):
    """Describes the package."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            files[str(path.relative_to(folder))] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    changed = run("git", "status", "--porcelain", "--untracked-files=no").strip()
    return {
        "commit": run("git", "rev-parse", "--short=12", "HEAD").strip() + ("+" if changed else ""),
        "built": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M UTC}",
        "bytes": sum(file["bytes"] for file in files.values()),
        "glibc": {path.name: check_glibc(path) for path in sorted((folder / "bin").iterdir())},
        "missing": missing,
        "files": files,
    }


def main(arguments=None):
    options = parse(arguments)
    folder = options.output.absolute()
    if folder.exists() and not (folder / "manifest.json").is_file() and any(folder.iterdir()):
        sys.exit(f"package: {folder} is there and is no package")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # An interrupted build leaves an empty manifest, which allows the next one to replace it.
    (folder / "manifest.json").write_text("{}")
    missing = []
    add_tools(options, folder)
    parts = [("conformance cases", add_cases)] + ([] if options.no_torch else [("wheel of torch-fuseline", add_wheel)])
    for name, add in parts:
        try:
            add(options, folder)
        except (RuntimeError, OSError) as error:
            missing.append(f"{name}: {error}")
            print(f"package: WARNING: WITHOUT THE {name.upper()}: {error}", file=sys.stderr, flush=True)
    if options.no_torch:
        missing.append("wheel of torch-fuseline: --no-torch")
    (folder / "manifest.json").unlink()
    described = manifest(folder, missing)
    (folder / "manifest.json").write_text(json.dumps(described, indent=1) + "\n")
    for path in sorted([*folder.glob("bin/*"), *folder.glob("*.whl")]):
        print(f"package: {path.stat().st_size / (1 << 20):6.1f} MiB  {path.name}")
    newest = max(described["glibc"].values(), key=lambda version: tuple(map(int, version.split("."))))
    print(f"package: {described['bytes'] / (1 << 20):6.1f} MiB in all, for glibc {newest} or newer, in {folder}")
    if described["bytes"] > LARGEST:
        sys.exit(f"package: it may have {LARGEST >> 20} MiB at most")


if __name__ == "__main__":
    main()
