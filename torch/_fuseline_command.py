"""The command ``fuseline``: runs the command-line tool that is in the package.

This is not a module of the package, because that imports PyTorch.
"""

import importlib.util
import os
import pathlib
import sys


def tool_path():
    """Returns the path of the tool, or ``None`` if the package was built without it."""
    # This does not run the package's code.
    spec = importlib.util.find_spec("torch_fuseline")
    for folder in spec.submodule_search_locations if spec else ():
        path = pathlib.Path(folder, "bin", "fuseline")
        if path.is_file():
            return str(path)
    return None


def main():
    """Replaces this process by the tool."""
    tool = tool_path()
    if tool is None:
        sys.exit("fuseline: the package torch_fuseline has no command-line tool; reinstall torch-fuseline")
    # The tool asks `python3` for plugins: this one, whose packages the user means.
    folders = [os.path.dirname(sys.executable), *os.environ.get("PATH", "").split(os.pathsep)]
    os.environ["PATH"] = os.pathsep.join(filter(None, folders))
    os.execv(tool, ["fuseline", *sys.argv[1:]])
