"""Lloyd's algorithm; see kmeans.rs."""

from data import uniform


def _data(params):
    """The points and the initial centres."""
    import numpy as np

    points, dims, groups = params["points"], params["dims"], params["groups"]
    middles = uniform(1, (groups, dims), -1.0, 1.0)
    points = middles[np.arange(points) % groups] + uniform(2, (points, dims), -0.2, 0.2)
    return points, middles + uniform(3, (groups, dims), -0.4, 0.4)


def _lloyd(one_hot):
    """One iteration; the one-hot function is the library's."""

    def lloyd(points, centres):
        sizes = (points * points).sum(1)[:, None]
        distances = sizes - 2.0 * (points @ centres.T) + (centres * centres).sum(1)
        nearest = one_hot(distances.argmin(1), len(centres))
        counts = nearest.sum(0)[:, None]
        return nearest.T @ points / counts, distances

    return lloyd


class _Groups:
    def outputs(self):
        return {"centres": self.centres, "inertia": self.inertia}


class numpy(_Groups):
    def __init__(self, params, env):
        import numpy as np

        self.points, self.centres = _data(params)
        self.lloyd = _lloyd(lambda labels, count: np.eye(count, dtype=np.float32)[labels])

    def step(self):
        self.centres, distances = self.lloyd(self.points, self.centres)
        self.inertia = float(distances.min(1).sum())


class jax(_Groups):
    def __init__(self, params, env):
        import jax
        import jax.numpy as jnp

        def train(points, centres):
            centres, distances = lloyd(points, centres)
            return centres, distances.min(1).sum()

        lloyd = _lloyd(jax.nn.one_hot)
        self.points, self.centres = [jnp.asarray(x) for x in _data(params)]
        self.train = env.jit(train, donate_argnums=1)

    def step(self):
        self.centres, inertia = self.train(self.points, self.centres)
        self.inertia = float(inertia)


class torch(_Groups):
    def __init__(self, params, env):
        import torch

        def train(points, centres):
            centres, distances = lloyd(points, centres)
            return centres, distances.amin(1).sum()

        lloyd = _lloyd(lambda labels, count: torch.nn.functional.one_hot(labels, count).float())
        self.env = env
        self.points, self.centres = [torch.from_numpy(x).to(env.device) for x in _data(params)]
        self.train = env.compile(train)

    def step(self):
        self.centres, inertia = self.train(self.points, self.centres)
        self.env.sync()
        self.inertia = inertia.item()
