"""Ops of PyTorch's own list that the device computes, according to the tables ``opinfo-TYPE.json``.

All ops run in float32, forward and backward, in place and with ``out=``; some ops also run in other
types. A region that occurs once is interpreted, so some ops run a second time with all regions
compiled. ``FUSELINE_TORCH_ALL=1`` runs all ops of all types, with all samples of the tables, both
ways (an hour and more)."""

import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import unittest

import opinfo
import torch

FOLDER = pathlib.Path(__file__).parent
# A process for each op would take minutes, so this many share one. A crash fails all of them.
TOGETHER = 40
IS_ALL = os.environ.get("FUSELINE_TORCH_ALL", "") == "1"
# With every region compiled, one op in this many runs, with this many samples: each compiles for a
# tenth of a second and more.
COMPILED, COMPILED_SAMPLES = 12, 1
# Ops that are loops take seconds to compile. Of these, one in this many runs.
SLOW = ("linalg.", "special.", "svd", "pinverse", "lu", "matrix_exp", "polygamma", "norm", "cholesky", "ormqr", "det", "inverse", "logdet")
SKIP = 4
# The number of ops for each other type.
SOME = 40


def table(dtype):
    return json.loads((FOLDER / f"opinfo-{dtype}.json").read_text())


def native(dtype):
    """Names and variants of the ops that passed without the CPU."""
    rows = table(dtype)["rows"]
    return [(row["op"], row["variant"]) for row in rows if row["outcome"] == "PASS" and not row["fallbacks"]]


def needing_cpu(dtype):
    """Names and variants of the ops that passed with some calls computed by the CPU."""
    rows = table(dtype)["rows"]
    return [(row["op"], row["variant"]) for row in rows if row["outcome"] == "PASS" and row["fallbacks"]]


def work(names, dtype, forms, most, is_compiled, is_native, pipe):
    from torch.testing._internal.common_methods_invocations import op_db

    if is_compiled:
        torch.fuseline.configure(interpret_cold=False)
    ops = {(op.name, op.variant_test_name): op for op in op_db}
    told, samples = [], table(dtype)["samples"]
    for name in names:
        before = sum(torch.fuseline.fallbacks().values())
        outcome, _, why = opinfo.check(ops[name], getattr(torch, dtype), samples, not forms, forms, most)
        if outcome != "PASS":
            told.append(f"{dtype} {' '.join(name)}: {why or 'nothing was compared'}")
        elif is_native and sum(torch.fuseline.fallbacks().values()) != before:
            told.append(f"{dtype} {' '.join(name)}: the CPU computed some of it: {torch.fuseline.fallbacks()}")
    counters = torch.fuseline.counters()
    if is_compiled and (counters["interpreted"] or not counters["compiles"]):
        told.append(f"{names[0]} and those behind it were to be compiled: {counters}")
    pipe.send(told)


class Table(unittest.TestCase):
    def passes(self, names, dtype, forms=(), most=None, is_compiled=False, is_native=True):
        # Forked from a process without an engine: this process may have one, which a child cannot
        # use.
        server, told = multiprocessing.get_context("forkserver"), []
        server.set_forkserver_preload(["torch", "torch.testing._internal.common_methods_invocations"])
        groups = [names[start : start + TOGETHER] for start in range(0, len(names), TOGETHER)]

        def run(group):
            given = (group, dtype, forms, most, is_compiled, is_native)
            some, why = opinfo.in_a_process(server, work, given, 10 * opinfo.LIMIT)
            return [f"of {group[0]} and those behind it: {why}"] if some is None else some

        # Running one op at a time would leave the second core mostly idle.
        with concurrent.futures.ThreadPoolExecutor(min(2, os.cpu_count())) as pool:
            for some in pool.map(run, groups):
                told += some
        self.assertEqual(told, [])

    def test_ops_of_the_table_pass_without_the_cpu(self):
        names = native("float32")
        slow = [name for name in names if name[0].startswith(SLOW)]
        self.assertGreater(len(names), 500)
        self.passes([name for name in names if name not in slow] + slow[:: 1 if IS_ALL else SKIP], "float32")

    def test_ops_that_need_the_cpu_pass(self):
        names = needing_cpu("float32")
        self.assertGreater(len(names), 40)
        self.passes(names if IS_ALL else names[::SKIP], "float32", is_native=False)

    def test_ops_whose_regions_are_compiled_pass(self):
        names = native("float32")
        if not IS_ALL:
            names = [name for name in names if not name[0].startswith(SLOW)][::COMPILED]
        self.passes(names, "float32", most=None if IS_ALL else COMPILED_SAMPLES, is_compiled=True)

    def test_some_of_other_types_pass_without_the_cpu(self):
        for dtype in ("bfloat16", "int64", "bool", "complex64"):
            names = [name for name in native(dtype) if IS_ALL or not name[0].startswith(SLOW)]
            self.assertGreater(len(names), 100)
            self.passes(names[:: 1 if IS_ALL else len(names) // SOME], dtype, ("inplace", "out"))


if __name__ == "__main__":
    unittest.main()
