"""Runs a program on a peer for the harness: one line of JSON each way.

    worker.py CONTENDER PROGRAM PARAMS DEVICE

DEVICE is cpu or cuda. NumPy has the CPU only; JAX reads JAX_PLATFORMS.

Answers go to the original standard output; output of libraries goes to standard error.
"""

import base64
import importlib
import json
import os
import pathlib
import sys
import time
import traceback

import numpy as np


class Env:
    """The peer that a program runs on."""

    def __init__(self, contender, threads, device):
        self.contender = contender
        self.device = device
        self.versions = {"numpy": np.__version__, "python": sys.version.split()[0]}
        if contender.startswith("jax"):
            import jax
            import jaxlib

            self.versions |= {"jax": jax.__version__, "jaxlib": jaxlib.__version__}
        if contender.startswith("torch"):
            import torch

            torch.set_num_threads(threads)
            self.versions |= {"torch": torch.__version__}
        if contender == "torch-xla":
            import torch_xla

            self.versions |= {"torch_xla": torch_xla.__version__}
            self.device = torch_xla.device()

    def jit(self, function, **options):
        """jax.jit of a whole step, or the function itself if JAX runs op by op."""
        if self.contender in ("jax", "jax-0.10"):
            import jax

            return jax.jit(function, **options)
        return function

    def compile(self, function):
        """torch.compile of a whole step, or the function itself if PyTorch runs op by op."""
        if self.contender == "torch-compile":
            import torch

            return torch.compile(function)
        return function

    def sync(self):
        """Ends a step before reads: cuts the trace of a lazy device, and waits for an asynchronous
        one."""
        if self.contender == "torch-xla":
            import torch_xla

            torch_xla.sync(wait=True)
        elif self.device == "cuda":
            import torch

            torch.cuda.synchronize()

    def finish(self):
        """Waits for everything that is still in flight after some steps."""
        if self.contender.startswith("jax"):
            import jax

            for array in jax.live_arrays():
                array.block_until_ready()
        elif self.contender.startswith("torch"):
            self.sync()


def flat(value):
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.ascontiguousarray(np.asarray(value), dtype=np.float32)


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(**what):
        answers.write(json.dumps(what) + "\n")

    contender, name, params, device = sys.argv[1:5]
    here = pathlib.Path(__file__).resolve().parent
    sys.path.insert(0, str(here.parent / "programs"))
    program = None
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            if ask["do"] == "make":
                env = Env(contender, len(os.sched_getaffinity(0)), device)
                library = {"numpy": "numpy", "jax": "jax", "torch": "torch"}[contender.split("-")[0]]
                program = getattr(importlib.import_module(name), library)(json.loads(params), env)
                answer(versions=env.versions)
            elif ask["do"] == "steps":
                times = []
                for left in reversed(range(ask["count"])):
                    start = time.perf_counter_ns()
                    program.step()
                    if left == 0:
                        env.finish()
                    times.append(time.perf_counter_ns() - start)
                answer(nanoseconds=times)
            elif ask["do"] == "outputs":
                outputs = [
                    {"name": name, "data": base64.b64encode(flat(value).tobytes()).decode()}
                    for name, value in program.outputs().items()
                ]
                answer(outputs=outputs)
            else:
                answer(error=f"unknown request {ask['do']}")
        except Exception as error:
            traceback.print_exc()
            answer(error=f"{type(error).__name__}: {error}".strip()[:2000])


main()
