"""Runs PyTorch's own list of ops (``op_db``) on the device and compares results and gradients with
the CPU's.

    python opinfo.py                             # all ops, float32, forward and backward
    python opinfo.py add --dtype int64 --samples 20
    python opinfo.py --inplace --out             # in-place and out= forms too
    python opinfo.py --table table.json          # per op: outcome, samples, fallbacks to the CPU

Every op runs in a process of its own, so that a crash is one failure. PASS: all samples agree.
FAIL: one does not, or fails only here. NONE: nothing was compared. An op is native if the CPU
computed none of its calls. Ops that draw random numbers are compared in type and sizes only.
Samples are spread evenly over PyTorch's samples of an op.
"""

import argparse
import itertools
import json
import multiprocessing
import sys
import typing

import torch

DEVICE = "fuseline"
# Ops whose results are random or uninitialized, by their whole names: ``masked.normalize`` and
# ``signal.windows.exponential`` are neither. Ops with a ``training`` flag that is off are compared.
RANDOM = {
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "uniform",
    "rand_like", "randint", "randint_like", "randn", "randn_like",
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    "nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "nn.functional.rrelu", "pca_lowrank", "svd_lowrank",
}
# Ops whose results are unique only up to signs or more. The output of PyTorch's own post-processing
# is compared.
OPEN = ("svd", "linalg.svd", "linalg.eigh", "linalg.eig", "linalg.lu_factor", "lu")
# Ops that return the position of any of several equal elements. Float32 samples have no equal
# elements, so positions are compared. For other types the elements at the positions are.
PLACES = ("sort", "argsort", "topk", "mode", "kthvalue", "median", "nanmedian", "msort")
# Ops whose statistics are float32 on devices and have the operands' type on the CPU.
WIDE = ("native_layer_norm", "native_batch_norm")
# Ops whose out= forms crash the CPU with tensors that are not in row-major order.
UNSAFE = ("lu_unpack", "linalg.lu")
SHORT = (torch.bfloat16, torch.float16)
LIMIT = 120
# The maximum number of samples of an op to choose from.
LISTED = 400
# Tolerance for sums in another order, if PyTorch's own for the CPU is smaller.
TOLERANCE = {torch.float32: {"rtol": 1e-5, "atol": 5e-5}, torch.complex64: {"rtol": 1e-5, "atol": 5e-5}}


# Relative errors of the CPU's own float32 results against float64, where they are larger.
LOOSE = {"matrix_exp": 3e-3}
# The same for gradients. The gradient of logcumsumexp is the exponential of differences of numbers
# up to 10,000, whose last digit is a thousandth. For PyTorch's own samples the CPU differs from
# double precision by 2.8e-3 and the device by 4.3e-3, in numbers of about 5.
LOOSE_GRADIENTS = {"logcumsumexp": 5e-3}


def tolerance_of(op, dtype, is_gradient=False):
    """Returns the larger of the tolerances that PyTorch's tests have for the type of a result
    (``assert_close``) and for this op in the type (``toleranceOverride``)."""
    from torch.testing._comparison import default_tolerances
    from torch.testing._internal.common_device_type import toleranceOverride

    rtol, atol = default_tolerances(dtype)
    told = [TOLERANCE.get(dtype, {"rtol": rtol, "atol": atol}), {"rtol": LOOSE.get(op.name, 0.0), "atol": 0.0}]
    if is_gradient:
        told.append({"rtol": LOOSE_GRADIENTS.get(op.name, 0.0), "atol": 0.0})
    for decorator in itertools.chain.from_iterable(getattr(each, "decorators", ()) for each in op.decorators):
        if isinstance(decorator, toleranceOverride) and dtype in decorator.d:
            told.append({"rtol": decorator.d[dtype].rtol, "atol": decorator.d[dtype].atol})
    return {kind: max(each[kind] for each in told) for kind in ("rtol", "atol")}


def over(value):
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_conj() or value.is_neg():
            return value.detach().to(DEVICE).requires_grad_(value.requires_grad)
        # With its whole storage, so that it is the same view of the same elements.
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


class Case(typing.NamedTuple):
    op: object
    dtype: torch.dtype
    is_drawn: bool
    is_gradient: bool = False


def rms(a, b):
    return (a.double() - b.double()).square().mean().sqrt().item()


def is_as_near(ours, theirs, exact):
    """Whether a short float is the rounded result of longer floats, or as close to it as the CPU's
    (PyTorch's own measure, ``torch._dynamo.utils.same``)."""
    exact = exact.detach()
    if exact.shape != ours.shape:
        return False
    if torch.allclose(ours, exact.to(ours.dtype), rtol=1.6e-2, atol=1e-5, equal_nan=True):
        return True
    if not torch.equal(ours.isfinite(), theirs.isfinite()) or not ours.isfinite().all():
        return False
    return rms(ours, exact) <= 2 * rms(theirs, exact) + 1e-3 * rms(exact, torch.zeros_like(exact))


def gather_places(source, places, dim):
    """Returns the elements at positions along a dimension, or None if the shapes do not match."""
    if source.dim() == 0:
        source, places = source.reshape(1), places.reshape(1)
    if places.dim() == source.dim() - 1:
        places = places.unsqueeze(dim)
    sizes = enumerate(zip(places.shape, source.shape))
    if places.dim() != source.dim() or any(a != b for at, (a, b) in sizes if at != dim):
        return None
    if places.numel() and not (0 <= places.min() and places.max() < source.shape[dim]):
        return None
    return source.gather(dim, places)


def compare_places(ours, theirs, source):
    """Asserts that the elements at both positions are equal and that no position occurs twice."""
    for dim in range(max(source.dim(), 1)):
        found, wanted = gather_places(source, ours, dim), gather_places(source, theirs, dim)
        if found is not None and wanted is not None and torch.allclose(found, wanted, rtol=0, atol=0, equal_nan=True):
            if ours.dim() == source.dim() > 0:
                order = ours.sort(dim).values
                assert (order.diff(dim=dim) != 0).all(), f"a place is given twice: {ours}"
            return
    raise AssertionError(f"other elements are at {ours} than at {theirs}")


def compare(found, wanted, case, exact=None, source=None):
    """Asserts that results are equal within the tolerance of the case.

    ``exact()`` computes the same with longer floats, which decides if short floats differ.
    ``source`` is the operand whose positions a result may contain.
    """
    assert len(found) == len(wanted), f"{len(found)} results and not {len(wanted)}"
    # Float32 samples have no relevant equal elements; samples of other types have many.
    has_places = case.op.name in PLACES and case.dtype != torch.float32
    for at, (ours, theirs) in enumerate(zip(found, wanted)):
        assert ours.device.type == DEVICE, f"a result on {ours.device}"
        is_place = has_places and theirs.dtype == torch.int64 and at == len(wanted) - 1 and (at > 0 or case.op.name == "argsort")
        if case.is_drawn or is_place:
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), f"{ours.dtype} {ours.shape}"
            if is_place:
                compare_places(ours.cpu(), theirs, source)
            continue
        ours, theirs = ours.detach().cpu(), theirs.detach()
        if case.op.name in WIDE:
            ours = ours.to(theirs.dtype)
        try:
            torch.testing.assert_close(ours, theirs, equal_nan=True, **tolerance_of(case.op, theirs.dtype, case.is_gradient))
        except AssertionError:
            if theirs.dtype not in SHORT or ours.dtype != theirs.dtype or exact is None or not is_as_near(ours, theirs, exact()[at]):
                raise


def gradients(results, inputs, calls=1):
    """Runs ``calls`` backward passes, and returns the gradients of the last one."""
    results = [result for result in results if result.requires_grad]
    if not results or not inputs:
        return []
    # Ones would hide what a sum over a gradient hides: a permutation, or a factor whose mean is
    # one. Made on the CPU, so that both sides use the same numbers.
    generator = torch.Generator().manual_seed(0)
    seeds = [torch.randn(result.shape, dtype=result.dtype, generator=generator).to(result.device) for result in results]
    for left in reversed(range(calls)):
        found = torch.autograd.grad(results, inputs, seeds, allow_unused=True, retain_graph=left > 0)
    return found


def spread(samples, count):
    """Returns this many samples, spread evenly, including the first."""
    samples = list(itertools.islice(samples, LISTED))
    return samples[:: max(1, -(-len(samples) // count))]


def arguments(sample):
    """Returns copies of the arguments, so that an in-place write does not affect later calls."""
    return [torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x.detach().clone(), part)
            for part in (sample.input, list(sample.args), sample.kwargs)]


def there_of(op, given):
    there = over(given)
    if op.name == "tensor_split":
        # The indices stay on the CPU, whatever the device.
        there[1:] = given[1:]
    return there


def longer(value):
    """Returns the arguments, including nested ones, with longer floats."""
    def long(part):
        if isinstance(part, torch.Tensor):
            return part.detach().float() if part.dtype in SHORT else part
        return torch.float32 if part in SHORT else part

    return torch.utils._pytree.tree_map(long, value)


def check_in_place(op, sample, case):
    """Compares the in-place form: the written tensor, which is also returned. Returns the number of
    results compared."""
    change, given = op.inplace_variant, arguments(sample)
    if change is None or sample.broadcasts_input:
        return 0
    there = there_of(op, arguments(sample))
    try:
        wanted = change(given[0], *given[1], **given[2])
    except Exception:
        return 0
    found = change(there[0], *there[1], **there[2])
    assert (found is there[0]) == (wanted is given[0]), "an in-place form returns another tensor"

    def exact():
        long = longer(arguments(sample))
        return tensors(change(long[0], *long[1], **long[2]))

    compare(tensors(there[0]), tensors(given[0]), case, exact, sample.input)
    return len(tensors(given[0]))


def check_out(op, sample, case):
    """Compares the ``out=`` form: tensors of the right sizes that are not in row-major order, and
    empty ones that are resized."""
    if not op.supports_out or op.name in UNSAFE:
        return 0
    compared, over_all = 0, torch.utils._pytree.tree_map_only
    for lay in (lambda x: torch.zeros(x.shape[::-1], dtype=x.dtype).permute(*range(x.dim())[::-1]),
                lambda x: torch.zeros(0, dtype=x.dtype)):
        given, there = arguments(sample), there_of(op, arguments(sample))
        try:
            plain = op(given[0], *given[1], **given[2])
            outs = over_all(torch.Tensor, lay, plain)
            op(given[0], *given[1], **given[2], out=outs)
            # Skip what the CPU itself does not write there.
            torch.testing.assert_close(outs, plain, equal_nan=True)
        except (AssertionError, Exception):
            continue
        if not tensors(outs):
            continue
        targets = over_all(torch.Tensor, lambda x: over(lay(x)), plain)
        found = op(there[0], *there[1], **there[2], out=targets)
        compare(tensors(targets), tensors(outs), case, lambda: exact_of(op, sample), sample.input)
        assert all(ours is target for ours, target in zip(tensors(found), tensors(targets))), "out= is not what is returned"
        compared += len(tensors(outs))
    return compared


def exact_of(op, sample):
    long = longer(arguments(sample))
    return tensors(op(long[0], *long[1], **long[2]))


def check_forward(op, sample, case, has_gradients):
    given = [sample.input, list(sample.args), sample.kwargs]
    shown = sample.output_process_fn_grad if op.name in OPEN else lambda x: x
    try:
        plain = op(sample.input, *sample.args, **sample.kwargs)
        wanted = tensors(shown(plain))
        if wanted and not tensors(given) and "device" not in sample.kwargs:
            # A factory without a device argument: its results are the CPU's.
            return 0
        leaves = [tensor for tensor in tensors(given) if tensor.requires_grad]
        wanted_gradients = gradients(wanted, leaves) if has_gradients else ()
    except Exception:
        return 0
    there = there_of(op, given)
    # From the second call on, the ops come from the cache of lowerings.
    calls = 1 if case.is_drawn else 3
    for _ in range(calls):
        result = op(there[0], *there[1], **there[2])
    if not wanted and isinstance(plain, (bool, int, float, complex, torch.Size)):
        torch.testing.assert_close(list(result) if isinstance(plain, torch.Size) else result, list(plain) if isinstance(plain, torch.Size) else plain,
                                   equal_nan=True)
        return 1
    found = tensors(shown(result))
    compare(found, wanted, case, lambda: exact_of(op, sample), sample.input)
    if has_gradients:
        leaves = [tensor for tensor in tensors(there) if tensor.requires_grad]
        pairs = list(zip(gradients(found, leaves, calls), wanted_gradients))
        assert all((ours is None) == (theirs is None) for ours, theirs in pairs), "a gradient is missing"
        compare(*[[pair[side] for pair in pairs if pair[0] is not None] for side in (0, 1)], case._replace(is_gradient=True))
    return len(wanted)


def check(op, dtype, samples, has_gradients, forms=(), most=None):
    """Returns the outcome, the number of results compared, and the reason. ``most`` limits the
    samples to the first ones."""
    is_random = op.name in RANDOM
    has_gradients = has_gradients and op.supports_autograd and not is_random
    compared = 0
    for sample in spread(op.sample_inputs("cpu", dtype, requires_grad=has_gradients), samples)[:most]:
        is_dropped = sample.kwargs.get("dropout_p", 0.0) > 0 or sample.kwargs.get("training")
        is_drawn = (is_random and sample.kwargs.get("training") is not False) or ("attention" in op.name and bool(is_dropped))
        case = Case(op, dtype, is_drawn)
        form = ""
        try:
            compared += check_forward(op, sample, case, has_gradients)
            for form in forms:
                compared += (check_in_place if form == "inplace" else check_out)(op, sample, case)
        except Exception as error:
            return "FAIL", compared, f"sample {compared} {form}: {type(error).__name__}: {error}"
    return ("PASS" if compared else "NONE"), compared, ""


def work(name, variant, dtype, samples, has_gradients, forms, pipe):
    from torch.testing._internal.common_methods_invocations import op_db

    op = next(op for op in op_db if (op.name, op.variant_test_name) == (name, variant))
    outcome, compared, why = check(op, dtype, samples, has_gradients, forms)
    fell = {name.removeprefix("aten::"): count for name, count in torch.fuseline.fallbacks().items()}
    # Gradients of the checks themselves do not belong to the op.
    fell.pop("fill_.Scalar", None)
    reasons = torch.fuseline.why_fallbacks()
    pipe.send({"outcome": outcome, "samples": compared, "why": why, "fallbacks": fell, "reasons": reasons})


def in_a_process(context, target, args, limit):
    """Returns what a process sends from ``target(*args, pipe)``, and why it sent nothing."""
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
    parser.add_argument("--part", default="1/1", help="the first of so many parts of the list, ...: for as many machines or cores")
    parser.add_argument("--forward", action="store_true", help="no gradients")
    parser.add_argument("--inplace", dest="forms", action="append_const", const="inplace", default=[], help="in-place forms too")
    parser.add_argument("--out", dest="forms", action="append_const", const="out", help="out= forms too")
    parser.add_argument("--why", action="store_true", help="say why the CPU computed a call")
    parser.add_argument("--table", help="write the rows to this file, as JSON")
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    fork, rows = multiprocessing.get_context("fork"), []
    has_gradients = not args.forward and not args.forms and dtype.is_floating_point
    part, parts = map(int, args.part.split("/"))
    for op in op_db[part - 1 :: parts]:
        if (args.ops and op.name not in args.ops) or dtype not in op.supported_dtypes("cpu"):
            continue
        case = (op.name, op.variant_test_name, dtype, args.samples, has_gradients, args.forms)
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
            head = {"dtype": args.dtype, "samples": args.samples, "gradients": has_gradients, "forms": args.forms}
            lines = ",\n".join(json.dumps(row | {"why": row["why"].split("\n")[0][:120]}) for row in rows)
            file.write(f"{json.dumps(head)[:-1]}, \"rows\": [\n{lines}\n]}}\n")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
