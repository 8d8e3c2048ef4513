"""Runs PyTorch's own list of ops (``op_db``) on the device and compares results and gradients with the CPU's.

    python opinfo.py                      # all ops, float32, forward and backward
    python opinfo.py add nn.functional.gelu --dtype int64 --samples 20
    python opinfo.py --table table.json   # a row for each op: outcome, samples, what the CPU computed instead

Every op runs in a process of its own, so that a crash is one failure. PASS: all samples agree. FAIL: one does not, or fails only here. NONE: nothing was
compared. An op is native if no call was computed by the CPU; ops that draw random numbers are compared in type and sizes only.
"""

import argparse
import itertools
import json
import multiprocessing
import sys

import torch

DEVICE = "fuseline"
# Ops whose results are random, or are memory that nobody has written to.
RANDOM = ("rand", "normal", "bernoulli", "multinomial", "uniform", "exponential", "geometric", "cauchy", "dropout", "empty",
          "log_normal", "rrelu", "svd_lowrank", "pca_lowrank", "fractional_max_pool")
LIMIT = 120
# What sums in another order may differ by, where PyTorch's own tolerance for the CPU is less.
TOLERANCE = {torch.float32: {"rtol": 1e-5, "atol": 5e-5}}


def over(value):
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_conj() or value.is_neg():
            return value.detach().to(DEVICE).requires_grad_(value.requires_grad)
        # With all of its storage, so that it is the same view of the same elements.
        storage = torch.empty(0, dtype=value.dtype).set_(value.detach().untyped_storage()).to(DEVICE)
        view = storage.as_strided(value.shape, value.stride(), value.storage_offset())
        return view.detach().requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(map(over, value))
    if isinstance(value, dict):
        return {name: over(part) for name, part in value.items()}
    if value == "cpu" or isinstance(value, torch.device):
        return torch.device(DEVICE)
    return value


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return list(itertools.chain.from_iterable(map(tensors, value)))
    return []


def compare(found, wanted, is_random):
    assert len(found) == len(wanted), f"{len(found)} results and not {len(wanted)}"
    for ours, theirs in zip(found, wanted):
        assert ours.device.type == DEVICE, f"a result on {ours.device}"
        if is_random:
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), f"{ours.dtype} {ours.shape}"
        else:
            tolerance = TOLERANCE.get(theirs.dtype, {})
            torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), equal_nan=True, **tolerance)


def gradients(results, inputs):
    results = [result for result in results if result.requires_grad]
    if not results or not inputs:
        return []
    seeds = [torch.ones_like(result) for result in results]
    return torch.autograd.grad(results, inputs, seeds, allow_unused=True)


def check(op, dtype, samples, has_gradients):
    """Outcome, number of samples, and why."""
    is_random = any(word in op.name for word in RANDOM)
    has_gradients = has_gradients and op.supports_autograd and not is_random
    compared = 0
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=has_gradients), samples):
        given = [sample.input, list(sample.args), sample.kwargs]
        is_dropped = sample.kwargs.get("dropout_p", 0.0) > 0 or sample.kwargs.get("training")
        is_drawn = is_random or ("attention" in op.name and bool(is_dropped))
        try:
            wanted = tensors(op(sample.input, *sample.args, **sample.kwargs))
            leaves = [tensor for tensor in tensors(given) if tensor.requires_grad]
            wanted_gradients = gradients(wanted, leaves)
        except Exception:
            continue
        there = over(given)
        if op.name == "tensor_split":
            # Its indices are on the CPU, whatever the device.
            there[1:] = given[1:]
        try:
            found = tensors(op(there[0], *there[1], **there[2]))
            compare(found, wanted, is_drawn)
            leaves = [tensor for tensor in tensors(there) if tensor.requires_grad]
            pairs = list(zip(gradients(found, leaves), wanted_gradients))
            assert all((ours is None) == (theirs is None) for ours, theirs in pairs), "a gradient is missing"
            compare(*[[pair[side] for pair in pairs if pair[0] is not None] for side in (0, 1)], is_drawn)
        except Exception as error:
            return "FAIL", compared, f"sample {compared}: {type(error).__name__}: {error}"
        compared += len(wanted)
    return ("PASS" if compared else "NONE"), compared, ""


def work(name, variant, dtype, samples, has_gradients, pipe):
    from torch.testing._internal.common_methods_invocations import op_db

    op = next(op for op in op_db if (op.name, op.variant_test_name) == (name, variant))
    outcome, compared, why = check(op, dtype, samples, has_gradients)
    fell = {name.removeprefix("aten::"): count for name, count in torch.fuseline.fallbacks().items()}
    # Gradients of the checks themselves are not the op's.
    fell.pop("fill_.Scalar", None)
    reasons = torch.fuseline.why_fallbacks()
    pipe.send({"outcome": outcome, "samples": compared, "why": why, "fallbacks": fell, "reasons": reasons})


def in_a_process(context, target, args, limit):
    """What a process sends of ``target(*args, pipe)``, and why it sent nothing."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(*args, theirs))
    process.start()
    theirs.close()
    try:
        return (ours.recv(), "") if ours.poll(limit) else (None, f"no answer in {limit} s")
    except EOFError:
        process.join()
        return None, f"the process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()


def main():
    from torch.testing._internal.common_methods_invocations import op_db

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="*", help="names, as in op_db; all without")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--samples", type=int, default=10, help="most samples of an op")
    parser.add_argument("--forward", action="store_true", help="no gradients")
    parser.add_argument("--why", action="store_true", help="say why the CPU computed a call")
    parser.add_argument("--table", help="write the rows to this file, as JSON")
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    fork, rows = multiprocessing.get_context("fork"), []
    for op in op_db:
        if (args.ops and op.name not in args.ops) or dtype not in op.supported_dtypes("cpu"):
            continue
        has_gradients = not args.forward and dtype.is_floating_point
        case = (op.name, op.variant_test_name, dtype, args.samples, has_gradients)
        told, why = in_a_process(fork, work, case, LIMIT)
        row = {"op": op.name, "variant": op.variant_test_name} | (told or {"outcome": "FAIL", "why": why})
        reasons = row.pop("reasons", {})
        rows.append(row)
        native = "native" if not row.get("fallbacks", {"": 1}) else " ".join(row.get("fallbacks", ()))
        print(f"{row['outcome']} {row['op']} {row['variant']} [{native}] {row['why'][:300]}".replace("\n", " "), flush=True)
        if args.why:
            print(*(f"    {name}: {why}" for name, why in reasons.items()), sep="\n", flush=True)
    counts = {outcome: sum(row["outcome"] == outcome for row in rows) for outcome in ("PASS", "FAIL", "NONE")}
    native = sum(row["outcome"] == "PASS" and not row["fallbacks"] for row in rows)
    print(f"{args.dtype}: {counts['PASS']} pass, {native} of them native, {counts['FAIL']} fail, {counts['NONE']} compare nothing")
    if args.table:
        with open(args.table, "w") as file:
            head = {"dtype": args.dtype, "samples": args.samples, "gradients": not args.forward}
            lines = ",\n".join(json.dumps(row | {"why": row["why"].split("\n")[0][:120]}) for row in rows)
            file.write(f"{json.dumps(head)[:-1]}, \"rows\": [\n{lines}\n]}}\n")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
