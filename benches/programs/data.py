"""Numbers that are the same in Rust and in Python; see data.rs."""

import numpy as np


def _bits(seed, count):
    with np.errstate(over="ignore"):
        z = (np.uint64(seed << 32) + np.arange(count, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def uniform(seed, shape, low, high):
    """Numbers from low up to high, excluding high, each rounded once."""
    count = int(np.prod(shape, dtype=np.int64))
    unit = (_bits(seed, count) >> np.uint64(40)).astype(np.float64) / 2.0**24
    return (low + (high - low) * unit).astype(np.float32).reshape(shape)


def below(seed, shape, limit):
    """Integers from 0 to below a limit."""
    count = int(np.prod(shape, dtype=np.int64))
    return ((_bits(seed, count) >> np.uint64(33)) % np.uint64(limit)).astype(np.int32).reshape(shape)
