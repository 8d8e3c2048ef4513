"""Writes promotion.json: the element type that JAX gives two operands, for all pairs of its element
types.

    pip install jax==0.10.2
    python generate_promotion.py

Names are StableHLO's. `i*`, `f*` and `c*` are Python's numbers, which have a family but no width
("weak" types in "Type promotion semantics", docs.jax.dev). A null is a pair that JAX refuses to
promote.
"""

import itertools
import json
import pathlib

import jax
import jax.numpy as jnp
import ml_dtypes

jax.config.update("jax_enable_x64", True)

TYPES = {
    "i1": jnp.bool_, "i2": jnp.int2, "i4": jnp.int4, "i8": jnp.int8, "i16": jnp.int16, "i32": jnp.int32, "i64": jnp.int64,
    "ui2": jnp.uint2, "ui4": jnp.uint4, "ui8": jnp.uint8, "ui16": jnp.uint16, "ui32": jnp.uint32, "ui64": jnp.uint64,
    "f4E2M1FN": jnp.float4_e2m1fn,
    "f8E3M4": jnp.float8_e3m4, "f8E4M3": jnp.float8_e4m3, "f8E4M3B11FNUZ": jnp.float8_e4m3b11fnuz,
    "f8E4M3FN": jnp.float8_e4m3fn, "f8E4M3FNUZ": jnp.float8_e4m3fnuz, "f8E5M2": jnp.float8_e5m2,
    "f8E5M2FNUZ": jnp.float8_e5m2fnuz, "f8E8M0FNU": jnp.float8_e8m0fnu,
    "bf16": jnp.bfloat16, "f16": jnp.float16, "f32": jnp.float32, "f64": jnp.float64,
    "complex<f32>": jnp.complex64, "complex<f64>": jnp.complex128,
}
WEAK = {"i*": 1, "f*": 1.0, "c*": 1j}
NAMES = {jnp.dtype(dtype).name: name for name, dtype in TYPES.items()}
FAMILIES = {"i": "i*", "u": "i*", "f": "f*", "c": "c*"}


def operand(name):
    return WEAK[name] if name in WEAK else jax.ShapeDtypeStruct((), TYPES[name])


def promoted(lhs, rhs):
    """Returns the type of the combination; a weak result only has a family."""
    concrete = [operand(name) for name in (lhs, rhs) if name not in WEAK]
    values = [operand(name) for name in (lhs, rhs)]

    def call(*arrays):
        arrays = iter(arrays)
        filled = [value if name in WEAK else next(arrays) for name, value in zip((lhs, rhs), values)]
        return jnp.where(True, *filled)

    try:
        result = jax.eval_shape(call, *concrete)
    except ValueError as error:
        assert "no available implicit dtype promotion path" in str(error), error
        return None
    return FAMILIES[result.dtype.kind] if result.weak_type else NAMES[result.dtype.name]


def main():
    names = [*TYPES, *WEAK]
    table = {lhs: {} for lhs in names}
    for lhs, rhs in itertools.product(names, names):
        table[lhs][rhs] = promoted(lhs, rhs)
    data = {"jax": jax.__version__, "table": table}
    text = json.dumps(data).replace('"table": {', '"table": {\n').replace("}, ", "},\n")
    path = pathlib.Path(__file__).with_name("promotion.json")
    path.write_text(text + "\n")


if __name__ == "__main__":
    main()
