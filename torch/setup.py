"""Builds the wheel of torch-fuseline for the installed PyTorch: the engine and the command-line
tool with cargo, the shim with the C++ compiler.

PyTorch is not a build requirement, because pip would fetch another one (3 GB) for the build. The
build uses the PyTorch of the environment that the package goes into, which an isolated build finds
through the interpreter's prefix. `TORCH_DIR` names the folder of another one.
"""

import concurrent.futures
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.dist import Distribution

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
FLAGS = ["-O2", "-std=c++20", "-fPIC", "-fvisibility=hidden", "-Wall"]


def fail(message):
    sys.exit(f"torch-fuseline: {message}")


def torch_folder():
    given = os.environ.get("TORCH_DIR")
    folders = [pathlib.Path(given)] if given else []
    folders += [pathlib.Path(sysconfig.get_path(name)) / "torch" for name in ("platlib", "purelib")]
    for folder in folders:
        if (folder / "include" / "ATen").is_dir() and (folder / "lib").is_dir():
            return folder
    fail(f"PyTorch is not installed for {sys.executable}; install it first, or set TORCH_DIR to its folder")


def torch_version(folder):
    found = re.search(r"__version__ = '(\d+)\.(\d+)", (folder / "version.py").read_text())
    if not found:
        fail(f"cannot read the version of PyTorch in {folder}")
    return f"{found[1]}.{found[2]}"


def run(*command, **kwargs):
    line = [str(word) for word in command]
    print("+", " ".join(line), flush=True)
    if subprocess.run(line, **kwargs).returncode != 0:
        fail(f"command failed: {' '.join(line)}")


def structured_header(torch):
    """Writes ``structured.h`` for ``csrc/structured.cpp``: one line per structured operator.

    torchgen generates a function in ``at::meta`` for each of them, which infers the types of
    results. A line pairs an operator with the function that has its schema's signature.
    """
    ops = torch / "include" / "ATen" / "ops"

    def types(parameters):
        plain = re.sub(r"=(\{[^}]*\}|[^,]*)", "", parameters)
        return ", ".join(re.sub(r" ?\w+$", "", parameter.strip()) for parameter in plain.split(","))

    # The headers of single operators use types that they do not include.
    headers, table = ["#include <ATen/core/Tensor.h>", "#include <torch/library.h>"], []
    for header in sorted(ops.glob("*_meta_dispatch.h")):
        name = header.name.removesuffix("_meta_dispatch.h")
        declared = re.findall(rf"TORCH_API (\S+) ({name}(?:_symint)?)\((.*)\);", header.read_text())
        functions = {f"{result} ({types(parameters)})": function for result, function, parameters in declared}
        schemas = re.findall(r"struct TORCH_API (\w+) \{\s+using schema = ([^;]*);", (ops / f"{name}_ops.h").read_text())
        known = [f"  X({operator}, {functions[schema]})" for operator, schema in schemas if schema in functions]
        if known:
            headers += [f"#include <ATen/ops/{name}_meta_dispatch.h>", f"#include <ATen/ops/{name}_ops.h>"]
            table += known
    if not table:
        fail(f"found no structured operators in {ops}")
    return "\n".join([*headers, "#define FUSELINE_STRUCTURED(X) \\", " \\\n".join(table), ""])


def cargo():
    """Builds the engine's library and the command-line tool, and returns their paths."""
    if shutil.which("cargo") is None:
        fail("cargo is needed to build the engine, and is not on PATH: install Rust")
    environment = {**os.environ, "CARGO_INCREMENTAL": "0"}
    run("cargo", "xtask", "setup", cwd=ROOT, env=environment)
    # Tests reuse what `cargo test` of the whole workspace has built. For one package, or without
    # tests, cargo would rebuild the dependencies with fewer features.
    profile = os.environ.get("FUSELINE_TORCH_PROFILE", "release")
    tests = ["--workspace", "--all-features", "--lib", "--bin", "fuseline", "--tests"]
    packages = tests if profile == "dev" else ["-p", "fuseline-torch", "-p", "fuseline-cli"]
    run("cargo", "build", "--locked", "--profile", profile, *packages, cwd=ROOT, env=environment)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    folder = target / ("debug" if profile == "dev" else profile)
    return folder / "libfuseline_torch.so", folder / "fuseline"


def copy_tool(tool, folder):
    """Copies the tool without its debug information, which is four fifths of the file."""
    folder.mkdir(exist_ok=True)
    shutil.copy2(tool, folder)
    if shutil.which("strip"):
        run("strip", "--strip-debug", folder / tool.name)


class Build(build_ext):
    def run(self):
        torch = torch_folder()
        build = pathlib.Path(self.build_temp)
        build.mkdir(parents=True, exist_ok=True)
        package = HERE / "torch_fuseline" if self.inplace else pathlib.Path(self.build_lib) / "torch_fuseline"
        package.mkdir(parents=True, exist_ok=True)
        engine, tool = cargo()
        shutil.copy2(engine, package)
        copy_tool(tool, package / "bin")
        compiler = shlex.split(os.environ.get("CXX", "c++"))
        sources = sorted((HERE / "csrc").glob("*.cpp"))
        objects = [build / f"{source.stem}.o" for source in sources]
        # Two at once: compiling a file takes up to 700 MB.
        (build / "structured.h").write_text(structured_header(torch))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            line = [*compiler, *FLAGS, f"-I{torch / 'include'}", f"-I{build}"]
            jobs = [pool.submit(run, *line, "-c", source, "-o", out) for source, out in zip(sources, objects)]
            for job in jobs:
                job.result()
        # PyTorch's libraries are loaded before this one.
        libraries = [f"-L{torch / 'lib'}", "-ltorch_cpu", "-lc10", f"-L{package}", "-lfuseline_torch"]
        shim = package / "libfuseline_torch_shim.so"
        run(*compiler, "-shared", "-o", shim, *objects, *libraries, "-Wl,-z,defs", "-Wl,-rpath,$ORIGIN")
        (package / "built_for.py").write_text(f'"""The PyTorch that the shim was built for."""\n\nTORCH = "{torch_version(torch)}"\n')


class Binary(Distribution):
    def has_ext_modules(self):
        return True


if platform.system() != "Linux":
    fail("only Linux is supported")
setup(distclass=Binary, cmdclass={"build_ext": Build}, ext_modules=[])
