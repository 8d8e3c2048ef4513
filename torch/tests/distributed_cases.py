"""Cases that every rank of a group runs in ``test_distributed``. An exception fails the test."""

import datetime
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor, all_reduce, reduce_scatter_tensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

DEVICE = "fuseline"
# Gloo has no type for some of these.
TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool,
         torch.complex64)


def same(found, wanted, **how):
    torch.testing.assert_close(found.detach().cpu(), wanted.detach(), **how)


def data(rank, dtype=torch.float32, shape=(3, 4)):
    """A different tensor on each rank, of small numbers whose sums and products are exact."""
    numbers = torch.randint(0, 5, shape, generator=torch.Generator().manual_seed(rank))
    return (numbers > 2) if dtype == torch.bool else numbers.to(dtype)


def ours(rank, dtype=torch.float32, shape=(3, 4)):
    return data(rank, dtype, shape).to(DEVICE)


# ----- collectives -----


def moves(rank, world):
    """Collectives that only move elements."""
    for dtype in TYPES:
        all_data = [data(r, dtype) for r in range(world)]
        x = ours(rank, dtype)
        dist.broadcast(x, src=world - 1)
        same(x, all_data[-1])
        parts = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(parts, ours(rank, dtype))
        whole = torch.empty(3 * world, 4, dtype=dtype, device=DEVICE)
        dist.all_gather_into_tensor(whole, ours(rank, dtype))
        for r in range(world):
            same(parts[r], all_data[r])
        same(whole, torch.cat(all_data))
        parts = [torch.empty_like(x) for _ in range(world)] if rank == 0 else None
        dist.gather(ours(rank, dtype), parts, dst=0)
        for r in range(world if rank == 0 else 0):
            same(parts[r], all_data[r])
        dist.scatter(x, [ours(r + 10, dtype) for r in range(world)] if rank == 0 else None, src=0)
        same(x, data(rank + 10, dtype))
        # Each rank sends each other rank a different part of a different size.
        sizes = [[1 + (r + s) % 3 for s in range(world)] for r in range(world)]
        sent = [[data(10 * r + s, dtype, (sizes[r][s], 2)) for s in range(world)] for r in range(world)]
        got = torch.empty(sum(sizes[r][rank] for r in range(world)), 2, dtype=dtype, device=DEVICE)
        mine = torch.cat(sent[rank]).to(DEVICE)
        dist.all_to_all_single(got, mine, [sizes[r][rank] for r in range(world)], sizes[rank])
        same(got, torch.cat([sent[r][rank] for r in range(world)]))
        outputs = [torch.empty(sizes[r][rank], 2, dtype=dtype, device=DEVICE) for r in range(world)]
        dist.all_to_all(outputs, [part.to(DEVICE) for part in sent[rank]])
        for r in range(world):
            same(outputs[r], sent[r][rank])


def reductions(rank, world):
    """Collectives that compute, in every type and with every op that the type has."""
    op = dist.ReduceOp
    for dtype in TYPES:
        is_integer = not dtype.is_floating_point and not dtype.is_complex
        ops = [op.SUM, op.PRODUCT]
        ops += [] if dtype.is_complex else [op.MIN, op.MAX]
        ops += [op.BAND, op.BOR, op.BXOR] if is_integer else []
        ops += [] if dtype == torch.bool else [op.AVG]
        for how in ops if not dtype.is_complex else [op.SUM, op.AVG]:
            wanted = reduced([data(r, dtype) for r in range(world)], how)
            x = ours(rank, dtype)
            dist.all_reduce(x, how)
            same(x, wanted)
        wanted = reduced([data(r, dtype) for r in range(world)], op.SUM)
        x = ours(rank, dtype)
        dist.reduce(x, dst=1)
        same(x, wanted if rank == 1 else data(rank, dtype))
        parts = [[data(10 * r + s, dtype) for s in range(world)] for r in range(world)]
        wanted = reduced([parts[r][rank] for r in range(world)], op.SUM)
        x = torch.empty_like(x)
        dist.reduce_scatter(x, [part.to(DEVICE) for part in parts[rank]])
        same(x, wanted)
        x = torch.zeros_like(x)
        dist.reduce_scatter_tensor(x, torch.cat(parts[rank]).to(DEVICE))
        same(x, wanted)
    for factor in (0.5, torch.tensor([0.5], device=DEVICE)):
        x = ours(rank)
        dist.all_reduce(x, dist._make_nccl_premul_sum(factor))
        same(x, sum(data(r) for r in range(world)) / 2)
    # Each rank by itself refuses an op that the type lacks, at the call.
    for dtype, how in ((torch.float32, op.BAND), (torch.bool, op.AVG), (torch.complex64, op.MAX)):
        try:
            dist.all_reduce(ours(rank, dtype), how)
        except (RuntimeError, ValueError) as error:
            assert "all_reduce" in str(error), error
        else:
            raise AssertionError(f"{how} of {dtype} was not refused")


def reduced(all_data, how):
    op, dtype = dist.ReduceOp, all_data[0].dtype
    stack = torch.stack(all_data)
    wide = stack.to(torch.float64) if dtype.is_floating_point else stack
    if dtype == torch.bool:
        table = {op.SUM: stack.any(0), op.MAX: stack.any(0), op.BOR: stack.any(0), op.PRODUCT: stack.all(0), op.MIN: stack.all(0),
                 op.BAND: stack.all(0), op.BXOR: stack.sum(0) % 2 == 1}
        return table[how]
    if how in (op.SUM, op.AVG):
        total = wide.sum(0)
        if how == op.AVG:
            total = total.div(len(all_data), rounding_mode=None if dtype.is_floating_point or dtype.is_complex else "trunc")
        return total.to(dtype)
    if how in (op.BAND, op.BOR, op.BXOR):
        result = stack[0]
        for other in stack[1:]:
            result = {op.BAND: torch.bitwise_and, op.BOR: torch.bitwise_or, op.BXOR: torch.bitwise_xor}[how](result, other)
        return result
    return {op.PRODUCT: wide.prod(0), op.MIN: stack.amin(0), op.MAX: stack.amax(0)}[how].to(dtype)


def shapes_and_views(rank, world):
    """Views, empty and 0-dimensional tensors, several collectives at once; several tensors in one
    call; objects; functional collectives."""
    base = ours(rank, shape=(4, 6))
    dist.all_reduce(base[:, ::2].t())
    wanted = data(rank, shape=(4, 6))
    wanted[:, ::2] = sum(data(r, shape=(4, 6)) for r in range(world))[:, ::2]
    same(base, wanted)
    number, nothing = torch.tensor(float(rank), device=DEVICE), torch.empty(0, 3, device=DEVICE)
    dist.all_reduce(number)
    dist.all_reduce(nothing)
    assert number.item() == sum(range(world)) and nothing.cpu().shape == (0, 3)
    group = dist.group.WORLD
    pair = [ours(rank), ours(rank + 1)]
    group.allreduce_coalesced(pair).wait()
    same(pair[1], sum(data(r + 1) for r in range(world)))
    gathered = [torch.empty(3 * world, 4, device=DEVICE) for _ in range(2)]
    group.allgather_into_tensor_coalesced(gathered, [ours(rank), ours(rank + 1)]).wait()
    same(gathered[1], torch.cat([data(r + 1) for r in range(world)]))
    scattered = [torch.empty(1, 4, device=DEVICE) for _ in range(2)]
    parts = [ours(rank, shape=(world, 4)), ours(rank + 1, shape=(world, 4))]
    group.reduce_scatter_tensor_coalesced(scattered, parts).wait()
    same(scattered[1], sum(data(r + 1, shape=(world, 4)) for r in range(world))[rank : rank + 1])
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank, "text": "a" * rank})
    assert [it["rank"] for it in objects] == list(range(world)), objects
    sent = [("from", rank)]
    dist.broadcast_object_list(sent, src=1)
    assert sent == [("from", 1)], sent
    same(all_reduce(ours(rank), "sum", group), sum(data(r) for r in range(world)))
    same(all_gather_tensor(ours(rank), 0, group), torch.cat([data(r) for r in range(world)]))
    same(reduce_scatter_tensor(ours(rank, shape=(world, 2)), "sum", 0, group),
         sum(data(r, shape=(world, 2)) for r in range(world))[rank : rank + 1])
    # A group of some ranks; the others go on.
    few = dist.new_group([0, 1])
    if rank < 2:
        x = ours(rank)
        dist.all_reduce(x, group=few)
        same(x, data(0) + data(1))
    dist.barrier()


def between_two(rank, world):
    """Receives before sends on both sides, more of them than threads, in any order; from any rank;
    in a batch."""
    peer = rank ^ 1
    got = [torch.zeros(5, device=DEVICE) for _ in range(24)]
    works = [dist.irecv(got[tag], src=peer, tag=tag) for tag in range(24)]
    works += [dist.isend(torch.full((5,), 100.0 * rank + tag, device=DEVICE), dst=peer, tag=tag) for tag in reversed(range(24))]
    for work in works:
        work.wait()
    same(torch.stack(got), (100.0 * peer + torch.arange(24.0))[:, None].expand(24, 5))
    x = torch.zeros(2, dtype=torch.bfloat16, device=DEVICE)
    if rank % 2 == 0:
        assert dist.recv(x, tag=100) in range(world)
        assert x[0].item() % 2 == 1, x
    else:
        dist.send(torch.full((2,), float(rank), dtype=torch.bfloat16, device=DEVICE), dst=rank - 1, tag=100)
    into = torch.zeros(3, device=DEVICE)
    ops = [dist.P2POp(dist.isend, torch.full((3,), float(rank), device=DEVICE), (rank + 1) % world),
           dist.P2POp(dist.irecv, into, (rank - 1) % world)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(into, torch.full((3,), float((rank - 1) % world)))


def in_the_stream(rank, world):
    """The program goes on while peers are missing, and what it records after the collective is
    correct."""
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["the other rank has recorded"])
    x = torch.full((64,), float(rank + 1), device=DEVICE)
    for _ in range(5):
        dist.all_reduce(x)
        x = x / world
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    if rank == 0:
        was_completed = work.is_completed()
        store.set("the other rank has recorded", "")
        assert not was_completed, "rank 1 had not come"
    same(x, torch.full((64,), float(sum(range(1, world + 1)))))
    assert work.is_completed(), "its result was read"
    # Both the result and the operand may be overwritten.
    y = ours(rank)
    work = dist.all_reduce(y, async_op=True)
    y.zero_()
    same(y, torch.zeros(3, 4))
    dist.barrier()


def another_program(rank, world):
    """Rank 0 computes more, and at other sizes, between collectives of all ranks. Returns the
    number of new regions in the first and in the later steps."""
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    wanted = (x.cpu() @ x.cpu()).tanh()
    misses = []
    for number in range(24):
        y = (x @ x).tanh()
        if rank == 0:
            z = torch.randn(3 + number, 5, generator=torch.Generator().manual_seed(number)).to(DEVICE)
            y = y + (z.t() @ z).sort(dim=0).values.cumsum(0).sum() * 0
        dist.all_reduce(y)
        same(y / world, wanted)
        torch.fuseline.synchronize()
        misses.append(torch.fuseline.counters()["misses"])
    return misses[7] - misses[0], {"later": misses[-1] - misses[7]}


# ----- training -----


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 5))


def samples(step, count=8):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(count, 12, generator=generator), torch.randint(0, 5, (count,), generator=generator)


def share(tensor, rank, world):
    size = len(tensor) // world
    return tensor[rank * size : (rank + 1) * size].to(DEVICE)


def learn(model, tuner, x, y, clip):
    """Runs one step and returns its loss."""
    tuner.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    tuner.step()
    return loss


def alone(steps=4, clip=None):
    """Losses and weights of the same training in one process on the CPU."""
    model, losses = network(), []
    tuner = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        losses.append(learn(model, tuner, *samples(step), clip).item())
    return losses, model.state_dict()


def train(model, rank, world, steps=4, clip=None):
    tuner, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for step in range(steps):
        x, y = (share(part, rank, world) for part in samples(step))
        mean = learn(model, tuner, x, y, clip).detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
    return losses


def check_training(losses, weights, wanted, tolerance=1e-5):
    torch.testing.assert_close(losses, wanted[0], rtol=tolerance, atol=tolerance)
    for name, weight in weights.items():
        same(weight, wanted[1][name], rtol=50 * tolerance, atol=50 * tolerance)


def ddp(rank, world):
    plain = DistributedDataParallel(network().to(DEVICE))
    check_training(train(plain, rank, world), plain.module.state_dict(), alone())
    views = DistributedDataParallel(network().to(DEVICE), gradient_as_bucket_view=True, static_graph=True, bucket_cap_mb=0.001)
    check_training(train(views, rank, world, clip=0.1), views.module.state_dict(), alone(clip=0.1))
    unused = DistributedDataParallel(network().to(DEVICE), find_unused_parameters=True)
    check_training(train(unused, rank, world), unused.module.state_dict(), alone())
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    halves = DistributedDataParallel(network().to(DEVICE))
    halves.register_comm_hook(None, default_hooks.bf16_compress_hook)
    # Gradients have 8 bits of precision.
    torch.testing.assert_close(train(halves, rank, world), alone()[0], rtol=2e-2, atol=2e-2)


def fsdp(rank, world):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import DTensor

    def sharded(**how):
        model = network().to(DEVICE)
        for layer in (model[0], model[2], model[4]):
            fully_shard(layer, **how)
        fully_shard(model, **how)
        return model

    model = sharded()
    assert isinstance(model[0].weight, DTensor)
    losses = train(model, rank, world)
    check_training(losses, {name: weight.full_tensor() for name, weight in model.state_dict().items()}, alone())
    clipped = sharded()
    losses = train(clipped, rank, world, clip=0.1)
    check_training(losses, {name: weight.full_tensor() for name, weight in clipped.state_dict().items()}, alone(clip=0.1))
    mixed = sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    losses = train(mixed, rank, world, clip=0.1)
    torch.testing.assert_close(losses, alone(clip=0.1)[0], rtol=2e-2, atol=2e-2)


def tensors_over_a_mesh(rank, world):
    """DTensor on a mesh of one dimension and, with four ranks, of two."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh(DEVICE, (world,))
    a, b = data(1, shape=(8, 12)), data(2, shape=(12, 16))
    whole = a @ b
    left, right = distribute_tensor(a.to(DEVICE), mesh, [Shard(0)]), distribute_tensor(b.to(DEVICE), mesh, [Replicate()])
    same((left @ right).full_tensor(), whole)
    left, right = left.redistribute(mesh, [Shard(1)]), right.redistribute(mesh, [Shard(0)])
    product = left @ right
    assert isinstance(product.placements[0], Partial)
    same(product.redistribute(mesh, [Replicate()]).to_local(), whole)
    same(product.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    if world == 4:
        mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("rows", "columns"))
        left = distribute_tensor(a.to(DEVICE), mesh, [Shard(0), Replicate()])
        right = distribute_tensor(b.to(DEVICE), mesh, [Replicate(), Shard(1)])
        product = left @ right
        assert product.to_local().shape == (4, 8)
        same(product.full_tensor(), whole)


def tensor_parallel(rank, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(DEVICE, (world,))
    model = parallelize_module(network().to(DEVICE), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    tuner, losses = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False), []
    for step in range(4):
        x, y = samples(step)
        tuner.zero_grad()
        loss = F.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        loss.backward()
        tuner.step()
        losses.append(loss.item())
    weights = {name: weight.full_tensor() if hasattr(weight, "full_tensor") else weight for name, weight in model.state_dict().items()}
    check_training(losses, weights, alone())


def checkpoint(rank, world, folder):
    """Models on other ranks load a checkpoint of sharded training, both sharded and whole."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(network().to(DEVICE))
    tuner = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = (share(part, rank, world) for part in samples(0))
    F.cross_entropy(model(x), y).backward()
    tuner.step()
    dcp.save({"model": get_model_state_dict(model), "tuner": get_optimizer_state_dict(model, tuner)}, checkpoint_id=folder)
    other = fully_shard(network().to(DEVICE))
    wanted = {name: weight.full_tensor() for name, weight in model.state_dict().items()}
    state = {"model": get_model_state_dict(other)}
    dcp.load(state, checkpoint_id=folder)
    whole = {"model": {name: torch.zeros_like(weight) for name, weight in network().to(DEVICE).state_dict().items()}}
    dcp.load(whole, checkpoint_id=folder)
    for name, weight in wanted.items():
        same(state["model"][name].full_tensor(), weight.cpu())
        same(whole["model"][name], weight.cpu())


# ----- what goes wrong -----


def failing(ask):
    """Returns the message of the error that the call must raise."""
    try:
        ask()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("no error")


def a_peer_dies(rank, world):
    """The last rank is gone while the others wait for it. Each of them soon gets an error that
    names the collective."""
    x = ours(rank)
    dist.all_reduce(x)
    same(x, sum(data(r) for r in range(world)))
    if rank == world - 1:
        os._exit(7)
    start = time.monotonic()
    # The call itself raises it if it is known by then.
    told = [failing(lambda: (dist.all_reduce(x), (x * 2).cpu()))]
    told += [failing(lambda: x.sum().item()), failing(lambda: dist.all_reduce(ours(rank)))]
    return time.monotonic() - start, told


def an_operand_fails(rank, world):
    """Rank 0 cannot compute its operand: it reports why, and its peers do not hang."""
    x = ours(rank)
    hasty = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=1))
    if rank == 0:
        nothing = torch.empty(3, 4, device=DEVICE)
        dist.recv(nothing, src=1, group=hasty)
        x = x + nothing
    start = time.monotonic()
    told = failing(lambda: (dist.all_reduce(x), x.cpu()))
    return time.monotonic() - start, told


def compiles(rank, world, program):
    """Counts of compiled, loaded and stored executables for a program whose regions are all
    compiled."""
    torch.fuseline.configure(interpret_cold=False)
    if program == "training":
        train(DistributedDataParallel(network().to(DEVICE)), rank, world, 6)
    else:
        for size in range(2, 8):
            x = torch.ones(size, size, device=DEVICE)
            for op in (torch.tanh, torch.exp, torch.relu):
                x = op(x @ x).mean(0, keepdim=True).expand(size, size)
            dist.all_reduce(x := x * (rank + 1.0))
            x.sum().item()
    torch.fuseline.synchronize()
    deadline = time.monotonic() + 30
    while torch.fuseline.counters()["pending_compiles"] and time.monotonic() < deadline:
        time.sleep(0.1)
    now = torch.fuseline.counters()
    return {name: now[name] for name in ("misses", "compiles", "loads", "stores")}
