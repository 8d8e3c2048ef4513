"""An attention layer that decodes token by token; see decode.rs."""

from data import uniform

EPSILON = 1e-5


def _data(params):
    """The weights, the first input, and the empty keys and values."""
    import numpy as np

    batch, heads, head = params["batch"], params["heads"], params["head"]
    width = heads * head
    most = (3.0 / width) ** 0.5
    weights = [uniform(seed, (width, width), -most, most) for seed in (1, 2, 3, 4)]
    return weights, uniform(5, (batch, width), -1.0, 1.0), np.zeros((batch, heads, 0, head), np.float32)


def _decode(concatenate, attention, normalize):
    """Decodes one token with functions of a library."""

    def decode(weights, x, keys, values):
        batch, heads, _, head = keys.shape
        query, key, value = [(x @ w).reshape(batch, heads, 1, head) for w in weights[:3]]
        keys = concatenate([keys, key], 2)
        values = concatenate([values, value], 2)
        attended = attention(query, keys, values)
        x = normalize(x + attended.reshape(batch, heads * head) @ weights[3])
        return x, keys, values

    return decode


class _Decoder:
    def outputs(self):
        return {"x": self.x, "keys": self.keys, "values": self.values}

    def start(self, params, weights, x, empty):
        self.longest = params["longest"]
        self.weights, self.x, self.keys, self.values, self.empty = weights, x, empty, empty, empty

    def step(self):
        if self.keys.shape[2] == self.longest:
            self.keys, self.values = self.empty, self.empty
        self.x, self.keys, self.values = self.decode(self.weights, self.x, self.keys, self.values)


class numpy(_Decoder):
    def __init__(self, params, env):
        import numpy as np

        def attention(query, keys, values):
            scores = query @ keys.swapaxes(2, 3) / np.float32(query.shape[-1] ** 0.5)
            e = np.exp(scores - scores.max(axis=-1, keepdims=True))
            return e / e.sum(axis=-1, keepdims=True) @ values

        def normalize(x):
            x = x - x.mean(axis=-1, keepdims=True)
            return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON)

        self.start(params, *_data(params))
        self.decode = _decode(np.concatenate, attention, normalize)


class jax(_Decoder):
    def __init__(self, params, env):
        import jax
        import jax.numpy as jnp

        def attention(query, keys, values):
            scores = query @ keys.swapaxes(2, 3) / query.shape[-1] ** 0.5
            return jax.nn.softmax(scores) @ values

        def normalize(x):
            return jax.nn.standardize(x, epsilon=EPSILON)

        weights, x, empty = _data(params)
        self.start(params, [jnp.asarray(w) for w in weights], jnp.asarray(x), jnp.asarray(empty))
        self.decode = env.jit(_decode(jnp.concatenate, attention, normalize))

    def step(self):
        super().step()
        self.x.block_until_ready()


class torch(_Decoder):
    def __init__(self, params, env):
        import torch
        from torch.nn import functional

        def normalize(x):
            return functional.layer_norm(x, x.shape[-1:], eps=EPSILON)

        def tensor(x):
            return torch.from_numpy(x).to(env.device)

        self.env = env
        weights, x, empty = _data(params)
        self.start(params, [tensor(w) for w in weights], tensor(x), tensor(empty))
        self.decode = env.compile(_decode(torch.cat, functional.scaled_dot_product_attention, normalize))

    def step(self):
        super().step()
        self.env.sync()
