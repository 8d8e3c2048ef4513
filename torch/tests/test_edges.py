"""Cases in which PyTorch's CPU has one right answer or error and a device easily differs: special
values, empty tensors, wrong arguments, writes to operands, and random numbers, whose bits depend on
seed and position alone.

Run with the package installed: ``python -m unittest discover -s torch/tests``.
"""

import subprocess
import sys
import textwrap
import unittest

import torch
import torch.nn.functional as F

DEVICE = "fuseline"
INF, NAN = float("inf"), float("nan")
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def came_to(call, device):
    """Returns the result of a call, or the kind of its error."""
    try:
        result = call(device)
        return result.cpu() if isinstance(result, torch.Tensor) else result
    except Exception as error:
        return type(error)


class Case(unittest.TestCase):
    def alike(self, call, name):
        """Asserts the same result on both devices, up to the sign of zero, or the same kind of
        error."""
        wanted, found = came_to(call, "cpu"), came_to(call, DEVICE)
        if isinstance(wanted, torch.Tensor) and isinstance(found, torch.Tensor):
            torch.testing.assert_close(found, wanted, equal_nan=True, msg=lambda text: f"{name}: {text}")
            if wanted.dtype.is_floating_point:
                is_zero = wanted == 0
                self.assertTrue(torch.equal(found.signbit()[is_zero], wanted.signbit()[is_zero]), f"{name}: {found} {wanted}")
        else:
            self.assertEqual(found, wanted, name)


def spread(x, least, most):
    """51 numbers in a range, with the type and device of a tensor."""
    return torch.linspace(least, most, 51, device=x.device).to(x.dtype)


DRAWS = {
    "normal": lambda x: x.normal_(),
    "normal around": lambda x: x.normal_(0.3, 1.7),
    "uniform": lambda x: x.uniform_(),
    "uniform between": lambda x: x.uniform_(-1.3, 0.7),
    "exponential": lambda x: x.exponential_(),
    "exponential of a rate": lambda x: x.exponential_(0.7),
    "cauchy": lambda x: x.cauchy_(),
    "cauchy around": lambda x: x.cauchy_(0.5, 3.0),
    "log_normal": lambda x: x.log_normal_(0.2, 1.1),
    "geometric": lambda x: x.geometric_(0.1),
    "random": lambda x: x.random_(0, 1000),
    "bernoulli": lambda x: x.bernoulli_(0.3),
    "bernoulli of each": lambda x: torch.bernoulli(torch.full_like(x, 0.3)),
    "normal of tensors": lambda x: torch.normal(spread(x, -3.0, 5.0), spread(x, 0.0, 2.7)),
    "normal of means": lambda x: torch.normal(spread(x, -3.0, 5.0), 1.7),
    "normal of deviations": lambda x: torch.normal(0.3, spread(x, 0.0, 2.7)),
    "randn_like": lambda x: torch.randn_like(x),
    "dropout": lambda x: F.dropout(torch.ones_like(x), 0.3),
    "multinomial": lambda x: torch.multinomial(torch.arange(1.0, 60.0, device=x.device), 40),
    "multinomial with replacement": lambda x: torch.multinomial(torch.arange(1.0, 60.0, device=x.device), 40, replacement=True),
    "randperm": lambda x: torch.randperm(40, device=x.device),
}


def draw(name, dtype):
    return DRAWS[name](torch.empty(51, dtype=dtype, device=DEVICE))


class Random(unittest.TestCase):
    def test_numbers_do_not_depend_on_when_they_are_read(self):
        normal = ("normal of tensors", "normal of means", "normal of deviations", "normal around")
        short = (*normal, "uniform between", "exponential", "log_normal")
        for dtype in FLOATS:
            names = list(DRAWS) if dtype.itemsize >= 4 else short
            torch.manual_seed(11)
            late = [draw(name, dtype) for name in names]
            # Consumers are compiled together with them.
            used = [x * 3.0 + 1.0 for x in late]
            late = [x.cpu() for x in late]
            del used
            for mode in ("fused", "debug") if dtype == torch.float32 else ("fused",):
                torch.manual_seed(11)
                with torch.fuseline.mode(mode):
                    for name, wanted in zip(names, late):
                        found = draw(name, dtype).cpu()
                        self.assertTrue(torch.equal(found, wanted), f"{name} {dtype} {mode}: {found} {wanted}")

    def test_normal_numbers_of_tensors_are_the_same_in_every_mode(self):
        for dtype in FLOATS:
            found = []
            for mode in ("fused", "strict", "debug"):
                torch.manual_seed(12)
                with torch.fuseline.mode(mode):
                    found.append(draw("normal of tensors", dtype).mul(1.0).cpu())
            self.assertTrue(all(torch.equal(found[0], other) for other in found), f"{dtype} {found}")

    def test_numbers_do_not_depend_on_what_executes_them(self):
        program = """
            import sys, torch
            sys.path.insert(0, {folder!r})
            import test_edges
            torch.fuseline.configure(interpret_cold={cold}, cache="off")
            torch.manual_seed(5)
            for name in test_edges.DRAWS:
                print(name, test_edges.draw(name, torch.float32).double().tolist())
        """
        folder = __file__.rpartition("/")[0]
        outputs = [
            subprocess.run([sys.executable, "-c", textwrap.dedent(program.format(folder=folder, cold=cold))], check=True, capture_output=True).stdout
            for cold in (True, False)
        ]
        self.assertGreaterEqual(outputs[0].count(b"\n"), len(DRAWS))
        self.assertEqual(outputs[0], outputs[1])

    def test_numbers_do_not_depend_on_graphs(self):
        def noise(x):
            return torch.randn_like(x) + torch.rand_like(x) * 2.0

        x = torch.empty(40, device=DEVICE)
        compiled = torch.compile(noise)
        compiled(x)
        torch.manual_seed(3)
        wanted = noise(x).cpu()
        torch.manual_seed(3)
        torch.testing.assert_close(compiled(x).cpu(), wanted, rtol=1e-6, atol=1e-6)

    def test_parameters_that_make_no_distribution_are_refused(self):
        for name, arguments in {
            "normal_": [(0.0, -1.0)],
            "uniform_": [(1.0, 0.0)],
            "exponential_": [(0.0,), (-1.0,)],
            "cauchy_": [(0.0, 0.0), (0.0, -1.0)],
            "log_normal_": [(0.0, 0.0), (0.0, -1.0)],
            "geometric_": [(0.0,), (1.0,), (-0.5,)],
            "bernoulli_": [(1.5,), (-0.5,)],
        }.items():
            for values in arguments:
                # Also after a call whose parameters were valid.
                getattr(torch.empty(3, device=DEVICE), name)(*((0.5,) if name in ("geometric_", "bernoulli_") else ()))
                with self.assertRaises(RuntimeError, msg=f"{name} {values}"):
                    getattr(torch.empty(3, device=DEVICE), name)(*values)


VALUES = [INF, -INF, NAN, 0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 5.0, -5.0, 0.5, -0.5, 3.0, -7.5, 1e4, -1e4]
QUOTIENTS = {
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floor_divide": torch.floor_divide,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "div": torch.div,
}


class Values(Case):
    def test_rounded_quotients_of_all_values(self):
        for dtype in FLOATS:
            values = torch.tensor(VALUES, dtype=dtype)
            a, b = values.repeat_interleave(len(values)), values.repeat(len(values))
            for name, op in QUOTIENTS.items():
                self.alike(lambda device: op(a.to(device), b.to(device)), f"{name} {dtype}")
                for number in (INF, -INF, NAN, 0.0, -0.0, 2.0, -3):
                    self.alike(lambda device: op(values.to(device), number), f"{name} {dtype} by {number}")

    def test_quotients_and_powers_of_integers(self):
        fallbacks = dict(torch.fuseline.fallbacks())
        for dtype in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8):
            least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
            numbers = [least, most, 7, 1, 0] + ([-1, -7, least + 1] if dtype.is_signed else [9])
            for divisor in [1, 2, 3, most] + ([-1, -2, least] if dtype.is_signed else []):
                for name, op in QUOTIENTS.items():
                    if name == "div":
                        continue
                    a = torch.tensor(numbers, dtype=dtype)
                    # PyTorch's CPU crashes on the smallest number divided by -1; Python does not.
                    wanted = [int(python_quotient(name, x, divisor)) for x in numbers]
                    wanted = torch.tensor([(x + 2**63) % 2**64 - 2**63 for x in wanted]).to(dtype)
                    for b in (torch.full_like(a, divisor), divisor):
                        given = b.to(DEVICE) if isinstance(b, torch.Tensor) else b
                        self.assertTrue(torch.equal(op(a.to(DEVICE), given).cpu(), wanted), f"{name} {dtype} by {divisor}")
            a = torch.tensor(numbers, dtype=dtype)
            for exponent in (0, 1, 2, 3, 7):
                self.alike(lambda device: a.to(device) ** exponent, f"{dtype} ** {exponent}")
                self.alike(lambda device: a.to(device) ** torch.full_like(a, exponent).to(device), f"{dtype} ** tensor {exponent}")
            if dtype.is_signed:
                self.alike(lambda device: a.to(device) ** torch.full_like(a, -1).to(device), f"{dtype} ** tensor -1")
        self.assertEqual(dict(torch.fuseline.fallbacks()), fallbacks)

    def test_division_of_integers_by_zero_is_told_or_defined(self):
        ops = {name: op for name, op in QUOTIENTS.items() if name != "div"}
        for dtype in (torch.int8, torch.int32, torch.int64, torch.uint8):
            a = torch.tensor([7, 0, 100], dtype=dtype, device=DEVICE)
            zero = torch.zeros_like(a)
            for name, op in ops.items():
                with self.assertRaisesRegex(RuntimeError, "ZeroDivisionError"):
                    op(a, 0)
                with torch.fuseline.mode("debug"), self.assertRaisesRegex(RuntimeError, "ZeroDivisionError"):
                    op(a, zero)
                results = []
                for mode in ("fused", "strict", "fused"):
                    with torch.fuseline.mode(mode):
                        quotient = op(a, zero)
                        with self.assertRaisesRegex(RuntimeError, "ZeroDivisionError"):
                            quotient.cpu()
                        results.append(quotient.cpu())
                self.assertTrue(all(torch.equal(results[0], other) for other in results), name)
                rests = name in ("remainder", "fmod")
                self.assertTrue(torch.equal(results[0], a.cpu()) if rests else True, f"{name} {results[0]}")
        with self.assertRaisesRegex(RuntimeError, "negative integer powers"):
            torch.ones(2, dtype=torch.int64, device=DEVICE) ** -1

    def test_numbers_far_from_zero_have_a_variance(self):
        """The spread is smaller than the rounding error of the mean."""
        for count in (50, 1000, 4096):
            x = torch.arange(float(count)) % 2 + 1e6
            exact = x.double().var().item()
            for _ in range(2):
                for name, found in {
                    "var": x.to(DEVICE).var(),
                    "std": x.to(DEVICE).std() ** 2,
                    "var_mean": torch.var_mean(x.to(DEVICE))[0],
                    "rows": x.reshape(-1, 50).to(DEVICE).var(1).mean() if count % 50 == 0 else x.to(DEVICE).var(),
                }.items():
                    self.assertAlmostEqual(found.item() / exact, 1, delta=0.03, msg=f"{name} of {count}")
            normed = F.layer_norm(x.to(DEVICE), (count,)).cpu()
            self.assertLess((normed.abs() - 1).abs().max().item(), 0.05, count)
        self.alike(lambda device: torch.tensor([1.0, INF], device=device).mean(), "mean of infinity")
        self.alike(lambda device: torch.var_mean(torch.tensor([1.0, INF], device=device))[1], "var_mean of infinity")

    def test_conversion_to_short_floats_that_have_no_infinity(self):
        numbers = torch.tensor([500.0, 447, 456, 464, 465, 1e4, 6e4, -500, INF, -INF, NAN, 0.0, -0.0, 1e-9])
        for source in FLOATS:
            for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
                self.alike(lambda device: numbers.to(source).to(device).to(dtype).float(), f"{source} to {dtype}")

    def test_products_that_count_nothing(self):
        ones, nan = torch.ones(3, 3), torch.full((3, 3), NAN)
        self.alike(lambda device: torch.addmm(ones.to(device), nan.to(device), ones.to(device), alpha=0), "addmm")
        self.alike(lambda device: torch.addmv(ones[0].to(device), nan.to(device), ones[0].to(device), alpha=0), "addmv")

    def test_search_and_order_with_nan(self):
        for dtype in FLOATS:
            places = torch.tensor([-INF, -1.0, 0.0, 1.0, 2.0, INF, NAN, NAN], dtype=dtype)
            unsorted = torch.tensor([1.0, NAN, 2.0, 3.0], dtype=dtype)
            values = torch.tensor([NAN, -INF, INF, 0.0, 1.5, 2.0, -5.0], dtype=dtype)
            for right in (False, True):
                for line in (places, places[:6], unsorted):
                    self.alike(lambda device: torch.searchsorted(line.to(device), values.to(device), right=right), f"searchsorted {dtype}")
                    self.alike(lambda device: torch.bucketize(values.to(device), line.to(device), right=right), f"bucketize {dtype}")
            for name in ("argmax", "argmin", "amax", "amin", "max", "min", "median", "nanmedian"):
                self.alike(lambda device: getattr(places.to(device), name)(), f"{name} {dtype}")
            for name in ("sort", "cummax", "cummin", "unique_consecutive"):
                self.alike(lambda device: (getattr(torch, name)(places.to(device), dim=0))[0], f"{name} {dtype}")

    def test_nothing_has_no_extreme(self):
        for shape in ((0,), (0, 3), (3, 0)):
            for dtype in (torch.float32, torch.int64, torch.bool):
                empty = torch.empty(shape, dtype=dtype)
                for name in ("max", "min", "argmax", "argmin", "amax", "amin", "aminmax", "median", "mode", "sum", "prod", "mean", "any", "all", "logsumexp"):
                    for arguments in ({}, {"dim": 0}, {"dim": -1}):
                        if (name == "logsumexp" and not arguments) or (name == "mean" and dtype != torch.float32):
                            continue

                        def call(device):
                            result = getattr(torch, name)(empty.to(device), **arguments)
                            return result if isinstance(result, torch.Tensor) else result[0]

                        self.alike(call, f"{name} {arguments} of {shape} {dtype}")

    def test_subnormal_numbers_are_rounded_to_zero(self):
        x = torch.tensor([1e-40, -1e-40, 0.0, -0.0, 0.5, -0.5, -1.0, 1.5, -2.7, INF, -INF, NAN])
        self.alike(lambda device: x.to(device).trunc(), "trunc")
        self.alike(lambda device: x[2:].to(device).frac(), "frac")

    def test_places_that_are_not_finite_are_sampled_as_on_the_cpu(self):
        image = torch.arange(1.0, 17.0).view(1, 1, 4, 4)
        grid = torch.tensor([[[[NAN, 0.0], [0.0, NAN], [NAN, NAN], [0.1, 0.2], [INF, 0.0], [0.0, -INF], [3.0, -1.5]]]])
        for mode in ("bilinear", "nearest", "bicubic"):
            for padding in ("zeros", "border", "reflection"):
                for corners in (True, False):
                    how = {"mode": mode, "padding_mode": padding, "align_corners": corners}
                    for dtype in (torch.float32, torch.float64):
                        self.alike(
                            lambda d: F.grid_sample(image.to(d, dtype), grid.to(d, dtype), **how), f"{dtype} {how}"
                        )
                    if mode != "bicubic":
                        cube, places = image.expand(1, 4, 4, 4)[None], torch.cat([grid, grid[..., :1]], -1)[:, None]
                        self.alike(lambda d: F.grid_sample(cube.to(d), places.to(d), **how), f"3 dimensions {how}")

    def test_the_logarithm_of_gamma_is_zero_at_one_and_two(self):
        for dtype in FLOATS:
            x = torch.tensor([1.0, 2.0, 3.0, 0.5, -0.5, 0.0, -1.0, INF, -INF, NAN] * 4, dtype=dtype)
            self.alike(lambda device: x.to(device).lgamma(), f"{dtype}")

    def test_an_empty_batch_is_resized_and_pooled(self):
        for rank, modes in {1: ("nearest", "linear", "area"), 2: ("nearest", "nearest-exact", "bilinear", "bicubic", "area"), 3: ("nearest", "trilinear")}.items():
            x = torch.empty(0, 3, *(4,) * rank)
            for mode in modes:
                for size in ({"scale_factor": 2.0}, {"size": (3,) * rank}):
                    self.alike(lambda device: F.interpolate(x.to(device), mode=mode, **size), f"{mode} {size} {rank}")
            for name in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool"):
                self.alike(lambda device: getattr(F, f"{name}{rank}d")(x.to(device), 2), f"{name} {rank}")


def python_quotient(name, a, b):
    if name in ("floor", "floor_divide"):
        return a // b
    if name == "remainder":
        return a % b
    whole = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return whole if name == "trunc" else a - whole * b


def _line(device, count=6):
    return torch.arange(float(count), device=device)


def _square(device):
    return _line(device, 4).view(2, 2)


class Arguments(Case):
    def test_writes_that_overlap_are_refused(self):
        one = lambda device: torch.ones(1, device=device)
        for name, call in {
            "add_": lambda d: (lambda x: x[1:].add_(x[:-1]))(_line(d)),
            "mul_": lambda d: (lambda x: x[1:].mul_(x[:-1]))(_line(d)),
            "pow_": lambda d: (lambda x: x[1:].pow_(x[:-1]))(_line(d)),
            "copy_": lambda d: (lambda x: x[1:].copy_(x[:-1]))(_line(d)),
            "copy_ of itself": lambda d: (lambda x: x.copy_(x))(_line(d)),
            "add_ of itself": lambda d: (lambda x: x.add_(x))(_line(d)),
            "add_ of the other half": lambda d: (lambda x: x[:3].add_(x[3:]))(_line(d)),
            "add_ of the transpose": lambda d: (lambda x: x.add_(x.T))(_line(d, 4).view(2, 2)),
            "add_ to what is repeated": lambda d: one(d).expand(3).add_(1),
            "fill_ of what is repeated": lambda d: one(d).expand(3).fill_(2),
            "copy_ to what is repeated": lambda d: one(d).expand(3).copy_(_line(d, 3)),
            "exp_ of what is repeated": lambda d: one(d).expand(3).exp_(),
            "normal_ of what is repeated": lambda d: one(d).expand(3).normal_().shape,
            "add_ to the diagonal": lambda d: torch.eye(3, device=d).diagonal().add_(1),
            "out": lambda d: (lambda x: torch.add(x[:-1], 1, out=x[1:]))(_line(d)),
            "out of itself": lambda d: (lambda x: torch.add(x, 1, out=x))(_line(d)),
            "out of exp": lambda d: (lambda x: torch.exp(x[:-1], out=x[1:]))(_line(d)),
            "out of cat": lambda d: (lambda x: torch.cat([x[:3], x[3:]], out=x))(_line(d)),
            "scatter_": lambda d: (lambda x: x.scatter_(0, torch.arange(6, device=d), x))(_line(d)),
            "index_add_": lambda d: (lambda x: x.index_add_(0, torch.arange(6, device=d), x))(_line(d)),
            "addcmul_": lambda d: (lambda x: x[1:].addcmul_(x[:-1], x[:-1]))(_line(d)),
            "foreach": lambda d: (lambda x: torch._foreach_add_([x[1:]], [x[:-1]]))(_line(d)),
            "addmm_ to what is repeated": lambda d: one(d).expand(2, 2).addmm_(_square(d), _square(d)),
            "out of mm": lambda d: torch.mm(_square(d), _square(d), out=one(d).expand(2, 2)),
        }.items():
            self.alike(call, name)

    def test_a_product_with_itself_is_added_after_it_is_computed(self):
        # The CPU's product reads what it has written already, on some processors.
        x = _square(DEVICE)
        self.assertEqual(x.addmm_(x, x).tolist(), torch.addmm(*[_square("cpu")] * 3).tolist())

    def test_types_and_shapes_that_do_not_fit_are_refused_at_the_call(self):
        def ones(device, *shape, dtype=torch.float32):
            return torch.ones(*shape, dtype=dtype, device=device)

        double = {"dtype": torch.float64}
        for name, call in {
            "mm": lambda d: torch.mm(ones(d, 2, 2), ones(d, 2, 2, **double)),
            "matmul": lambda d: ones(d, 2, 2) @ ones(d, 2, **double),
            "bmm": lambda d: torch.bmm(ones(d, 1, 2, 2), ones(d, 1, 2, 2, **double)),
            "addmm": lambda d: torch.addmm(ones(d, 2, 2, **double), ones(d, 2, 2), ones(d, 2, 2)),
            "linear": lambda d: F.linear(ones(d, 1, 2), ones(d, 2, 2, dtype=torch.bfloat16)),
            "dot": lambda d: torch.dot(ones(d, 2), ones(d, 2, **double)),
            "mv": lambda d: torch.mv(ones(d, 2, 2), ones(d, 2, **double)),
            "conv2d": lambda d: F.conv2d(ones(d, 1, 1, 4, 4), ones(d, 1, 1, 2, 2, **double)),
            "conv_transpose2d": lambda d: F.conv_transpose2d(ones(d, 1, 1, 4, 4), ones(d, 1, 1, 2, 2, **double)),
            "shapes": lambda d: ones(d, 2) + ones(d, 3),
            "shapes of mm": lambda d: torch.mm(ones(d, 2, 3), ones(d, 2, 3)),
            "a cast that loses": lambda d: torch.ones(2, dtype=torch.int64, device=d).add_(ones(d, 2)),
        }.items():
            self.assertIsInstance(came_to(call, "cpu"), type, name)
            # Nothing is read.
            with self.assertRaises((RuntimeError, IndexError, ValueError), msg=name):
                call(DEVICE)

    def test_masks_that_do_not_fit_are_refused(self):
        def mask(device, *flags, shape=None):
            return torch.tensor(flags, device=device).reshape(shape or (len(flags),))

        for name, call in {
            "short": lambda d: _line(d, 3)[mask(d, True, False)],
            "long": lambda d: _line(d, 3)[mask(d, True, False, True, True)],
            "of one": lambda d: _line(d, 3)[mask(d, True)],
            "empty": lambda d: _line(d, 3)[torch.ones(0, dtype=torch.bool, device=d)],
            "on the CPU": lambda d: _line(d, 3)[mask("cpu", True, False)],
            "a list": lambda d: _line(d, 3)[[True, False]],
            "bytes": lambda d: _line(d, 3)[mask(d, 1, 0).byte()],
            "behind": lambda d: _line(d).view(2, 3)[:, mask(d, True, False)],
            "one row": lambda d: _line(d).view(2, 3)[mask(d, True, False, True, shape=(1, 3))],
            "too many dimensions": lambda d: _line(d, 3)[mask(d, True, False, True, shape=(3, 1))],
            "with an index": lambda d: _line(d).view(2, 3)[torch.tensor([0], device=d), mask(d, True, False)],
            "a write": lambda d: _line(d, 3).__setitem__(mask(d, True, False), torch.ones(1, device=d)),
            "index_put_": lambda d: _line(d, 3).index_put_(
                (mask(d, True, False),), torch.ones(1, device=d), accumulate=True
            ),
            "that fits": lambda d: _line(d).view(2, 3)[mask(d, True, False)],
            "that fits behind": lambda d: _line(d).view(2, 3)[:, mask(d, True, False, True)],
        }.items():
            self.alike(call, name)
        source = torch.ones(2)
        with self.assertRaisesRegex(RuntimeError, "Number of elements of source"):
            flags = mask(DEVICE, True, True, True, False)
            torch.zeros(4, device=DEVICE).masked_scatter(flags, source.to(DEVICE)).cpu()
        flags = mask("cpu", True, False, True, False)
        self.alike(lambda d: _line(d, 4).masked_scatter(flags.to(d), source.to(d)), "masked_scatter")

    def test_numbers_that_the_element_type_does_not_hold(self):
        for dtype, most in ((torch.uint8, 256), (torch.int8, 128), (torch.float16, 2049), (torch.bfloat16, 257)):
            self.assertEqual(torch.randperm(most, dtype=dtype, device=DEVICE).cpu().unique().numel(), most)
            with self.assertRaisesRegex(RuntimeError, "n cannot be greater"):
                torch.randperm(most + 1, dtype=dtype, device=DEVICE)
        for name, op in {"//": lambda a, b: a // b, "%": lambda a, b: a % b, "fmod": torch.fmod}.items():
            for dtype in (torch.uint8, torch.int8):
                self.alike(lambda device: op(torch.arange(3, dtype=dtype, device=device), 256), f"{name} {dtype}")
        for name, call in {
            "uniform_": lambda d: torch.ones(3, device=d).uniform_(0, INF),
            "bincount": lambda d: torch.bincount(torch.ones(3, device=d)),
            "repeat_interleave": lambda d: torch.repeat_interleave(torch.ones(3, device=d), torch.ones(3, device=d)),
            "cdist": lambda d: torch.cdist(torch.ones(2, 2, device=d), torch.ones(2, 2, dtype=torch.float64, device=d)),
            "kthvalue": lambda d: torch.ones(3, dtype=torch.bool, device=d).kthvalue(1),
            "index_fill": lambda d: _line(d, 3).index_fill(0, torch.tensor([-1], device=d), 9.0),
            "index_fill_": lambda d: _line(d, 3).index_fill_(
                0, torch.tensor([-1, 0], device=d), torch.tensor(9.0, device=d)
            ),
        }.items():
            self.alike(call, name)
        flags, places = torch.tensor([True, False, True]), torch.tensor([0, 1, 1])
        for how in ("sum", "prod", "amax", "amin"):

            def reduced(device):
                empty = torch.zeros(2, dtype=torch.bool, device=device)
                return empty.scatter_reduce(0, places.to(device), flags.to(device), how)

            self.alike(reduced, how)

    def test_the_default_dtype_decides_over_results_of_integers(self):
        calls = {
            "exp": lambda x: x.exp(),
            "sigmoid": lambda x: x.sigmoid(),
            "div": lambda x: x / 3,
            "div of two": lambda x: x / x,
            "mul": lambda x: x * 2.5,
            "add": lambda x: torch.add(x, x, alpha=2) + 0.5,
            "where": lambda x: torch.where(x > 1, 1.5, 2.5),
            "full": lambda x: torch.full((2,), 1.5, device=x.device),
            "linspace": lambda x: torch.linspace(0, 1, 3, device=x.device),
            "mul of bool": lambda x: (x > 1).logical_not() * 0.25,
        }
        try:
            # The previous round has cached each call.
            for dtype in (torch.float32, torch.float64, torch.float32, torch.bfloat16):
                torch.set_default_dtype(dtype)
                for name, call in calls.items():
                    self.alike(lambda device: call(torch.arange(1, 4, device=device)), f"{name}, {dtype}")
        finally:
            torch.set_default_dtype(torch.float32)

    def test_arguments_that_look_alike_are_told_apart(self):
        """Cached result types are found for the same arguments only, whichever came first."""
        cube = torch.arange(64.0).reshape(2, 2, 2, 2, 2, 2)
        for dims in ((None, -6), (-6, None), (None, 0), (-5, -4, None, -3)):
            for dim in dims:
                self.alike(lambda device: cube.to(device).argmax(dim=dim), f"argmax {dim}")
                self.alike(lambda device: cube.to(device).argmin(dim=dim, keepdim=True), f"argmin {dim}")
        # True is a number other than 1, and a number beside a tensor is not one in a tensor.
        whole = torch.tensor([1, 2])
        for other in (2, 2.0, True, torch.tensor(2.0), torch.tensor(2), torch.tensor(2.0, dtype=torch.float64), torch.tensor([2.0])):
            for _ in range(2):
                self.alike(lambda device: whole.to(device) + (other.to(device) if isinstance(other, torch.Tensor) and other.dim() else other), f"+ {other!r}")
                self.alike(lambda device: whole.to(device) * (other.to(device) if isinstance(other, torch.Tensor) else other), f"* {other!r}")
        single = torch.ones(2, dtype=torch.float32)
        for other in (torch.ones((), dtype=torch.float64), torch.ones(2, dtype=torch.float64), 1.0, torch.ones(())):
            self.alike(lambda device: single.to(device) + (other.to(device) if isinstance(other, torch.Tensor) else other), f"{other!r}")
        self.alike(lambda device: torch.ones(2, dtype=torch.int64, device=device) ** 2, "square")
        self.alike(lambda device: torch.ones(2, dtype=torch.int64, device=device) ** -1, "a negative power behind it")
        # Lists that are split differently.
        for shifts, dims in (((1, 2), (0, 1)), ((1,), (0,)), ((2,), (1,)), ((1,), ())):
            self.alike(lambda device: torch.roll(torch.arange(6, device=device).reshape(2, 3), shifts, dims or None), f"roll {shifts} {dims}")
        for dims, keeps in (((0, 1), False), ((0,), True), ((1,), False), (None, True), ((), False)):
            self.alike(lambda device: torch.arange(6.0, device=device).reshape(2, 3).sum(dims, keepdim=keeps), f"sum {dims} {keeps}")


if __name__ == "__main__":
    unittest.main()
