"""Prices of many European options by the Black-Scholes formula; see black_scholes.rs."""

from data import uniform

RATE, VOLATILITY = 0.02, 0.3
GROUPS = 32768


def _data(params):
    n = params["options"]
    return uniform(1, (n,), 10.0, 50.0), uniform(2, (n,), 10.0, 50.0), uniform(3, (n,), 0.5, 2.0)


def _prices(xp):
    """Returns the function for arrays of a library."""

    def erf(x):
        size = abs(x)
        t = 1.0 / (1.0 + 0.3275911 * size)
        total = 1.061405429 * t
        for factor in [-1.453152027, 1.421413741, -0.284496736, 0.254829592]:
            total = (total + factor) * t
        return xp.sign(x) * (1.0 - total * xp.exp(-(size * size)))

    def normal(x):
        return 0.5 * (1.0 + erf(x * 0.5**0.5))

    def prices(price, strike, years):
        spread = VOLATILITY * xp.sqrt(years)
        drift = (RATE + VOLATILITY * VOLATILITY / 2.0) * years
        d1 = (xp.log(price / strike) + drift) / spread
        d2 = d1 - spread
        later = strike * xp.exp(-RATE * years)
        call = price * normal(d1) - later * normal(d2)
        put = later * normal(-d2) - price * normal(-d1)
        return call, put

    return prices


class _Options:
    def outputs(self):
        call, put = self.last
        return {"call": call.reshape(GROUPS, -1).sum(1), "put": put.reshape(GROUPS, -1).sum(1)}


class numpy(_Options):
    def __init__(self, params, env):
        import numpy as np

        self.data = _data(params)
        self.prices = _prices(np)

    def step(self):
        self.last = self.prices(*self.data)


class jax(_Options):
    def __init__(self, params, env):
        import jax.numpy as jnp

        self.data = [jnp.asarray(x) for x in _data(params)]
        self.prices = env.jit(_prices(jnp))

    def step(self):
        call, put = self.prices(*self.data)
        self.last = call.block_until_ready(), put.block_until_ready()


class torch(_Options):
    def __init__(self, params, env):
        import torch

        self.env = env
        self.data = [torch.from_numpy(x).to(env.device) for x in _data(params)]
        self.prices = env.compile(_prices(torch))

    def step(self):
        self.last = self.prices(*self.data)
        self.env.sync()
