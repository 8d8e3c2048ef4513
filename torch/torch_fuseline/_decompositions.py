"""PyTorch's decompositions as ops of their own: ``fuseline_decomposed::NAME``, with the schema of ``aten::NAME``.

The shim asks for one (``fuseline::_decompose``) when a call has no row of the engine's; see ``csrc/decompose.h``.
"""

import torch

# Those that are wrong for this device, or ask it for every element: name and why.
_NOT = {}

_library = torch.library.Library("fuseline", "FRAGMENT")
_decomposed = torch.library.Library("fuseline_decomposed", "DEF")
_table = None


def _index():
    """Overloads by name, with the functions that they are made of."""
    table = {}
    for op, function in torch._decomp.global_decomposition_table["post_autograd"].items():
        if isinstance(op, torch._ops.OpOverload) and op.namespace == "aten":
            name = op._schema.name.removeprefix("aten::")
            table[f"{name}.{op._schema.overload_name}".removesuffix(".")] = op, function
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
