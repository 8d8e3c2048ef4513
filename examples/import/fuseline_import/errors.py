"""Errors of a conversion."""

from __future__ import annotations

import re

from jax.extend.mlir import ir

_FRAME = re.compile(r'"([^"]+)":(\d+):(\d+)')
_NAME = re.compile(r'loc\("([^"]+)"')


class ConversionError(Exception):
    """A function that the program format cannot express: where, what, and what to do about it."""

    def __init__(self, what: str, hint: str, op: ir.Operation | None = None) -> None:
        super().__init__(what, hint)
        self._what = what
        self._hint = hint
        self._where: str | None = None
        if op is not None:
            self.locate(op)

    def locate(self, op: ir.Operation) -> None:
        """Adds the line of the user's source from an op, if no line is known yet.

        JAX omits its own frames from locations, so the innermost one is the user's. Ops in
        functions of JAX may have none; then the call of that function provides the line.
        """
        frame = _FRAME.search(str(op.location))
        if self._where is None and frame:
            self._where = ":".join(frame.groups())

    def __str__(self) -> str:
        where = f"{self._where}: " if self._where else ""
        return f"{where}{self._what}\n  {self._hint}"


def refuse(op: ir.Operation, what: str, hint: str) -> ConversionError:
    """Returns an error about one op, with the op and the JAX function that it comes from."""
    name = _NAME.search(str(op.location))
    origin = f" (from {name.group(1).rpartition('/')[2]})" if name else ""
    return ConversionError(f"{op.name}{origin} {what}", hint, op)
