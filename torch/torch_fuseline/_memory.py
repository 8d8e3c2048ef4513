"""Memory statistics of storages, counted as PyTorch programs see them: from when a tensor is made
until its last reference is dropped. :func:`memory_stats` also has the engine's own numbers of
computed live values. Values free their memory when they die, so there is no reserve and no cache to
empty.
"""

import torch

from ._devices import index_of


def memory_stats(device=None):
    """Returns numbers by name: those of ``torch.accelerator.memory_stats``, and count and bytes of
    the engine's live values and executables."""
    from . import counters

    stats, now = torch.accelerator.memory_stats(index_of(device)), counters()
    stats.update((name, now[name]) for name in ("live_values", "live_bytes", "cached_executables", "cached_bytes"))
    return stats


def memory_stats_as_nested_dict(device=None):
    """Returns the nested statistics of ``torch.accelerator.memory_stats``."""
    return torch._C._accelerator_getDeviceStats(index_of(device))


def memory_allocated(device=None):
    """Returns the bytes of live storages."""
    return torch.accelerator.memory_allocated(index_of(device))


def max_memory_allocated(device=None):
    """Returns the peak since the start or since :func:`reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_allocated(index_of(device))


def memory_reserved(device=None):
    """Like :func:`memory_allocated`: nothing is reserved beyond it."""
    return torch.accelerator.memory_reserved(index_of(device))


def max_memory_reserved(device=None):
    """Like :func:`max_memory_allocated`."""
    return torch.accelerator.max_memory_reserved(index_of(device))


def reset_peak_memory_stats(device=None):
    """Resets the peaks to the current values."""
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def reset_accumulated_memory_stats(device=None):
    """Resets the accumulated sums."""
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


reset_max_memory_allocated = reset_peak_memory_stats


def mem_get_info(device=None):
    """Returns free and total host memory, in bytes."""
    return torch.accelerator.get_memory_info(index_of(device))


def empty_cache():
    """Does nothing: only executables are cached, and :func:`clear_cache` drops them."""


def ipc_collect():
    """Does nothing: no memory is shared with other processes."""


def memory_snapshot(device=None):
    """Returns no segments: the device has none."""
    index_of(device)
    return []


def memory_summary(device=None, abbreviated=False):
    """Returns the statistics as text."""
    rows = memory_stats(device)
    names = ("allocated_bytes.all.current", "allocated_bytes.all.peak", "allocation.all.current", "allocation.all.peak")
    chosen = [name for name in rows if not abbreviated and rows[name] and name not in names and "pool" not in name]
    return "\n".join(f"{name:40} {rows[name]:>16}" for name in (*names, *chosen))
