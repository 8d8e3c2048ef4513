"""Ops of PyTorch's own list that are known to be computed by the device, forward and backward in float32, as ``opinfo-float32.json`` has them."""

import json
import multiprocessing
import pathlib
import unittest

import opinfo
import torch

TABLE = pathlib.Path(__file__).parent / "opinfo-float32.json"
# A process for each would take minutes: so many ops share one, and a crash fails them all.
TOGETHER = 40
SAMPLES = 2


def work(names, pipe):
    from torch.testing._internal.common_methods_invocations import op_db

    ops = {(op.name, op.variant_test_name): op for op in op_db}
    told = []
    for name in names:
        before = sum(torch.fuseline.fallbacks().values())
        outcome, _, why = opinfo.check(ops[name], torch.float32, SAMPLES, True)
        if outcome == "FAIL":
            told.append(f"{' '.join(name)}: {why}")
        elif sum(torch.fuseline.fallbacks().values()) != before:
            told.append(f"{' '.join(name)}: the CPU computed some of it: {torch.fuseline.fallbacks()}")
    pipe.send(told)


class Native(unittest.TestCase):
    def test_ops_of_the_table_pass_without_the_cpu(self):
        rows = json.loads(TABLE.read_text())["rows"]
        names = [(row["op"], row["variant"]) for row in rows if row["outcome"] == "PASS" and not row["fallbacks"]]
        self.assertGreater(len(names), 200)
        # Forked from a process that has no engine yet: this one may, and an engine does not follow into a child.
        server, told = multiprocessing.get_context("forkserver"), []
        server.set_forkserver_preload(["torch", "torch.testing._internal.common_methods_invocations"])
        for start in range(0, len(names), TOGETHER):
            some, why = opinfo.in_a_process(server, work, (names[start : start + TOGETHER],), 10 * opinfo.LIMIT)
            told += [f"of {names[start]} and those behind it: {why}"] if some is None else some
        self.assertEqual(told, [])


if __name__ == "__main__":
    unittest.main()
