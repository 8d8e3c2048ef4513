#!/usr/bin/env python3
"""Converts the programs of `programs.py` to the files under `programs/`, or checks the files.

`python convert_programs.py` writes all files, and `python convert_programs.py lstm decode` writes
two. With `--check`, it converts the programs and compares them with the files instead.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np

from fuseline_import.errors import ConversionError
from fuseline_import.tensors import DTYPES
from jax_to_fuseline import convert, dumps
from programs import PROGRAMS

Json = Any

FOLDER = Path(__file__).parent / "programs"


def made(name: str, quiet: bool) -> Json:
    """Converts one program."""
    program = PROGRAMS[name]
    report = None if quiet else lambda line: print(f"  {line}")
    return convert(
        program.function,
        *program.inputs(),
        name=name,
        source=f"examples/import/programs.py:{program.function.__name__}",
        platform=program.platform,
        report=report,
    )


def differences(name: str) -> list[str]:
    """Returns the differences between the committed file of a program and a new conversion.

    Other processors round differently, so expected outputs need not be bit-identical: they have to
    pass the checks of the file. Tolerances may differ, kinds of checks may not.
    """
    committed = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    now = json.loads(dumps(made(name, quiet=True)))
    found = []
    for key in sorted(committed.keys() | now.keys()):
        if key in ("expected", "checks", "check", "ulp", "tolerance"):
            continue
        if committed.get(key) != now.get(key):
            found.append(f"{key} differs from what the function is lowered to")
    if found:
        return found
    pairs = zip(committed["expected"], now["expected"], committed["checks"], now["checks"], strict=True)
    for index, (old, new, check, new_check) in enumerate(pairs):
        if check["check"] != new_check["check"]:
            found.append(f"output {index} has the check {check['check']}, and would get {new_check['check']}")
        elif not _passes(_array(new), _array(old), check):
            found.append(f"output {index} differs from what JAX computes now by more than the file allows")
    return found


def _array(tensor: Json) -> np.ndarray:
    raw = np.frombuffer(base64.b64decode(tensor["data"]), np.uint8)
    return raw.view(DTYPES[tensor["dtype"]]).reshape(tensor["shape"])


def _passes(actual: np.ndarray, expected: np.ndarray, check: Json) -> bool:
    if check["check"] == "exact":
        return np.array_equal(actual, expected, equal_nan=not np.issubdtype(actual.dtype, np.integer))
    wide = np.complex128 if np.iscomplexobj(actual) else np.float64
    a, b = (array.astype(wide).view(np.float64) for array in (actual, expected))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        return bool(np.all(same | (np.abs(a - b) <= check["tolerance"])))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help="programs to convert [default: all]")
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    return parser.parse_args()


def main() -> int:
    """Runs the command line and returns the exit status."""
    options = _options()
    unknown = sorted(set(options.names) - PROGRAMS.keys())
    if unknown:
        print(f"error: there is no program {', '.join(unknown)}; the programs are "
              f"{', '.join(PROGRAMS)}", file=sys.stderr)
        return 2
    failed = False
    for name in options.names or PROGRAMS:
        try:
            if options.check:
                found = differences(name)
                print(f"{name}: {'; '.join(found) or 'as committed'}")
                failed |= bool(found)
            else:
                print(name)
                program = made(name, quiet=False)
                text = dumps(program)
                (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
                print(f"  {program['n_ops']} ops, {len(text) / 1000:.0f} kB")
        except ConversionError as error:
            print(f"error: {name}: {error}", file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
