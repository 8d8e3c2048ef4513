"""The backend of ``torch.distributed`` for this device, registered as its default: gloo, in the order of the program (``csrc/distributed.cpp``)."""

import contextlib
import sys

import torch


def _create(options, backend_options=None):
    """What a new process group has for tensors of this device."""
    from torch.distributed import distributed_c10d as c10d

    alone = c10d.ProcessGroupGloo(torch.distributed.HashStore(), 0, 1, timeout=options.timeout)
    # The C++ makes a gloo of all ranks of it, and puts its own backend beside it.
    group = c10d.ProcessGroup(options.store, options.group_rank, options.group_size)
    group._register_backend(torch.device("cpu"), c10d.ProcessGroup.BackendType.GLOO, alone)
    torch.ops.fuseline.add_backend(group.boxed())
    return group._get_backend(torch.device("fuseline"))


def register():
    """Has ``init_process_group()`` with no backend, and ``"cpu:gloo,fuseline:fuseline"``, make groups for this device."""
    _streams()
    if torch.distributed.is_available() and torch.distributed.is_gloo_available():
        torch.distributed.Backend.register_backend("fuseline", _create, extended_api=True, devices=["fuseline"])


def _streams():
    """What sharded training asks a device's module for: streams and events. There is one stream, and everything is on it."""

    class Stream(torch.Stream):
        """The stream."""

        def __new__(cls, device=None, priority=0, **given):
            return super().__new__(cls, device="fuseline", priority=priority, **given)

    class Event(torch.Event):
        """A place in the stream."""

        def __new__(cls, enable_timing=False, blocking=False, interprocess=False):
            return super().__new__(cls, device="fuseline", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)

    def current_stream(device=None):
        """The stream that ops go to."""
        return torch.accelerator.current_stream()

    def stream(stream):
        """Has ops go to a stream, as a context."""
        return contextlib.nullcontext()

    module = sys.modules[__package__]
    for thing in (Stream, Event, current_stream, stream):
        if not hasattr(module, thing.__name__):
            setattr(module, thing.__name__, thing)
