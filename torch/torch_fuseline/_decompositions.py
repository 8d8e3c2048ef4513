"""PyTorch's decompositions as ops ``fuseline_decomposed::NAME`` with the schema of ``aten::NAME``.

The shim asks for one (``fuseline::_decompose``) when the engine has no row for a call; see
``csrc/decompose.h``.
"""

import functools

import torch

from . import _special
from ._library import shim as _shim

# PyTorch's decompositions that do not have the op's results.
_NOT = {
    "_scaled_dot_product_flash_attention_for_cpu",  # its results have other sizes
}

# PyTorch's decompositions that round each step to a short float, where the CPU rounds the result
# only. They are computed in float32.
_LONG = ("grid_sampler_2d", "grid_sampler_3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "logit", "upsample_")

_library = torch.library.Library("fuseline", "FRAGMENT")
_decomposed = torch.library.Library("fuseline_decomposed", "DEF")
_table = None


# Decompositions of this package, for ops that PyTorch does not decompose. Where sizes of results
# depend on data, the call waits for the data, as on every device.
_OURS = dict(_special.TABLE)


def _ours(name):
    def add(function):
        _OURS[name] = function
        return function

    return add


def _expect(holds, rule):
    """If value checks are on, asserts that all elements of the tensor that ``holds`` returns are
    true."""
    if _shim.flt_checks():
        torch._assert_async(holds().all(), rule)


def _places(mask):
    """Returns the indices at which a vector of booleans is true, in ascending order."""
    count = int(mask.sum())
    return torch.sort(mask, descending=True, stable=True).indices[:count]


def _unravelled(places, shape):
    """Converts row-major positions to indices ``[count, dimensions]``."""
    columns = []
    for size in reversed(shape):
        columns.append(places % size)
        places = places // size
    return torch.stack(columns[::-1], 1)


@_ours("nonzero")
def _nonzero(x):
    if x.dim() == 0:
        return torch.zeros(int(x != 0), 0, dtype=torch.int64, device=x.device)
    if x.numel() == 0:
        return torch.zeros(0, x.dim(), dtype=torch.int64, device=x.device)
    return _unravelled(_places((x != 0).reshape(-1)), x.shape)


@_ours("masked_select")
def _masked_select(x, mask):
    x, mask = torch.broadcast_tensors(x, mask)
    return x.reshape(-1)[_places(mask.reshape(-1))]


@_ours("masked_scatter")
def _masked_scatter(x, mask, source):
    whole, mask = torch.broadcast_tensors(x, mask)
    flags = mask.reshape(-1)
    if source.numel() < flags.numel():
        torch._assert_async(flags.sum() <= source.numel(), "Number of elements of source < number of ones in mask")
    if source.numel() == 0:
        return whole.clone()
    turns = (flags.cumsum(0) - 1).clamp(0, source.numel() - 1)
    return torch.where(flags, source.reshape(-1)[turns], whole.reshape(-1)).reshape(whole.shape)


def _as_numbers(x, indices):
    """Returns the indices of ``x``, with each mask replaced by the positions where it is true."""
    numbers = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            first = len(numbers)
            if first + index.dim() > x.dim():
                raise IndexError(f"too many indices for tensor of dimension {x.dim()}")
            for axis, size in enumerate(index.shape):
                if size != x.shape[first + axis]:
                    raise IndexError(
                        f"The shape of the mask {list(index.shape)} at index {axis} does not match "
                        f"the shape of the indexed tensor {list(x.shape)} at index {first + axis}"
                    )
            numbers.extend(index.nonzero().unbind(1))
        else:
            numbers.append(index)
    return numbers


@_ours("index.Tensor")
def _index_tensor(x, indices):
    return torch.ops.aten.index.Tensor(x, _as_numbers(x, indices))


@_ours("_index_put_impl")
def _index_put_impl(x, indices, values, accumulate=False, unsafe=False):
    return torch.ops.aten._index_put_impl(x, _as_numbers(x, indices), values, accumulate, unsafe)


def _unique_of_sorted(rows, order):
    """Returns the first positions of the runs of equal rows in ``[count, size]``, the run number of
    each element, and the lengths of the runs."""
    is_new = torch.ones(rows.shape[0], dtype=torch.bool, device=rows.device)
    if rows.shape[0] > 1:
        is_new = torch.cat([is_new[:1], (rows[1:] != rows[:-1]).any(1)])
    run = is_new.cumsum(0) - 1
    first = _places(is_new)
    last = torch.cat([first[1:], torch.full((1,), rows.shape[0], device=rows.device)])
    inverse = run if order is None else torch.empty_like(run).scatter(0, order, run)
    return first, inverse, last - first


@_ours("_unique2")
def _unique2(x, sorted=True, return_inverse=False, return_counts=False):
    flat = x.reshape(-1)
    if flat.numel() == 0:
        raise NotImplementedError
    values, order = torch.sort(flat, stable=True)
    first, inverse, counts = _unique_of_sorted(values.unsqueeze(1), order)
    return values[first], inverse.reshape(x.shape), counts


@_ours("_unique")
def _unique(x, sorted=True, return_inverse=False):
    return _unique2(x)[:2]


@_ours("unique_consecutive")
def _unique_consecutive(x, return_inverse=False, return_counts=False, dim=None):
    rows = x.reshape(-1, 1) if dim is None else x.movedim(dim, 0).reshape(x.shape[dim], -1)
    if rows.numel() == 0:
        raise NotImplementedError
    first, inverse, counts = _unique_of_sorted(rows, None)
    values = x.reshape(-1)[first] if dim is None else x.index_select(dim, first)
    return values, inverse.reshape(x.shape) if dim is None else inverse, counts


@_ours("nonzero_static")
def _nonzero_static(x, size, fill_value=-1):
    flags = (x != 0).reshape(-1)
    count = min(size, flags.numel())
    places = torch.sort(flags, descending=True, stable=True).indices[:count]
    rows = _unravelled(places, x.shape) if x.dim() else torch.zeros(count, 0, dtype=torch.int64, device=x.device)
    rows = torch.nn.functional.pad(rows, (0, 0, 0, size - count))
    is_place = torch.arange(size, device=x.device).unsqueeze(1) < flags.sum()
    return torch.where(is_place, rows, fill_value)


def _index_fill(x, dim, index, value):
    size = x.shape[dim] if x.dim() else 1
    return torch._refs.index_fill(x, dim, torch.where(index < 0, index + size, index), value)


_OURS["index_fill.int_Scalar"] = _OURS["index_fill.int_Tensor"] = _index_fill


@_ours("put")
def _put(x, index, source, accumulate=False):
    flat = x.reshape(-1)
    return torch.ops.aten._index_put_impl(flat, [index.reshape(-1)], source.reshape(-1), accumulate).reshape(x.shape)


@_ours("searchsorted.Tensor")
def _searchsorted(sorted_sequence, x, out_int32=False, right=False, side=None, sorter=None):
    """Binary search for all values at once."""
    if sorter is not None:
        sorted_sequence = sorted_sequence.gather(-1, sorter)
    right = right or side == "right"
    size = sorted_sequence.shape[-1]
    if size == 0 or x.numel() == 0:
        return torch.zeros_like(x, dtype=torch.int32 if out_int32 else torch.int64)
    values = x.reshape(*sorted_sequence.shape[:-1], -1) if sorted_sequence.dim() > 1 else x.reshape(-1)
    low = torch.zeros_like(values, dtype=torch.int64)
    high = torch.full_like(low, size)
    for _ in range(size.bit_length()):
        middle = (low + high) // 2
        there = sorted_sequence.gather(-1, middle.clamp(max=size - 1))
        # A comparison with NaN is false, so an element compared with NaN counts as below.
        is_below = ~((there > values) if right else (there >= values)) & (low < high)
        low, high = torch.where(is_below, middle + 1, low), torch.where(is_below, high, middle)
    return low.reshape(x.shape).to(torch.int32 if out_int32 else torch.int64)


def _put_back(gradient, x, indices, space):
    """Adds gradients of window maxima to the positions of the maxima in the last dimensions."""
    zeros = torch.zeros_like(x, memory_format=torch.contiguous_format).flatten(-space)
    return zeros.scatter_add(-1, indices.flatten(-space), gradient.flatten(-space)).reshape(x.shape)


@_ours("adaptive_max_pool2d_backward")
def _adaptive_max_pool2d_backward(gradient, x, indices):
    return _put_back(gradient, x, indices, 2)


@_ours("adaptive_max_pool3d_backward")
def _adaptive_max_pool3d_backward(gradient, x, indices):
    return _put_back(gradient, x, indices, 3)


@_ours("max_pool3d_with_indices_backward")
def _max_pool3d_backward(gradient, x, kernel_size, stride, padding, dilation, ceil_mode, indices):
    return _put_back(gradient, x, indices, 3)


def _replication_pad_backward(gradient, x, padding):
    """Gradient of edge padding: each element gets the sum over the edges that repeat it. Padding
    starts with the last dimension and may be negative, which crops."""
    for axis, before in enumerate(padding[::2], 1):
        size = x.shape[-axis]
        places = (torch.arange(gradient.shape[-axis], device=x.device) - before).clamp(0, size - 1)
        dims = list(gradient.shape)
        dims[-axis] = size
        gradient = torch.zeros(dims, dtype=x.dtype, device=x.device).index_add(-axis, places, gradient)
    return gradient


for _rank in (1, 2, 3):
    _ours(f"replication_pad{_rank}d_backward")(_replication_pad_backward)


@functools.cache
def _turns(op):
    """Whether this PyTorch returns the factors of the transpose for row-major matrices. Its
    derivatives depend on it."""
    a = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    results = op(a, a) if op is torch.ops.aten._linalg_solve_ex.default else op(a)
    factors = next(result for result in results if result.shape == a.shape and result[0, 0] in (2.0, 3.0))
    return bool(factors[0, 0] == 2.0)


def _factored(op, a):
    is_turned = a.is_contiguous() and not a.is_complex() and _turns(op)
    return is_turned, torch.ops.aten.linalg_lu_factor_ex(a.mT if is_turned else a)


def _is_odd(pivots):
    """Whether the permutation of the pivots is odd."""
    return (pivots != torch.arange(1, pivots.shape[-1] + 1, device=pivots.device)).sum(-1) % 2 == 1


@_ours("_linalg_det")
def _det(a):
    _, (factors, pivots, _) = _factored(torch.ops.aten._linalg_det.default, a)
    product = factors.diagonal(0, -2, -1).prod(-1)
    return torch.where(_is_odd(pivots), -product, product), factors, pivots


@_ours("_linalg_slogdet")
def _slogdet(a):
    _, (factors, pivots, _) = _factored(torch.ops.aten._linalg_slogdet.default, a)
    diagonal = factors.diagonal(0, -2, -1)
    sign = diagonal.sgn().prod(-1)
    return torch.where(_is_odd(pivots), -sign, sign), diagonal.abs().log().sum(-1), factors, pivots


@_ours("_linalg_solve_ex")
def _solve_ex(a, b, *, left=True, check_errors=False):
    if check_errors:
        raise NotImplementedError
    is_turned, (factors, pivots, info) = _factored(torch.ops.aten._linalg_solve_ex.default, a)
    # If ``b`` has one dimension less than ``a``, it is a vector or a batch of vectors.
    is_vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1])
    right = b.unsqueeze(-1) if is_vector else b
    x = torch.ops.aten.linalg_lu_solve(factors, pivots, right, left=left, adjoint=is_turned)
    return x.squeeze(-1) if is_vector else x, factors, pivots, info


@_ours("grid_sampler_2d")
def _grid_sampler_2d(x, grid, interpolation_mode, padding_mode, align_corners):
    """PyTorch's decomposition, with what the CPU does about places that are not finite."""
    op = torch.ops.aten.grid_sampler_2d.default
    place = grid
    if padding_mode == 1:
        # NaN is clipped to the border where places begin.
        place = torch.where(grid.isnan(), -torch.inf, grid)
    elif padding_mode == 2 and interpolation_mode != 2:
        place = torch.where(grid.isfinite(), grid, -1.0)
    decompose = torch._decomp.global_decomposition_table["post_autograd"][op]
    y = decompose(x, place, interpolation_mode, padding_mode, align_corners)
    if padding_mode == 0 and interpolation_mode == 0:
        # The weights of the neighbours are NaN.
        y = torch.where(grid.isfinite().all(-1).unsqueeze(1), y, torch.nan)
    return y


@_ours("binary_cross_entropy")
def _binary_cross_entropy(x, target, weight=None, reduction=1):
    """PyTorch's decomposition, preceded by a check that probabilities are in range."""
    for name, values in ("input", x), ("target", target):
        _expect(lambda: (values >= 0) & (values <= 1), f"all elements of {name} should be between 0 and 1")
    op = torch.ops.aten.binary_cross_entropy.default
    return torch._decomp.global_decomposition_table["post_autograd"][op](x, target, weight, reduction)


@_ours("nll_loss2d_forward")
def _nll_loss2d_forward(x, target, weight, reduction, ignore_index):
    """PyTorch's decomposition, with checked labels."""
    if _shim.flt_checks():
        # The result is unused: only the check of the index remains.
        torch.zeros(x.shape[1], device=x.device)[torch.where(target == ignore_index, 0, target)]
    op = torch.ops.aten.nll_loss2d_forward.default
    return torch._decomp.global_decomposition_table["post_autograd"][op](x, target, weight, reduction, ignore_index)


@_ours("multilabel_margin_loss_forward")
def _multilabel_margin_loss(x, target, reduction):
    """PyTorch's decomposition, except that the loss of one sample has no dimension."""
    op = torch.ops.aten.multilabel_margin_loss_forward.default
    loss, is_target = torch._decomp.global_decomposition_table["post_autograd"][op](x, target, reduction)
    return loss.reshape(()) if x.dim() <= 1 else loss, is_target


@_ours("linalg_polar")
def _polar(a):
    """Polar decomposition: a matrix with orthonormal columns and a positive semidefinite one."""
    u, s, vh = torch.linalg.svd(a, full_matrices=False)
    return u @ vh, (vh.mH * s.unsqueeze(-2)) @ vh


@_ours("linalg_matrix_sqrth")
def _sqrth(a):
    values, vectors = torch.linalg.eigh(a)
    return (vectors * values.sqrt().unsqueeze(-2)) @ vectors.mH


def _length(difference, p):
    """The norm over the last dimension."""
    size = difference.abs()
    if size.shape[-1] == 0:
        return size.sum(-1)
    if p == 0:
        return (difference != 0).sum(-1).to(difference.dtype)
    if p == float("inf"):
        return size.amax(-1)
    if p == 2:
        return size.square().sum(-1).sqrt()
    return size.sum(-1) if p == 1 else size.pow(p).sum(-1).pow(1.0 / p)


def _of_length(gradient, difference, length, p):
    """The gradient of the norm, zero where the difference is zero."""
    gradient, length = gradient.unsqueeze(-1), length.unsqueeze(-1)
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return gradient * difference.sign()
    if p == float("inf"):
        return gradient * difference.sign() * (difference.abs() == length)
    if p == 2:
        return torch.where(length == 0, 0.0, gradient * difference / length)
    size = difference.abs()
    value = gradient * difference.sign() * size.pow(p - 1.0) / length.pow(p - 1.0)
    return torch.where((length == 0) | (size == 0), 0.0, value)


@_ours("_cdist_forward")
def _cdist(a, b, p, compute_mode):
    return _length(a.unsqueeze(-2) - b.unsqueeze(-3), p)


@_ours("_cdist_backward")
def _cdist_backward(gradient, a, b, p, length):
    return _of_length(gradient, a.unsqueeze(-2) - b.unsqueeze(-3), length, p).sum(-2)


def _pairs(x):
    """Row numbers of the first and of the second element of all pairs of rows."""
    return torch.triu_indices(x.shape[0], x.shape[0], 1).to(x.device).unbind(0)


@_ours("_pdist_forward")
def _pdist(x, p=2):
    first, second = _pairs(x)
    return _length(x[first] - x[second], p)


@_ours("_pdist_backward")
def _pdist_backward(gradient, x, p, length):
    first, second = _pairs(x)
    each = _of_length(gradient, x[first] - x[second], length, p)
    return torch.zeros_like(x).index_add(0, first, each).index_add(0, second, -each)


@_ours("bincount")
def _bincount(x, weights=None, minlength=0):
    size = max(int(x.max()) + 1 if x.numel() else 0, minlength)
    if x.numel() and bool((x < 0).any()):
        raise NotImplementedError
    if weights is None:
        weights = torch.ones_like(x, dtype=torch.int64)
    elif weights.dtype != torch.float32:
        weights = weights.double()
    return torch.zeros(size, dtype=weights.dtype, device=x.device).index_add(0, x.long(), weights)


@_ours("repeat_interleave.Tensor")
def _repeat_interleave(repeats, output_size=None):
    if repeats.dim() != 1:
        raise NotImplementedError
    ends = repeats.cumsum(0)
    count = output_size
    if not ends.numel():
        count = count or 0
    elif count is None:
        # One read for both values.
        count, least = torch.stack([ends[-1], repeats.min().to(ends.dtype)]).tolist()
        if least < 0:
            raise RuntimeError("repeats can not be negative")
    else:
        _expect(lambda: repeats >= 0, "repeats can not be negative")
        _expect(lambda: ends[-1] == count, "allocated size does not match required size")
    return torch.searchsorted(ends, torch.arange(count, device=ends.device, dtype=ends.dtype), right=True).to(repeats.dtype)


def _in_long_floats(function):
    """Wraps a decomposition so that float16 and bfloat16 tensors are computed in float32."""
    short = (torch.float16, torch.bfloat16)

    def computed(*args, **kwargs):
        types = [x.dtype for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.dtype in short]
        if not types:
            return function(*args, **kwargs)
        change = torch.utils._pytree.tree_map_only
        args, kwargs = change(torch.Tensor, lambda x: x.float() if x.dtype in short else x, (args, kwargs))
        return change(torch.Tensor, lambda x: x.to(types[0]) if x.dtype == torch.float32 else x, function(*args, **kwargs))

    return computed


def _index():
    """Returns overloads by name, with the functions that decompose them."""
    table = {}
    for name, function in _OURS.items():
        packet, _, overload = name.partition(".")
        table[name] = getattr(getattr(torch.ops.aten, packet), overload or "default"), function
    for op, function in torch._decomp.global_decomposition_table["post_autograd"].items():
        if isinstance(op, torch._ops.OpOverload) and op.namespace == "aten":
            name = op._schema.name.removeprefix("aten::")
            table.setdefault(f"{name}.{op._schema.overload_name}".removesuffix("."), (op, function))
    return table


def _decompose(name):
    """Defines the decomposition of an overload, if there is one."""
    global _table
    if _table is None:
        _table = _index()
    op, function = _table.pop(name, (None, None))
    if op is None or name in _NOT or op._schema.is_mutable:
        return False
    _decomposed.define(str(op._schema).removeprefix("aten::"))
    _decomposed.impl(name, _in_long_floats(function) if name.startswith(_LONG) else function, "PrivateUse1")
    return True


_library.define("_decompose(str name) -> bool")
_library.impl("_decompose", _decompose, "CompositeExplicitAutograd")
