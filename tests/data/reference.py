"""Shared by the generators of reference data: how cases are written.

A case is one call: the name of the function, its settings, its input tensors and its results.
Numbers have as many digits as doubles. Infinities and NaN, which JSON lacks, are strings.
"""

import json
import math
import pathlib
import random

import numpy as np


class Cases:
    """Cases of one file, in order."""

    def __init__(self, **versions):
        self.versions = versions
        self.cases = []

    def add(self, name, inputs, outputs, **settings):
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        self.cases.append({
            "name": name,
            "settings": settings,
            "inputs": [written(array) for array in inputs],
            "outputs": [written(array) for array in outputs],
        })

    def save(self, name):
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in self.cases)
        versions = json.dumps(self.versions)
        text = f'{{"versions": {versions}, "cases": [\n{lines}\n]}}\n'
        pathlib.Path(__file__).with_name(name).write_text(text)


def written(array):
    array = np.asarray(array)
    kind = {"f": "f64", "i": "i64", "b": "bool", "u": "i64"}[array.dtype.kind]
    return {"type": kind, "dims": list(array.shape), "data": [number(value) for value in array.ravel().tolist()]}


def number(value):
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def numbers(seed, *dims, scale=2.0):
    """Random numbers of three decimals, so that the files stay small."""
    source = random.Random(seed)
    count = math.prod(dims)
    return np.array([round(source.gauss(0.0, scale), 3) for _ in range(count)]).reshape(dims)


def integers(seed, low, high, *dims):
    """Random integers from low to below high."""
    source = random.Random(seed)
    count = math.prod(dims)
    return np.array([source.randrange(low, high) for _ in range(count)], dtype=np.int64).reshape(dims)
