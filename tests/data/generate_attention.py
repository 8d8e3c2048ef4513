"""Writes attention.json: attention by its formula in float64, compared with JAX's own function
where that applies.

    pip install jax==0.10.2
    python generate_attention.py
"""

import jax
import jax.numpy as jnp
import numpy as np

from reference import Cases, numbers

jax.config.update("jax_enable_x64", True)

CASES = Cases(jax=jax.__version__)


def heads_first(x):
    """JAX has the heads after the positions."""
    return np.moveaxis(np.asarray(x), 2, 1)


def by_formula(q, k, v, mask, bias, causal, scale):
    """softmax(scale q k^T + mask) v, where neighbouring heads share one of k and v."""
    q, k, v = heads_first(q), heads_first(k), heads_first(v)
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    seen = np.ones(scores.shape, bool) if mask is None else np.broadcast_to(mask, scores.shape)
    if causal:
        seen = seen & np.tri(*scores.shape[-2:], dtype=bool)
    powers = np.where(seen, np.exp(scores - np.where(seen, scores, -np.inf).max(-1, keepdims=True)), 0.0)
    return powers / powers.sum(-1, keepdims=True) @ v


def add(heads, groups, queries, keys, width, features, seed, mask=None, bias=None, causal=False, scale=None):
    q = numbers(seed, 2, queries, heads, width)
    k = numbers(seed + 1, 2, keys, groups, width)
    v = numbers(seed + 2, 2, keys, groups, features)
    # JAX requires one width for all; narrower values are a part of a wider result.
    wide = np.pad(v, ((0, 0), (0, 0), (0, 0), (0, width - features)))
    mixed = jax.nn.dot_product_attention(
        jnp.array(q), jnp.array(k), jnp.array(wide), bias=bias, mask=mask, is_causal=causal, scale=scale)
    plain = by_formula(q, k, v, mask, bias, causal, scale)
    np.testing.assert_allclose(heads_first(mixed)[..., :features], plain, atol=3e-6)
    given = [x for x in (mask, bias) if x is not None]
    inputs = [heads_first(q), heads_first(k), heads_first(v), *given]
    CASES.add("attention", inputs, plain, causal=causal, scale=scale)


def main():
    seen = np.array([[True, False, True, True, False], [False, False, True, False, False], [True] * 5])
    add(2, 2, 3, 3, 4, 4, 100)
    add(2, 2, 3, 5, 4, 3, 200)
    add(4, 2, 3, 5, 4, 4, 300)
    add(6, 1, 3, 5, 2, 1, 400, scale=0.3)
    add(2, 2, 4, 4, 4, 4, 500, causal=True)
    add(4, 2, 4, 4, 2, 2, 600, causal=True, scale=2.0)
    add(2, 2, 3, 5, 4, 4, 700, mask=seen[None, None])
    add(4, 2, 3, 5, 4, 4, 800, mask=np.stack([seen, ~seen | True])[:, None])
    add(2, 1, 5, 5, 4, 4, 900, mask=np.ones((1, 2, 5, 5), bool), causal=True)
    add(2, 2, 3, 5, 4, 4, 1000, bias=np.where(seen, numbers(7, 3, 5), -1e300)[None, None])
    add(4, 2, 3, 3, 4, 4, 1100, bias=numbers(8, 2, 4, 3, 3), causal=True)
    CASES.save("attention.json")


if __name__ == "__main__":
    main()
