"""Registers the default backend of ``torch.distributed`` for this device: gloo, in program order
(``csrc/distributed.cpp``)."""

import torch

from ._vendor import NAME


def _create(options, backend_options=None):
    """Creates what a new process group uses for tensors of this device."""
    from torch.distributed import distributed_c10d as c10d

    alone = c10d.ProcessGroupGloo(torch.distributed.HashStore(), 0, 1, timeout=options.timeout)
    # The C++ side creates a gloo group of all ranks and registers its own backend next to it.
    group = c10d.ProcessGroup(options.store, options.group_rank, options.group_size)
    group._register_backend(torch.device("cpu"), c10d.ProcessGroup.BackendType.GLOO, alone)
    torch.ops.fuseline.add_backend(group.boxed())
    return group._get_backend(torch.device(NAME))


def register():
    """Makes ``init_process_group()`` create groups for this device, both without a backend and with
    ``"cpu:gloo,fuseline:fuseline"``."""
    if torch.distributed.is_available() and torch.distributed.is_gloo_available():
        torch.distributed.Backend.register_backend(NAME, _create, extended_api=True, devices=[NAME])
