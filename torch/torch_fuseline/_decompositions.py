"""PyTorch's decompositions as ops of their own: ``fuseline_decomposed::NAME``, with the schema of ``aten::NAME``.

The shim asks for one (``fuseline::_decompose``) when a call has no row of the engine's; see ``csrc/decompose.h``.
"""

import torch

# Those that are not what the op is.
_NOT = {
    "_scaled_dot_product_flash_attention_for_cpu",  # its results have other sizes
}

_library = torch.library.Library("fuseline", "FRAGMENT")
_decomposed = torch.library.Library("fuseline_decomposed", "DEF")
_table = None


# Of this file: for ops whose results have sizes that only values say. Those are waited for, as on every device.
_OURS = {}


def _ours(name):
    def add(function):
        _OURS[name] = function
        return function

    return add


def _places(mask):
    """Where a vector of truth values is true, in order."""
    count = int(mask.sum())
    return torch.sort(mask, descending=True, stable=True).indices[:count]


@_ours("nonzero")
def _nonzero(x):
    if x.dim() == 0:
        return torch.zeros(int(x != 0), 0, dtype=torch.int64, device=x.device)
    if x.numel() == 0:
        return torch.zeros(0, x.dim(), dtype=torch.int64, device=x.device)
    rest, columns = _places((x != 0).reshape(-1)), []
    for size in reversed(x.shape):
        columns.append(rest % size)
        rest = rest // size
    return torch.stack(columns[::-1], 1)


@_ours("masked_select")
def _masked_select(x, mask):
    x, mask = torch.broadcast_tensors(x, mask)
    return x.reshape(-1)[_places(mask.reshape(-1))]


@_ours("masked_scatter")
def _masked_scatter(x, mask, source):
    whole, mask = torch.broadcast_tensors(x, mask)
    if source.numel() == 0:
        return whole.clone()
    flags = mask.reshape(-1)
    turns = (flags.cumsum(0) - 1).clamp(0, source.numel() - 1)
    return torch.where(flags, source.reshape(-1)[turns], whole.reshape(-1)).reshape(whole.shape)


def _as_numbers(indices):
    """Indices with truth values as the places where they are true."""
    numbers = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            numbers.extend(index.nonzero().unbind(1))
        else:
            numbers.append(index)
    return numbers


@_ours("index.Tensor")
def _index_tensor(x, indices):
    return torch.ops.aten.index.Tensor(x, _as_numbers(indices))


@_ours("_index_put_impl")
def _index_put_impl(x, indices, values, accumulate=False, unsafe=False):
    return torch.ops.aten._index_put_impl(x, _as_numbers(indices), values, accumulate, unsafe)


def _unique_of_sorted(rows, order):
    """First places of each run of equal rows of `[count, size]`, and for each element the number of its run and how long the runs are."""
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


def _index():
    """Overloads by name, with the functions that they are made of."""
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
    _decomposed.impl(name, function, "PrivateUse1")
    return True


_library.define("_decompose(str name) -> bool")
_library.impl("_decompose", _decompose, "CompositeExplicitAutograd")
