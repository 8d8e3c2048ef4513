"""A training step for an LSTM, a loop over time; see lstm.rs."""

from data import uniform

RATE = 5.0


def _data(params):
    """The input at each time, the target of the last hidden state, and the weights."""
    input, hidden, batch = params["input"], params["hidden"], params["batch"]
    most = 1 / hidden**0.5
    inputs = [uniform(100 + time, (batch, input), -1.0, 1.0) for time in range(params["length"])]
    weights = [uniform(10 + i, (size, 4 * hidden), -most, most) for i, size in enumerate((input, hidden))]
    return inputs, uniform(1, (batch, hidden), -0.5, 0.5), weights


class jax:
    def __init__(self, params, env):
        import jax
        import jax.numpy as jnp

        inputs, target, weights = _data(params)
        self.inputs = [jnp.asarray(x) for x in inputs]
        self.target = jnp.asarray(target)
        self.parameters = [*(jnp.asarray(w) for w in weights), jnp.zeros(4 * params["hidden"])]

        def cell(x, h, c, of_input, of_hidden, bias):
            enter, forget, fresh, leave = jnp.split(x @ of_input + h @ of_hidden + bias, 4, axis=1)
            c = jax.nn.sigmoid(forget) * c + jax.nn.sigmoid(enter) * jnp.tanh(fresh)
            return jax.nn.sigmoid(leave) * jnp.tanh(c), c

        def loss(parameters, inputs, target):
            h = c = jnp.zeros_like(target)
            for x in inputs:
                h, c = cell(x, h, c, *parameters)
            return jnp.mean((h - target) ** 2)

        def train(parameters, inputs, target):
            value, gradients = jax.value_and_grad(loss)(parameters, inputs, target)
            return [p - RATE * g for p, g in zip(parameters, gradients)], value

        self.train = env.jit(train, donate_argnums=0)

    def step(self):
        self.parameters, loss = self.train(self.parameters, self.inputs, self.target)
        self.loss = float(loss)

    def outputs(self):
        return {"of hidden": self.parameters[1], "bias": self.parameters[2], "loss": self.loss}


class torch:
    def __init__(self, params, env):
        import torch

        inputs, target, weights = _data(params)
        self.env = env
        cell = torch.nn.LSTMCell(params["input"], params["hidden"])
        with torch.no_grad():
            cell.weight_ih.copy_(torch.from_numpy(weights[0].T.copy()))
            cell.weight_hh.copy_(torch.from_numpy(weights[1].T.copy()))
            # The cell adds two biases. Keeping one at zero trains the same parameters as a single
            # bias.
            cell.bias_ih.zero_()
            cell.bias_hh.zero_()
        cell.bias_hh.requires_grad_(False)
        cell = self.cell = cell.to(env.device)
        self.inputs = [torch.from_numpy(x).to(env.device) for x in inputs]
        self.target = torch.from_numpy(target).to(env.device)
        optimizer = torch.optim.SGD([p for p in cell.parameters() if p.requires_grad], lr=RATE)

        def train(inputs, target):
            optimizer.zero_grad()
            h = c = torch.zeros_like(target)
            for x in inputs:
                h, c = cell(x, (h, c))
            loss = torch.nn.functional.mse_loss(h, target)
            loss.backward()
            optimizer.step()
            return loss.detach()

        self.train = env.compile(train)

    def step(self):
        loss = self.train(self.inputs, self.target)
        self.env.sync()
        self.loss = loss.item()

    def outputs(self):
        return {"of hidden": self.cell.weight_hh.T, "bias": self.cell.bias_ih, "loss": self.loss}
