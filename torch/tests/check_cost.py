"""Measures what ``check_indices`` costs: a step with it against one without, by wall-clock and CPU
time.

    check_cost.py [--rounds N] [--models NAME ...] [--programs NAME ... --fuseline PATH]

The models are those of ``models.py`` at the sizes of ``speed.py``. The programs are those of
``fuseline bench``, run by the tool at PATH. Each side is a process of its own. Both processes stay
alive and take turns.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent


def serve(name):
    """Answers requests like ``fuseline bench --serve``, for a model."""
    import models
    import speed
    import torch

    torch.manual_seed(0)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    program = models.ALL[name]("fuseline", **speed.SIZES[name])
    for line in sys.stdin:
        ask = json.loads(line)
        nanoseconds = []
        for left in reversed(range(ask.get("count", 0))):
            start = time.perf_counter_ns()
            loss = program.step()
            if left == 0:
                loss.item()
            nanoseconds.append(time.perf_counter_ns() - start)
        # A background compile would take a core from the measurement.
        while torch.fuseline.counters()["pending_compiles"]:
            time.sleep(0.05)
        print(json.dumps({"nanoseconds": nanoseconds}), file=answers)


class Worker:
    """A process that runs steps on request."""

    def __init__(self, command, environment=()):
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **dict(environment)},
        )
        self.ask(do="make")

    def ask(self, **request):
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def steps(self, count):
        """Returns the seconds and the CPU ticks of this many steps."""
        before, start = self.ticks(), time.perf_counter()
        self.ask(do="steps", count=count)
        return time.perf_counter() - start, self.ticks() - before

    def ticks(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])


def cost(without, checked, rounds):
    """Returns the ratios of wall-clock and CPU time, each the median over rounds."""
    for worker in (without, checked):
        for _ in range(12):
            worker.steps(10)
    count = max(1, int(0.3 / (without.steps(5)[0] / 5)))
    ratios, ticks = [], {without: 0, checked: 0}
    for number in range(rounds):
        took = {}
        for worker in (without, checked) if number % 2 else (checked, without):
            took[worker], used = worker.steps(count)
            ticks[worker] += used
        ratios.append(took[checked] / took[without])
    for worker in (without, checked):
        worker.process.stdin.close()
        worker.process.wait()
    return statistics.median(ratios), ticks[checked] / ticks[without]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--programs", nargs="*", default=[])
    parser.add_argument("--fuseline", default="target/release/fuseline")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve)
    for name in options.models:
        command = [sys.executable, str(HERE / "check_cost.py"), "--serve", name]
        workers = [Worker(command, {"FUSELINE_TORCH_CHECK_INDICES": value}.items()) for value in "01"]
        print("{}: time {:.3f}, processor {:.3f}".format(name, *cost(*workers, options.rounds)), flush=True)
    for name in options.programs:
        command = [options.fuseline, "bench", "--serve", name, "--mode", "fused"]
        workers = [Worker([*command, "--check-indices", value]) for value in ("false", "true")]
        print("{}: time {:.3f}, processor {:.3f}".format(name, *cost(*workers, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
