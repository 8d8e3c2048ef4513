"""Converts StableHLO modules to ops of the program format.

A program has no functions, and its regions see only their own parameters and constants. So calls
are inlined, and a value that a region of `while`, `case` or `if` uses from outside becomes an
operand: carried unchanged through a loop, passed to every branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jax.extend.mlir import ir

from .attributes import attributes_of
from .errors import ConversionError, refuse
from .tensors import Type, bytes_of_array, bytes_of_constant, encode, type_of, type_of_array

Json = Any

# The size in bytes of the largest constant inside a region: Fuseline copies it into the region,
# where data is part of the compiled code. Larger ones become operands.
MAX_INNER_CONSTANT = 64 * 1024

_TERMINATORS = ("func.return", "stablehlo.return")

# Ops without an equivalent in Fuseline, and what to do about them.
_REFUSED = {
    "stablehlo.infeed": "Pass the data as an argument.",
    "stablehlo.outfeed": "Return the data.",
    "stablehlo.send": "Programs cannot communicate with the host: return the data.",
    "stablehlo.recv": "Programs cannot communicate with the host: pass the data as an argument.",
    "stablehlo.create_token": "Remove side effects such as printing from the function.",
    "stablehlo.uniform_quantize": "Quantised types are not supported: compute with integers or floats.",
    "stablehlo.uniform_dequantize": "Quantised types are not supported: compute with integers or floats.",
}


class Importer:
    """Collects the values and ops of one program."""

    def __init__(self, module: ir.Module) -> None:
        # Ops are views into the module, so it has to live as long as they are used.
        self._module = module
        self.values: list[Json] = []
        self.types: dict[int, Type] = {}
        self._functions: dict[str, ir.Operation] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], int] = {}
        # Ids that a region may use without defining them.
        self._everywhere: set[int] = set()
        self._devices = 1
        for name in ("mhlo.num_partitions", "mhlo.num_replicas"):
            if name in module.operation.attributes:
                self._devices *= int(ir.IntegerAttr(module.operation.attributes[name]).value)
        for function in module.body.operations:
            if function.operation.name == "func.func":
                self._functions[_text(function.operation, "sym_name")] = function.operation

    def main(self, arguments: Sequence[np.ndarray]) -> tuple[list[Json], list[int]]:
        """Imports the function `main` of the module. Returns the ops and the ids of the results."""
        main = self._functions["main"]
        block = main.regions[0].blocks[0]
        if len(block.arguments) != len(arguments):
            raise ConversionError(
                f"the lowered function takes {len(block.arguments)} arrays, but {len(arguments)} were given",
                "Remove side effects such as printing from the function; pass arrays that it closes over as arguments.",
            )
        env = {}
        for parameter, array in zip(block.arguments, arguments, strict=True):
            kind = type_of(parameter, main)
            if kind != type_of_array(array):
                raise ConversionError(
                    f"argument {parameter.arg_number} is {type_of_array(array)}, but the lowered function takes {kind}",
                    "Pass an array of that type.",
                )
            env[parameter] = self._value("input", kind, bytes_of_array(array))
        ops: list[Json] = []
        outputs = self._block(block, env, ops)
        return ops, outputs

    # ----- ids -----

    def _define(self, kind: Type) -> int:
        identity = len(self.types)
        self.types[identity] = kind
        return identity

    def _typed(self, identity: int) -> Json:
        return {"id": identity} | self.types[identity]

    def _fresh(self, values: Iterable[ir.Value], op: ir.Operation, env: dict[ir.Value, int]) -> list[int]:
        """Returns new ids for the results of `op` or the parameters of its region."""
        made = []
        for value in values:
            env[value] = self._define(type_of(value, op))
            made.append(env[value])
        return made

    def _value(self, role: str, kind: Type, data: bytes) -> int:
        identity = self._define(kind)
        self.values.append({"id": identity, "role": role} | kind | {"data": encode(data)})
        return identity

    def _constant(self, op: ir.Operation) -> int:
        """Adds a constant. Equal constants are one value."""
        kind = type_of(op.results[0], op)
        data = bytes_of_constant(op, kind)
        key = (kind["dtype"], tuple(kind["shape"]), data)
        if key not in self._constants:
            self._constants[key] = self._value("const", kind, data)
            if len(data) <= MAX_INNER_CONSTANT:
                self._everywhere.add(self._constants[key])
        return self._constants[key]

    # ----- blocks and ops -----

    def _block(self, block: ir.Block, env: dict[ir.Value, int], ops: list[Json]) -> list[int]:
        """Appends the ops of a block whose arguments are in `env`. Returns the ids that it
        returns."""
        for view in block.operations:
            op = view.operation
            if op.name in _TERMINATORS:
                return [env[value] for value in op.operands]
            self._op(op, env, ops)
        raise ConversionError("a block without a return", "Is this module of a supported JAX version?")

    def _op(self, op: ir.Operation, env: dict[ir.Value, int], ops: list[Json]) -> None:
        if op.name == "stablehlo.constant":
            env[op.results[0]] = self._constant(op)
        elif op.name in ("func.call", "stablehlo.composite"):
            self._call(op, env, ops)
        elif op.name == "sdy.sharding_constraint" and self._devices == 1:
            env[op.results[0]] = env[op.operands[0]]
        elif op.name == "stablehlo.while":
            self._while(op, env, ops)
        elif op.name in ("stablehlo.case", "stablehlo.if"):
            self._branches(op, env, ops)
        else:
            self._plain(op, env, ops)

    def _call(self, op: ir.Operation, env: dict[ir.Value, int], ops: list[Json]) -> None:
        """Inlines a function or the decomposition of a composite."""
        symbol = "callee" if op.name == "func.call" else "decomposition"
        block = self._functions[_text(op, symbol)].regions[0].blocks[0]
        inner = {parameter: env[value] for parameter, value in zip(block.arguments, op.operands, strict=True)}
        try:
            returned = self._block(block, inner, ops)
        except ConversionError as error:
            error.locate(op)
            raise
        env.update(zip(op.results, returned, strict=True))

    def _emit(
        self,
        op: ir.Operation,
        operands: list[int],
        results: list[int],
        regions: list[Json],
        ops: list[Json],
    ) -> None:
        written = {
            "op": op.name,
            "operands": operands,
            "results": [self._typed(identity) for identity in results],
            "attrs": attributes_of(op),
        }
        ops.append(written | {"regions": regions} if regions else written)

    def _plain(self, op: ir.Operation, env: dict[ir.Value, int], ops: list[Json]) -> None:
        """Appends an op whose regions, if any, are functions of their parameters: the combiner of a
        reduction, or a comparator."""
        self._check(op)
        regions = []
        for region in op.regions:
            captured = self._captured([region], env)
            if captured:
                raise refuse(
                    op,
                    f"has a function that uses {len(captured)} values computed outside it",
                    "Fuseline's functions see only their parameters: compute that part before or after.",
                )
            regions.append(self._region(op, region, [], env))
        operands = [env[value] for value in op.operands]
        self._emit(op, operands, self._fresh(op.results, op, env), regions, ops)

    @staticmethod
    def _check(op: ir.Operation) -> None:
        if op.name == "stablehlo.custom_call":
            target = _text(op, "call_target_name")
            raise refuse(
                op,
                f"to {target!r} is code outside of StableHLO",
                "Remove callbacks and debug printing. For linear algebra lower with platform='tpu' (--platform "
                "tpu), whose rules use StableHLO's own ops where there are any; or compute that step outside and pass "
                "its result in.",
            )
        if op.name in _REFUSED:
            raise refuse(op, "cannot be imported", _REFUSED[op.name])
        if not op.name.startswith(("stablehlo.", "chlo.")):
            raise refuse(op, "is not an op of StableHLO", "Lower for one device, without sharding annotations.")

    def _while(self, op: ir.Operation, env: dict[ir.Value, int], ops: list[Json]) -> None:
        captured = self._captured(op.regions, env)
        operands = [env[value] for value in op.operands]
        condition, body = (self._region(op, region, captured, env) for region in op.regions)
        # Values that the loop only reads are carried from step to step unchanged.
        body["returns"] += [argument["id"] for argument in body["args"][len(operands) :]]
        results = self._fresh(op.results, op, env)
        results += [self._define(self.types[identity]) for identity in captured]
        self._emit(op, operands + captured, results, [condition, body], ops)

    def _branches(self, op: ir.Operation, env: dict[ir.Value, int], ops: list[Json]) -> None:
        captured = self._captured(op.regions, env)
        operands = [env[op.operands[0]], *captured]
        regions = [self._region(op, region, captured, env) for region in op.regions]
        self._emit(op, operands, self._fresh(op.results, op, env), regions, ops)

    # ----- regions -----

    def _region(
        self,
        op: ir.Operation,
        region: ir.Region,
        captured: list[int],
        env: dict[ir.Value, int],
    ) -> Json:
        """Converts a region with its own parameters and one more for each captured value."""
        block = region.blocks[0]
        inner = dict(env)
        arguments = self._fresh(block.arguments, op, inner)
        replaced = {identity: self._define(self.types[identity]) for identity in captured}
        for value in _free(region):
            inner[value] = replaced.get(env[value], env[value])
        arguments += replaced.values()
        ops: list[Json] = []
        returns = self._block(block, inner, ops)
        return {"args": [self._typed(identity) for identity in arguments], "ops": ops, "returns": returns}

    def _captured(self, regions: Iterable[ir.Region], env: dict[ir.Value, int]) -> list[int]:
        """Returns the values that regions use from outside and cannot copy into themselves, each
        once, in order of use."""
        used = {env[value]: None for region in regions for value in _free(region)}
        return [identity for identity in used if identity not in self._everywhere]


def _text(op: ir.Operation, name: str) -> str:
    """Returns an attribute that is a string or names a function."""
    attribute: Any = op.attributes[name]
    return attribute.value


def _free(region: ir.Region) -> list[ir.Value]:
    """Returns the values that a region, or a region within it, uses without defining them; each
    once, in order of use."""
    own: set[ir.Value] = set()
    used: dict[ir.Value, None] = {}
    for block in region.blocks:
        own.update(block.arguments)
        for view in block.operations:
            op = view.operation
            inner = [value for nested in op.regions for value in _free(nested)]
            used.update(dict.fromkeys([*op.operands, *inner]))
            own.update(op.results)
    return [value for value in used if value not in own]
