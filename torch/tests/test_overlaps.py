"""Writes to tensors that share memory with themselves or with an operand.

The CPU writes elements one by one. The device has its result or its error; where the CPU's result
depends on the order of its loops, the device refuses the call.

Run with the package installed: ``python -m unittest discover -s torch/tests``.
"""

import unittest
import warnings

import torch

from test_edges import DEVICE, Case

OVERLAP = "more than one element of the written-to tensor"


def numbers(device, *shape):
    return torch.arange(1.0, 1 + torch.Size(shape).numel(), device=device).view(shape)


def of(device, *values):
    return torch.tensor(values, device=device)


def rows(device):
    base = numbers(device, 1, 3)
    return base, base.expand(4, 3)


def columns(device):
    base = numbers(device, 3, 1)
    return base, base.expand(3, 4)


def windows(device):
    base = numbers(device, 6)
    return base, base.unfold(0, 3, 1)


def matrices(device):
    base = numbers(device, 1, 3, 3)
    return base, base.expand(2, 3, 3)


VIEWS = {"rows": rows, "columns": columns, "windows": windows, "matrices": matrices}
SELECTED = {
    "masked_fill_": lambda x: x.masked_fill_(numbers(x.device, *x.shape) % 5 == 4, 9.0),
    "masked_fill_ with a tensor": lambda x: (
        x.masked_fill_(numbers(x.device, *x.shape) > 8, of(x.device, 9.0)[0])
    ),
    "masked_fill_ of all rows": lambda x: (
        x.masked_fill_(of(x.device, True, False, False, True)[: x.shape[-1]], 9.0)
    ),
    "index_fill_": lambda x: x.index_fill_(0, of(x.device, 1), 9.0),
    "index_fill_ from the end": lambda x: (
        x.index_fill_(1, of(x.device, 1, -1), of(x.device, 9.0)[0])
    ),
    "index_put_": lambda x: (
        x.index_put_((of(x.device, 1, 0), of(x.device, 2, 1)), of(x.device, 7.0))
    ),
    "index_put_ of pairs": lambda x: (
        x.index_put_((of(x.device, 1), of(x.device, 2)), of(x.device, 7.0), accumulate=True)
    ),
    "index_put_ that adds": lambda x: (
        x.index_put_((of(x.device, 1, 0, 1), of(x.device, 2, 1, 2)), of(x.device, 7.0),
        accumulate=True)
    ),
    "a mask": lambda x: x.__setitem__(x > 2, 5.0),
    "a list": lambda x: x.__setitem__([1], 5.0),
    "an element": lambda x: x.__setitem__((1, 1), 5.0),
    "a slice": lambda x: x[:, 1:].fill_(4.0),
    "tril_": lambda x: x.tril_(),
    "triu_": lambda x: x.triu_(1),
    "fill_diagonal_": lambda x: x.fill_diagonal_(5.0) if x.dim() == 2 else x,
    "scatter_": lambda x: x.scatter_(0, torch.ones_like(x[:1], dtype=torch.int64), 5.0),
    "scatter_add_": lambda x: (
        x.scatter_add_(0, torch.ones_like(x[:1], dtype=torch.int64), numbers(x.device, *x.shape))
    ),
    "scatter_reduce_": lambda x: (
        x.scatter_reduce_(0, torch.ones_like(x[:1], dtype=torch.int64), numbers(x.device,
        *x.shape), "prod")
    ),
    "index_add_": lambda x: (
        x.index_add_(0, of(x.device, 1), numbers(x.device, 1, *x.shape[1:]), alpha=2)
    ),
    "index_copy_": lambda x: x.index_copy_(0, of(x.device, 1), numbers(x.device, 1, *x.shape[1:])),
    "index_reduce_": lambda x: (
        x.index_reduce_(0, of(x.device, 1), numbers(x.device, 1, *x.shape[1:]), "prod")
    ),
    "put_": lambda x: x.put_(of(x.device, 1, -1), of(x.device, 7.0, 8.0)),
    "put_ that adds": lambda x: x.put_(of(x.device, 1, 5), of(x.device, 7.0, 8.0), accumulate=True),
    "masked_scatter_": lambda x: x.masked_scatter_(x > 2, numbers(x.device, 20)),
}  # fmt: skip
ELEMENTWISE = {
    "add_": lambda x: x.add_(1),
    "add_ of others": lambda x: x.add_(numbers(x.device, *x.shape)),
    "sub_": lambda x: x.sub_(1, alpha=2),
    "mul_ by itself": lambda x: x.mul_(x),
    "pow_": lambda x: x.pow_(2),
    "neg_": lambda x: x.neg_(),
    "clamp_": lambda x: x.clamp_(2, 3),
    "lerp_": lambda x: x.lerp_(numbers(x.device, *x.shape), 0.5),
    "addcmul_": lambda x: x.addcmul_(numbers(x.device, *x.shape), numbers(x.device, *x.shape)),
    "logical_not_": lambda x: x.logical_not_(),
    "eq_": lambda x: x.eq_(1),
    "threshold_": lambda x: torch.nn.functional.threshold_(x, 2.5, 7.0),
    "floor_divide_": lambda x: x.floor_divide_(2),
    "out of itself": lambda x: torch.add(x, 1, out=x),
    "foreach": lambda x: torch._foreach_add_([x], 1.0),
}
WRITES = {
    "fill_": lambda x: x.fill_(3),
    "zero_": lambda x: x.zero_(),
    "copy_": lambda x: x.copy_(numbers(x.device, *x.shape)),
    "add": lambda x: torch.add(numbers(x.device, *x.shape), 1, out=x),
    "where": lambda x: (
        torch.where(numbers(x.device, *x.shape) > 3, 1.0, numbers(x.device, *x.shape), out=x)
    ),
    "cat": lambda x: (
        torch.cat([numbers(x.device, *x.shape)[:1], numbers(x.device, *x.shape)[1:]], out=x)
    ),
    "index_select": lambda x: (
        torch.index_select(numbers(x.device, *x.shape), 0, torch.arange(x.shape[0],
        device=x.device), out=x)
    ),
    "amax": lambda x: torch.amax(numbers(x.device, 2, *x.shape), 0, out=x),
    "full": lambda x: torch.full(x.shape, 4.0, out=x),
    "addr": lambda x: (
        torch.addr(numbers(x.device, *x.shape), numbers(x.device, 4), numbers(x.device, 3),
        out=x) if x.shape == (4, 3) and 0 in x.stride() else x
    ),
    "addmm": lambda x: (
        torch.addmm(numbers(x.device, 4, 3), numbers(x.device, 4, 2), numbers(x.device, 2, 3),
        out=x) if x.shape == (4, 3) and 0 in x.stride() else x
    ),
    "conj_physical": lambda x: (
        torch.conj_physical(numbers(x.device, *x.shape), out=x) if 0 in x.stride() else x
    ),
}  # fmt: skip
# The CPU's loops read what they have written already.
OPEN = {
    "cumsum_": lambda x: x.cumsum_(0),
    "cumprod_": lambda x: x.cumprod_(1),
    "renorm_": lambda x: x.renorm_(2, 0, 1.0),
    "addr_": lambda x: x.addr_(numbers(x.device, 4), numbers(x.device, 3)),
    "addmm_": lambda x: x.addmm_(numbers(x.device, 4, 2), numbers(x.device, 2, 3)),
    "addmv_": lambda x: (
        x.as_strided((2, 4), (1, 1))[0].expand(4, 4)[:, 0].addmv_(numbers(x.device, 4, 2),
        numbers(x.device, 2))
    ),
    "sum": lambda x: torch.sum(numbers(x.device, 2, *x.shape), 0, out=x),
    "mean": lambda x: torch.mean(numbers(x.device, 2, *x.shape), 0, out=x),
    "mm": lambda x: torch.mm(numbers(x.device, 4, 2), numbers(x.device, 2, 3), out=x),
    "cumsum": lambda x: torch.cumsum(numbers(x.device, *x.shape), 0, out=x),
    "sort": lambda x: (
        torch.sort(numbers(x.device, *x.shape), out=(x, torch.empty(x.shape, dtype=torch.int64,
        device=x.device)))
    ),
    "tril": lambda x: torch.tril(numbers(x.device, *x.shape), out=x),
    "max": lambda x: (
        torch.max(numbers(x.device, 2, *x.shape), 0, out=(x, torch.empty(x.shape,
        dtype=torch.int64, device=x.device)))
    ),
}  # fmt: skip


class Overlaps(Case):
    def setUp(self):
        # The CPU warns of writes to expanded tensors.
        caught = warnings.catch_warnings()
        caught.__enter__()
        warnings.simplefilter("ignore")
        self.addCleanup(caught.__exit__, None, None, None)

    def compare(self, calls, views):
        for view in views:
            for name, call in calls.items():

                def change(device):
                    base, x = VIEWS[view](device)
                    call(x)
                    return base

                self.alike(change, f"{name} of {view}")

    def test_all_selected_elements_of_a_repeated_tensor_are_written(self):
        self.compare(SELECTED, VIEWS)

    def test_elements_at_one_place_are_computed_one_after_the_other(self):
        self.compare(ELEMENTWISE, VIEWS)

    def test_the_last_element_at_one_place_is_written(self):
        self.compare(WRITES, VIEWS)

    def test_a_result_that_depends_on_the_order_of_loops_is_refused(self):
        for name, call in OPEN.items():
            base, x = windows(DEVICE)
            with self.assertRaisesRegex(RuntimeError, OVERLAP, msg=name):
                call(x)
            self.assertEqual(base.tolist(), numbers("cpu", 6).tolist(), name)

    def test_views_that_only_look_as_if_they_overlap_are_written(self):
        def change(device):
            base = torch.zeros(12, device=device)
            base.as_strided((2, 3), (3, 2)).cumsum_(0).add_(numbers(device, 2, 3)).cumsum_(1)
            return base

        self.alike(change, "strides of 3 and 2")

    def test_a_result_that_is_resized_is_checked_as_the_cpu_does(self):
        for name, call in {
            "add": lambda d: torch.add(numbers(d, 4), 1, out=torch.zeros(1, device=d).expand(3)),
            "cumsum": lambda d: (
                torch.cumsum(numbers(d, 4), 0, out=torch.zeros(1, device=d).expand(3))
            ),
            "tril": lambda d: torch.tril(numbers(d, 2, 2), out=torch.zeros(1, device=d).expand(3)),
            "cat": lambda d: torch.cat([numbers(d, 4)], out=torch.zeros(1, device=d).expand(3)),
            "addr": lambda d: (
                torch.addr(numbers(d, 2, 2), numbers(d, 2), numbers(d, 2), out=torch.zeros(1,
                device=d).expand(3))
            ),
            "gather of an index": lambda d: (
                (lambda i: torch.gather(i, 0, i, out=i[:1]))(of(d, 0, 1))
            ),
            "max": lambda d: (
                torch.max(numbers(d, 2, 4), 0, out=(torch.zeros(1, device=d).expand(3), of(d,
                0)))[0]
            ),
        }.items():
            self.alike(call, name)

    def test_an_operand_that_a_result_overlaps_is_checked_as_the_cpu_does(self):
        def both(device, count):
            base = numbers(device, count + 1)
            return base[:-1], base[1:]

        for name, call in {
            "addr": lambda d: (
                (lambda x, y: torch.addr(x.view(2, 2), numbers(d, 2), numbers(d, 2),
                out=y.view(2, 2)))(*both(d, 4))
            ),
            "addmm": lambda d: (
                (lambda x, y: torch.addmm(x.view(2, 2), numbers(d, 2, 2), numbers(d, 2, 2),
                out=y.view(2, 2)))(*both(d, 4))
            ),
            "addmv": lambda d: (
                (lambda x, y: torch.addmv(x, numbers(d, 3, 2), numbers(d, 2), out=y))(*both(d, 3))
            ),
            "baddbmm": lambda d: (
                (lambda x, y: torch.baddbmm(x.view(1, 2, 2), numbers(d, 1, 2, 2), numbers(d, 1,
                2, 2), out=y.view(1, 2, 2)))(*both(d, 4))
            ),
            "cross with itself": lambda d: (
                (lambda x: torch.linalg.cross(x, x.flip(0), out=x))(numbers(d, 3))
            ),
            "conj_physical": lambda d: (lambda x, y: torch.conj_physical(x, out=y))(*both(d, 3)),
            "aminmax of one": lambda d: (
                (lambda x: torch.aminmax(numbers(d, 2, 3), dim=0, out=(x, x))[0])(torch.empty(3,
                device=d))
            ),
            "aminmax of halves": lambda d: (
                torch.aminmax(numbers(d, 2, 3), dim=0, out=both(d, 3))[0]
            ),
        }.items():  # fmt: skip
            self.alike(call, name)


if __name__ == "__main__":
    unittest.main()
