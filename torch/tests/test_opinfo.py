"""Ops of PyTorch's own list that are known to be computed by the device, as the tables ``opinfo-TYPE.json`` have them: forward and backward in float32, of
other types some of them, forward, in place and with ``out=``."""

import json
import multiprocessing
import pathlib
import unittest

import opinfo
import torch

FOLDER = pathlib.Path(__file__).parent
# A process for each would take minutes: so many ops share one, and a crash fails them all.
TOGETHER = 40
# Of each op those samples that its table has first.
SAMPLES = 2
# Ops that are loops take seconds to compile: of those so many are left out for one that is not.
SLOW = ("linalg.", "special.", "svd", "pinverse", "lu", "matrix_exp", "polygamma", "norm", "cholesky", "ormqr", "det", "inverse", "logdet")
SKIP = 4
# Ops of each other type.
SOME = 40


def table(dtype):
    return json.loads((FOLDER / f"opinfo-{dtype}.json").read_text())


def native(dtype):
    """Names and variants of the ops that passed without the CPU."""
    rows = table(dtype)["rows"]
    return [(row["op"], row["variant"]) for row in rows if row["outcome"] == "PASS" and not row["fallbacks"]]


def work(names, dtype, forms, pipe):
    from torch.testing._internal.common_methods_invocations import op_db

    ops = {(op.name, op.variant_test_name): op for op in op_db}
    told, samples = [], table(dtype)["samples"]
    for name in names:
        before = sum(torch.fuseline.fallbacks().values())
        outcome, _, why = opinfo.check(ops[name], getattr(torch, dtype), samples, not forms, forms, SAMPLES)
        if outcome == "FAIL":
            told.append(f"{dtype} {' '.join(name)}: {why}")
        elif sum(torch.fuseline.fallbacks().values()) != before:
            told.append(f"{dtype} {' '.join(name)}: the CPU computed some of it: {torch.fuseline.fallbacks()}")
    pipe.send(told)


class Native(unittest.TestCase):
    def passes(self, names, dtype, forms=()):
        # Forked from a process that has no engine yet: this one may, and an engine does not follow into a child.
        server, told = multiprocessing.get_context("forkserver"), []
        server.set_forkserver_preload(["torch", "torch.testing._internal.common_methods_invocations"])
        for start in range(0, len(names), TOGETHER):
            some, why = opinfo.in_a_process(server, work, (names[start : start + TOGETHER], dtype, forms), 10 * opinfo.LIMIT)
            told += [f"of {names[start]} and those behind it: {why}"] if some is None else some
        self.assertEqual(told, [])

    def test_ops_of_the_table_pass_without_the_cpu(self):
        names = native("float32")
        slow = [name for name in names if name[0].startswith(SLOW)]
        self.assertGreater(len(names), 500)
        self.passes([name for name in names if name not in slow] + slow[::SKIP], "float32")

    def test_some_of_other_types_pass_without_the_cpu(self):
        for dtype in ("bfloat16", "int64", "bool", "complex64"):
            names = [name for name in native(dtype) if not name[0].startswith(SLOW)]
            self.assertGreater(len(names), 100)
            self.passes(names[:: len(names) // SOME], dtype, ("inplace", "out"))


if __name__ == "__main__":
    unittest.main()
