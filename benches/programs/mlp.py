"""A training step for a multi-layer perceptron; see mlp.rs."""

from data import below, uniform

RATE, MOMENTUM = 0.05, 0.9


def _data(params):
    import numpy as np

    widths, batch = params["widths"], params["batch"]
    parameters = []
    for layer, (a, b) in enumerate(zip(widths, widths[1:])):
        most = (6.0 / (a + b)) ** 0.5
        parameters += [uniform(10 + layer, (a, b), -most, most), np.zeros(b, np.float32)]
    return uniform(1, (batch, widths[0]), 0.0, 1.0), below(2, (batch,), widths[-1]), parameters


class numpy:
    def __init__(self, params, env):
        import numpy as np

        self.np = np
        self.images, self.labels, self.parameters = _data(params)
        self.speeds = [np.zeros_like(p) for p in self.parameters]

    def step(self):
        np, p = self.np, self.parameters
        layers = len(p) // 2
        values = [self.images]
        for layer in range(layers):
            x = values[-1] @ p[2 * layer] + p[2 * layer + 1]
            values.append(np.maximum(x, 0) if layer + 1 < layers else x)
        logits = values[-1]
        top = logits.max(axis=1, keepdims=True)
        e = np.exp(logits - top)
        total = e.sum(axis=1, keepdims=True)
        rows = np.arange(len(self.labels))
        self.loss = np.mean(np.log(total[:, 0]) + top[:, 0] - logits[rows, self.labels])
        gradient = e / total
        gradient[rows, self.labels] -= 1
        gradient /= len(rows)
        gradients = [None] * len(p)
        for layer in reversed(range(layers)):
            gradients[2 * layer] = values[layer].T @ gradient
            gradients[2 * layer + 1] = gradient.sum(axis=0)
            if layer:
                gradient = (gradient @ p[2 * layer].T) * (values[layer] > 0)
        for i, g in enumerate(gradients):
            self.speeds[i] = self.speeds[i] * np.float32(MOMENTUM) + g
            p[i] = p[i] - self.speeds[i] * np.float32(RATE)

    def outputs(self):
        return {"last layer": self.parameters[-2], "loss": self.loss}


class jax:
    def __init__(self, params, env):
        import jax
        import jax.numpy as jnp

        images, labels, parameters = _data(params)
        self.images, self.labels = jnp.asarray(images), jnp.asarray(labels)
        self.parameters = [jnp.asarray(p) for p in parameters]
        self.speeds = [jnp.zeros_like(p) for p in self.parameters]

        def loss(parameters, images, labels):
            x, layers = images, len(parameters) // 2
            for layer in range(layers):
                x = x @ parameters[2 * layer] + parameters[2 * layer + 1]
                if layer + 1 < layers:
                    x = jax.nn.relu(x)
            return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], axis=1))

        def train(parameters, speeds, images, labels):
            value, gradients = jax.value_and_grad(loss)(parameters, images, labels)
            speeds = [v * MOMENTUM + g for v, g in zip(speeds, gradients)]
            parameters = [p - v * RATE for p, v in zip(parameters, speeds)]
            return parameters, speeds, value

        self.train = env.jit(train, donate_argnums=(0, 1))

    def step(self):
        self.parameters, self.speeds, loss = self.train(self.parameters, self.speeds, self.images, self.labels)
        self.loss = float(loss)

    def outputs(self):
        return {"last layer": self.parameters[-2], "loss": self.loss}


class torch:
    def __init__(self, params, env):
        import torch

        images, labels, parameters = _data(params)
        self.env = env
        self.images = torch.from_numpy(images).to(env.device)
        self.labels = torch.from_numpy(labels).long().to(env.device)
        widths = params["widths"]
        layers = []
        for layer, (a, b) in enumerate(zip(widths, widths[1:])):
            linear = torch.nn.Linear(a, b)
            with torch.no_grad():
                linear.weight.copy_(torch.from_numpy(parameters[2 * layer].T.copy()))
                linear.bias.zero_()
            layers += [linear, torch.nn.ReLU()]
        self.net = torch.nn.Sequential(*layers[:-1]).to(env.device)
        self.last = layers[-2]
        optimizer = torch.optim.SGD(self.net.parameters(), lr=RATE, momentum=MOMENTUM)

        def train(images, labels):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(self.net(images), labels)
            loss.backward()
            optimizer.step()
            return loss.detach()

        self.train = env.compile(train)

    def step(self):
        loss = self.train(self.images, self.labels)
        self.env.sync()
        self.loss = loss.item()

    def outputs(self):
        return {"last layer": self.last.weight.T, "loss": self.loss}
