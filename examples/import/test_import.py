"""Tests of the conversion. Run `python -m unittest` in this folder."""

from __future__ import annotations

import base64
import functools
import json
import os
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.mlir import ir

from fuseline_import import agreement
from fuseline_import.errors import ConversionError
from fuseline_import.module import MAX_INNER_CONSTANT, Importer
from fuseline_import.tensors import DTYPES, bytes_of_array
from jax_to_fuseline import convert
from programs import PROGRAMS

Json = Any


def parsed(text: str) -> ir.Module:
    """Parses a module."""
    context = jax.jit(lambda: 0).lower().compiler_ir(dialect="stablehlo").context
    with context:
        return ir.Module.parse(text)


def imported(text: str, *arguments: np.ndarray) -> Json:
    """Converts a module given as text, without expected outputs."""
    importer = Importer(parsed(text))
    ops, outputs = importer.main(arguments)
    return {"values": importer.values, "ops": ops, "outputs": outputs}


def ops_named(ops: list[Json], name: str) -> list[Json]:
    """Returns all ops with a name, including those inside regions."""
    found = []
    for op in ops:
        found += [op] if op["op"] == name else []
        for region in op.get("regions", []):
            found += ops_named(region["ops"], name)
    return found


class Scopes:
    """Checks the format's rules for ids and regions."""

    def __init__(self, program: Json) -> None:
        self.types: dict[int, tuple] = {}
        self.constants = {value["id"] for value in program["values"] if value["role"] == "const"}
        for value in program["values"]:
            self.define(value)
        visible = set(self.types)
        self.ops(program["ops"], visible)
        assert set(program["outputs"]) <= visible, "an output is not defined"
        assert sorted(self.types) == list(range(len(self.types))), "ids have gaps"

    def define(self, typed: Json) -> int:
        assert typed["id"] not in self.types, f"{typed['id']} is defined twice"
        self.types[typed["id"]] = (tuple(typed["shape"]), typed["dtype"])
        return typed["id"]

    def of(self, ids: Sequence[int]) -> list[tuple]:
        return [self.types[identity] for identity in ids]

    def ops(self, ops: list[Json], visible: set[int]) -> None:
        for op in ops:
            assert set(op["operands"]) <= visible, f"{op['op']} uses what is not defined"
            for region in op.get("regions", []):
                inner = self.constants | {self.define(argument) for argument in region["args"]}
                self.ops(region["ops"], inner)
                assert set(region["returns"]) <= inner, f"a region of {op['op']} returns what it does not define"
            visible |= {self.define(result) for result in op["results"]}
            self.rule(op)

    def rule(self, op: Json) -> None:
        operands = self.of(op["operands"])
        results = self.of([result["id"] for result in op["results"]])
        regions = op.get("regions", [])
        returns = [self.of(region["returns"]) for region in regions]
        arguments = [self.of([argument["id"] for argument in region["args"]]) for region in regions]
        if op["op"] == "stablehlo.while":
            assert operands == results == returns[1] == arguments[0] == arguments[1]
            assert returns[0] == [((), "i1")]
        if op["op"] in ("stablehlo.case", "stablehlo.if"):
            assert all(each == operands[1:] for each in arguments) and all(each == results for each in returns)


class Constants(unittest.TestCase):
    """Data of every element type, in every form that MLIR writes."""

    def data(self, literal: str, kind: str) -> bytes:
        constant = f"%0 = stablehlo.constant dense<{literal}> : tensor<{kind}>"
        text = f"func.func @main() -> tensor<{kind}> {{ {constant} return %0 : tensor<{kind}> }}"
        value = imported(text)["values"][0]
        return base64.b64decode(value["data"])

    def test_every_type_is_read_as_written(self) -> None:
        for name in DTYPES:
            element = {"c64": "complex<f32>", "c128": "complex<f64>"}.get(name, name)
            scalars = ["0", "1"] if name[0] in "iu" else ["1.000000e+00", "2.000000e+00"]
            scalars = ["false", "true"] if name == "i1" else scalars
            values = np.array([float(s == "true") if name == "i1" else float(s) for s in scalars])
            if name.startswith("c"):
                scalars = ["(1.000000e+00,2.000000e+00)", "(2.000000e+00,1.000000e+00)"]
                values = np.array([1 + 2j, 2 + 1j])
            array = values.astype(DTYPES[name])
            # From 100 elements on, MLIR writes hexadecimal digits.
            for times in (1, 100):
                literal = f"[{', '.join(scalars * times)}]"
                expected = bytes_of_array(np.tile(array, times))
                self.assertEqual(self.data(literal, f"{2 * times}x{element}"), expected, f"{name} x {2 * times}")
            self.assertEqual(self.data(scalars[1], f"2x3x{element}"), bytes_of_array(np.tile(array[1:], 6)), name)
            self.assertEqual(self.data("", f"0x3x{element}"), b"", name)

    def test_narrow_integers_fill_their_byte(self) -> None:
        self.assertEqual(self.data("[-8, 7, -1]", "3xi4"), b"\xf8\x07\xff")
        self.assertEqual(self.data("[-2, 1]", "2xi2"), b"\xfe\x01")
        self.assertEqual(self.data("[15, 8]", "2xui4"), b"\x0f\x08")
        self.assertEqual(self.data(f"[{', '.join(['-8', '7'] * 60)}]", "120xi4"), b"\xf8\x07" * 60)
        self.assertEqual(self.data(f"[{', '.join(['15', '7'] * 60)}]", "120xui4"), b"\x0f\x07" * 60)

    def test_bits_of_special_numbers_are_kept(self) -> None:
        self.assertEqual(self.data("[0x7FC00001, 0xFF800000]", "2xf32"), b"\x01\x00\xc0\x7f\x00\x00\x80\xff")
        self.assertEqual(self.data("[0x7FC1, -0.0]", "2xbf16"), b"\xc1\x7f\x00\x80")
        self.assertEqual(self.data("(0x7FC00001, -1.0)", "complex<f32>"), b"\x01\x00\xc0\x7f\x00\x00\x80\xbf")
        self.assertEqual(self.data("0x80", "2xf8E4M3FNUZ"), b"\x80\x80")

    def test_sixteen_bit_floats_are_all_read_back(self) -> None:
        every = np.arange(65536, dtype=np.uint16).view(DTYPES["bf16"])
        finite = every[np.isfinite(every.astype(np.float32))]
        for start in range(0, len(finite), 4096):
            part = finite[start : start + 90]
            literal = f"[{', '.join(f'0x{bits:04X}' for bits in part.view(np.uint16))}]"
            self.assertEqual(self.data(literal, f"{len(part)}xbf16"), part.tobytes())


class Regions(unittest.TestCase):
    """Values that regions capture."""

    def test_a_loop_carries_what_it_reads(self) -> None:
        program = imported(
            """
            func.func @main(%x: tensor<3xf32>, %n: tensor<i32>) -> tensor<3xf32> {
              %zero = stablehlo.constant dense<0> : tensor<i32>
              %y = stablehlo.add %x, %x : tensor<3xf32>
              %r:2 = stablehlo.while(%i = %zero, %s = %x) : tensor<i32>, tensor<3xf32> cond {
                %c = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
                stablehlo.return %c : tensor<i1>
              } do {
                %one = stablehlo.constant dense<1> : tensor<i32>
                %j = stablehlo.add %i, %one : tensor<i32>
                %t = stablehlo.add %s, %y : tensor<3xf32>
                stablehlo.return %j, %t : tensor<i32>, tensor<3xf32>
              }
              return %r#1 : tensor<3xf32>
            }
            """,
            np.ones(3, np.float32),
            np.int32(4).reshape(()),
        )
        Scopes(program)
        (loop,) = ops_named(program["ops"], "stablehlo.while")
        x, n = (value["id"] for value in program["values"] if value["role"] == "input")
        (doubled,) = program["ops"][0]["results"]
        self.assertEqual(loop["operands"][1:], [x, n, doubled["id"]])
        body = loop["regions"][1]
        self.assertEqual(body["returns"][2:], [argument["id"] for argument in body["args"][2:]])
        self.assertEqual(program["outputs"], [loop["results"][1]["id"]])

    def test_branches_take_what_any_of_them_reads(self) -> None:
        text = """
            func.func @main(%p: tensor<INDEX>, %x: tensor<f32>, %y: tensor<f32>) -> tensor<f32> {
              %z = stablehlo.multiply %x, %y : tensor<f32>
              %r = "stablehlo.OP"(%p) ({
                %a = stablehlo.add %x, %z : tensor<f32>
                stablehlo.return %a : tensor<f32>
              }, {
                %two = stablehlo.constant dense<2.0> : tensor<f32>
                %b = stablehlo.multiply %y, %two : tensor<f32>
                stablehlo.return %b : tensor<f32>
              }) : (tensor<INDEX>) -> tensor<f32>
              return %r : tensor<f32>
            }
            """
        one = np.ones((), np.float32)
        for name, index in (("case", "i32"), ("if", "i1")):
            argument = np.zeros((), DTYPES[index])
            program = imported(text.replace("INDEX", index).replace("OP", name), argument, one, one)
            Scopes(program)
            (branches,) = ops_named(program["ops"], f"stablehlo.{name}")
            self.assertEqual(len(branches["operands"]), 4)
            self.assertEqual([len(region["args"]) for region in branches["regions"]], [3, 3])

    def test_captures_go_through_nested_regions(self) -> None:
        def function(x: jax.Array, n: jax.Array) -> jax.Array:
            y = jnp.sin(x)

            def inner(total: jax.Array) -> jax.Array:
                return lax.fori_loop(0, n, lambda i, s: lax.cond(s.sum() > 1, lambda: s - y * i, lambda: s + x), total)

            return lax.fori_loop(0, 3, lambda _, s: inner(s) * 0.5, x)

        program = convert(function, np.arange(3, dtype=np.float32), np.int32(2), name="nested")
        Scopes(program)
        self.assertEqual(len(ops_named(program["ops"], "stablehlo.while")), 2)

    def test_a_large_constant_is_an_operand_of_a_loop(self) -> None:
        rows = MAX_INNER_CONSTANT // 4 + 1
        table = np.arange(rows, dtype=np.float32)
        text = """
            func.func @main(%x: tensor<f32>, %i: tensor<i32>) -> tensor<f32> {
              %table = stablehlo.constant dense<TABLE> : tensor<ROWSxf32>
              %r = "stablehlo.case"(%i) ({
                %e = stablehlo.dynamic_slice %table, %i, sizes = [1] : (tensor<ROWSxf32>, tensor<i32>) -> tensor<1xf32>
                %f = stablehlo.reshape %e : (tensor<1xf32>) -> tensor<f32>
                stablehlo.return %f : tensor<f32>
              }, {
                stablehlo.return %x : tensor<f32>
              }) : (tensor<i32>) -> tensor<f32>
              return %r : tensor<f32>
            }
            """
        literal = f'"0x{table.tobytes().hex()}"'
        text = text.replace("TABLE", literal).replace("ROWS", str(rows))
        program = imported(text, np.ones((), np.float32), np.zeros((), np.int32))
        (constant,) = (value["id"] for value in program["values"] if value["role"] == "const")
        (branches,) = ops_named(program["ops"], "stablehlo.case")
        self.assertIn(constant, branches["operands"])


class Functions(unittest.TestCase):
    """Whole functions."""

    def test_arguments_are_the_leaves_in_order(self) -> None:
        def function(params: dict, scale: float, key: jax.Array, unused: jax.Array) -> tuple:
            return params["b"] * scale, params["a"], jax.random.bits(key, (2,), jnp.uint32)

        params = {"b": np.arange(3, dtype=np.float32), "a": np.int32(5)}
        program = convert(function, params, 2.0, jax.random.key(3), np.zeros(4, np.float32), name="leaves")
        Scopes(program)
        inputs = [(value["dtype"], value["shape"]) for value in program["values"] if value["role"] == "input"]
        self.assertEqual(inputs, [("i32", []), ("f32", [3]), ("f32", []), ("ui32", [2]), ("f32", [4])])
        expected = np.frombuffer(base64.b64decode(program["expected"][0]["data"]), np.float32)
        np.testing.assert_array_equal(expected, [0, 2, 4])
        self.assertIn(program["outputs"][1], [value["id"] for value in program["values"]])

    def test_donation_changes_nothing(self) -> None:
        def function(x: jax.Array) -> jax.Array:
            return x + 1

        x = np.arange(4, dtype=np.float32)
        donating = jax.jit(function, donate_argnums=0)
        self.assertEqual(convert(donating, x, name="donated"), convert(function, x, name="donated"))

    def test_composites_and_barriers(self) -> None:
        @functools.partial(lax.composite, name="test.shifted")
        def shifted(x: jax.Array) -> jax.Array:
            return x + 3

        program = convert(lambda x: lax.optimization_barrier(shifted(x)), np.ones(2, np.float32), name="composite")
        names = {op["op"] for op in program["ops"]}
        self.assertIn("stablehlo.add", names)
        self.assertIn("stablehlo.optimization_barrier", names)
        self.assertNotIn("stablehlo.composite", names)

    def test_all_attributes_are_known(self) -> None:
        x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

        def function(x: jax.Array) -> list:
            flat = x.reshape(6, 4)
            return [
                jnp.sort(x, axis=1),
                lax.top_k(flat, 2)[0],
                lax.reduce_window(flat, 0.0, lax.add, (2, 2), (1, 1), "SAME"),
                lax.reduce_precision(x, 5, 10),
                jnp.dot(flat.T, flat, precision="highest"),
                jnp.fft.irfft(jnp.fft.rfft(flat)).real,
                jnp.cumsum(x, axis=0),
                lax.pad(flat, 0.0, ((1, 0, 1), (-1, 2, 0))),
                jnp.flip(x, 2)[:, ::2],
                flat.at[jnp.array([0, 2])].add(1.0),
            ]

        Scopes(convert(function, x, name="attributes"))

    def test_lowering_for_another_platform(self) -> None:
        matrix = np.array([[4, 1], [1, 3]], np.float32)
        program = convert(jnp.linalg.cholesky, matrix, name="cholesky", platform="tpu")
        (op,) = ops_named(program["ops"], "stablehlo.cholesky")
        self.assertEqual(op["attrs"], {"lower": True})
        rows, groups = np.ones((4, 3), np.float32), np.ones((2, 3, 5), np.float32)
        sizes = np.array([1, 3], np.int32)
        program = convert(lax.ragged_dot, rows, groups, sizes, name="ragged", platform="tpu")
        numbers = program["ops"][0]["attrs"]["ragged_dot_dimension_numbers"]
        self.assertEqual((numbers["lhs_ragged_dimensions"], numbers["rhs_group_dimensions"]), ([0], [0]))


class Committed(unittest.TestCase):
    """The files under `programs/`."""

    def test_ids_and_regions_are_as_the_format_says(self) -> None:
        files = sorted((Path(__file__).parent / "programs").glob("*.json"))
        self.assertEqual([file.stem for file in files], sorted(PROGRAMS))
        for file in files:
            with self.subTest(file.stem):
                Scopes(json.loads(file.read_text(encoding="utf-8")))


class Refusals(unittest.TestCase):
    """Functions that cannot be converted, and their errors."""

    def refusal(self, run: Callable[[], Any], *words: str) -> str:
        with self.assertRaises(ConversionError) as caught:
            run()
        for word in words:
            self.assertIn(word, str(caught.exception))
        return str(caught.exception)

    def test_calls_of_libraries_name_the_line(self) -> None:
        def function(x: jax.Array) -> jax.Array:
            return jnp.linalg.eigh(x)[0]

        line = function.__code__.co_firstlineno + 1
        words = f"{Path(__file__).name}:{line}"
        self.refusal(lambda: convert(function, np.eye(2, dtype=np.float32), name="eigh"), "custom_call", words, "eigh")

    def test_printing_and_callbacks(self) -> None:
        def printing(x: jax.Array) -> jax.Array:
            jax.debug.print("{}", x)
            return x

        def calling(x: jax.Array) -> jax.Array:
            return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

        for function in (printing, calling):
            run = functools.partial(convert, function, np.ones(2, np.float32), name="effect")
            self.refusal(run, "callback")

    def test_types_that_the_format_lacks(self) -> None:
        one = "func.func @main(%x: TYPE) -> TYPE { return %x : TYPE }"
        for kind, words in (
            ("tensor<?xf32>", "fixed shape"),
            ("!stablehlo.token", "Programs consist of tensors"),
            ("tensor<2xindex>", "elements of type index"),
        ):
            text = one.replace("TYPE", kind)
            self.refusal(functools.partial(imported, text, np.ones(2, np.float32)), words)

    def test_attributes_that_change_the_meaning(self) -> None:
        text = """
            func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
              %y = "stablehlo.exponential"(%x) ATTRIBUTE : (tensor<2xf32>) -> tensor<2xf32>
              return %y : tensor<2xf32>
            }
            """
        x = np.ones(2, np.float32)
        accurate = "{result_accuracy = #stablehlo.result_accuracy<mode = #stablehlo.result_accuracy_mode<HIGHEST>>}"
        self.refusal(lambda: imported(text.replace("ATTRIBUTE", accurate), x), "HIGHEST")
        self.refusal(lambda: imported(text.replace("ATTRIBUTE", "{volume = 11 : i32}"), x), "volume = 11")
        placed = '{mhlo.frontend_attributes = {a = "b"}}'
        self.assertEqual(imported(text.replace("ATTRIBUTE", placed), x)["ops"][0]["attrs"], {})

    def test_functions_of_reductions_that_capture(self) -> None:
        text = """
            func.func @main(%x: tensor<3xf32>, %y: tensor<f32>) -> tensor<f32> {
              %r = "stablehlo.reduce"(%x, %y) ({
              ^bb0(%a: tensor<f32>, %b: tensor<f32>):
                %s = stablehlo.add %a, %y : tensor<f32>
                stablehlo.return %s : tensor<f32>
              }) {dimensions = array<i64: 0>} : (tensor<3xf32>, tensor<f32>) -> tensor<f32>
              return %r : tensor<f32>
            }
            """
        arguments = np.ones(3, np.float32), np.ones((), np.float32)
        self.refusal(lambda: imported(text, *arguments), "stablehlo.reduce", "see only their parameters")

    def test_sharding_over_several_devices(self) -> None:
        text = """
            module attributes {mhlo.num_partitions = 2 : i32} {
              sdy.mesh @mesh = <["a"=2]>
              func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
                %y = sdy.sharding_constraint %x <@mesh, [{"a"}]> : tensor<2xf32>
                return %y : tensor<2xf32>
              }
            }
            """
        self.refusal(lambda: imported(text, np.ones(2, np.float32)), "sdy.sharding_constraint", "one device")
        alone = text.replace("num_partitions = 2", "num_partitions = 1")
        self.assertEqual(imported(alone, np.ones(2, np.float32))["ops"], [])

    def test_the_command_line_says_it_in_words(self) -> None:
        script = str(Path(__file__).with_name("jax_to_fuseline.py"))
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder, "model.py")
            model.write_text(
                "import jax.numpy as jnp\n\n"
                "def bad(x):\n    return jnp.linalg.inv(x)\n\n"
                "def good(x):\n    return x * 2\n\n"
                "def example():\n    return (jnp.eye(2),)\n"
            )
            command = [sys.executable, script, "--inputs", "example", "--output", str(Path(folder, "out.json"))]
            refused = subprocess.run([*command, f"{model}:bad"], capture_output=True, text=True)
            self.assertEqual(refused.returncode, 1)
            self.assertIn(f"{model}:4", refused.stderr)
            self.assertNotIn("Traceback", refused.stderr)
            missing = subprocess.run([*command, f"{model}:nothing"], capture_output=True, text=True)
            self.assertIn("has no function nothing", missing.stderr)
            done = subprocess.run([*command, f"{model}:good"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("result: float32[2, 2], exact", done.stdout)


class Agreement(unittest.TestCase):
    """Tolerances, and functions that are too sensitive for one."""

    def check(self, function: Callable, *arguments: Any, in_float64: bool = True) -> agreement.Output:
        (output,) = agreement.outputs(function, arguments, [np.dtype(np.float32)], in_float64)
        return output

    def test_what_is_not_rounded_is_exact(self) -> None:
        x = np.arange(5, dtype=np.float32)
        for function in (lambda x: x * 2, lambda x: x > 2, lambda x: jnp.argmax(x), lambda x: x / 0):
            self.assertEqual(self.check(function, x).check["check"], "exact")

    def test_rounding_gives_a_tolerance_of_its_size(self) -> None:
        x = np.linspace(0.1, 9, 50, dtype=np.float32)
        output = self.check(lambda x: jnp.exp(x) / jnp.sum(jnp.sin(x)), x)
        magnitude = np.max(np.abs(output.expected))
        self.assertEqual(output.check["check"], "almost")
        self.assertGreaterEqual(output.check["tolerance"], 8 * max(output.by_op, output.wide))
        self.assertGreaterEqual(output.check["tolerance"], 8 * 2.0**-23 * magnitude)
        self.assertLess(output.check["tolerance"], 1e-4 * magnitude)

    def test_complex_numbers_count_as_two(self) -> None:
        x = np.linspace(0.1, 1, 8, dtype=np.float32) * np.complex64(1 + 1e-3j)
        output = self.check(lambda x: jnp.exp(x) * 3, x)
        self.assertLess(output.check["tolerance"], 1e-4)

    def test_what_depends_on_rounding_is_refused(self) -> None:
        x = np.float32(1e-3)
        with self.assertRaisesRegex(ConversionError, "less sensitive"):
            self.check(lambda x: (1 + x) - 1 - x, x)
        with self.assertRaisesRegex(ConversionError, "depend on rounding"):
            self.check(lambda x: ((1 + x) - 1 == x).astype(jnp.int32), x)

    def test_random_numbers_of_the_default_type(self) -> None:
        def function(key: jax.Array) -> jax.Array:
            return jax.random.normal(key, (3,))

        key = jax.random.key(0)
        with self.assertRaisesRegex(ConversionError, "in_float64=False"):
            self.check(function, key)
        self.assertEqual(self.check(function, key, in_float64=False).expected.shape, (3,))


if __name__ == "__main__":
    unittest.main()
