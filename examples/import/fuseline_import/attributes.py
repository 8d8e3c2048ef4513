"""Attributes of StableHLO and CHLO ops, with their names and values in the program format.

An op that is not listed has no attributes. The format wants values that the printed form omits
because they are defaults.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import chlo, stablehlo

from .errors import refuse

Json = Any


@dataclass(frozen=True)
class Attribute:
    """One attribute of an op."""

    name: str
    write: Callable[[Any], Json]
    # The value if the op does not state it; `None` if the attribute is then omitted.
    default: Callable[[ir.Operation], Json] | None = None
    required: bool = False


def _integer(attribute: Any) -> int:
    return int(attribute.value)


def _integers(attribute: Any) -> list[int]:
    return [int(value) for value in attribute]


def _boolean(attribute: Any) -> bool:
    return bool(attribute.value)


def _booleans(attribute: Any) -> list[bool]:
    return [bool(value) for value in attribute]


def _dense(attribute: Any) -> list:
    return np.array(attribute).tolist()


def _number(attribute: Any) -> float | str:
    """Converts a float; the format has names for values that JSON lacks."""
    value = float(attribute.value)
    if np.isnan(value):
        return "nan"
    return {np.inf: "inf", -np.inf: "-inf"}.get(value, value)


def _word(attribute: Any) -> str:
    """Returns an enumerator, the last word of `#stablehlo<comparison_direction LT>`."""
    return re.findall(r"\w+", str(attribute))[-1]


def _words(attribute: Any) -> list[str]:
    return [_word(value) for value in attribute]


def _struct(kind: Any, fields: dict[str, str]) -> Callable[[Any], Json]:
    """Returns a writer of a group of dimension numbers. `fields` maps names in the format to those
    of the Python bindings."""

    def write(attribute: Any) -> Json:
        group = kind(attribute)
        values = {name: getattr(group, field) for name, field in fields.items()}
        return {name: list(value) if isinstance(value, (list, tuple)) else value for name, value in values.items()}

    return write


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


def _algorithm(attribute: Any) -> Json:
    group = stablehlo.DotAlgorithm(attribute)
    types = ("lhs_precision_type", "rhs_precision_type", "accumulation_type")
    counts = ("lhs_component_count", "rhs_component_count", "num_primitive_operations")
    return (
        {name: str(getattr(group, name)) for name in types}
        | {name: int(getattr(group, name)) for name in counts}
        | {"allow_imprecise_accumulation": bool(group.allow_imprecise_accumulation)}
    )


_DOT = _struct(
    stablehlo.DotDimensionNumbers,
    _same(
        "lhs_batching_dimensions",
        "rhs_batching_dimensions",
        "lhs_contracting_dimensions",
        "rhs_contracting_dimensions",
    ),
)
_RAGGED_DOT = _struct(
    chlo.RaggedDotDimensionNumbers,
    _same(
        "lhs_batching_dimensions",
        "rhs_batching_dimensions",
        "lhs_contracting_dimensions",
        "rhs_contracting_dimensions",
        "lhs_ragged_dimensions",
        "rhs_group_dimensions",
    ),
)
_GATHER = _struct(
    stablehlo.GatherDimensionNumbers,
    _same(
        "offset_dims",
        "collapsed_slice_dims",
        "operand_batching_dims",
        "start_indices_batching_dims",
        "start_index_map",
        "index_vector_dim",
    ),
)
_SCATTER = _struct(
    stablehlo.ScatterDimensionNumbers,
    _same(
        "update_window_dims",
        "inserted_window_dims",
        "input_batching_dims",
        "scatter_indices_batching_dims",
        "index_vector_dim",
    )
    | {"scatter_dims_to_operand_dims": "scattered_dims_to_operand_dims"},
)
_CONVOLUTION = _struct(
    stablehlo.ConvDimensionNumbers,
    _same(
        "input_batch_dimension",
        "input_feature_dimension",
        "input_spatial_dimensions",
        "kernel_input_feature_dimension",
        "kernel_output_feature_dimension",
        "kernel_spatial_dimensions",
        "output_batch_dimension",
        "output_feature_dimension",
        "output_spatial_dimensions",
    ),
)


def _rank(op: ir.Operation) -> int:
    return ir.RankedTensorType(op.operands[0].type).rank


def _each(value: Json) -> Callable[[ir.Operation], Json]:
    """Returns a default for every dimension of the first operand."""
    return lambda op: [value] * _rank(op)


def _spatial(value: Json) -> Callable[[ir.Operation], Json]:
    """Returns a default for every spatial dimension of a convolution."""
    return lambda op: [value] * (_rank(op) - 2)


def _always(value: Json) -> Callable[[ir.Operation], Json]:
    return lambda op: value


def _compare_type(op: ir.Operation) -> str:
    element = str(ir.RankedTensorType(op.operands[0].type).element_type)
    if element == "i1" or element.startswith("ui"):
        return "UNSIGNED"
    return "SIGNED" if element.startswith("i") else "FLOAT"


def _need(name: str, write: Callable[[Any], Json]) -> Attribute:
    return Attribute(name, write, required=True)


_EPSILON = (_need("epsilon", _number), _need("feature_index", _integer))
_PRECISION = Attribute("precision_config", _words)
_IOTA = (_need("iota_dimension", _integer),)
_GATHER_FLAGS = (Attribute("indices_are_sorted", _boolean, _always(False)),)
_WINDOW = (_need("window_dimensions", _integers), Attribute("window_strides", _integers, _each(1)))
_WINDOW_PADDING = Attribute("padding", _dense, _each([0, 0]))
_BROADCAST = (_need("broadcast_dimensions", _integers),)
_CONVOLVE = (
    Attribute("window_strides", _integers, _spatial(1)),
    Attribute("lhs_dilation", _integers, _spatial(1)),
    Attribute("rhs_dilation", _integers, _spatial(1)),
    Attribute("window_reversal", _booleans, _spatial(False)),
    _need("dimension_numbers", _CONVOLUTION),
    _need("feature_group_count", _integer),
    _need("batch_group_count", _integer),
    _PRECISION,
)

ATTRIBUTES: dict[str, tuple[Attribute, ...]] = {
    "stablehlo.batch_norm_grad": _EPSILON,
    "stablehlo.batch_norm_inference": _EPSILON,
    "stablehlo.batch_norm_training": _EPSILON,
    "stablehlo.broadcast_in_dim": _BROADCAST,
    "stablehlo.cholesky": (Attribute("lower", _boolean, _always(False)),),
    "stablehlo.compare": (
        _need("comparison_direction", _word),
        Attribute("compare_type", _word, _compare_type),
    ),
    "stablehlo.concatenate": (_need("dimension", _integer),),
    "stablehlo.convolution": (*_CONVOLVE, Attribute("padding", _dense, _spatial([0, 0]))),
    "stablehlo.dot_general": (
        _need("dot_dimension_numbers", _DOT),
        _PRECISION,
        Attribute("algorithm", _algorithm),
    ),
    "stablehlo.dynamic_broadcast_in_dim": (
        *_BROADCAST,
        Attribute("known_expanding_dimensions", _integers),
        Attribute("known_nonexpanding_dimensions", _integers),
    ),
    "stablehlo.dynamic_conv": _CONVOLVE,
    "stablehlo.dynamic_gather": (_need("dimension_numbers", _GATHER), *_GATHER_FLAGS),
    "stablehlo.dynamic_iota": _IOTA,
    "stablehlo.dynamic_slice": (_need("slice_sizes", _integers),),
    "stablehlo.fft": (_need("fft_type", _word), _need("fft_length", _integers)),
    "stablehlo.gather": (
        _need("dimension_numbers", _GATHER),
        _need("slice_sizes", _integers),
        *_GATHER_FLAGS,
    ),
    "stablehlo.get_dimension_size": (_need("dimension", _integer),),
    "stablehlo.iota": _IOTA,
    "stablehlo.map": (_need("dimensions", _integers),),
    "stablehlo.pad": (
        _need("edge_padding_low", _integers),
        _need("edge_padding_high", _integers),
        _need("interior_padding", _integers),
    ),
    "stablehlo.reduce": (_need("dimensions", _integers),),
    "stablehlo.reduce_precision": (
        _need("exponent_bits", _integer),
        _need("mantissa_bits", _integer),
    ),
    "stablehlo.reduce_window": (
        *_WINDOW,
        Attribute("base_dilations", _integers, _each(1)),
        Attribute("window_dilations", _integers, _each(1)),
        _WINDOW_PADDING,
    ),
    "stablehlo.reverse": (_need("dimensions", _integers),),
    "stablehlo.rng": (_need("rng_distribution", _word),),
    "stablehlo.rng_bit_generator": (_need("rng_algorithm", _word),),
    "stablehlo.scatter": (
        _need("scatter_dimension_numbers", _SCATTER),
        *_GATHER_FLAGS,
        Attribute("unique_indices", _boolean, _always(False)),
    ),
    "stablehlo.select_and_scatter": (*_WINDOW, _WINDOW_PADDING),
    "stablehlo.set_dimension_size": (_need("dimension", _integer),),
    "stablehlo.slice": (
        _need("start_indices", _integers),
        _need("limit_indices", _integers),
        _need("strides", _integers),
    ),
    "stablehlo.sort": (
        Attribute("dimension", _integer, lambda op: _rank(op) - 1),
        Attribute("is_stable", _boolean, _always(False)),
    ),
    "stablehlo.transpose": (_need("permutation", _integers),),
    "stablehlo.triangular_solve": (
        _need("left_side", _boolean),
        _need("lower", _boolean),
        _need("unit_diagonal", _boolean),
        _need("transpose_a", _word),
    ),
    "chlo.ragged_dot": (_need("ragged_dot_dimension_numbers", _RAGGED_DOT), _PRECISION),
    "chlo.scan": (
        _need("dimension", _integer),
        Attribute("scan_dim_size", _integer),
        Attribute("is_reverse", _boolean),
        Attribute("is_associative", _boolean),
        _need("operandSegmentSizes", _integers),
        _need("resultSegmentSizes", _integers),
    ),
    "chlo.top_k": (_need("k", _integer), Attribute("is_stable", _boolean)),
}

# Prefixes of attributes that say where or how to run an op, and not what it computes.
_PLACEMENT = ("mhlo.", "jax.", "sdy.", "xla.", "_")


def attributes_of(op: ir.Operation) -> dict[str, Json]:
    """Returns the attributes of an op in the format, in the order of the table above."""
    table = ATTRIBUTES.get(op.name, ())
    stated = set(op.attributes)
    for name in sorted(stated - {attribute.name for attribute in table}):
        _may_be_left_out(op, name)
    written = {}
    for attribute in table:
        if attribute.name in stated:
            written[attribute.name] = attribute.write(op.attributes[attribute.name])
        elif attribute.default is not None:
            written[attribute.name] = attribute.default(op)
        elif attribute.required:
            raise refuse(op, f"lacks the attribute {attribute.name}", "Is this module of a supported JAX version?")
    if op.name == "stablehlo.sort" and written["dimension"] < 0:
        written["dimension"] += _rank(op)
    return written


def _may_be_left_out(op: ir.Operation, name: str) -> None:
    """Ignores an attribute that does not affect the op's result, and refuses any other."""
    if name.startswith(_PLACEMENT):
        return
    if name == "result_accuracy":
        mode = str(stablehlo.ResultAccuracyAttr(op.attributes[name]).mode)
        if mode == "DEFAULT":
            return
        raise refuse(op, f"requests the accuracy {mode}", "Only the default accuracy can be imported.")
    raise refuse(
        op,
        f"has the attribute {name} = {op.attributes[name]}, which the program format does not have",
        "Write that step with another function of JAX, or compute it outside and pass it in.",
    )
