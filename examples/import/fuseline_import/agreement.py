"""Determines the expected outputs of a program, and how closely another engine has to agree.

A tolerance follows from the spread of JAX's own results. Each function runs three times: compiled
as a whole in its own precision (`jax.jit`; these results are the expected ones), op by op in the
same precision (`jax.disable_jit`), and in 64-bit floats. The spread of an output is the largest
difference of any of its elements between the first run and the other two.

* Integers and booleans must agree in all runs, and the check is `exact`.
* Floats that agree in all runs to the last bit were never rounded, and the check is `exact`.
* All other floats may differ by 8 times the spread, but at least by 8 units in the last place of
  the output's largest element; both because one sample of a rounding error says little about the
  next one. The check is `almost`, an absolute tolerance, rounded up to one digit.
* An output is refused if it keeps less than half of the digits of the coarsest float type in the
  program (a tolerance above the root of that type's unit in the last place, times the largest
  element): it says more about rounding than about the program.

The parts of a complex number count as two elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import ml_dtypes
import numpy as np

from .errors import ConversionError

SAFETY = 8

_WIDE = {np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)}


@dataclass(frozen=True)
class Output:
    """An expected output and its check."""

    label: str
    expected: np.ndarray
    # `{"check", "ulp", "tolerance"}` of the program format.
    check: dict[str, Any]
    # The largest difference from the run op by op, and from the one in 64-bit floats, in the
    # output's own unit.
    by_op: float = 0.0
    wide: float = 0.0

    def words(self) -> str:
        """Describes the check and its origin, for people."""
        kind = f"{self.expected.dtype}{list(self.expected.shape)}"
        if self.check["check"] == "exact":
            return f"{self.label}: {kind}, exact"
        return (
            f"{self.label}: {kind}, within {self.check['tolerance']:g} at magnitude {_magnitude(self.expected):.3g} "
            f"(op by op {self.by_op:.1e} off, 64-bit {self.wide:.1e} off)"
        )


def as_array(leaf: Any) -> np.ndarray:
    """Converts an argument or a result of a JAX function to an array; random keys to their
    words."""
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def outputs(function: Callable, arguments: Sequence[Any], types: Iterable[np.dtype], in_float64: bool) -> list[Output]:
    """Runs a function on JAX's CPU backend and determines each result and its tolerance.

    `types` are the element types of the program. Turn `in_float64` off for a function that computes
    something else in 64-bit floats, for example because it draws random numbers of the default
    type.
    """
    labels, expected = _run(jax.jit(function), arguments)
    with jax.disable_jit():
        _, by_op = _run(function, jax.tree.map(_on_device, tuple(arguments)))
    wide = expected
    if in_float64:
        with jax.enable_x64(True):
            _, wide = _run(jax.jit(function), jax.tree.map(_widened, tuple(arguments)))
    if not len(labels) == len(by_op) == len(wide):
        raise ConversionError(
            f"the function returns {len(expected)} arrays compiled, {len(by_op)} op by op and {len(wide)} in 64-bit "
            "floats",
            "Its structure must not depend on how it is run.",
        )
    coarsest = max((_unit(dtype) for dtype in set(types) if _is_float(dtype)), default=0.0)
    return [_output(*each, coarsest) for each in zip(labels, expected, by_op, wide, strict=True)]


def _run(function: Callable, arguments: Sequence[Any]) -> tuple[list[str], list[np.ndarray]]:
    """Returns names and arrays of the results."""
    with jax.default_device(jax.devices("cpu")[0]):
        leaves = jax.tree_util.tree_leaves_with_path(function(*arguments))
    return ["result" + jax.tree_util.keystr(path) for path, _ in leaves], [as_array(leaf) for _, leaf in leaves]


def _on_device(leaf: Any) -> Any:
    """Converts NumPy arrays to JAX's, whose rules differ. Compiled functions get JAX's arrays, so
    functions that run op by op must too."""
    return jax.numpy.asarray(leaf) if isinstance(leaf, (np.ndarray, np.generic)) else leaf


def _widened(leaf: Any) -> Any:
    dtype = getattr(leaf, "dtype", None)
    if dtype in _WIDE:
        return np.asarray(leaf).astype(np.float64)
    return np.asarray(leaf).astype(np.complex128) if dtype == np.complex64 else leaf


def _output(label: str, expected: np.ndarray, by_op: np.ndarray, wide: np.ndarray, coarsest: float) -> Output:
    if not expected.shape == by_op.shape == wide.shape:
        raise ConversionError(f"{label} has a different shape in another run", "Shapes must not "
             "depend on how the function is run.")
    if not _is_float(expected.dtype):
        if not (np.array_equal(expected, by_op) and np.array_equal(expected, wide)):
            raise ConversionError(
                f"{label} has integers that differ between the compiled run, the run op by op and "
                f"the run in 64-bit floats",
                "They depend on rounding. Return what they are made from, choose inputs away from the edge, or leave "
                "the run in 64-bit floats out (in_float64=False, --no-float64) if the function means something else "
                "there.",
            )
        return Output(label, expected, {"check": "exact", "ulp": None, "tolerance": None})
    distances = _distance(label, expected, by_op), _distance(label, expected, wide)
    if max(distances) == 0.0:
        return Output(label, expected, {"check": "exact", "ulp": None, "tolerance": None})
    magnitude = _magnitude(expected)
    tolerance = _rounded_up(SAFETY * max(*distances, _unit(expected.dtype) * magnitude))
    if tolerance > math.sqrt(coarsest) * magnitude:
        raise ConversionError(
            f"{label} moves by {distances[0]:.1e} when run op by op and by {distances[1]:.1e} in 64-bit floats, at a "
            f"magnitude of {magnitude:.1e}",
            "Choose inputs at which the function is less sensitive. If it means something else in 64-bit floats, for "
            "example because it draws random numbers of the default type, leave that run out (in_float64=False, "
            "--no-float64).",
        )
    return Output(label, expected, {"check": "almost", "ulp": None, "tolerance": tolerance}, *distances)


def _is_float(dtype: np.dtype) -> bool:
    return jax.dtypes.issubdtype(dtype, np.inexact)


def _parts(array: np.ndarray) -> np.ndarray:
    """Converts elements to 64-bit floats; a complex number becomes two."""
    if np.iscomplexobj(array):
        array = np.stack([array.real, array.imag])
    return array.astype(np.float64)


def _distance(label: str, expected: np.ndarray, other: np.ndarray) -> float:
    """Returns the largest difference of two elements at the same position. Elements that are not
    finite must be equal."""
    a, b = _parts(expected), _parts(other)
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        raise ConversionError(
            f"{label} is infinite or NaN in one run and finite in another",
            "Choose inputs away from overflow.",
        )
    return float(np.max(np.abs(a[finite] - b[finite]), initial=0.0))


def _magnitude(array: np.ndarray) -> float:
    """The largest finite absolute value of any part."""
    parts = np.abs(_parts(array))
    return float(np.max(parts[np.isfinite(parts)], initial=0.0))


def _unit(dtype: np.dtype) -> float:
    """The distance from 1 to the next larger number of the type."""
    part = {np.dtype(np.complex64): np.dtype(np.float32), np.dtype(np.complex128): np.dtype(np.float64)}
    return float(ml_dtypes.finfo(part.get(dtype, dtype)).eps)


def _rounded_up(value: float) -> float:
    """Rounds up to one decimal digit."""
    exponent = math.floor(math.log10(value))
    return float(f"{math.ceil(value / 10.0**exponent)}e{exponent}")
