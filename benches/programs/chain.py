"""A chain of elementwise ops on one vector: multiplication, addition and tanh, repeated."""

from data import uniform


def _data(params):
    n = params["elements"]
    return uniform(1, (n,), -1.0, 1.0), uniform(2, (n,), 0.5, 1.5), uniform(3, (n,), -0.5, 0.5)


def _chain(tanh, ops):
    def chain(x, scale, shift):
        for op in range(ops):
            if op % 3 == 0:
                x = x * scale
            elif op % 3 == 1:
                x = x + shift
            else:
                x = tanh(x)
        return x

    return chain


class numpy:
    def __init__(self, params, env):
        import numpy as np

        self.data = _data(params)
        self.chain = _chain(np.tanh, params["ops"])

    def step(self):
        self.y = self.chain(*self.data)

    def outputs(self):
        return {"y": self.y}


class jax:
    def __init__(self, params, env):
        import jax.numpy as jnp

        self.data = [jnp.asarray(x) for x in _data(params)]
        self.chain = env.jit(_chain(jnp.tanh, params["ops"]))

    def step(self):
        self.y = self.chain(*self.data).block_until_ready()

    def outputs(self):
        return {"y": self.y}


class torch:
    def __init__(self, params, env):
        import torch

        self.env = env
        self.data = [torch.from_numpy(x).to(env.device) for x in _data(params)]
        self.chain = env.compile(_chain(torch.tanh, params["ops"]))

    def step(self):
        self.y = self.chain(*self.data)
        self.env.sync()

    def outputs(self):
        return {"y": self.y}
