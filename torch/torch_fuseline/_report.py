"""What the engine did and keeps: counters, explanations, timelines, caches."""

from ._library import check, message, shim, text


class profile:
    """Keeps when things happened, as a context: ``with torch.fuseline.profile("step.html") as kept:
    ...``.

    At its end the page ``path`` is written, if there is one: a picture of recording, compiling,
    running and waiting, host reads and regions with their lines in the program, and the steps.
    Steps are what :meth:`step` says, and the outermost ranges of ``record_function`` (optimizers
    have theirs). ``summary`` is the same in words, after the end. One is kept at a time.
    """

    def __init__(self, path=None):
        self.path = "" if path is None else str(path)
        self.summary = None

    def step(self, name):
        """A step of the program begins, and the one before ends."""
        check(shim.flt_profile_mark(*text(name)))

    def __enter__(self):
        check(shim.flt_profile_begin())
        shim.fuseline_torch_ranges(1)
        return self

    def __exit__(self, *_):
        shim.fuseline_torch_ranges(0)
        check(shim.fuseline_torch_synchronize())
        check(shim.flt_profile_end(*text(self.path)))
        self.summary = message()
        return False


def warm_cache(manifest):
    """Compiles the regions of a manifest that the disk cache has not: ``{"compiled": 3, "present":
    1, "failed": ["why", ..]}``.

    A manifest is what ``configure(manifest=FILE)`` had written in a run like this one. ``fuseline
    cache warm`` does the same without a program.
    """
    check(shim.flt_warm_cache(*text(str(manifest))))
    first, *failed = message().splitlines()
    compiled, present, count = (int(number) for number in first.split())
    return {"compiled": compiled, "present": present, "failed": failed[:count]}


def cache_stats():
    """What the caches of executables did and hold; ``disk`` is why none are kept on the disk
    although they were to be, or the latest trouble with those that are, or ``None``. What the
    engine turns off by itself is a warning too, once."""
    from . import counters

    now = counters()
    names = (
        "hits",
        "misses",
        "loads",
        "stores",
        "compiles",
        "compile_failures",
        "pending_compiles",
        "compile_time_ns",
        "cached_executables",
        "cached_bytes",
    )
    check(shim.flt_no_disk_cache())
    return {**{name: now[name] for name in names}, "disk": message() or None}
