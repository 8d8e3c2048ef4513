"""The name of the device, and what a vendor's package says about it.

A package that gives the device another name has an entry point in the group
``torch_fuseline.vendors``. Its name is the device string, and its object is a dict or a function
that returns one (:class:`Vendor`). PyTorch can rename the device once per process, so the name is
decided here, before anything else happens, and the order in which PyTorch loads packages does not
matter.

This module does not import PyTorch, and reads the vendor's object only when the device is set up.
"""

import collections.abc
import dataclasses
import importlib.util
import os
import pathlib
import re
from importlib.metadata import EntryPoint, entry_points

#: The group of the entry points.
GROUP = "torch_fuseline.vendors"
#: The variable that chooses a vendor: a name, ``fuseline`` for none, or ``NAME=MODULE:OBJECT`` for
#: one that is not installed.
CHOICE = "FUSELINE_TORCH_VENDOR"
#: The name of the device without a vendor.
OWN = "fuseline"


@dataclasses.dataclass(frozen=True)
class Vendor:
    """What a vendor can say. The keys of its dict are these fields."""

    #: Path of the PJRT plugin, or a function that returns it. A relative path begins with the name
    #: of an installed package: ``acme_pjrt/libacme.so``.
    plugin: str | os.PathLike | collections.abc.Callable
    #: Options of the plugin's client.
    client_options: dict = dataclasses.field(default_factory=dict)
    #: Other arguments for ``configure``, as defaults.
    options: dict = dataclasses.field(default_factory=dict)
    #: The result of ``get_device_name``.
    device_name: str | None = None


def _described(entry):
    package = f" of {entry.dist.name}" if entry.dist is not None else ""
    return f"{entry.name}{package} ({entry.value})"


def _choose(installed, choice):
    """Returns the entry point of the chosen vendor, or ``None``."""
    if choice == OWN:
        return None
    if choice and "=" in choice:
        name, value = choice.split("=", 1)
        return EntryPoint(name, value, GROUP)
    found = [entry for entry in installed if choice in (None, "", entry.name)]
    if choice and not found:
        names = ", ".join(entry.name for entry in installed) or "none"
        raise ImportError(f"torch-fuseline: {CHOICE} is {choice}, but there is no such vendor; installed: {names}")
    if len(found) > 1:
        raise ImportError(
            f"torch-fuseline: several packages name the device, but a process can have only one name: "
            f"{' and '.join(map(_described, found))}. Set {CHOICE} to the name you want "
            f"({', '.join(dict.fromkeys(entry.name for entry in found))}), to {OWN} for none of them, or to NAME=MODULE:OBJECT"
        )
    return found[0] if found else None


def _installed():
    # A package that is on the path twice has equal entry points.
    return list({(entry.name, entry.value): entry for entry in entry_points(group=GROUP)}.values())


_entry = _choose(_installed(), os.environ.get(CHOICE))
#: The device string: `torch.device(NAME)`, `torch.NAME`.
NAME = OWN if _entry is None else _entry.name
#: What the vendor says, once the device is set up.
vendor = None


def check_name(torch):
    """Raises if PyTorch could not have a device with this name."""
    if not re.fullmatch("[a-z_]+", NAME):
        raise ImportError(f"torch-fuseline: the device cannot be named {NAME!r}: use lower-case letters and underscores")
    taken = [owner for owner in ("torch", "torch.Tensor") if hasattr(torch.Tensor if "." in owner else torch, NAME)]
    if taken:
        raise ImportError(f"torch-fuseline: the device cannot be named {NAME!r}: {taken[0]}.{NAME} exists")
    try:
        torch.device(NAME)
    except RuntimeError:
        return
    raise ImportError(f"torch-fuseline: the device cannot be named {NAME!r}: PyTorch has such a device")


def load():
    """Reads what the vendor says. Returns ``None`` if there is no vendor."""
    global vendor
    if _entry is None:
        return None
    what = f"torch-fuseline: the vendor {_described(_entry)}"
    try:
        told = _entry.load()
    except AttributeError as error:
        raise ImportError(f"{what}: {error}. If that module imports torch at its top, move the object to a "
                          f"module of the package that does not") from error
    told = told() if callable(told) else told
    names = [field.name for field in dataclasses.fields(Vendor)]
    if not isinstance(told, collections.abc.Mapping) or "plugin" not in told or not set(told) <= set(names):
        raise ImportError(f"{what}: expected a dict with the key plugin and possibly {', '.join(names[1:])}, but got {told!r}")
    vendor = Vendor(**told)
    return vendor


def plugin():
    """Returns the path of the vendor's plugin."""
    path = vendor.plugin() if callable(vendor.plugin) else vendor.plugin
    path = pathlib.Path(os.fspath(path))
    if path.is_absolute():
        places = [path]
    else:
        # This does not run the package's code.
        spec = importlib.util.find_spec(path.parts[0])
        if spec is None or not spec.submodule_search_locations:
            raise ImportError(f"{NAME}: the package {path.parts[0]} with the plugin {path} is not installed")
        places = [pathlib.Path(folder).joinpath(*path.parts[1:]) for folder in spec.submodule_search_locations]
    found = [str(place) for place in places if place.is_file()]
    if not found:
        raise ImportError(f"{NAME}: there is no plugin {' or '.join(map(str, places))}")
    return found[0]
