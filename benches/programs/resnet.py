"""A training step for a small ResNet; see resnet.rs."""

from data import below, uniform

RATE, MOMENTUM, EPSILON = 0.02, 0.9, 1e-5
COLORS = 3


def _data(params):
    """Images, labels, the kernels as [height, width, in, out] and the weights of the head."""
    size, batch, classes = params["size"], params["batch"], params["classes"]
    narrow, wide = params["channels"]
    shapes = {
        "stem": (3, COLORS, narrow),
        "block1 a": (3, narrow, narrow),
        "block1 b": (3, narrow, narrow),
        "block2 a": (3, narrow, wide),
        "block2 b": (3, wide, wide),
        "block2 skip": (1, narrow, wide),
    }
    kernels = {}
    for i, (name, (side, before, after)) in enumerate(shapes.items()):
        most = (6 / (side * side * before)) ** 0.5
        kernels[name] = uniform(10 + i, (side, side, before, after), -most, most)
    most = 1 / wide**0.5
    head = uniform(20, (wide, classes), -most, most)
    return uniform(1, (batch, size, size, COLORS), -1.0, 1.0), below(2, (batch,), classes), kernels, head


class jax:
    def __init__(self, params, env):
        import jax
        import jax.numpy as jnp

        images, labels, kernels, head = _data(params)
        self.images, self.labels = jnp.asarray(images), jnp.asarray(labels)
        self.parameters = {
            name: {
                "kernel": jnp.asarray(kernel),
                "gamma": jnp.ones(kernel.shape[3]),
                "beta": jnp.zeros(kernel.shape[3]),
            }
            for name, kernel in kernels.items()
        }
        self.parameters["head"] = {"weight": jnp.asarray(head), "bias": jnp.zeros(head.shape[1])}
        self.speeds = jax.tree.map(jnp.zeros_like, self.parameters)

        def conv_norm(x, p, stride=1):
            padding = p["kernel"].shape[0] // 2
            x = jax.lax.conv_general_dilated(
                x,
                p["kernel"],
                (stride, stride),
                [(padding, padding)] * 2,
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
            mean = jnp.mean(x, axis=(0, 1, 2))
            variance = jnp.var(x, axis=(0, 1, 2))
            return (x - mean) * jax.lax.rsqrt(variance + EPSILON) * p["gamma"] + p["beta"]

        def forward(p, images):
            x = jax.nn.relu(conv_norm(images, p["stem"]))
            hidden = jax.nn.relu(conv_norm(x, p["block1 a"]))
            x = jax.nn.relu(conv_norm(hidden, p["block1 b"]) + x)
            hidden = jax.nn.relu(conv_norm(x, p["block2 a"], 2))
            x = jax.nn.relu(conv_norm(hidden, p["block2 b"]) + conv_norm(x, p["block2 skip"], 2))
            return jnp.mean(x, axis=(1, 2)) @ p["head"]["weight"] + p["head"]["bias"]

        def loss(p, images, labels):
            logs = jax.nn.log_softmax(forward(p, images))
            return -jnp.mean(jnp.take_along_axis(logs, labels[:, None], axis=1))

        def train(parameters, speeds, images, labels):
            value, gradients = jax.value_and_grad(loss)(parameters, images, labels)
            speeds = jax.tree.map(lambda v, g: MOMENTUM * v + g, speeds, gradients)
            parameters = jax.tree.map(lambda p, v: p - RATE * v, parameters, speeds)
            return parameters, speeds, value

        self.train = env.jit(train, donate_argnums=(0, 1))

    def step(self):
        self.parameters, self.speeds, loss = self.train(self.parameters, self.speeds, self.images, self.labels)
        self.loss = float(loss)

    def outputs(self):
        p = self.parameters
        return {"stem": p["stem"]["kernel"], "head": p["head"]["weight"], "loss": self.loss}


class torch:
    def __init__(self, params, env):
        import torch
        from torch import nn
        from torch.nn import functional as F

        images, labels, kernels, head = _data(params)

        def conv_norm(name, stride=1):
            kernel = torch.from_numpy(kernels[name]).permute(3, 2, 0, 1)
            after, before, side, _ = kernel.shape
            conv = nn.Conv2d(before, after, side, stride, side // 2, bias=False)
            with torch.no_grad():
                conv.weight.copy_(kernel)
            return nn.Sequential(conv, nn.BatchNorm2d(after, eps=EPSILON, track_running_stats=False))

        class Block(nn.Module):
            def __init__(self, name, stride):
                super().__init__()
                self.a, self.b = conv_norm(name + " a", stride), conv_norm(name + " b")
                self.skip = conv_norm(name + " skip", stride) if stride > 1 else nn.Identity()

            def forward(self, x):
                return F.relu(self.b(F.relu(self.a(x))) + self.skip(x))

        self.stem, self.head = conv_norm("stem"), nn.Linear(*head.shape)
        with torch.no_grad():
            self.head.weight.copy_(torch.from_numpy(head.T.copy()))
            self.head.bias.zero_()
        net = nn.Sequential(
            self.stem,
            nn.ReLU(),
            Block("block1", 1),
            Block("block2", 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            self.head,
        ).to(env.device)
        self.images = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().to(env.device)
        self.labels = torch.from_numpy(labels).long().to(env.device)
        self.env = env
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM)

        def train(images, labels):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            return loss.detach()

        self.train = env.compile(train)

    def step(self):
        loss = self.train(self.images, self.labels)
        self.env.sync()
        self.loss = loss.item()

    def outputs(self):
        kernel = self.stem[0].weight.permute(2, 3, 1, 0)
        return {"stem": kernel, "head": self.head.weight.T, "loss": self.loss}
