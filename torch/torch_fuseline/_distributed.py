"""The backend of ``torch.distributed`` for this device, registered as its default: gloo, in the
order of the program (``csrc/distributed.cpp``)."""

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
    """Has ``init_process_group()`` with no backend, and ``"cpu:gloo,fuseline:fuseline"``, make
    groups for this device."""
    if torch.distributed.is_available() and torch.distributed.is_gloo_available():
        torch.distributed.Backend.register_backend("fuseline", _create, extended_api=True, devices=["fuseline"])
