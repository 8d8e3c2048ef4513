"""What a conversion says when it cannot go on."""

from __future__ import annotations

import re

from jax.extend.mlir import ir

_FRAME = re.compile(r'"([^"]+)":(\d+):(\d+)')


class ConversionError(Exception):
    """A function that cannot be written in the program format: where, what, and what to do about it."""

    def __init__(self, what: str, hint: str, where: str = "") -> None:
        super().__init__(f"{where}: {what}\n  {hint}" if where else f"{what}\n  {hint}")


def place(op: ir.Operation) -> str:
    """The line of the user's source that an op comes from, as `file:line:column`.

    JAX leaves its own frames out of the locations, so the innermost one is the user's. An op without a location is named
    by what MLIR says of it.
    """
    location = str(op.location)
    frame = _FRAME.search(location)
    return ":".join(frame.groups()) if frame else location


def refuse(op: ir.Operation, what: str, hint: str) -> ConversionError:
    """An error about one op, to be raised."""
    return ConversionError(f"{op.name} {what}", hint, place(op))
