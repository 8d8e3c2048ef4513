"""Logistic regression by gradient descent until convergence; see logistic.rs."""

from data import uniform

RATE, DECAY = 5.0, 0.05
SMALL = 1.2e-4


def _data(params):
    """Rows, their labels, and the initial weights."""
    import numpy as np

    count, features = params["rows"], params["features"]
    rows = uniform(1, (count, features), -1.0, 1.0)
    truth, luck = uniform(2, (features,), -2.0, 2.0), uniform(3, (count,), -1.0, 1.0)
    labels = rows.astype(np.float64) @ truth.astype(np.float64) + luck > 0
    return rows, labels.astype(np.float32), np.zeros(features, np.float32)


def _descend(xp, sigmoid):
    """One iteration, on arrays of a library."""

    def descend(weights, rows, labels):
        error = sigmoid(rows @ weights) - labels
        gradient = error @ rows / len(labels) + DECAY * weights
        return weights - RATE * gradient, xp.sqrt((gradient * gradient).sum())

    return descend


class _Regression:
    def outputs(self):
        return {"weights": self.weights, "rounds": self.rounds}


class numpy(_Regression):
    def __init__(self, params, env):
        import numpy as np

        self.rows, self.labels, self.start = _data(params)
        self.descend = _descend(np, lambda x: 1 / (1 + np.exp(-x)))

    def step(self):
        self.weights, self.rounds = self.start, 0
        size = float("inf")
        while size >= SMALL:
            self.weights, size = self.descend(self.weights, self.rows, self.labels)
            self.rounds += 1


class jax(_Regression):
    def __init__(self, params, env):
        import jax
        import jax.numpy as jnp

        self.rows, self.labels, self.start = [jnp.asarray(x) for x in _data(params)]
        self.descend = env.jit(_descend(jnp, jax.nn.sigmoid))

    def step(self):
        self.weights, self.rounds = self.start, 0
        size = float("inf")
        while size >= SMALL:
            self.weights, size = self.descend(self.weights, self.rows, self.labels)
            size = float(size)
            self.rounds += 1


class torch(_Regression):
    def __init__(self, params, env):
        import torch

        self.env = env
        self.rows, self.labels, self.start = [torch.from_numpy(x).to(env.device) for x in _data(params)]
        self.descend = env.compile(_descend(torch, torch.sigmoid))

    def step(self):
        self.weights, self.rounds = self.start, 0
        size = float("inf")
        while size >= SMALL:
            self.weights, size = self.descend(self.weights, self.rows, self.labels)
            self.env.sync()
            size = size.item()
            self.rounds += 1
