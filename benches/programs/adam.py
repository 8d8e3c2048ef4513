"""Steps of Adam over many small parameters; see adam.rs."""

from data import uniform

SIDES = [32, 24, 16, 8]
RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8


def _data(params):
    """The parameters, and the targets of the two batches."""
    shapes = [(SIDES[i % len(SIDES)],) * 2 for i in range(params["parameters"])]
    return (
        [uniform(3 * i, shape, -1.0, 1.0) for i, shape in enumerate(shapes)],
        [uniform(3 * i + 1, shape, -1.0, 0.0) for i, shape in enumerate(shapes)],
        [uniform(3 * i + 2, shape, 0.0, 1.0) for i, shape in enumerate(shapes)],
    )


class numpy:
    def __init__(self, params, env):
        import numpy as np

        self.np = np
        self.parameters, *self.targets = _data(params)
        self.means = [np.zeros_like(p) for p in self.parameters]
        self.squares = [np.zeros_like(p) for p in self.parameters]
        self.count = 0

    def step(self):
        self.count += 1
        correct1, correct2 = 1 - BETA1**self.count, 1 - BETA2**self.count
        targets = self.targets[self.count % 2]
        for p, m, v, target in zip(self.parameters, self.means, self.squares, targets):
            g = p - target
            m *= BETA1
            m += (1 - BETA1) * g
            v *= BETA2
            v += (1 - BETA2) * g * g
            p -= RATE / correct1 * m / (self.np.sqrt(v / correct2) + EPSILON)
        self.sum = float(self.parameters[0].sum())

    def outputs(self):
        return {"parameters": self.np.concatenate([p.ravel() for p in self.parameters]), "sum": self.sum}


class jax:
    def __init__(self, params, env):
        import jax.numpy as jnp

        self.jnp = jnp
        self.parameters, *self.targets = [[jnp.asarray(x) for x in xs] for xs in _data(params)]
        self.means = [jnp.zeros_like(p) for p in self.parameters]
        self.squares = [jnp.zeros_like(p) for p in self.parameters]
        self.count = 0

        def train(parameters, means, squares, targets, count):
            gradients = [p - target for p, target in zip(parameters, targets)]
            means = [BETA1 * m + (1 - BETA1) * g for m, g in zip(means, gradients)]
            squares = [BETA2 * v + (1 - BETA2) * g * g for v, g in zip(squares, gradients)]
            correct1, correct2 = 1 - BETA1**count, 1 - BETA2**count
            parameters = [
                p - RATE * (m / correct1) / (jnp.sqrt(v / correct2) + EPSILON)
                for p, m, v in zip(parameters, means, squares)
            ]
            return parameters, means, squares, parameters[0].sum()

        self.train = env.jit(train, donate_argnums=(0, 1, 2))

    def step(self):
        self.count += 1
        self.parameters, self.means, self.squares, total = self.train(
            self.parameters, self.means, self.squares, self.targets[self.count % 2], self.count
        )
        self.sum = float(total)

    def outputs(self):
        return {"parameters": self.jnp.concatenate([p.ravel() for p in self.parameters]), "sum": self.sum}


class torch:
    def __init__(self, params, env):
        import torch

        self.env, self.torch = env, torch
        parameters, *targets = _data(params)
        self.parameters = [torch.nn.Parameter(torch.from_numpy(p).to(env.device)) for p in parameters]
        self.targets = [[torch.from_numpy(x).to(env.device) for x in xs] for xs in targets]
        self.count = 0
        optimizer = torch.optim.Adam(self.parameters)

        def train(targets):
            for p, target in zip(self.parameters, targets):
                p.grad = p.detach() - target
            optimizer.step()
            return self.parameters[0].detach().sum()

        self.train = env.compile(train)

    def step(self):
        self.count += 1
        total = self.train(self.targets[self.count % 2])
        self.env.sync()
        self.sum = total.item()

    def outputs(self):
        return {"parameters": self.torch.cat([p.flatten() for p in self.parameters]), "sum": self.sum}
