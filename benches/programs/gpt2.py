"""A training step for a GPT-2 block between its embedding and its head; see gpt2.rs."""

from data import below, uniform

RATE, BETA1, BETA2, TINY, DECAY = 1e-3, 0.9, 0.999, 1e-6, 0.01
EPSILON = 1e-5


def _data(params):
    """The batches of tokens and next tokens, and the initial random weights."""
    width, words, length, batch = (params[name] for name in ("width", "words", "length", "batch"))
    texts = [below(100 + number, (batch, length + 1), words) for number in range(params["batches"])]
    shapes = {
        "words": (words, width),
        "places": (length, width),
        "qkv": (width, 3 * width),
        "output": (width, width),
        "up": (width, 4 * width),
        "down": (4 * width, width),
    }
    weights = {name: uniform(10 + i, shape, -0.03, 0.03) for i, (name, shape) in enumerate(shapes.items())}
    return [(text[:, :-1].copy(), text[:, 1:].copy()) for text in texts], weights


class jax:
    def __init__(self, params, env):
        import jax
        import jax.numpy as jnp

        heads = params["heads"]
        batches, weights = _data(params)
        self.batches = [(jnp.asarray(tokens), jnp.asarray(following)) for tokens, following in batches]
        self.steps = 0
        p = {name: jnp.asarray(weights[name]) for name in ("words", "places")}
        for name in ("qkv", "output", "up", "down"):
            p[name] = {"weight": jnp.asarray(weights[name]), "bias": jnp.zeros(weights[name].shape[1])}
        for name in ("norm1", "norm2", "norm3"):
            p[name] = {"gamma": jnp.ones(params["width"]), "beta": jnp.zeros(params["width"])}
        zeros = lambda: jax.tree.map(jnp.zeros_like, p)
        self.state = p, zeros(), zeros(), jnp.zeros((), jnp.int32)

        def norm(x, p):
            mean = jnp.mean(x, axis=-1, keepdims=True)
            variance = jnp.var(x, axis=-1, keepdims=True)
            return (x - mean) * jax.lax.rsqrt(variance + EPSILON) * p["gamma"] + p["beta"]

        def linear(x, p):
            return x @ p["weight"] + p["bias"]

        def attention(x, p):
            batch, length, width = x.shape
            q, k, v = (
                part.reshape(batch, length, heads, width // heads) for part in jnp.split(linear(x, p["qkv"]), 3, axis=-1)
            )
            mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
            return linear(mixed.reshape(batch, length, width), p["output"])

        def loss(p, tokens, following):
            x = p["words"][tokens] + p["places"]
            x = x + attention(norm(x, p["norm1"]), p)
            x = x + linear(jax.nn.gelu(linear(norm(x, p["norm2"]), p["up"]), approximate=True), p["down"])
            logs = jax.nn.log_softmax(norm(x, p["norm3"]) @ p["words"].T)
            return -jnp.mean(jnp.take_along_axis(logs, following[..., None], axis=-1))

        def train(state, tokens, following):
            p, mean, square, step = state
            value, gradients = jax.value_and_grad(loss)(p, tokens, following)
            step = step + 1
            mean = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, mean, gradients)
            square = jax.tree.map(lambda s, g: BETA2 * s + (1 - BETA2) * g * g, square, gradients)
            first, second = 1 - BETA1**step, 1 - BETA2**step

            def update(p, m, s):
                return p * (1 - RATE * DECAY) - RATE * (m / first) / (jnp.sqrt(s / second) + TINY)

            return (jax.tree.map(update, p, mean, square), mean, square, step), value

        self.train = env.jit(train, donate_argnums=0)

    def step(self):
        tokens, following = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        self.state, loss = self.train(self.state, tokens, following)
        self.loss = float(loss)

    def outputs(self):
        return {"places": self.state[0]["places"], "loss": self.loss}


class torch:
    def __init__(self, params, env):
        import torch
        from torch import nn
        from torch.nn import functional as F

        width, heads = params["width"], params["heads"]
        batches, weights = _data(params)

        class Gpt2(nn.Module):
            def __init__(self):
                super().__init__()
                self.words = nn.Embedding(params["words"], width)
                self.places = nn.Embedding(params["length"], width)
                self.qkv = nn.Linear(width, 3 * width)
                self.output = nn.Linear(width, width)
                self.up = nn.Linear(width, 4 * width)
                self.down = nn.Linear(4 * width, width)
                self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width, eps=EPSILON) for _ in range(3))

            def attention(self, x):
                batch, length, _ = x.shape
                split = lambda part: part.view(batch, length, heads, width // heads).transpose(1, 2)
                q, k, v = (split(part) for part in self.qkv(x).split(width, dim=2))
                mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                return self.output(mixed.transpose(1, 2).reshape(batch, length, width))

            def forward(self, tokens):
                x = self.words(tokens) + self.places.weight
                x = x + self.attention(self.norm1(x))
                x = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
                return F.linear(self.norm3(x), self.words.weight)

        net = Gpt2()
        with torch.no_grad():
            for name, weight in weights.items():
                layer = getattr(net, name)
                start = torch.from_numpy(weight)
                layer.weight.copy_(start.T if isinstance(layer, nn.Linear) else start)
                if isinstance(layer, nn.Linear):
                    layer.bias.zero_()
        net = self.net = net.to(env.device)
        put = lambda tokens: torch.from_numpy(tokens).long().to(env.device)
        self.batches = [(put(tokens), put(following)) for tokens, following in batches]
        self.steps = 0
        self.env = env
        optimizer = torch.optim.AdamW(
            net.parameters(), lr=RATE, betas=(BETA1, BETA2), eps=TINY, weight_decay=DECAY
        )

        def train(tokens, following):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(tokens).flatten(0, 1), following.flatten())
            loss.backward()
            optimizer.step()
            return loss.detach()

        self.train = env.compile(train)

    def step(self):
        tokens, following = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        loss = self.train(tokens, following)
        self.env.sync()
        self.loss = loss.item()

    def outputs(self):
        return {"places": self.net.places.weight, "loss": self.loss}
