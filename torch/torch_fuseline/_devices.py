"""Device functions by index. There is one device."""

import dataclasses
import os
import pathlib

import torch

from . import _vendor
from ._library import check, shim, warn
from ._vendor import NAME


def index_of(device=None, optional=True):
    """Returns the index of a device. ``None``, the bare device type and -1 mean the only device.
    Any other device raises, as in PyTorch."""
    if device is None and not optional:
        raise ValueError(f"{NAME}: expected a device, but got None")
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != NAME:
            raise ValueError(f"{NAME}: expected a device of type {NAME}, but got {device}")
        device = device.index
    index = -1 if device is None else int(device)
    if index not in (-1, 0):
        raise RuntimeError(f"{NAME}: invalid device ordinal: there is only one device, "
                           f"{NAME}:0, and no {NAME}:{index}")
    return 0


#: PyTorch's Python reads this name, for example before it saves a generator's state
#: (``torch.utils.checkpoint``). Importing this package sets up the device; the first op opens its
#: engine.
_initialized = True


def init():
    """Does nothing: see :func:`is_initialized`."""


def _lazy_init():
    """Like :func:`init`."""


def _lazy_call(function, **_):
    """Calls a function that needs an initialized device, which importing this module provides."""
    function()


def is_initialized():
    """Whether the device is set up. Importing this module sets it up."""
    return True


def is_available():
    """Whether the device can be used."""
    return True


def device_count():
    """Returns the number of devices."""
    return 1


def current_device():
    """Returns the index of the current device."""
    return 0


def set_device(device):
    """Checks that the device exists: there is one. A negative index changes nothing."""
    if not (isinstance(device, int) and device < 0):
        index_of(device)


def exchange_device(device):
    """Sets the device and returns the previous one."""
    index_of(device)
    return 0


def maybe_exchange_device(device):
    """Like :func:`exchange_device`, except that a negative index changes nothing."""
    set_device(device)
    return 0


_exchange_device, _maybe_exchange_device = exchange_device, maybe_exchange_device


class device:
    """Context manager that selects a device. A negative index or ``None`` changes nothing."""

    def __init__(self, device):
        if device is not None:
            set_device(device)
        self.idx, self.prev_idx = 0, -1

    def __enter__(self):
        self.prev_idx = 0
        return self

    def __exit__(self, *_):
        return False


class device_of(device):
    """Context manager that selects the device of a tensor. A tensor elsewhere changes nothing."""

    def __init__(self, tensor):
        super().__init__(tensor.get_device() if tensor.device.type == NAME else None)


def synchronize(device=None):
    """Waits until everything that was recorded is computed."""
    index_of(device)
    check(shim.fuseline_torch_synchronize())
    warn()


def _plugin():
    """Returns the name of the plugin's file, or of the interpreter."""
    from . import plugin_path

    path = os.environ.get("FUSELINE_TORCH_DEVICE") or os.environ.get("FUSELINE_PJRT_PLUGIN") or plugin_path()
    return pathlib.Path(path).stem if path else "a PJRT plugin"


@dataclasses.dataclass(frozen=True)
class Properties:
    """The result of :func:`get_device_properties`."""

    name: str
    #: The number of XLA devices that make up this device.
    replicas: int
    #: Bytes of host memory, where XLA's CPU backend keeps its values.
    total_memory: int
    #: CPU cores of the host: the device has no multiprocessors.
    multi_processor_count: int


def get_device_properties(device=None):
    """Returns the name and the sizes of the device."""
    index_of(device)
    memory = torch._C._accelerator_getMemoryInfo(0)[1]
    return Properties(get_device_name(device), shim.flt_replicas_asked(), memory, os.cpu_count() or 1)


def get_device_name(device=None):
    """Returns what ops run on."""
    index_of(device)
    told = _vendor.vendor and _vendor.vendor.device_name
    return told or f"Fuseline on {_plugin()}"


def get_device_capability(device=None):
    """Returns element types of tensors, like ``torch.accelerator.get_device_capability``."""
    index_of(device)
    return torch.accelerator.get_device_capability(NAME)


def can_device_access_peer(device, peer_device):
    """Whether one device can read the memory of another. There is only one device."""
    index_of(device), index_of(peer_device)
    return False


def is_bf16_supported(including_emulation=True):
    """Whether the device has ``bfloat16`` tensors."""
    return True


def get_amp_supported_dtype():
    """Returns the types that autocast may compute in."""
    return [torch.bfloat16, torch.float16]


def _is_in_bad_fork():
    """Whether this process was forked after its parent used the device. It cannot use the
    device."""
    return shim.flt_is_forked()


def is_current_stream_capturing():
    """Always false: streams need no capture, because the engine replays recurring ops."""
    return False
