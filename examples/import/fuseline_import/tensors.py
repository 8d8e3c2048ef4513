"""Converts types and tensor data from MLIR and from arrays to the program format.

The format stores elements in row-major order, little-endian. Integers and floats below 8 bits take
one byte each: signed integers are sign-extended, all others zero-extended.
"""

from __future__ import annotations

import base64
import re
from typing import Any

import ml_dtypes
import numpy as np
from jax.extend.mlir import ir

from .errors import refuse

# Element types that MLIR's Python bindings expose as buffers, and their NumPy types.
_BUFFERED = {
    "i1": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "ui8": np.dtype(np.uint8),
    "ui16": np.dtype(np.uint16),
    "ui32": np.dtype(np.uint32),
    "ui64": np.dtype(np.uint64),
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}

# Element types that have to be read from the text of the constant.
_TEXTUAL = {
    "i2": np.dtype(ml_dtypes.int2),
    "i4": np.dtype(ml_dtypes.int4),
    "ui2": np.dtype(ml_dtypes.uint2),
    "ui4": np.dtype(ml_dtypes.uint4),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "c64": np.dtype(np.complex64),
    "c128": np.dtype(np.complex128),
    "f8E3M4": np.dtype(ml_dtypes.float8_e3m4),
    "f8E4M3": np.dtype(ml_dtypes.float8_e4m3),
    "f8E4M3B11FNUZ": np.dtype(ml_dtypes.float8_e4m3b11fnuz),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "f8E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "f8E8M0FNU": np.dtype(ml_dtypes.float8_e8m0fnu),
    "f6E2M3FN": np.dtype(ml_dtypes.float6_e2m3fn),
    "f6E3M2FN": np.dtype(ml_dtypes.float6_e3m2fn),
    "f4E2M1FN": np.dtype(ml_dtypes.float4_e2m1fn),
}

# Element types of the format, by name.
DTYPES: dict[str, np.dtype] = _BUFFERED | _TEXTUAL
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

# Bits of integers that are stored in a byte with padding.
_NARROW = {"i2": 2, "i4": 4, "ui2": 2, "ui4": 4}

# The types of the parts of complex numbers.
_PARTS: dict[str, np.dtype] = {"c64": np.dtype(np.float32), "c128": np.dtype(np.float64)}

_COMPLEX = {"complex<f32>": "c64", "complex<f64>": "c128"}
_LITERAL = re.compile(r"dense<(.*)> : tensor<", re.DOTALL)
_SCALAR = re.compile(r"[^\s,()\[\]]+")

Type = dict[str, Any]


def type_of(value: ir.Value, op: ir.Operation) -> Type:
    """Returns `{"shape", "dtype"}` of an MLIR value that `op` uses or makes."""
    kind = value.type
    try:
        tensor = ir.RankedTensorType(kind)
    except ValueError:
        raise refuse(
            op,
            f"has a value of type {kind}",
            "Programs consist of tensors; remove side effects (printing, callbacks) and tuples from the function.",
        ) from None
    if not tensor.has_static_shape or tensor.encoding is not None:
        raise refuse(op, f"has a value of type {kind}", "Sizes must be known: lower with arguments of fixed shape.")
    name = str(tensor.element_type)
    name = _COMPLEX.get(name, name)
    if name not in DTYPES:
        raise refuse(op, f"has elements of type {name}", f"The format supports {', '.join(DTYPES)}.")
    return {"shape": list(tensor.shape), "dtype": name}


def type_of_array(array: np.ndarray) -> Type:
    """Returns `{"shape", "dtype"}` of an array of a type that the format has."""
    return {"shape": list(array.shape), "dtype": _NAMES[array.dtype]}


def bytes_of_array(array: np.ndarray) -> bytes:
    """Returns the elements of an array as the format stores them."""
    name = _NAMES[array.dtype]
    if name in _NARROW:
        # ml_dtypes keeps each in a byte, with unspecified upper bits.
        array = array.astype(np.uint8 if name.startswith("u") else np.int8)
    return np.ascontiguousarray(array).tobytes()


def encode(data: bytes) -> str:
    """Tensor data as text."""
    return base64.b64encode(data).decode("ascii")


def bytes_of_constant(op: ir.Operation, kind: Type) -> bytes:
    """Returns the elements of a `stablehlo.constant` as the format stores them."""
    dtype, shape = DTYPES[kind["dtype"]], kind["shape"]
    if 0 in shape:
        return b""
    if kind["dtype"] in _BUFFERED:
        return bytes_of_array(np.array(op.attributes["value"]).astype(dtype, copy=False))
    text = _LITERAL.search(str(op.get_asm(use_local_scope=True)))
    if text is None:
        raise refuse(op, "has data in an unknown format", "Pass the array as an argument.")
    elements = _elements(text.group(1), kind["dtype"])
    return bytes_of_array(np.broadcast_to(elements, (int(np.prod(shape)),)))


def _elements(text: str, name: str) -> np.ndarray:
    """Returns the elements of a dense literal, in order; one for a splat."""
    dtype = DTYPES[name]
    if text.startswith('"0x'):
        raw = np.frombuffer(bytes.fromhex(text[3:-1]), np.uint8)
        return _widened(raw, name) if name in _NARROW else raw.view(dtype)
    scalars = _SCALAR.findall(text)
    if name in _NARROW:
        return np.array([int(scalar) for scalar in scalars]).astype(dtype)
    part = _PARTS.get(name, dtype)
    return np.array([_float(scalar, part) for scalar in scalars], part).view(dtype)


def _widened(raw: np.ndarray, name: str) -> np.ndarray:
    """Converts narrow integers from bytes of which only the low bits count."""
    unused = 8 - _NARROW[name]
    shifted = np.left_shift(raw, unused)
    if not name.startswith("u"):
        shifted = shifted.view(np.int8)
    return np.right_shift(shifted, unused).astype(DTYPES[name])


def _float(text: str, dtype: np.dtype) -> Any:
    """Parses one float: decimal, or its bits in hexadecimal.

    MLIR writes decimal forms that read back as the same number. None lies so close to the middle of
    two numbers that reading it as a double first would make a difference.
    """
    if text.startswith("0x"):
        return np.array(int(text, 16), f"u{dtype.itemsize}").view(dtype)[()]
    return np.array(float(text)).astype(dtype)[()]
