"""Tests of the scripts in this folder: `python3 -m unittest discover benches/gpu`."""

import os
import pathlib
import sys
import tempfile
import time
import unittest

import package
import processes
import steps


class Package(unittest.TestCase):
    def test_sample_has_each_class(self):
        classes = {f"add{number}": "add" for number in range(9)} | {"sort0": "sort"}
        self.assertEqual(package.sample(classes, 4), ["add0", "add4", "add8", "sort0"])
        self.assertEqual(package.sample(classes, 1), sorted(classes))

    def test_newest_version_is_compared_as_numbers(self):
        text = "Version definition section\n Name: GLIBC_9.9\nVersion needs section '.gnu.version_r'\n Name: GLIBC_2.9 Flags\n Name: GLIBC_2.34 Flags\n Name: GCC_4.2.0\n"
        self.assertEqual(package.versions(text), {"GLIBC": (2, 34), "GCC": (4, 2, 0)})


class Steps(unittest.TestCase):
    def test_digits(self):
        text = "epoch  1: loss 1\nTrained for 3 epochs\n\n| table |\nPicture: x\nok:     97 %\n"
        self.assertEqual(steps.digits_lines(text), ["Trained for 3 epochs", "| table |", "ok:     97 %"])

    def test_json_lines(self):
        self.assertEqual(steps.json_lines('warning: {\n{"a": 1}\n{cut'), [{"a": 1}])

    def test_report_of_the_harness(self):
        run = {"measured": {"step": {"low": 1e3, "median": 2e3, "high": 3e3}}}
        ratio = {"to": "jax", "quartiles": {"low": 1.0, "median": 1.5, "high": 2.0}, "noisy": True}
        case = {"runs": {"jax": run, "torch": {"failed": "why"}}, "ratios": [ratio]}
        found = steps.compared({"contenders": [{"id": "jax", "missing": None}], "cases": [case]})
        self.assertEqual(found["step_us"], {"jax": 2.0})
        self.assertEqual(found["ratio_of_fused_to"], {"jax": 1.5})
        self.assertEqual((found["noisy"], found["not_measured"]), (["jax"], {"torch": "why"}))
        self.assertEqual(steps.compared(None), {})

    def test_budgets_leave_time_for_the_programs(self):
        self.assertGreaterEqual(470 - sum(budget or 0 for _, budget in steps.ALL.values()), 100)
        self.assertEqual([name for name, (_, budget) in steps.ALL.items() if budget is None], ["bench"])


class Processes(unittest.TestCase):
    def run_command(self, script, budget):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", script]
            return processes.run_command(command, budget, env=os.environ, cwd=folder, folder=pathlib.Path(folder))

    def test_output_and_status(self):
        done = self.run_command("import sys; print('a\\n\\nb'); sys.exit(3)", 20)
        self.assertEqual((done.status, done.timed_out, done.tail()), (3, False, ["a", "b"]))

    def test_a_command_that_hangs_is_ended_with_its_children(self):
        child = "import os, subprocess, sys, time; print(subprocess.Popen(['sleep', '60'], process_group=0).pid, flush=True); import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
        start = time.monotonic()
        done = self.run_command(child, 5)
        self.assertTrue(done.timed_out)
        self.assertLess(time.monotonic() - start, 8)
        stat = pathlib.Path(f"/proc/{done.stdout.strip()}/stat")
        self.assertTrue(not stat.exists() or " Z " in stat.read_text())

    def test_a_command_that_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            done = processes.run_command(["/nonexistent"], 5, env={}, cwd=folder, folder=pathlib.Path(folder))
        self.assertEqual(done.status, 127)


if __name__ == "__main__":
    unittest.main()
