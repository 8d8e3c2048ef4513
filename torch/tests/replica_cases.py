"""Cases that ``test_replicas`` runs in a process whose device is several replicas. Each function
takes their number. An exception fails the test."""

import torch
import torch.distributed as dist
from distributed_cases import DEVICE, TYPES, alone, check_training, data, learn, network, reduced, same, samples
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

fuseline = torch.fuseline


def own(count, dtype=torch.float32, shape=(3, 4), base=0):
    """A tensor with different data on each replica: ``data(base)``, ``data(base + 1)``, .."""
    return fuseline.shard(torch.stack([data(base + r, dtype, shape) for r in range(count)])).squeeze(0)


def each(tensor, wanted, **how):
    """Asserts that the replicas have these data."""
    found = fuseline.per_replica(tensor)
    assert len(found) == len(wanted), (len(found), len(wanted))
    for one, other in zip(found, wanted):
        same(one, other, **how)


def refused(why, do, kind=(RuntimeError, ValueError)):
    try:
        do()
    except kind as error:
        assert why in str(error), f"{why!r} is not in: {error}"
    else:
        raise AssertionError(f"not refused: {why}")


def regions():
    """Returns the numbers of regions run and compiled."""
    now = fuseline.counters()
    return now["regions"], now["compiles"] + now["loads"]


# ----- data of each replica -----


def shards(count):
    assert fuseline.replica_count() == count
    each(fuseline.replica_index(), [torch.tensor(r) for r in range(count)])
    whole = torch.arange(24.0 * count).view(2, 4 * count, 3)
    for dim in (1, -2):
        parts = fuseline.shard(whole, dim)
        assert parts.device.type == DEVICE and parts.shape == (2, 4, 3)
        each(parts, whole.chunk(count, 1))
        each(fuseline.unshard(parts, dim), [whole] * count)
    # Uploaded data is the same on all replicas, also from pinned memory and asynchronously. Each
    # takes its part.
    there = whole.pin_memory().to(DEVICE, non_blocking=True)
    each(there, [whole] * count)
    each(fuseline.shard(there, 1), whole.chunk(count, 1))
    each(fuseline.shard(there.transpose(0, 1)), whole.transpose(0, 1).chunk(count))
    # Reads and copies to the CPU are of replica 0.
    first = whole.chunk(count, 1)[0]
    same(fuseline.shard(whole, 1), first)
    assert fuseline.shard(whole, 1).sum().item() == first.sum().item()
    host = torch.empty(2, 4, 3).pin_memory()
    host.copy_(fuseline.shard(whole, 1), non_blocking=True)
    same(host, first)
    for dtype in TYPES:
        each(own(count, dtype), [data(r, dtype) for r in range(count)])
    odd = torch.zeros(count + 1, 2)
    for wrong in (odd, odd.to(DEVICE)) if count > 1 else ():
        refused("cannot share equally", lambda: fuseline.shard(wrong))
    refused("no dimension", lambda: fuseline.shard(torch.tensor(1.0)))
    refused("no dimension 2", lambda: fuseline.shard(odd, 2), IndexError)
    refused("expected a replicated tensor", lambda: fuseline.unshard(odd))
    # Random numbers are those of one program: the same on all replicas.
    torch.manual_seed(3)
    x = torch.rand(5, device=DEVICE)
    each(x, [x.cpu()] * count)


def gradients(count):
    """Gradients are those of the sum over the replicas."""
    factor = torch.arange(1.0, count + 1)
    whole = torch.arange(2.0 * count).view(count, 2).requires_grad_()
    weight = fuseline.shard(factor)
    (fuseline.shard(whole) ** 2 * weight).sum().backward()
    same(whole.grad, 2 * whole.detach() * factor[:, None])
    # For a tensor of the device: zeros except for the own part.
    there = whole.detach().to(DEVICE).requires_grad_()
    (fuseline.shard(there) ** 2 * weight).sum().backward()
    wanted = [torch.zeros(count, 2) for _ in range(count)]
    for r in range(count):
        wanted[r][r] = 2 * whole.detach()[r] * factor[r]
    each(there.grad, wanted)
    # Each replica uses all parts, and a part gets the sum of their gradients.
    part = fuseline.shard(whole.detach()).requires_grad_()
    (fuseline.unshard(part) * weight).sum().backward()
    each(part.grad, [torch.full((1, 2), factor.sum().item())] * count)
    across = fuseline.shard(whole.detach(), 0).t().contiguous().requires_grad_()
    fuseline.unshard(across, 1)[:, 0].sum().backward()
    each(across.grad, [torch.full((2, 1), float(count) if r == 0 else 0.0) for r in range(count)])


# ----- collectives -----


def moves(count):
    group = fuseline.replica_group()
    assert (group.size(), group.rank(), dist.get_world_size(group)) == (count, 0, count)
    assert not dist.is_initialized()
    for dtype in TYPES:
        all_data = [data(r, dtype) for r in range(count)]
        x = own(count, dtype)
        dist.broadcast(x, src=count - 1, group=group)
        each(x, [all_data[-1]] * count)
        parts = [torch.empty_like(x) for _ in range(count)]
        dist.all_gather(parts, own(count, dtype), group=group)
        for r in range(count):
            each(parts[r], [all_data[r]] * count)
        whole = torch.empty(3 * count, 4, dtype=dtype, device=DEVICE)
        dist.all_gather_into_tensor(whole, own(count, dtype), group=group)
        each(whole, [torch.cat(all_data)] * count)
        stacked = torch.empty(count, 3, 4, dtype=dtype, device=DEVICE)
        dist.all_gather_into_tensor(stacked, own(count, dtype), group=group)
        each(stacked, [torch.stack(all_data)] * count)
        # Part `s` on replica `r`.
        sent = [[data(10 * r + s, dtype, (2, 3)) for s in range(count)] for r in range(count)]
        got = torch.empty(2 * count, 3, dtype=dtype, device=DEVICE)
        mine = fuseline.shard(torch.cat([torch.cat(parts) for parts in sent]))
        dist.all_to_all_single(got, mine, group=group)
        arrived = [torch.cat([sent[r][s] for r in range(count)]) for s in range(count)]
        each(got, arrived)
        dist.all_to_all_single(got.zero_(), mine, [2] * count, [2] * count, group=group)
        each(got, arrived)
        outputs = [torch.empty(2, 3, dtype=dtype, device=DEVICE) for _ in range(count)]
        dist.all_to_all(outputs, list(mine.chunk(count)), group=group)
        each(torch.cat(outputs), arrived)


def reductions(count):
    group, op = fuseline.replica_group(), dist.ReduceOp
    for dtype in TYPES:
        is_integer = not dtype.is_floating_point and not dtype.is_complex
        ops = [op.SUM, op.PRODUCT]
        ops += [] if dtype.is_complex else [op.MIN, op.MAX]
        ops += [op.BAND, op.BOR, op.BXOR] if is_integer else []
        ops += [] if dtype == torch.bool else [op.AVG]
        for how in ops if not dtype.is_complex else [op.SUM, op.AVG]:
            wanted = reduced([data(r, dtype) for r in range(count)], how)
            x = own(count, dtype)
            dist.all_reduce(x, how, group=group)
            each(x, [wanted] * count)
        wanted = reduced([data(r, dtype) for r in range(count)], op.SUM)
        x = own(count, dtype)
        dist.reduce(x, dst=1, group=group)
        each(x, [wanted if r == 1 else data(r, dtype) for r in range(count)])
        parts = [[data(10 * r + s, dtype) for s in range(count)] for r in range(count)]
        wanted = [reduced([parts[r][s] for r in range(count)], op.SUM) for s in range(count)]
        mine = fuseline.shard(torch.cat([torch.cat(part) for part in parts]))
        x = torch.empty(3, 4, dtype=dtype, device=DEVICE)
        dist.reduce_scatter(x, list(mine.chunk(count)), group=group)
        each(x, wanted)
        x = torch.zeros_like(x)
        dist.reduce_scatter_tensor(x, mine, group=group)
        each(x, wanted)
        if not dtype.is_complex:
            dist.reduce_scatter_tensor(x, mine, op.MAX, group=group)
            each(x, [reduced([parts[r][s] for r in range(count)], op.MAX) for s in range(count)])
    for dtype, how in ((torch.float32, op.BAND), (torch.bool, op.AVG)):
        refused("all_reduce", lambda: dist.all_reduce(own(count, dtype), how, group=group))
    refused("all_reduce", lambda: dist.all_reduce(own(count), dist._make_nccl_premul_sum(0.5), group=group))


def shapes_and_views(count):
    """Views, empty and 0-dimensional tensors; several tensors in one call; lists of one rank;
    objects; a barrier."""
    group = fuseline.replica_group()
    all_data = [data(r, shape=(4, 6)) for r in range(count)]
    base = own(count, shape=(4, 6))
    dist.all_reduce(base[:, ::2].t(), group=group)
    each(base, [torch.where(torch.arange(6) % 2 == 0, sum(all_data), one) for one in all_data])
    number, nothing = fuseline.replica_index(), torch.empty(0, 3, device=DEVICE)
    dist.all_reduce(number, group=group)
    dist.all_reduce(nothing, group=group)
    assert number.item() == sum(range(count)) and nothing.cpu().shape == (0, 3)
    pair = [own(count), own(count, base=1)]
    group.allreduce_coalesced(pair).wait()
    each(pair[1], [sum(data(r + 1) for r in range(count))] * count)
    gathered = [torch.empty(3 * count, 4, device=DEVICE) for _ in range(2)]
    group.allgather_into_tensor_coalesced(gathered, [own(count), own(count, base=1)]).wait()
    each(gathered[1], [torch.cat([data(r + 1) for r in range(count)])] * count)
    scattered = [torch.empty(1, 4, device=DEVICE) for _ in range(2)]
    group.reduce_scatter_tensor_coalesced(scattered, [own(count, shape=(count, 4)), own(count, shape=(count, 4), base=1)]).wait()
    each(scattered[1], sum(data(r + 1, shape=(count, 4)) for r in range(count)).chunk(count))
    parts = [torch.full((3, 4), 7.0, device=DEVICE) for _ in range(count)]
    group.gather([parts], [own(count)]).wait()
    for r in range(count):
        each(parts[r], [data(r)] + [torch.full((3, 4), 7.0)] * (count - 1))
    into = torch.empty(3, 4, device=DEVICE)
    group.scatter([into], [[own(count, base=10 * s) for s in range(count)]]).wait()
    each(into, [data(10 * s) for s in range(count)])
    work = dist.all_reduce(x := own(count), group=group, async_op=True)
    assert work.is_completed() and work.wait()
    each(work.get_future().value()[0], [sum(data(r) for r in range(count))] * count)
    same(x, sum(data(r) for r in range(count)))
    objects = [None] * count
    dist.all_gather_object(objects, {"text": "a"}, group=group)
    assert objects == [{"text": "a"}] * count
    dist.barrier(group=group)


def functional(count):
    from torch.distributed._functional_collectives import all_gather_tensor, all_reduce, reduce_scatter_tensor

    group = fuseline.replica_group()
    total = sum(data(r) for r in range(count))
    each(all_reduce(own(count), "sum", group), [total] * count)
    each(all_gather_tensor(own(count), 0, group), [torch.cat([data(r) for r in range(count)])] * count)
    wanted = sum(data(r, shape=(count, 2)) for r in range(count)).chunk(count)
    each(reduce_scatter_tensor(own(count, shape=(count, 2)), "sum", 0, group), wanted)
    # Ops and a collective in one graph of torch.compile.
    step = torch.compile(lambda x: all_reduce(x * 2, "avg", group) + x, fullgraph=True)
    for base in range(3):
        mean = sum(data(base + r) for r in range(count)) * 2 / count
        each(step(own(count, base=base)), [mean + data(base + r) for r in range(count)])
    assert not fuseline.not_recorded(), fuseline.not_recorded()


# ----- training -----


def train(model, steps=4, clip=None, tuner=None):
    tuner = tuner or torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        x, y = (fuseline.shard(part) for part in samples(step))
        mean = learn(model, tuner, x, y, clip).detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG, group=fuseline.replica_group())
        losses.append(mean.item())
    return losses


def parallel(model, **how):
    return DistributedDataParallel(model.to(DEVICE), process_group=fuseline.replica_group(), **how)


def ddp(count):
    plain = parallel(network())
    check_training(train(plain), plain.module.state_dict(), alone())
    views = parallel(network(), gradient_as_bucket_view=True, static_graph=True, bucket_cap_mb=0.001)
    check_training(train(views, clip=0.1), views.module.state_dict(), alone(clip=0.1))
    unused = parallel(network(), find_unused_parameters=True)
    check_training(train(unused), unused.module.state_dict(), alone())
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    halves = parallel(network())
    halves.register_comm_hook(fuseline.replica_group(), default_hooks.bf16_compress_hook)
    # Gradients have 8 bits of precision.
    torch.testing.assert_close(train(halves), alone()[0], rtol=2e-2, atol=2e-2)
    # Weights that differ are made equal, and the replicas stay in sync.
    model = network().to(DEVICE)
    with torch.no_grad():
        for weight in model.parameters():
            weight += fuseline.replica_index()
    model = parallel(model)
    train(model)
    for weight in model.parameters():
        first, *others = fuseline.per_replica(weight)
        for other in others:
            assert torch.equal(first, other)


def ddp_in_modes(count):
    for mode in ("strict", "debug"):
        with fuseline.mode(mode):
            model = parallel(network())
            check_training(train(model), model.module.state_dict(), alone())


def images(step, count=8):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(count, 3, 10, 10, generator=generator), torch.randint(0, 4, (count,), generator=generator)


def convolutions():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.Tanh(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(32, 4))


def ddp_of_images(count):
    """Training a model with convolutions equals one process on whole batches, and a steady step is
    one region that includes the collective."""
    wanted, weights = [], convolutions()
    tuner = torch.optim.SGD(weights.parameters(), lr=0.05, momentum=0.9)
    for step in range(8):
        wanted.append(learn(weights, tuner, *images(step), None).item())
    model = parallel(convolutions())
    tuner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses, told = [], []
    for step in range(8):
        x, y = (fuseline.shard(part) for part in images(step))
        fuseline.synchronize()
        before = regions()
        mean = learn(model, tuner, x, y, None).detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG, group=fuseline.replica_group())
        losses.append(mean.item())
        fuseline.synchronize()
        told.append(tuple(now - then for now, then in zip(regions(), before)))
    torch.testing.assert_close(losses, wanted, rtol=1e-4, atol=1e-4)
    for (name, found), (_, other) in zip(model.module.state_dict().items(), weights.state_dict().items()):
        same(found, other, rtol=1e-4, atol=1e-4, msg=name)
    # Forward, backward, the exchanges of gradients and loss, and the optimizer are one region.
    assert told[4:] == [(1, 0)] * 4, told
    assert fuseline.fallbacks() == {}, fuseline.fallbacks()
    return told


def in_the_region(count):
    """Ops before a collective, the collective, and ops after it are one region."""
    group = fuseline.replica_group()
    x = own(count)
    fuseline.synchronize()
    for _ in range(3):
        before = regions()[0]
        y = x * 2
        dist.all_reduce(y, group=group)
        y = (y + fuseline.replica_index()).tanh()
        dist.all_reduce(y, dist.ReduceOp.MAX, group=group)
        each(y + 1, [(2 * sum(data(r) for r in range(count)) + count - 1).tanh() + 1] * count)
        assert regions()[0] - before == 1, regions()[0] - before


# ----- what is refused -----


def refusals(count):
    group = fuseline.replica_group()
    x, index = own(count), fuseline.replica_index()
    # The CPU would compute it from one replica's data, and a result has one size.
    some = torch.arange(12, device=DEVICE).minimum(index)
    for do in (lambda: torch.linalg.eigvals(own(count, shape=(4, 4))), lambda: torch.nonzero(some), lambda: some[some > 0],
               lambda: torch.unique(some), lambda: torch.bincount(some), lambda: torch.masked_select(some, some > 0),
               lambda: some.repeat_interleave(some)):
        refused("replica", do, (RuntimeError, NotImplementedError))
    assert fuseline.fallbacks() == {}, fuseline.fallbacks()
    # If the size is the same on all replicas, each has its own result.
    each(torch.nonzero(torch.arange(count, device=DEVICE) == index), [torch.tensor([[r]]) for r in range(count)])
    # Integers and bools that Python reads decide what the program does.
    for do in (index.item, lambda: bool(index > 0), lambda: torch.arange(10, device=DEVICE)[index], lambda: int(index),
               lambda: torch.equal(x, x.cpu().to(DEVICE)), lambda: F.one_hot(index)):
        refused("not the same on all replicas", do)
    agreed = index.clone()
    dist.all_reduce(agreed, group=group)
    assert agreed.item() == sum(range(count)) and bool(agreed >= 0) and torch.equal(x, x)
    # What a decomposition reads also decides.
    q = own(count) + 1.5
    refused("replica", lambda: torch.special.zeta(q, q), (RuntimeError, NotImplementedError))
    # One program does the same on all replicas.
    for do, why in ((lambda: dist.send(x, 1, group=group), "send"), (lambda: dist.recv(x, 1, group=group), "recv"),
                    (lambda: dist.all_to_all_single(torch.empty(count + 1, device=DEVICE), torch.empty(count + 1, device=DEVICE),
                                                    [1] * (count - 1) + [2], [1] * (count - 1) + [2], group=group), "equal sizes"),
                    (lambda: dist.all_gather([torch.empty_like(x)], x, group=group), "one for each replica"),
                    (lambda: dist.all_gather_into_tensor(torch.empty(5, device=DEVICE), x, group=group), "elements"),
                    (lambda: dist.broadcast(x, group_src=count, group=group), "replicas 0 to"),
                    (lambda: group.gather([], [x], _options(dist.GatherOptions, 1)).wait(), "no list of its own"),
                    (lambda: dist.all_reduce(torch.ones(2), group=group), "cpu")):
        refused(why, do)
    # APIs that distribute by rank would do what rank 0 does on all replicas.
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FullyShardedDataParallel

    group = fuseline.replica_group()
    refused("rank 0", lambda: DeviceMesh.from_group(group, DEVICE))
    refused("rank 0", lambda: FullyShardedDataParallel(network().to(DEVICE), group))
    refused("rank 0", lambda: FullyShardedDataParallel(network().to(DEVICE), process_group=group))
    refused("1 or more", lambda: fuseline.configure(replicas=0))
    refused("open already", lambda: fuseline.configure(replicas=1))


def _options(kind, root):
    options = kind()
    options.rootRank = root
    return options


def beside_a_world(count, store):
    """With processes that also meet in gloo: their collectives would move the data of replica 0
    only. Those of replicas work, even after the process group is destroyed."""
    for _ in range(2):
        dist.init_process_group(init_method=f"file://{store}", rank=0, world_size=1)
        group = fuseline.replica_group()
        x = own(count)
        refused("replicas", lambda: dist.all_reduce(x))
        dist.all_reduce(x, group=group)
        each(x, [sum(data(r) for r in range(count))] * count)
        assert dist.get_rank(group) == 0
        model = DistributedDataParallel(network().to(DEVICE), process_group=group)
        check_training(train(model), model.module.state_dict(), alone())
        dist.destroy_process_group()
        functional(count)
