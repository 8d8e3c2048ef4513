"""Devices by number, of which there is one, and what they are."""

import dataclasses
import os
import pathlib

import torch

from ._library import check, shim, warn


def index_of(device=None, optional=True):
    """The number of a device: of ``None``, the name alone and -1, that of the one there is. What
    does not exist is an error, as PyTorch has it."""
    if device is None and not optional:
        raise ValueError("fuseline: a device is expected, and None is none")
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != "fuseline":
            raise ValueError(f"fuseline: a device of this type is expected, and {device} is none")
        device = device.index
    index = -1 if device is None else int(device)
    if index not in (-1, 0):
        raise RuntimeError(f"fuseline: invalid device ordinal: there is one device, fuseline:0, and no fuseline:{index}")
    return 0


#: By the name that PyTorch's Python asks for before it keeps a generator's state
#: (``torch.utils.checkpoint``) and elsewhere. The device is set up with the import of this package;
#: the engine behind it is opened by the first op.
_initialized = True


def init():
    """Nothing is left to be done: see :func:`is_initialized`."""


def _lazy_init():
    """As :func:`init`."""


def _lazy_call(function, **_):
    """Calls a function that may be called once the device is set up, which it is."""
    function()


def is_initialized():
    """Whether the device was set up; it is with the import of this module."""
    return True


def is_available():
    """Whether the device can be used."""
    return True


def device_count():
    """How many devices there are."""
    return 1


def current_device():
    """The device in use."""
    return 0


def set_device(device):
    """There is one device. A number below zero changes nothing."""
    if not (isinstance(device, int) and device < 0):
        index_of(device)


def exchange_device(device):
    """Sets the device, and returns the one before."""
    index_of(device)
    return 0


def maybe_exchange_device(device):
    """The same, unless the number is below zero."""
    set_device(device)
    return 0


_exchange_device, _maybe_exchange_device = exchange_device, maybe_exchange_device


class device:
    """A device as a context: there is one. A number below zero, or ``None``, changes nothing."""

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
    """The device of a tensor as a context: of one elsewhere, nothing changes."""

    def __init__(self, tensor):
        super().__init__(tensor.get_device() if tensor.device.type == "fuseline" else None)


def synchronize(device=None):
    """Waits until all that was recorded has been computed."""
    index_of(device)
    check(shim.fuseline_torch_synchronize())
    warn()


def _plugin():
    """What the device is behind: the name of the plugin's file, or of the interpreter."""
    from . import plugin_path

    path = os.environ.get("FUSELINE_TORCH_DEVICE") or os.environ.get("FUSELINE_PJRT_PLUGIN") or plugin_path()
    return pathlib.Path(path).stem if path else "a PJRT plugin"


@dataclasses.dataclass(frozen=True)
class Properties:
    """What :func:`get_device_properties` returns."""

    name: str
    #: Devices of XLA's that it consists of.
    replicas: int
    #: Bytes; of the host, in which XLA's CPU backend keeps its values.
    total_memory: int
    #: There are no blocks that share anything.
    multi_processor_count: int


def get_device_properties(device=None):
    """Name and sizes of the device."""
    index_of(device)
    memory = torch._C._accelerator_getMemoryInfo(0)[1]
    return Properties(get_device_name(device), shim.flt_replicas_asked(), memory, os.cpu_count() or 1)


def get_device_name(device=None):
    """What ops run on."""
    index_of(device)
    return f"Fuseline on {_plugin()}"


def get_device_capability(device=None):
    """Element types of tensors, as ``torch.accelerator.get_device_capability`` has them."""
    index_of(device)
    return torch.accelerator.get_device_capability("fuseline")


def can_device_access_peer(device, peer_device):
    """Whether a device reads the memory of another one; there is no other."""
    index_of(device), index_of(peer_device)
    return False


def is_bf16_supported(including_emulation=True):
    """Whether there are tensors of ``bfloat16``."""
    return True


def get_amp_supported_dtype():
    """Types that autocast computes in."""
    return [torch.bfloat16, torch.float16]


def _is_in_bad_fork():
    """Whether this process was forked from one in which the device was in use: it cannot be used
    here."""
    return shim.flt_is_forked()


def is_current_stream_capturing():
    """Streams are not captured: what repeats is replayed anyway."""
    return False
