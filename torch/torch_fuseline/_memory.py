"""What storages hold. They are counted as PyTorch's programs see them: from when a tensor is made
until nobody holds it. The engine's own numbers, of what is computed and alive, are in
:func:`memory_stats` too. Memory is given back as values die, so nothing is reserved beyond it and
no cache can be emptied.
"""

import torch

from ._devices import index_of


def memory_stats(device=None):
    """Numbers by name: those of ``torch.accelerator.memory_stats``, and bytes and numbers of what
    is alive in the engine: values, and executables."""
    from . import counters

    stats, now = torch.accelerator.memory_stats(index_of(device)), counters()
    stats.update((name, now[name]) for name in ("live_values", "live_bytes", "cached_executables", "cached_bytes"))
    return stats


def memory_stats_as_nested_dict(device=None):
    """The numbers of ``torch.accelerator.memory_stats``, by what they are of."""
    return torch._C._accelerator_getDeviceStats(index_of(device))


def memory_allocated(device=None):
    """Bytes of the storages that are alive."""
    return torch.accelerator.memory_allocated(index_of(device))


def max_memory_allocated(device=None):
    """The most that was, since the beginning or :func:`reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_allocated(index_of(device))


def memory_reserved(device=None):
    """As :func:`memory_allocated`: nothing is kept beyond it."""
    return torch.accelerator.memory_reserved(index_of(device))


def max_memory_reserved(device=None):
    """As :func:`max_memory_allocated`."""
    return torch.accelerator.max_memory_reserved(index_of(device))


def reset_peak_memory_stats(device=None):
    """Has peaks begin at what is there now."""
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def reset_accumulated_memory_stats(device=None):
    """Has sums begin at what is there now."""
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


reset_max_memory_allocated = reset_peak_memory_stats


def mem_get_info(device=None):
    """Free and all memory of the host, in bytes."""
    return torch.accelerator.get_memory_info(index_of(device))


def empty_cache():
    """Nothing is cached but executables, which :func:`clear_cache` forgets."""


def ipc_collect():
    """No memory is shared with other processes."""


def memory_snapshot(device=None):
    """There are no segments."""
    index_of(device)
    return []


def memory_summary(device=None, abbreviated=False):
    """The numbers as a text."""
    rows = memory_stats(device)
    names = ("allocated_bytes.all.current", "allocated_bytes.all.peak", "allocation.all.current", "allocation.all.peak")
    chosen = [name for name in rows if not abbreviated and rows[name] and name not in names and "pool" not in name]
    return "\n".join(f"{name:40} {rows[name]:>16}" for name in (*names, *chosen))
