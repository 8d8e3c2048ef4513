"""Runs a command that may hang, with everything that it starts."""

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import time

# Seconds between the request to stop and the end of every process.
GRACE = 3


@dataclasses.dataclass
class Done:
    """A command that has ended or was ended."""

    status: int
    timed_out: bool
    took: float
    stdout: str
    stderr: str

    def words(self):
        """How it ended."""
        if self.timed_out:
            return "out of time"
        return f"signal {signal.Signals(-self.status).name}" if self.status < 0 else f"status {self.status}"

    def tail(self, lines=15):
        """The last lines of both outputs."""
        text = f"{self.stdout.rstrip()}\n{self.stderr.rstrip()}".strip()
        return [line[:300] for line in text.splitlines() if line.strip()][-lines:]


def members(session):
    """The processes of a session, the leader included."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in parentheses may contain anything.
            words = stat.read_text().rpartition(")")[2].split()
            if int(words[3]) == session and words[0] != "Z":
                found.append(int(stat.parent.name))
    return found


def end(process):
    """Ends a command, by an interrupt at first, and all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    for _ in range(10):
        left = members(process.pid)
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            break
        time.sleep(0.1)
    process.wait()


def run_command(command, budget, *, env, cwd, folder):
    """Runs a command for at most `budget` seconds, the time to end it included. Its output goes
    through files in `folder`, since a process that is left over would keep a pipe open."""
    start = time.monotonic()
    names = [folder / "stdout", folder / "stderr"]
    with names[0].open("wb") as stdout, names[1].open("wb") as stderr:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=env,
                                       cwd=cwd, start_new_session=True)
        except OSError as error:
            return Done(127, False, 0.0, "", str(error))
        timed_out = False
        try:
            process.wait(max(budget - GRACE - 1, 0.5))
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            # Always: a process that was left over would disturb the next step, and one that was
            # interrupted would go on.
            end(process)
    texts = [name.read_text(errors="replace") for name in names]
    return Done(process.returncode, timed_out, time.monotonic() - start, *texts)
