"""User-defined ops as StableHLO modules, written by hand or exported, such as by ``jax.export``."""

import ctypes

import torch

from ._library import check, shim, text
from ._vendor import NAME

#: The first bytes of MLIR bytecode, the form of portable StableHLO artifacts.
_BYTECODE = b"ML\xefR"


def _text_of(module):
    """Returns the text of a module, or of an object that has one."""
    if hasattr(module, "mlir_module"):
        module = module.mlir_module()
    if isinstance(module, bytes):
        if module.startswith(_BYTECODE):
            raise ValueError(
                f"{NAME}: a StableHLO module must be text, but this is bytecode: pass "
                "exported.mlir_module(), or the output of stablehlo-translate"
            )
        module = module.decode()
    if not isinstance(module, str):
        raise TypeError(f"{NAME}: expected a StableHLO module as a string or an object with "
                        f"mlir_module(), but got {type(module).__name__}")
    return module


class _Module:
    """A registered module."""

    def __init__(self, name, module):
        number, operands, results = (ctypes.c_size_t() for _ in range(3))
        check(shim.flt_custom_register(*text(name), *text(_text_of(module)), ctypes.byref(number)))
        check(shim.flt_custom_arity(number, ctypes.byref(operands), ctypes.byref(results)))
        self.name, self.number, self.operands, self.results = name, number.value, operands.value, results.value
        told = getattr(module, "out_avals", None)
        if told is not None and len(told) != self.results:
            raise ValueError(f"{NAME}: {name} has {len(told)} out_avals, but its module has {self.results} results")

    def __call__(self, operands):
        return torch.ops.fuseline.custom_call(self.number, list(operands))


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx, op, *operands):
        ctx.op = op
        ctx.save_for_backward(*operands)
        return tuple(op._forward(operands))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads):
        op = ctx.op
        if op._backward is None:
            raise RuntimeError(f"{NAME}: the custom op {op.name} has no gradient; pass a module "
                               f"for it to custom_op as `backward`")
        return None, *op._backward((*ctx.saved_tensors, *grads))


class CustomOp:
    """A user-defined op. It takes tensors of the device and returns one tensor or a tuple. It fuses
    with the ops around it."""

    def __init__(self, name, module, backward=None):
        self.name = name
        self._forward = _Module(name, module)
        self._backward = None if backward is None else _Module(f"{name}.backward", backward)
        if self._backward is not None:
            wanted = (self._forward.operands + self._forward.results, self._forward.operands)
            if (self._backward.operands, self._backward.results) != wanted:
                raise ValueError(
                    f"{NAME}: the backward of {name} must take its {self._forward.operands} "
                    f"operands and the gradients of its"
                    f" {self._forward.results} results, and return a gradient for each operand"
                )

    def __call__(self, *operands):
        results = _Call.apply(self, *operands)
        return results[0] if len(results) == 1 else results

    def __repr__(self):
        return f"<custom op {self.name} of {self._forward.operands} operands and {self._forward.results} results>"


def custom_op(name, module, backward=None):
    """Registers the ``main`` function of a StableHLO module and returns it as an op on tensors of
    the device.

    ``module`` is the text or an object with ``mlir_module()``, such as what
    ``jax.export.export(f)(..)`` returns. Its types are fixed: tensors of other sizes or element
    types are an error. ``name`` consists of letters, digits, ``_`` and ``.``, and names one
    function in a process. ``backward`` is a module that takes the operands, then the gradients of
    the results, and returns a gradient for each operand. Without it the op has no gradient.
    """
    return CustomOp(name, module, backward)
