"""Training whose batch size changes every few steps; see batches.rs."""

import mlp

STEPS = 3


def _batches(peer):
    """A peer's training step from mlp.py, on batches of several sizes."""

    class Batches(peer):
        def __init__(self, params, env):
            sizes = params["batches"]
            super().__init__({**params, "batch": max(sizes)}, env)
            self.batches = [(self.images[:size], self.labels[:size]) for size in sizes]
            self.count = 0

        def step(self):
            self.images, self.labels = self.batches[self.count // STEPS % len(self.batches)]
            super().step()
            self.count += 1

    return Batches


numpy, jax, torch = _batches(mlp.numpy), _batches(mlp.jax), _batches(mlp.torch)
