"""Streams and events. There is one stream, which the forward and the backward thread share. Every
stream of the user is that one.

Ops therefore run in the order in which they were recorded. This is stronger than what streams
require, so waiting for a stream or an event inside the device does nothing. An event is a position
in the stream. Recording an event starts everything before it.
"""

import contextlib

import torch

from ._devices import index_of
from ._vendor import NAME


def _check_device(device):
    index_of(device)


class Stream(torch.Stream):
    """The stream of the device, whatever the priority."""

    def __new__(cls, device=None, priority=0, **kwargs):
        _check_device(device)
        return super().__new__(cls, device=NAME, priority=priority, **kwargs)

    def wait_stream(self, stream):
        """Does nothing: later ops always run after earlier ones."""

    def wait_event(self, event):
        """Does nothing, like :meth:`wait_stream`."""

    def record_event(self, event=None):
        """Records an event at the current position of the stream and returns it."""
        event = Event() if event is None else event
        event.record(self)
        return event


class Event:
    """A position in the stream. With ``enable_timing`` it has the time at which the device reached
    it. The constructor returns a ``torch.Event``."""

    def __new__(cls, device=None, enable_timing=False, blocking=False, interprocess=False):
        if interprocess:
            raise NotImplementedError(f"{NAME}: events cannot be shared between processes")
        _check_device(device)
        # PyTorch measures times between instances of its own class only, not of subclasses.
        return torch.Event(NAME, enable_timing=enable_timing, blocking=blocking)


def current_stream(device=None):
    """Returns the only stream."""
    return Stream(device)


def default_stream(device=None):
    """Returns the only stream."""
    return Stream(device)


def set_stream(stream):
    """Checks the device of the stream: there is one stream."""
    if stream is not None and stream.device.type != NAME:
        raise RuntimeError(f"{NAME}: {stream} is not a stream of this device")


@contextlib.contextmanager
def stream(stream):
    """Context manager that selects a stream: there is one."""
    set_stream(stream)
    yield stream
