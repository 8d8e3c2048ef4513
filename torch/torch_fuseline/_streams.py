"""Streams and events. There is one stream, which the forward and the backward thread share: every
stream of the user is that one.

So what is recorded runs in the order in which it was recorded, which is stronger than what streams
ask for, and waiting for a stream or an event within the device is nothing to do. An event is a
place in the stream; recording one has all before it run.
"""

import contextlib

import torch

from ._devices import index_of


def _check_device(device):
    index_of(device)


class Stream(torch.Stream):
    """The stream of the device, whatever the priority."""

    def __new__(cls, device=None, priority=0, **kwargs):
        _check_device(device)
        return super().__new__(cls, device="fuseline", priority=priority, **kwargs)

    def wait_stream(self, stream):
        """Ops recorded from now on run after those that were recorded before; they do so anyway."""

    def wait_event(self, event):
        """As :meth:`wait_stream`."""

    def record_event(self, event=None):
        """An event at the place where the stream is now."""
        event = Event() if event is None else event
        event.record(self)
        return event


class Event:
    """A place in the stream. With ``enable_timing`` the time at which the device got there is
    noted. What is made is a ``torch.Event``."""

    def __new__(cls, device=None, enable_timing=False, blocking=False, interprocess=False):
        if interprocess:
            raise NotImplementedError("fuseline: an event is known to one process")
        _check_device(device)
        # PyTorch compares times of its own class only, not of classes made of it.
        return torch.Event("fuseline", enable_timing=enable_timing, blocking=blocking)


def current_stream(device=None):
    """The stream."""
    return Stream(device)


def default_stream(device=None):
    """The stream."""
    return Stream(device)


def set_stream(stream):
    """There is one stream: a stream of another device is an error."""
    if stream is not None and stream.device.type != "fuseline":
        raise RuntimeError(f"fuseline: {stream} is no stream of this device")


@contextlib.contextmanager
def stream(stream):
    """A stream as a context: there is one."""
    set_stream(stream)
    yield stream
