"""The ops between the matrix products of a transformer: softmax, layer norm and GELU over rows; see
norms.rs."""

from data import uniform

EPSILON = 1e-12


def _data(params):
    rows, width = params["rows"], params["width"]
    weights = [
        (uniform(10 + r, (width,), 0.1, 0.3), uniform(20 + r, (width,), -0.5, 0.5)) for r in range(params["rounds"])
    ]
    return uniform(1, (rows, width), -2.0, 2.0), weights


def _outputs(last):
    return {"mean of columns": last.mean(0), "largest of rows": last.max(1)}


class numpy:
    def __init__(self, params, env):
        import numpy as np

        self.np = np
        self.x, self.weights = _data(params)

    def softmax(self, x):
        e = self.np.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    def layer_norm(self, x, gamma, beta):
        centered = x - x.mean(axis=-1, keepdims=True)
        variance = (centered * centered).mean(axis=-1, keepdims=True)
        return centered / self.np.sqrt(variance + EPSILON) * gamma + beta

    def gelu(self, x):
        return 0.5 * x * (1 + self.np.tanh((2 / self.np.pi) ** 0.5 * (x + 0.044715 * x * x * x)))

    def step(self):
        x = self.x
        for gamma, beta in self.weights:
            x = self.gelu(self.layer_norm(self.softmax(x), gamma, beta))
        self.last = x

    def outputs(self):
        return _outputs(self.last)


class jax:
    def __init__(self, params, env):
        import jax
        import jax.numpy as jnp

        x, weights = _data(params)
        self.x = jnp.asarray(x)
        self.weights = [(jnp.asarray(gamma), jnp.asarray(beta)) for gamma, beta in weights]

        def layer_norm(x, gamma, beta):
            mean = jnp.mean(x, axis=-1, keepdims=True)
            variance = jnp.var(x, axis=-1, keepdims=True)
            return (x - mean) * jax.lax.rsqrt(variance + EPSILON) * gamma + beta

        def rounds(x, weights):
            for gamma, beta in weights:
                x = jax.nn.gelu(layer_norm(jax.nn.softmax(x), gamma, beta), approximate=True)
            return x

        self.rounds = env.jit(rounds)

    def step(self):
        self.last = self.rounds(self.x, self.weights).block_until_ready()

    def outputs(self):
        return _outputs(self.last)


class torch:
    def __init__(self, params, env):
        import torch
        import torch.nn.functional as F

        self.env = env
        x, weights = _data(params)
        self.x = torch.from_numpy(x).to(env.device)
        put = lambda vector: torch.from_numpy(vector).to(env.device)
        self.weights = [(put(gamma), put(beta)) for gamma, beta in weights]

        def rounds(x, weights):
            for gamma, beta in weights:
                x = F.softmax(x, dim=-1)
                x = F.layer_norm(x, x.shape[-1:], gamma, beta, EPSILON)
                x = F.gelu(x, approximate="tanh")
            return x

        self.rounds = env.compile(rounds)

    def step(self):
        self.last = self.rounds(self.x, self.weights)
        self.env.sync()

    def outputs(self):
        return {"mean of columns": self.last.mean(0), "largest of rows": self.last.amax(1)}
