"""The device as several replicas: XLA devices that run one program, each on its own data
(``csrc/replicas.cpp``)."""

import functools
import sys

import torch

from ._library import shim as _shim
from ._vendor import NAME

#: The process group of the replicas once it exists, and its name.
_group = None
_GROUP_NAME = "fuseline_replicas"


def replica_count():
    """Returns the number of replicas, from ``configure(replicas=..)`` or
    ``FUSELINE_TORCH_REPLICAS``. The default is 1."""
    return _shim.flt_replicas_asked()


def replica_index():
    """Returns an ``int64`` tensor of shape ``[]`` that is 0 on the first replica, 1 on the second,
    and so on."""
    return torch.ops.fuseline.replica_index(torch.empty(0, device=NAME))


class _Shard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, dim):
        ctx.dim, ctx.is_ours = dim, tensor.device.type == NAME
        if ctx.is_ours:
            return torch.ops.fuseline.replica_chunk(tensor, dim)
        parts = tensor.unflatten(dim, (replica_count(), -1)).movedim(dim, 0)
        return torch.ops.fuseline.replica_upload(parts)

    @staticmethod
    def backward(ctx, grad):
        if ctx.is_ours:
            return torch.ops.fuseline.replica_place(grad, ctx.dim), None
        return torch.ops.fuseline.replica_all_gather(grad, ctx.dim).cpu(), None


class _Unshard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, dim):
        ctx.dim = dim
        return torch.ops.fuseline.replica_all_gather(tensor, dim)

    @staticmethod
    def backward(ctx, grad):
        return torch.ops.fuseline.replica_reduce_scatter(grad, "sum", ctx.dim), None


def _dimension(tensor, dim, name):
    """Returns the dimension as a non-negative number."""
    if tensor.dim() == 0:
        raise ValueError(f"{NAME}: {name}: the tensor has no dimensions, but at least one is required")
    if not -tensor.dim() <= dim < tensor.dim():
        raise IndexError(f"{NAME}: {name}: there is no dimension {dim}, the tensor has {tensor.dim()} dimensions")
    return dim % tensor.dim()


def shard(tensor, dim=0):
    """Splits ``tensor`` into equal parts along ``dim``. Replica ``i`` gets part ``i``.

    A tensor of the CPU is uploaded in parts. Of a tensor of the device, each replica takes a part
    of its own data. Gradients are those of the sum over all replicas. The gradient of a CPU tensor
    has the parts of all replicas. The gradient of a device tensor has, on each replica, that
    replica's part and zeros elsewhere.
    """
    dim = _dimension(tensor, dim, "shard")
    if tensor.device.type not in ("cpu", NAME):
        raise ValueError(f"{NAME}: shard: expected a tensor on the CPU or on the device "
                         f"{NAME}, but got one on {tensor.device}")
    count = replica_count()
    if tensor.size(dim) % count != 0:
        raise ValueError(
            f"{NAME}: shard: dimension {dim} has {tensor.size(dim)} elements, which {count} replicas cannot share equally:"
            f" pad it or cut it to a multiple of {count}"
        )
    return _Shard.apply(tensor, dim)


def unshard(tensor, dim=0):
    """Concatenates the data of all replicas along ``dim``, on every replica. The gradient of each
    part is the sum of its gradients on all replicas."""
    if tensor.device.type != NAME:
        raise ValueError(f"{NAME}: unshard: expected a replicated tensor on the device {NAME}, "
                         f"but got one on {tensor.device}")
    return _Unshard.apply(tensor, _dimension(tensor, dim, "unshard"))


def per_replica(tensor):
    """Returns the data of each replica as a list of CPU tensors. Waits for it."""
    return list(torch.ops.fuseline.replica_download(tensor.detach()).unbind())


def replica_group():
    """Returns a process group whose ranks are the replicas, for collectives and
    ``DistributedDataParallel(model, process_group=..)``.

    Its collectives are ops of the program and run inside its executables. They need no
    ``init_process_group``. There is one program, and its own rank is 0. APIs that give each rank
    another part by its number (``DeviceMesh``, FSDP, ``ZeroRedundancyOptimizer``,
    ``DistributedSampler``) would therefore make all replicas do what rank 0 does. The first three
    are refused; :func:`shard` gives replicas their data.
    """
    from torch.distributed import distributed_c10d as c10d

    global _group
    _refuse_ranks()
    if _group is None:
        store = torch.distributed.HashStore()
        group = c10d.ProcessGroup(store, 0, replica_count())
        torch.ops.fuseline.add_replicas(group.boxed())
        group._set_group_name(_GROUP_NAME)
        group._set_group_desc(f"replicas of the device {NAME}")
        _group = group, store
    group, store = _group
    # ``destroy_process_group`` empties these tables.
    world = c10d._world
    if group not in world.pg_map:
        world.pg_map[group] = (NAME, store)
        world.pg_names[group] = _GROUP_NAME
        world.pg_backend_config[group] = f"{NAME}:{NAME}"
        world.pg_group_ranks[group] = {rank: rank for rank in range(group.size())}
        world.pg_to_tag[group] = f"ptd:{_GROUP_NAME}"
        world.tags_to_pg.setdefault(f"ptd:{_GROUP_NAME}", []).append(group)
        c10d._register_process_group(_GROUP_NAME, group)
    return group


#: APIs that give each rank another part by the program's own rank: module, class, method, and the
#: position of the argument that is the group.
_BY_RANK = (
    ("torch.distributed.device_mesh", "DeviceMesh", "from_group", 0),
    ("torch.distributed.fsdp", "FullyShardedDataParallel", "__init__", 2),
    ("torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer", "__init__", None),
)


def _refuse_ranks():
    """Makes the listed APIs refuse the group of the replicas. It skips modules that are not
    imported; each call of :func:`replica_group` tries again."""
    for module, name, function, place in _BY_RANK:
        owner = getattr(sys.modules.get(module), name, None)
        if owner is None or hasattr(getattr(owner, function), "_is_fuselines"):
            continue
        refusing = _refusing(getattr(owner, function), name, place)
        setattr(owner, function, staticmethod(refusing) if function == "from_group" else refusing)


def _refusing(plain, name, place):
    @functools.wraps(plain)
    def refusing(*args, **kwargs):
        given = kwargs.get("process_group", kwargs.get("group"))
        if given is None and place is not None and len(args) > place:
            given = args[place]
        if _group is not None and any(one is _group[0] for one in (given if isinstance(given, (list, tuple)) else [given])):
            raise RuntimeError(
                f"{NAME}: {name} with the group of the replicas: the program has rank 0, so "
                f"every replica would get the share of rank 0. Use"
                f" DistributedDataParallel and torch.{NAME}.shard, or one process per device"
            )
        return plain(*args, **kwargs)

    refusing._is_fuselines = True
    return refusing
