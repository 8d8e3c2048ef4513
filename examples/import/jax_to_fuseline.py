#!/usr/bin/env python3
"""Converts a JAX function to a program that `fuseline run` executes op by op.

`jax.jit` lowers the function to StableHLO. The module is written in Fuseline's program format, with
the arguments as inputs. JAX's results on the CPU become the expected outputs.

    python jax_to_fuseline.py model.py:train_step --inputs example_batch --output train_step.json

converts `train_step` of `model.py` with the tuple of arguments that `example_batch()` returns. In
Python:

    from jax_to_fuseline import convert
    program = convert(train_step, params, batch, name="train_step")

README.md says what cannot be converted.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

if __name__ == "__main__":
    # Results are JAX's on the CPU, wherever this runs; do not occupy another device.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

from fuseline_import import agreement
from fuseline_import.errors import ConversionError
from fuseline_import.module import Importer
from fuseline_import.tensors import DTYPES, bytes_of_array, encode, type_of_array

Json = Any


def convert(
    function: Callable,
    *arguments: Any,
    name: str,
    source: str = "",
    platform: str = "cpu",
    in_float64: bool = True,
    report: Callable[[str], None] | None = None,
) -> Json:
    """Converts one call of a JAX function to an object of the program format.

    `arguments` are arrays, numbers, random keys, or containers of them; their leaves become the
    inputs, in JAX's order. For static or keyword arguments wrap the function (`functools.partial`).
    Donated arguments are inputs like all others. `platform` selects the lowering rules: with "tpu"
    JAX writes a Cholesky factorization as an op; with "cpu" it calls a library, which cannot be
    converted. For `in_float64` and the choice of tolerances see `fuseline_import/agreement.py`.

    Raises `ConversionError` for anything that the format lacks.
    """
    lowered = jax.jit(function, keep_unused=True).trace(*arguments).lower(lowering_platforms=(platform,))
    importer = Importer(lowered.compiler_ir(dialect="stablehlo"))
    ops, ids = importer.main(_inputs(lowered, arguments))
    types = (DTYPES[kind["dtype"]] for kind in importer.types.values())
    outputs = agreement.outputs(function, arguments, types, in_float64)
    for identity, output in zip(ids, outputs, strict=True):
        if importer.types[identity] != type_of_array(output.expected):
            raise ConversionError(
                f"{output.label} is {output.expected.dtype}{list(output.expected.shape)} on the CPU and "
                f"{importer.types[identity]} as lowered for {platform}",
                "Lower for the CPU.",
            )
        if report is not None:
            report(output.words())
    return {
        "name": name,
        "source": source,
        "class": "jax",
        "op": "composite",
        "tags": ["jax"],
        "n_ops": _count(ops),
        "values": importer.values,
        "ops": ops,
        "outputs": ids,
        "expected": [
            type_of_array(output.expected) | {"data": encode(bytes_of_array(output.expected))} for output in outputs
        ],
        "checks": [output.check for output in outputs],
    } | _common_check([output.check for output in outputs])


def dumps(program: Json) -> str:
    """Returns the text of a program file: one line."""
    return json.dumps(program, separators=(",", ":"), allow_nan=False) + "\n"


def _inputs(lowered: jax.stages.Lowered, arguments: tuple[Any, ...]) -> list[np.ndarray]:
    """Returns the leaves of the arguments, in the types that JAX traced them with."""
    types = jax.tree.leaves(lowered.in_avals)
    arrays = []
    for leaf, kind in zip(jax.tree.leaves(arguments), types, strict=True):
        array = agreement.as_array(leaf)
        is_key = jax.dtypes.issubdtype(kind.dtype, jax.dtypes.prng_key)
        arrays.append(array if is_key else array.astype(kind.dtype))
    return arrays


def _count(ops: list[Json]) -> int:
    """Returns the number of ops, including those inside regions."""
    return sum(1 + sum(_count(region["ops"]) for region in op.get("regions", [])) for op in ops)


def _common_check(checks: list[Json]) -> Json:
    """Describes the check that all outputs share, or says that there is none."""
    if checks and all(check == checks[0] for check in checks):
        return checks[0]
    return {"check": "mixed", "ulp": None, "tolerance": None}


def _load(path: Path) -> ModuleType:
    """Loads a user's Python file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConversionError(f"{path} is not a Python file", "Name a Python file, as in model.py:train_step.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def _member(module: ModuleType, path: Path, name: str) -> Callable:
    found = getattr(module, name, None)
    if not callable(found):
        raise ConversionError(f"{path} has no function {name}", "Name a function that the file "
             "defines at the top level.")
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("function", metavar="FILE:FUNCTION", help="the function to convert, and where it is")
    parser.add_argument(
        "--inputs",
        metavar="FUNCTION",
        help="function of the same file that takes no arguments and returns the tuple of inputs (FUNCTION_inputs)",
    )
    parser.add_argument("--output", "-o", type=Path, metavar="FILE", help="where to write (FUNCTION.json)")
    parser.add_argument("--platform", default="cpu", help="platform whose lowering rules are used (cpu)")
    parser.add_argument(
        "--no-float64",
        action="store_true",
        help="do not run the function in 64-bit floats to find tolerances, because it computes something else in them",
    )
    return parser.parse_args()


def main() -> int:
    """Runs the command line and returns the exit status."""
    options = _arguments()
    file, _, name = options.function.rpartition(":")
    try:
        if not file:
            raise ConversionError(f"{name!r} does not name a function", "Write FILE:FUNCTION, as "
                 "in model.py:train_step.")
        path = Path(file)
        module = _load(path)
        inputs = _member(module, path, options.inputs or f"{name}_inputs")
        output = options.output or Path(f"{name}.json")
        program = convert(
            _member(module, path, name),
            *inputs(),
            name=output.stem,
            source=f"{path.name}:{name}",
            platform=options.platform,
            in_float64=not options.no_float64,
            report=lambda line: print(f"  {line}"),
        )
    except ConversionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    output.write_text(dumps(program), encoding="utf-8")
    print(f"{output}: {program['n_ops']} ops, {len(program['values'])} values, {len(program['outputs'])} outputs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
