"""A training loop of the perceptron of mlp.py; see training.rs."""

import mlp


class numpy(mlp.numpy):
    def __init__(self, params, env):
        super().__init__(params, env)
        self.steps = params["steps"]

    def step(self):
        total = 0
        for _ in range(self.steps):
            super().step()
            total += self.loss
        self.mean = total / self.steps

    def outputs(self):
        return {"last layer": self.parameters[-2], "mean loss": self.mean}


class jax(mlp.jax):
    def __init__(self, params, env):
        import jax.numpy as jnp

        super().__init__(params, env)
        self.steps = params["steps"]
        self.jnp, self.zero = jnp, jnp.zeros(())
        self.host = mlp._data(params)[:2] if params["upload"] else None
        # The sum is part of the step, so that adding a loss is not a call of its own.
        train = self.train.__wrapped__ if hasattr(self.train, "__wrapped__") else self.train

        def accumulate(parameters, speeds, images, labels, total):
            parameters, speeds, loss = train(parameters, speeds, images, labels)
            return parameters, speeds, total + loss

        self.accumulate = env.jit(accumulate, donate_argnums=(0, 1))

    def step(self):
        total = self.zero
        for _ in range(self.steps):
            images, labels = map(self.jnp.asarray, self.host) if self.host else (self.images, self.labels)
            self.parameters, self.speeds, total = self.accumulate(
                self.parameters, self.speeds, images, labels, total
            )
        self.mean = float(total) / self.steps

    def outputs(self):
        return {"last layer": self.parameters[-2], "mean loss": self.mean}


class torch(mlp.torch):
    def __init__(self, params, env):
        import torch

        super().__init__(params, env)
        self.steps, self.torch = params["steps"], torch
        self.host = mlp._data(params)[:2] if params["upload"] else None

    def batch(self):
        if self.host is None:
            return self.images, self.labels
        images, labels = map(self.torch.from_numpy, self.host)
        # Without a copy, PyTorch would compute on the host's array where the device is the host.
        return images.to(self.env.device, copy=True), labels.long().to(self.env.device)

    def step(self):
        total = self.torch.zeros((), device=self.env.device)
        for _ in range(self.steps):
            total += self.train(*self.batch())
            if self.env.contender == "torch-xla":
                self.env.sync()
        self.env.sync()
        self.mean = total.item() / self.steps

    def outputs(self):
        return {"last layer": self.last.weight.T, "mean loss": self.mean}
