"""Makes stubs of the CUDA libraries that PyTorch's wheel loads but does not use on a CPU, so that
tests need not install 2 GB of them.

PyTorch's libraries cannot be loaded without them. For each missing one this makes a library with
the missing functions. They return `cudaErrorNoDevice`, or a text where a text is expected. The
stubs go where PyTorch's own libraries look for the real ones.

    python cuda_stubs.py        # for the PyTorch of this interpreter; no-op if nothing is missing
"""

import ctypes
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile

# Functions without a symbol version do not say which library has them. The assignment by prefix
# only helps the reader.
PREFIXES = {
    "cudnn": "libcudnn",
    "nccl": "libnccl",
    "cusparseLt": "libcusparseLt",
    "cuFile": "libcufile",
    "nvshmem": "libnvshmem",
    "cupti": "libcupti",
    "nvrtc": "libnvrtc",
}
NO_DEVICE = 100


def readelf(*arguments):
    return subprocess.run(["readelf", "-W", *map(str, arguments)], capture_output=True, text=True, check=True).stdout


def main():
    site = pathlib.Path(sysconfig.get_path("platlib"))
    libraries = sorted((site / "torch" / "lib").glob("*.so*"))
    if not libraries:
        sys.exit("cuda_stubs: PyTorch is not installed for this interpreter")
    own = {path.name for path in libraries}
    there = {path.name for path in (site / "nvidia").rglob("*.so*")} if (site / "nvidia").is_dir() else set()
    needed, undefined, defined, file_of = set(), {}, set(), {}
    for path in libraries:
        needed.update(re.findall(r"\(NEEDED\).*\[(.+?)\]", readelf("-d", path)))
        file = None
        for line in readelf("-V", path).splitlines():
            if found := re.search(r"File: (\S+)", line):
                file = found[1]
            elif (found := re.search(r"Name: (\S+)", line)) and file is not None:
                file_of[found[1]] = file
        for line in readelf("--dyn-syms", path).splitlines():
            words = line.split()
            if len(words) < 8 or not words[0].endswith(":"):
                continue
            name, _, version = words[7].partition("@")
            if words[6] != "UND":
                defined.add(name)
            elif words[4] == "GLOBAL":
                undefined[name] = version.lstrip("@") or None
    missing = sorted(name for name in needed - own - there if not loads(name))
    if not missing:
        print("cuda_stubs: all libraries are there")
        return
    symbols = {name: [] for name in missing}
    for name, version in sorted(undefined.items()):
        file = file_of.get(version) if version else None
        if file is None and name not in defined and version is None:
            prefix = next((library for start, library in PREFIXES.items() if name.startswith(start)), None)
            file = next((other for other in missing if prefix and other.startswith(prefix)), None)
        if file in symbols:
            symbols[file].append((name, version))
    folder = site / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    for library, functions in symbols.items():
        make(folder / library, functions)
    print(f"cuda_stubs: {len(symbols)} libraries with {sum(map(len, symbols.values()))} functions in {folder}")


def loads(name):
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def make(path, functions):
    lines = []
    for name, _ in functions:
        if name.endswith("String") or name.endswith("ErrorName"):
            lines.append(f'const char* {name}(void) {{ return "no CUDA"; }}')
        else:
            value = 0 if name == "cudaGetLastError" else NO_DEVICE
            lines.append(f"int {name}(void) {{ return {value}; }}")
    versions = sorted({version for _, version in functions if version})
    with tempfile.TemporaryDirectory() as folder:
        source, script = pathlib.Path(folder) / "stub.c", pathlib.Path(folder) / "versions"
        source.write_text("\n".join(lines) + "\n")
        command = ["cc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{path.name}", "-o", path, source]
        if versions:
            of = {version: [name for name, other in functions if other == version] for version in versions}
            script.write_text("\n".join(f"{version} {{ global: {'; '.join(names)}; }};" for version, names in of.items()) + "\n")
            command.append(f"-Wl,--version-script={script}")
        subprocess.run(list(map(str, command)), check=True)


if __name__ == "__main__":
    main()
