"""Adds checks of the device index to classes of PyTorch that look at the device type only."""

import functools

import torch

from ._devices import index_of
from ._vendor import NAME

_TorchEvent = torch.Event


def _check(device):
    """Raises if a device of our type does not exist."""
    is_named = isinstance(device, str) and device.startswith(NAME)
    if is_named or isinstance(device, torch.device):
        named = torch.device(device)
        if named.type == NAME:
            index_of(named)


class _EventType(type):
    """Makes events of PyTorch's own class instances of `Event`."""

    def __instancecheck__(cls, event):
        return isinstance(event, _TorchEvent) if cls is Event else super().__instancecheck__(event)

    def __subclasscheck__(cls, other):
        return issubclass(other, _TorchEvent) if cls is Event else super().__subclasscheck__(other)


class Event(_TorchEvent, metaclass=_EventType):
    __doc__ = _TorchEvent.__doc__

    def __new__(cls, device=None, **options):
        _check(device)
        given = {} if device is None else {"device": device}
        # `elapsed_time` accepts events of PyTorch's own class only, not of subclasses.
        return _TorchEvent.__new__(_TorchEvent if cls is Event else cls, **given, **options)


Event.__module__, Event.__qualname__ = "torch", "Event"


def _with_device_check(init):
    """A constructor that checks its first argument, the device."""

    @functools.wraps(init)
    def __init__(self, *args, **options):
        _check(args[0] if args else options.get("device", options.get("device_type")))
        init(self, *args, **options)

    return __init__


def set_up():
    """Runs once, when the package is imported."""
    torch.Event = Event
    for kind in (torch.amp.autocast_mode.autocast, torch.amp.grad_scaler.GradScaler):
        kind.__init__ = _with_device_check(kind.__init__)
