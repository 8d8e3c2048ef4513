"""Reports: counters, timelines and caches."""

from ._library import check, message, shim, text


class profile:
    """Records a timeline, as a context manager: ``with torch.fuseline.profile("step.html") as
    kept:``.

    At the end it writes the page ``path``, if one is given. The page shows recording, compiling,
    running and waiting, host reads, regions with their lines in the program, and steps. Steps begin
    at :meth:`step` and at outermost ranges of ``record_function``, which optimizers have. After the
    end, ``summary`` has the same as text. Only one timeline can be active at a time.
    """

    def __init__(self, path=None):
        self.path = "" if path is None else str(path)
        self.summary = None

    def step(self, name):
        """Ends the current step of the program and begins the next."""
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
    """Compiles the regions of a manifest that are not in the disk cache. Returns ``{"compiled": 3,
    "present": 1, "failed": ["why", ..]}``.

    ``configure(manifest=FILE)`` writes a manifest. ``fuseline cache warm`` does the same without a
    program.
    """
    check(shim.flt_warm_cache(*text(str(manifest))))
    first, *failed = message().splitlines()
    compiled, present, count = (int(number) for number in first.split())
    return {"compiled": compiled, "present": present, "failed": failed[:count]}


def cache_stats():
    """Returns what the caches of executables did and hold. ``disk`` is ``None``, or why there is no
    disk cache, or the latest problem with it. What the engine turns off by itself is also a
    warning, once."""
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
