"""Wraps classes of PyTorch that take a device and look at its type only.

With these, too, a device that does not exist is an error where it is named.
"""

import functools

import torch

from ._devices import index_of

_PlainEvent = torch.Event


def _check(device):
    """Of a device of this type, that it exists. Everything else is PyTorch's to judge."""
    if (
        isinstance(device, str)
        and device.startswith("fuseline")
        or isinstance(device, torch.device)
    ):
        named = torch.device(device)
        if named.type == "fuseline":
            index_of(named)


class _EventType(type):
    """Has events of PyTorch's class be instances of the one that checks."""

    def __instancecheck__(cls, event):
        return isinstance(event, _PlainEvent) if cls is Event else super().__instancecheck__(event)

    def __subclasscheck__(cls, other):
        return issubclass(other, _PlainEvent) if cls is Event else super().__subclasscheck__(other)


class Event(_PlainEvent, metaclass=_EventType):
    __doc__ = _PlainEvent.__doc__

    def __new__(cls, device=None, **options):
        _check(device)
        given = {} if device is None else {"device": device}
        # PyTorch takes the time between events of its own class only, not of classes made of it.
        return _PlainEvent.__new__(_PlainEvent if cls is Event else cls, **given, **options)


Event.__module__, Event.__qualname__ = "torch", "Event"


def _checking(plain):
    """A constructor whose first argument is a device."""

    @functools.wraps(plain)
    def __init__(self, *args, **options):
        _check(args[0] if args else options.get("device", options.get("device_type")))
        plain(self, *args, **options)

    return __init__


def set_up():
    """Once, with the import of this package."""
    torch.Event = Event
    for kind in (torch.amp.autocast_mode.autocast, torch.amp.grad_scaler.GradScaler):
        kind.__init__ = _checking(kind.__init__)
