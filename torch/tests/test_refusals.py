"""A call with wrong arguments is an error of the CPU's type, at the call.

Run with the package installed: ``python -m unittest discover -s torch/tests``.
"""

import io
import unittest
import warnings

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

DEVICE = "fuseline"
INF, NAN = float("inf"), float("nan")
TYPES = (
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
)


def refusal(call):
    """The type of the error that a call raises, before anything is read."""
    try:
        call()
    except Exception as error:
        return type(error)
    return None


class Case(unittest.TestCase):
    def alike(self, call, name):
        self.assertEqual(refusal(lambda: call(DEVICE)), refusal(lambda: call("cpu")), name)


def ones(device, *shape, dtype=torch.float32):
    return torch.ones(*shape, dtype=dtype, device=device)


PAIRS = {
    "mm": lambda a, b: torch.mm(a(2, 2), b(2, 2)),
    "bmm": lambda a, b: torch.bmm(a(1, 2, 2), b(1, 2, 2)),
    "matmul": lambda a, b: a(2, 2) @ b(2),
    "conv2d": lambda a, b: F.conv2d(a(1, 1, 3, 3), b(1, 1, 2, 2)),
    "sub": lambda a, b: a(2) - b(2),
    "rsub": lambda a, b: torch.rsub(a(2), b(2)),
    "lerp": lambda a, b: torch.lerp(a(2), b(2), 0.5),
    "lt": lambda a, b: a(2) < b(2),
    "maximum": lambda a, b: torch.maximum(a(2), b(2)),
    "clamp": lambda a, b: torch.clamp(a(2), b(2), b(2)),
    "fmod": lambda a, b: torch.fmod(a(2), b(2)),
    "atan2": lambda a, b: torch.atan2(a(2), b(2)),
    "bitwise_and": lambda a, b: a(2) & b(2),
    "index_add": lambda a, b: a(2).index_add(0, index(a, [0, 1]), b(2)),
    "index_copy": lambda a, b: a(2).index_copy(0, index(a, [0, 1]), b(2)),
    "index_put": lambda a, b: a(2).index_put((index(a, [0, 1]),), b(2)),
    "scatter": lambda a, b: a(2).scatter(0, index(a, [0, 1]), b(2)),
    "scatter_add": lambda a, b: a(2).scatter_add(0, index(a, [0, 1]), b(2)),
    "masked_scatter": lambda a, b: a(2).masked_scatter(index(a, [0, 1]) == 0, b(2)),
    "put": lambda a, b: a(2).put(index(a, [0, 1]), b(2)),
    "cross": lambda a, b: torch.linalg.cross(a(3), b(3)),
    "layer_norm": lambda a, b: F.layer_norm(a(2, 2), (2,), b(2), b(2)),
    "group_norm": lambda a, b: F.group_norm(a(2, 2), 1, b(2), b(2)),
    "batch_norm": lambda a, b: F.batch_norm(a(2, 2), b(2), b(2), b(2), b(2)),
}
ALONE = {
    "abs": torch.abs,
    "neg": torch.neg,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "frac": torch.frac,
    "sign": torch.sign,
    "relu": torch.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "leaky_relu": F.leaky_relu,
    "softplus": F.softplus,
    "softmax": lambda x: F.softmax(x, 0),
    "mean": torch.mean,
    "mean in float": lambda x: torch.mean(x, dtype=torch.float32),
    "var": torch.var,
    "median": torch.median,
    "argmax": torch.argmax,
    "amax": torch.amax,
    "topk": lambda x: x.topk(1),
    "erf": torch.erf,
    "lgamma": torch.lgamma,
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "normal_": lambda x: x.normal_(),
    "geometric_": lambda x: x.geometric_(0.5),
    "threshold": lambda x: F.threshold(x, 0, 0),
    "clamp": lambda x: x.clamp(0, 1),
    "1 -": lambda x: 1 - x,
    "- True": lambda x: x - True,
    "multinomial": lambda x: torch.multinomial(x, 1),
    "cdist": lambda x: torch.cdist(x.reshape(1, -1), x.reshape(1, -1)),
    "normal": lambda x: torch.normal(x, x),
    "max_pool2d": lambda x: F.max_pool2d(x.reshape(1, 2, 2), 2),
    "max_pool1d": lambda x: F.max_pool1d(x.reshape(1, 4), 2),
    "max_pool1d with places": lambda x: F.max_pool1d(x.reshape(1, 4), 2, return_indices=True),
    "bernoulli": torch.bernoulli,
    "bernoulli_": lambda x: x.bernoulli_(),
    "bernoulli_ of floats": lambda x: x.bernoulli_(torch.ones(4, device=x.device)),
    "bernoulli_ of the shares": lambda x: torch.ones(4, device=x.device).bernoulli_(x),
    "bernoulli of one share": lambda x: torch.bernoulli(x, 0.5),
    "cummax": lambda x: x.cummax(0),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "cumsum in bool": lambda x: x.cumsum(0, dtype=torch.bool),
    "cumprod in float": lambda x: x.cumprod(0, dtype=torch.float32),
    "cumsum_": lambda x: x.cumsum_(0),
    "cumsum_ in float": lambda x: x.cumsum_(0, dtype=torch.float32),
    "cumprod_ in int64": lambda x: x.cumprod_(0, dtype=torch.int64),
}  # fmt: skip


def index(like, places):
    return torch.tensor(places, device=like(1).device)


class Types(Case):
    def test_pairs_of_types(self):
        for name, op in PAIRS.items():
            for one in TYPES:
                for other in TYPES:
                    # There are no complex numbers of half precision on the device.
                    if {one, other} == {torch.float16, torch.complex64}:
                        continue

                    def call(device):
                        op(
                            lambda *dims: ones(device, *dims, dtype=one),
                            lambda *dims: ones(device, *dims, dtype=other),
                        )

                    text = f"{name} of {one} and {other}"
                    if one == other:
                        self.alike(call, text)
                    else:
                        # Either type can be the wrong one, and the order of the checks differs.
                        found, wanted = refusal(lambda: call(DEVICE)), refusal(lambda: call("cpu"))
                        self.assertEqual(found is None, wanted is None, f"{text}: {found} {wanted}")

    def test_single_types(self):
        for name, op in ALONE.items():
            for dtype in TYPES:
                self.alike(lambda device: op(ones(device, 4, dtype=dtype)), f"{name} of {dtype}")

    def test_what_has_no_elements_is_multiplied(self):
        for call in (
            lambda x: x @ x.T,
            lambda x: F.softmax(x, 1),
            lambda x: x.mT.bmm(x) if x.dim() == 3 else torch.median(x),
        ):
            self.alike(lambda device: call(ones(device, 0, 3, dtype=torch.bool)), "nothing")

    def test_types_of_results(self):
        double = {"dtype": torch.float64}
        for name, call in {
            "mm": lambda d: torch.mm(ones(d, 2, 2), ones(d, 2, 2), out=ones(d, 2, 2, **double)),
            "abs": lambda d: torch.abs(ones(d, 2), out=ones(d, 2, **double)),
            "add": lambda d: torch.add(ones(d, 2), 1, out=ones(d, 2, **double)),
            "max": lambda d: torch.max(ones(d, 2), 0, out=(ones(d), ones(d))),
            "argmax": lambda d: torch.argmax(ones(d, 2), 0, out=ones(d)),
            "gather": lambda d: torch.gather(
                ones(d, 2), 0, torch.tensor([0, 1], device=d), out=ones(d, 2, **double)
            ),
            "any": lambda d: torch.any(ones(d, 2), out=ones(d)),
            "any of bytes": lambda d: torch.any(ones(d, 2), out=ones(d, dtype=torch.uint8)),
            "masked_select": lambda d: torch.masked_select(
                ones(d, 2), ones(d, 2) > 0, out=ones(d, 2, **double)
            ),
            "aminmax": lambda d: torch.aminmax(ones(d, 2), out=(ones(d), ones(d, **double))),
            "multinomial": lambda d: torch.multinomial(ones(d, 2), 1, out=ones(d, 1)),
            "narrow_copy": lambda d: torch.narrow_copy(ones(d, 2), 1, 0, 1),
            "narrow_copy from the end": lambda d: torch.narrow_copy(ones(d, 2), -2, 0, 1),
        }.items():
            self.alike(call, name)

    def test_results_are_converted_where_the_cpu_converts_them(self):
        calls = {
            "bernoulli": lambda x, out: torch.bernoulli(
                x.abs() > 9 if x.dtype == torch.bool else x * 0, out=out
            ),
            "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
            "cumprod": lambda x, out: torch.cumprod(x, 0, out=out),
            "cumsum in int64": lambda x, out: torch.cumsum(x, 0, dtype=torch.int64, out=out),
            "cat": lambda x, out: torch.cat([x, x], out=out),
            "stack": lambda x, out: torch.stack([x, x], out=out),
            "sum": lambda x, out: torch.sum(x, 0, out=out),
            "sum in int64": lambda x, out: torch.sum(x, 0, dtype=torch.int64, out=out),
            "prod": lambda x, out: torch.prod(x, 0, out=out),
            "avg_pool2d": lambda x, out: torch._C._nn.avg_pool2d(x[None, None, :], (1, 2), out=out),
            "bitwise_not": lambda x, out: torch.bitwise_not(x, out=out),
            "conj_physical": lambda x, out: torch.conj_physical(x, out=out),
        }  # fmt: skip
        for name, call in calls.items():
            for given in (torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64):
                for result in (*TYPES, torch.int8):
                    if {given, result} == {torch.float16, torch.complex64}:
                        continue

                    def written(device):
                        x = torch.tensor([1.75, 2.5, -0.5], device=device).to(given)
                        return call(x, torch.empty(0, dtype=result, device=device))

                    # Both types can be wrong, and the order of the checks differs.
                    text = f"{name} of {given} as {result}"
                    found, wanted = refusal(lambda: written(DEVICE)), refusal(lambda: written("cpu"))
                    self.assertEqual(found is None, wanted is None, f"{text}: {found} {wanted}")
                    if wanted is None:
                        torch.testing.assert_close(
                            written(DEVICE).cpu(), written("cpu"), msg=lambda why: f"{text}: {why}"
                        )


NUMBERS = (300, -1, -300, 2**40, 2**63 - 1, 1.5, INF, NAN, 1e300, 70000.0, True)
CONVERTED = {
    "fill_": lambda x, n: x.fill_(n), "masked_fill": lambda x, n: x.masked_fill(x == 1, n),
    "index_fill": lambda x, n: x.index_fill(0, torch.tensor([0], device=x.device), n),
    "set an item": lambda x, n: x.__setitem__(0, n),
    "clamp": lambda x, n: x.clamp(min=n),
    "clamp from above": lambda x, n: x.clamp(max=n),
    "clip": lambda x, n: x.clamp(n, n),
    "threshold": lambda x, n: F.threshold(x, 0, n),
    "add": lambda x, n: torch.add(x, x, alpha=n),
    "plus": lambda x, n: x + n, "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "addmm": lambda x, n: torch.addmm(x, x[:, None], x[None], beta=n), "power": lambda x, n: x**n,
    "pad": lambda x, n: F.pad(x, (1, 1), value=n),
    "random_": lambda x, n: x.random_(0, n) if isinstance(n, int) and n > 0 else x,
}  # fmt: skip
# The CPU composes these calls of other ops than the device does.
ELSEWHERE = {
    ("fill_", torch.float16),
    ("set an item", torch.float16),
    ("threshold", torch.float16),
    ("pad", torch.float16),
    ("add", torch.float32),
}


class Numbers(Case):
    def test_numbers_that_a_type_does_not_hold(self):
        for name, op in CONVERTED.items():
            for dtype in (
                torch.bool,
                torch.uint8,
                torch.int8,
                torch.int32,
                torch.int64,
                torch.float16,
                torch.float32,
            ):
                for number in NUMBERS:
                    if (name, dtype) not in ELSEWHERE:
                        self.alike(
                            lambda device: op(ones(device, 2, dtype=dtype), number),
                            f"{name} of {dtype} and {number}",
                        )

    def test_limits_beyond_a_type_are_none(self):
        for dtype in (torch.uint8, torch.int8, torch.int32):
            x = torch.tensor([1, 100], dtype=dtype)
            for call in (
                lambda x: x.clamp(min=-1000),
                lambda x: x.clamp(max=2**40),
                lambda x: x.clamp(-(2**40), 2**40),
                lambda x: F.hardtanh(x, 0, 2**40),
            ):  # fmt: skip
                if refusal(lambda: call(x)) is None:
                    self.assertTrue(
                        torch.equal(call(x.to(DEVICE)).cpu(), call(x)),
                        f"{dtype} {call(x.to(DEVICE))}",
                    )
                else:
                    self.assertEqual(refusal(lambda: call(x.to(DEVICE))), refusal(lambda: call(x)))


class Devices(unittest.TestCase):
    def test_a_device_that_does_not_exist_is_an_error_wherever_it_is_named(self):
        there, x = "fuseline:1", torch.ones(2)
        own = x.to(DEVICE)
        file = io.BytesIO()
        torch.save(x, file)

        def load(where):
            file.seek(0)
            return torch.load(file, map_location=where)

        class Own(torch.Event):
            pass

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, call in {
                "Event": lambda: torch.Event(there),
                "Event of a device": lambda: torch.Event(device=torch.device(there)),
                "a class made of Event": lambda: Own(there),
                "Stream": lambda: torch.Stream(there),
                "pin_memory": lambda: x.pin_memory(there),
                "is_pinned": lambda: x.is_pinned(there),
                "pin_memory of a storage": lambda: x.untyped_storage().pin_memory(there),
                "Generator": lambda: torch.Generator(device=there),
                "set_device": lambda: torch.fuseline.set_device(1),
                "set_device_index": lambda: torch.accelerator.set_device_index(1),
                "empty": lambda: torch.empty(2, device=there),
                "zeros_like": lambda: torch.zeros_like(own, device=there),
                "to": lambda: own.to(there),
                "a module": lambda: torch.nn.Linear(2, 2).to(there),
                "UntypedStorage": lambda: torch.UntypedStorage(8, device=there),
                "a storage": lambda: x.untyped_storage().to(device=there),
                "load": lambda: load(there),
                "autocast": lambda: torch.autocast(there),
                "GradScaler": lambda: torch.amp.GradScaler(there),
                "memory_stats": lambda: torch.accelerator.memory_stats(1),
                "get_rng_state": lambda: torch.fuseline.get_rng_state(1),
            }.items():
                with self.assertRaises(RuntimeError, msg=name):
                    call()
            event = torch.Event(DEVICE)
            self.assertIsInstance(event, torch.Event)
            self.assertTrue(issubclass(Own, torch.Event))
            self.assertNotIsInstance(event, Own)
            self.assertIsInstance(Own("fuseline:0"), Own)
            for where in ("fuseline:0", DEVICE):
                for call in (torch.Event, torch.autocast, torch.amp.GradScaler, x.pin_memory):
                    call(where)


class Operators(Case):
    """PyTorch's own list of wrong arguments (``error_inputs`` of ``op_db``)."""

    # These errors depend on values of tensors, so the next read raises them.
    LATER = {
        "gather": {4}, "scatter": {3}, "scatter_add": {3}, "multinomial": set(range(7, 21)),
    }  # fmt: skip

    def test_wrong_arguments_of_all_operators(self):
        from torch.testing._internal.common_methods_invocations import op_db

        warnings.simplefilter("ignore")
        compared = 0
        for op in op_db:
            if op.error_inputs_func is None:
                continue
            for number, wrong in enumerate(op.error_inputs("cpu")):
                if number in self.LATER.get(op.name, ()):
                    continue
                sample = wrong.sample_input
                arguments = (sample.input, sample.args, sample.kwargs)
                if any(
                    x.dim() > 16
                    for x in pytree.tree_leaves(arguments)
                    if isinstance(x, torch.Tensor)
                ):
                    continue
                theirs = moved(arguments)
                found = refusal(lambda: op.op(theirs[0], *theirs[1], **theirs[2]))
                wanted = refusal(lambda: op.op(sample.input, *sample.args, **sample.kwargs))
                self.assertEqual(found, wanted, f"{op.name} {number}")
                compared += 1
        self.assertGreater(compared, 600)


def moved(arguments):
    """The arguments on the device, with the same aliasing as on the CPU."""
    storages, tensors = {}, {}

    def move(x):
        if isinstance(x, torch.device) or x == "cpu" and isinstance(x, str):
            return DEVICE
        if not isinstance(x, torch.Tensor) or x.layout != torch.strided or not x.is_cpu:
            return x
        if id(x) in tensors:
            return tensors[id(x)]
        storage = x.untyped_storage()
        if storage.data_ptr() not in storages:
            storages[storage.data_ptr()] = (
                torch.empty(0, dtype=torch.uint8).set_(storage).to(DEVICE).untyped_storage()
            )
        there = torch.empty(0, dtype=x.dtype, device=DEVICE)
        there.set_(storages[storage.data_ptr()], x.storage_offset(), x.shape, x.stride())
        tensors[id(x)] = there.requires_grad_(x.requires_grad)
        return tensors[id(x)]

    return pytree.tree_map(move, arguments)


if __name__ == "__main__":
    unittest.main()
