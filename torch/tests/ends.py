"""Compares how programs end after a backward pass while background compiles run.

    ends.py [--fork] [COUNT]

Each kind of end runs COUNT times (10 by default) on the device and on the CPU, in turns. The script
prints the ends whose status or output differs from the CPU's, and how long an end takes: from the
last line of the program until its process is gone.

A program takes seconds to import PyTorch. With ``--fork``, a process that has only imported it
forks a child for each end. Programs that do not use the device are not forked, because they differ
in what they import.
"""

import os
import statistics
import subprocess
import sys
import time

from test_protocol import DEVICE, ENDS, UNUSED

#: The last statement of a program: it prints the time.
LAST = "import time; sys.stdout.flush(); os.write(2, b'@%d@' % time.monotonic_ns())\n"
WAYS = {
    "status": ENDS.replace('if how == "status"', LAST + 'if how == "status"'),
    "exception": ENDS.replace('if how == "status"', LAST + 'if how == "status"'),
    "interrupt": ENDS.replace('if how == "status"', LAST + 'if how == "status"'),
    # These use no device: one has the package, one does not.
    "unused": UNUSED + "\nimport os, sys\n" + LAST,
}


def end(way, device):
    """Returns the ``outcome`` of a program in a new process."""
    environment = dict(os.environ)
    if way == "unused" and device == "cpu":
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    process = subprocess.Popen(
        [sys.executable, "-c", WAYS[way], way, device], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    out, errors = process.communicate()
    return outcome(process.returncode, out, errors, time.monotonic_ns())


def outcome(status, out, errors, now):
    """Returns status, output without the time, and the seconds that the end took."""
    before, said, after = errors.partition(b"@")
    told, _, rest = after.partition(b"@")
    # Positions in the traceback differ between programs.
    return (status, out, rest), (now - int(told)) / 1e9 if said else None


class ChildProcess(BaseException):
    """Unwinds the parent's stack in a child. The arguments are those of the program."""


def forked_end(way, device):
    """Returns the ``outcome`` of a program in a fork of this process."""
    pipes = [os.pipe(), os.pipe()]
    child = os.fork()
    if child == 0:
        for (reader, writer), stream in zip(pipes, (1, 2)):
            os.dup2(writer, stream)
            os.close(reader)
            os.close(writer)
        raise ChildProcess(way, device)
    for _, writer in pipes:
        os.close(writer)
    # The output of a program fits into a pipe.
    _, status = os.waitpid(child, 0)
    now = time.monotonic_ns()
    texts = []
    for reader, _ in pipes:
        with os.fdopen(reader, "rb") as file:
            texts.append(file.read())
    return outcome(os.waitstatus_to_exitcode(status), *texts, now)


def main(arguments):
    forks = "--fork" in arguments
    numbers = [int(argument) for argument in arguments if argument != "--fork"]
    count = numbers[0] if numbers else 10
    different = 0
    for way in WAYS:
        run = forked_end if forks and way != "unused" else end
        took = {"cpu": [], DEVICE: []}
        for turn in range(count):
            ends = {}
            for device in ("cpu", DEVICE) if turn % 2 else (DEVICE, "cpu"):
                ends[device], seconds = run(way, device)
                took[device].append(seconds if seconds is not None else float("inf"))
            if ends["cpu"] != ends[DEVICE]:
                different += 1
                print(f"{way}: {ends[DEVICE]} instead of {ends['cpu']}", flush=True)
        of = {device: (statistics.median(times) * 1e3, max(times) * 1e3) for device, times in took.items()}
        print(
            f"{way}: {count} ends; median {of[DEVICE][0]:.0f} ms, worst {of[DEVICE][1]:.0f}; on the CPU {of['cpu'][0]:.0f}, {of['cpu'][1]:.0f}", flush=True
        )
    print(f"{different} different")
    return 1 if different else 0


if __name__ == "__main__":
    program = None
    try:
        status = main(sys.argv[1:])
    except ChildProcess as child:
        program = child.args
    if program is None:
        sys.exit(status)
    sys.argv = ["-c", *program]
    exec(compile(WAYS[program[0]], "<string>", "exec"), {"__name__": "__main__"})
