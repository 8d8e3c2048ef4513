"""Heat that spreads on a square plate with fixed edges; see stencil.rs."""

from data import uniform

PARTS = 64


def _data(params):
    return uniform(1, (params["side"], params["side"]), 0.5, 1.5)


def _means(heat):
    """The mean of each inner point and its neighbours."""
    return 0.2 * (heat[1:-1, 1:-1] + heat[1:-1, :-2] + heat[1:-1, 2:] + heat[2:, 1:-1] + heat[:-2, 1:-1])


class _Plate:
    def outputs(self):
        size = len(self.heat) // PARTS
        return {"means": self.heat.reshape(PARTS, size, PARTS, size).mean((1, 3))}


class numpy(_Plate):
    def __init__(self, params, env):
        self.heat = _data(params)
        self.sweeps = params["sweeps"]

    def step(self):
        for _ in range(self.sweeps):
            self.heat[1:-1, 1:-1] = _means(self.heat)


class jax(_Plate):
    def __init__(self, params, env):
        import jax.numpy as jnp

        def spread(heat):
            for _ in range(params["sweeps"]):
                heat = heat.at[1:-1, 1:-1].set(_means(heat))
            return heat

        self.heat = jnp.asarray(_data(params))
        self.spread = env.jit(spread, donate_argnums=0)

    def step(self):
        self.heat = self.spread(self.heat).block_until_ready()


class torch(_Plate):
    def __init__(self, params, env):
        import torch

        def spread(heat):
            for _ in range(params["sweeps"]):
                heat[1:-1, 1:-1] = _means(heat)

        self.env = env
        self.heat = torch.from_numpy(_data(params)).to(env.device)
        self.spread = env.compile(spread)

    def step(self):
        self.spread(self.heat)
        self.env.sync()
