"""Bodies that attract each other, all pairs at once by broadcasting; see nbody.rs."""

from data import uniform

SOFTENING, STEP = 0.5, 0.01


def _data(params):
    import numpy as np

    n = params["bodies"]
    speeds = uniform(2, (n, 3), -0.5, 0.5)
    speeds = (speeds - speeds.mean(axis=0, dtype=np.float64)).astype(np.float32)
    return uniform(1, (n, 3), -1.0, 1.0), speeds, np.full((n, 1), 1.0 / n, np.float32)


def _functions(xp, moves):
    """The attraction and the step, on arrays of a library."""

    def distances(places):
        x, y, z = (places[:, axis : axis + 1].T - places[:, axis : axis + 1] for axis in range(3))
        return (x, y, z), x * x + y * y + z * z + SOFTENING**2

    def attraction(places, masses):
        along, square = distances(places)
        weight = 1.0 / (square * xp.sqrt(square))
        return xp.concatenate([(distance * weight) @ masses for distance in along], axis=1)

    def simulate(places, speeds, forces, masses):
        for _ in range(moves):
            speeds = speeds + forces * (STEP / 2)
            places = places + speeds * STEP
            forces = attraction(places, masses)
            speeds = speeds + forces * (STEP / 2)
        motion = (speeds * speeds * masses).sum()
        _, square = distances(places)
        pairs = (masses * masses.T / xp.sqrt(square)).sum()
        return places, speeds, forces, (motion - pairs) * 0.5

    return attraction, simulate


class _Bodies:
    def outputs(self):
        places, speeds, _ = self.state
        return {"places": places, "speeds": speeds, "energy": self.energy}


class numpy(_Bodies):
    def __init__(self, params, env):
        import numpy as np

        places, speeds, self.masses = _data(params)
        attraction, self.simulate = _functions(np, params["moves"])
        self.state = places, speeds, attraction(places, self.masses)

    def step(self):
        *self.state, energy = self.simulate(*self.state, self.masses)
        self.energy = float(energy)


class jax(_Bodies):
    def __init__(self, params, env):
        import jax.numpy as jnp

        places, speeds, self.masses = [jnp.asarray(x) for x in _data(params)]
        attraction, simulate = _functions(jnp, params["moves"])
        self.state = places, speeds, attraction(places, self.masses)
        self.simulate = env.jit(simulate, donate_argnums=(0, 1, 2))

    def step(self):
        *self.state, energy = self.simulate(*self.state, self.masses)
        self.energy = float(energy)


class torch(_Bodies):
    def __init__(self, params, env):
        import torch

        self.env = env
        places, speeds, self.masses = [torch.from_numpy(x).to(env.device) for x in _data(params)]
        attraction, simulate = _functions(torch, params["moves"])
        self.state = places, speeds, attraction(places, self.masses)
        self.simulate = env.compile(simulate)

    def step(self):
        *self.state, energy = self.simulate(*self.state, self.masses)
        self.env.sync()
        self.energy = energy.item()
