"""Programs in the style of JAX users, for conversion: pairs of a function and one that makes its
arguments.

Sizes are chosen so that the files stay small. All arrays in a function have the type of its
arguments, so that it also runs in 64-bit floats; random draws name their type.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array
Params = dict[str, Any]


def _normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def _dense(rng: np.random.Generator, inputs: int, outputs: int) -> Params:
    """A dense layer: kernel [inputs, outputs], bias [outputs]."""
    return {"kernel": _normal(rng, inputs, outputs, scale=inputs**-0.5), "bias": np.zeros(outputs, np.float32)}


# ----- a step of training a perceptron with Adam -----


def mlp_train_step(params: list[Params], moments: tuple, step: Array, images: Array, labels: Array) -> tuple:
    """Runs one step of Adam on a perceptron with softmax cross-entropy.

    `images` [batch, features], `labels` [batch] of i32. Returns the loss, the accuracy, and the new
    parameters, moments and step number.
    """

    def loss_of(params: list[Params]) -> tuple[Array, Array]:
        x = images
        for layer in params[:-1]:
            x = jax.nn.relu(x @ layer["kernel"] + layer["bias"])
        logits = x @ params[-1]["kernel"] + params[-1]["bias"]
        targets = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
        loss = -jnp.mean(jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1))
        accuracy = jnp.mean((jnp.argmax(logits, axis=-1) == labels).astype(logits.dtype))
        return loss + 1e-4 * sum(jnp.sum(layer["kernel"] ** 2) for layer in params), accuracy

    rate, decay1, decay2, epsilon = 1e-3, 0.9, 0.999, 1e-8
    (loss, accuracy), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
    step = step + 1
    first = jax.tree.map(lambda m, g: decay1 * m + (1 - decay1) * g, moments[0], grads)
    second = jax.tree.map(lambda v, g: decay2 * v + (1 - decay2) * g * g, moments[1], grads)
    unbias1, unbias2 = 1 - decay1**step, 1 - decay2**step

    def updated(p: Array, m: Array, v: Array) -> Array:
        return p - rate * (m / unbias1) / (jnp.sqrt(v / unbias2) + epsilon)

    return loss, accuracy, jax.tree.map(updated, params, first, second), (first, second), step


def mlp_train_step_inputs() -> tuple:
    rng = np.random.default_rng(1)
    sizes = [12, 24, 16, 5]
    params = [_dense(rng, *pair) for pair in itertools.pairwise(sizes)]
    first = jax.tree.map(lambda p: _normal(rng, *p.shape, scale=0.01), params)
    second = jax.tree.map(lambda p: _normal(rng, *p.shape, scale=0.01) ** 2, params)
    return params, (first, second), np.int32(7), _normal(rng, 16, 12), rng.integers(0, 5, 16).astype(np.int32)


# ----- a transformer block -----


def _layer_norm(x: Array, params: Params) -> Array:
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.var(x, axis=-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * params["scale"] + params["bias"]


def _attention(x: Array, params: Params, heads: int) -> Array:
    """Causal self-attention; x [batch, time, features]."""
    batch, time, features = x.shape
    shape = (batch, time, heads, features // heads)
    query, key, value = ((x @ params[name]).reshape(shape) for name in ("query", "key", "value"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * shape[-1] ** -0.5
    mask = jnp.tril(jnp.ones((time, time), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape) @ params["output"]


def transformer_block(params: Params, x: Array, target: Array) -> tuple[Array, Params]:
    """Returns loss and gradients of one pre-norm transformer block against `target`; both tensors
    are [batch, time, features]."""

    def loss_of(params: Params) -> Array:
        y = x + _attention(_layer_norm(x, params["norm1"]), params["attention"], heads=2)
        hidden = _layer_norm(y, params["norm2"]) @ params["up"]["kernel"] + params["up"]["bias"]
        y = y + jax.nn.gelu(hidden, approximate=False) @ params["down"]["kernel"] + params["down"]["bias"]
        return jnp.mean((y - target) ** 2)

    return jax.value_and_grad(loss_of)(params)


def transformer_block_inputs() -> tuple:
    rng = np.random.default_rng(2)
    features = 16

    def norm() -> Params:
        return {"scale": 1 + _normal(rng, features, scale=0.1), "bias": _normal(rng, features, scale=0.1)}

    names = ("query", "key", "value", "output")
    params = {
        "norm1": norm(),
        "norm2": norm(),
        "attention": {name: _normal(rng, features, features, scale=0.25) for name in names},
        "up": _dense(rng, features, 32),
        "down": _dense(rng, 32, features),
    }
    return params, _normal(rng, 2, 8, features), _normal(rng, 2, 8, features)


# ----- an LSTM -----


def lstm(params: Params, inputs: Array, targets: Array) -> tuple[Array, Params]:
    """Returns loss and gradients of an LSTM that predicts a number at each time.

    `inputs` [time, batch, features], `targets` [time, batch].
    """

    def loss_of(params: Params) -> Array:
        def cell(carry: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
            hidden, memory = carry
            gates = x @ params["input"] + hidden @ params["recurrent"] + params["bias"]
            take, forget, candidate, give = jnp.split(gates, 4, axis=-1)
            memory = jax.nn.sigmoid(forget + 1.0) * memory + jax.nn.sigmoid(take) * jnp.tanh(candidate)
            hidden = jax.nn.sigmoid(give) * jnp.tanh(memory)
            return (hidden, memory), hidden @ params["readout"]

        zeros = jnp.zeros((inputs.shape[1], params["recurrent"].shape[0]), inputs.dtype)
        _, predictions = lax.scan(cell, (zeros, zeros), inputs)
        return jnp.mean((predictions - targets) ** 2)

    return jax.value_and_grad(loss_of)(params)


def lstm_inputs() -> tuple:
    rng = np.random.default_rng(3)
    features, hidden, batch, time = 3, 8, 4, 10
    params = {
        "input": _normal(rng, features, 4 * hidden, scale=features**-0.5),
        "recurrent": _normal(rng, hidden, 4 * hidden, scale=hidden**-0.5),
        "bias": np.zeros(4 * hidden, np.float32),
        "readout": _normal(rng, hidden, scale=hidden**-0.5),
    }
    return params, _normal(rng, time, batch, features), _normal(rng, time, batch)


# ----- a convolutional network -----


def _convolve(x: Array, kernel: Array, stride: int = 1) -> Array:
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _max_pool(x: Array) -> Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def _batch_norm(x: Array, params: Params, running: Params) -> tuple[Array, Params]:
    """Normalizes over all dimensions but the channels. Also returns the new running statistics."""
    mean, variance = jnp.mean(x, axis=(0, 1, 2)), jnp.var(x, axis=(0, 1, 2))
    running = jax.tree.map(lambda old, now: 0.9 * old + 0.1 * now, running, {"mean": mean, "variance": variance})
    return (x - mean) * lax.rsqrt(variance + 1e-5) * params["scale"] + params["bias"], running


def convnet_train_step(params: Params, velocity: Params, running: Params, images: Array, labels: Array) -> tuple:
    """Runs one step of gradient descent with momentum on a small convolutional network.

    `images` [batch, height, width, channels], `labels` [batch] of i32. Returns the loss and the new
    state.
    """

    def loss_of(params: Params) -> tuple[Array, Params]:
        x, now = _batch_norm(_convolve(images, params["conv1"]), params["norm"], running)
        x = _max_pool(jax.nn.relu(x))
        x = jax.nn.relu(_convolve(x, params["conv2"], stride=2))
        x = x.reshape(x.shape[0], -1) @ params["dense"]["kernel"] + params["dense"]["bias"]
        loss = -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], axis=-1))
        return loss, now

    (loss, running), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return loss, jax.tree.map(lambda p, v: p - 0.05 * v, params, velocity), velocity, running


def convnet_train_step_inputs() -> tuple:
    rng = np.random.default_rng(4)
    params = {
        "conv1": _normal(rng, 3, 3, 2, 6, scale=0.25),
        "norm": {"scale": 1 + _normal(rng, 6, scale=0.1), "bias": _normal(rng, 6, scale=0.1)},
        "conv2": _normal(rng, 3, 3, 6, 8, scale=0.15),
        "dense": _dense(rng, 2 * 2 * 8, 4),
    }
    velocity = jax.tree.map(lambda p: _normal(rng, *p.shape, scale=0.01), params)
    running = {"mean": _normal(rng, 6, scale=0.1), "variance": 1 + _normal(rng, 6, scale=0.1)}
    return params, velocity, running, _normal(rng, 4, 8, 8, 2), rng.integers(0, 4, 4).astype(np.int32)


# ----- conjugate gradients -----


def conjugate_gradient(matrix: Array, rhs: Array) -> tuple[Array, Array, Array]:
    """Solves `matrix @ x = rhs` for a positive definite matrix, to a residual of a thousandth.

    Every eighth step recomputes the residual instead of updating it. Returns x, whether it is a
    solution, and the number of steps.
    """

    def unfinished(state: tuple) -> Array:
        _, residual, _, step = state
        return (residual @ residual > 1e-6 * (rhs @ rhs)) & (step < 100)

    def advance(state: tuple) -> tuple:
        x, residual, direction, step = state
        image = matrix @ direction
        length = residual @ residual / (direction @ image)
        x = x + length * direction
        fresh = lax.cond(step % 8 == 7, lambda: rhs - matrix @ x, lambda: residual - length * image)
        direction = fresh + (fresh @ fresh) / (residual @ residual) * direction
        return x, fresh, direction, step + 1

    start = (jnp.zeros_like(rhs), rhs, rhs, jnp.int32(0))
    x, _, _, steps = lax.while_loop(unfinished, advance, start)
    return x, jnp.linalg.norm(rhs - matrix @ x) < 2e-3 * jnp.linalg.norm(rhs), steps


def conjugate_gradient_inputs() -> tuple:
    rng = np.random.default_rng(5)
    factor = _normal(rng, 24, 24)
    return factor @ factor.T / 24 + np.eye(24, dtype=np.float32) / 4, _normal(rng, 24)


# ----- k-means -----


def k_means(points: Array, centers: Array) -> tuple:
    """Runs Lloyd's algorithm until no point changes its cluster; points [n, d], centers [k, d].

    Returns the centers by decreasing size of their clusters, the sizes, the cluster of each point,
    and the number of iterations.
    """
    count = centers.shape[0]

    def nearest(centers: Array) -> Array:
        distances = jnp.sum((points[:, None, :] - centers[None, :, :]) ** 2, axis=-1)
        return jnp.argmin(distances, axis=-1).astype(jnp.int32)

    def advance(state: tuple) -> tuple:
        centers, owner, _, rounds = state
        sizes = jax.ops.segment_sum(jnp.ones(points.shape[0], points.dtype), owner, count)
        sums = jax.ops.segment_sum(points, owner, count)
        centers = jnp.where(sizes[:, None] > 0, sums / jnp.maximum(sizes, 1)[:, None], centers)
        updated = nearest(centers)
        return centers, updated, jnp.any(updated != owner), rounds + 1

    state = (centers, nearest(centers), jnp.array(True), jnp.int32(0))
    centers, owner, _, rounds = lax.while_loop(lambda state: state[2] & (state[3] < 50), advance, state)
    sizes = jnp.bincount(owner, length=count)
    order = jnp.argsort(-sizes, stable=True)
    rank = jnp.zeros(count, jnp.int32).at[order].set(jnp.arange(count, dtype=jnp.int32))
    return centers[order], sizes[order].astype(jnp.int32), rank[owner], rounds


def k_means_inputs() -> tuple:
    rng = np.random.default_rng(6)
    middles = _normal(rng, 5, 3, scale=2.0)
    points = middles[rng.integers(0, 5, 120)] + _normal(rng, 120, 3, scale=0.8)
    return points, points[:5]


# ----- word vectors -----


def word_vectors(table: Array, words: Array, contexts: Array, negatives: Array) -> tuple:
    """Runs one step of learning word vectors with negative samples, and finds nearest words.

    `table` [words, d], `words` and `contexts` [batch], `negatives` [batch, samples] of i32. Returns
    the loss, the new table, and for each word of the batch the cosines and numbers of its three
    nearest.
    """

    def loss_of(table: Array) -> Array:
        word, context, negative = table[words], table[contexts], jnp.take(table, negatives, axis=0)
        good = jnp.sum(word * context, axis=-1)
        bad = jnp.einsum("bd,bnd->bn", word, negative)
        return -jnp.mean(jax.nn.log_sigmoid(good) + jnp.sum(jax.nn.log_sigmoid(-bad), axis=-1))

    loss, grad = jax.value_and_grad(loss_of)(table)
    table = table - 0.5 * jnp.clip(grad, -0.1, 0.1)
    unit = table / jnp.linalg.norm(table, axis=-1, keepdims=True)
    cosines, nearest = lax.top_k(unit[words] @ unit.T, 4)
    return loss, table, cosines[:, 1:], nearest[:, 1:]


def word_vectors_inputs() -> tuple:
    rng = np.random.default_rng(7)

    def draw(*shape: int) -> np.ndarray:
        return rng.integers(0, 40, shape).astype(np.int32)

    return _normal(rng, 40, 12), draw(16), draw(16), draw(16, 3)


# ----- the Poisson equation -----


def poisson(density: Array) -> tuple:
    """Solves `-laplace(u) = density - mean(density)` on a periodic square with Fourier transforms;
    density [n, n].

    Returns u, its two derivatives, its spectrum, and the left-hand side computed back from it.
    """
    n = density.shape[0]
    spectrum = jnp.fft.rfft2(density)
    along = jnp.fft.fftfreq(n, 1 / n).astype(density.dtype)[:, None]
    across = jnp.fft.rfftfreq(n, 1 / n).astype(density.dtype)[None, :]
    square = along**2 + across**2
    solution = jnp.where(square > 0, spectrum / jnp.where(square > 0, square, 1), 0)
    u = jnp.fft.irfft2(solution, s=density.shape)
    slopes = jnp.stack([jnp.fft.irfft2(1j * wave * solution, s=density.shape) for wave in (along, across)])
    waves = jnp.fft.fftfreq(n, 1 / n).astype(density.dtype)
    back = jnp.fft.ifft2((waves[:, None] ** 2 + waves**2) * jnp.fft.fft2(u))
    return u, slopes, solution, back


def poisson_inputs() -> tuple:
    return (_normal(np.random.default_rng(8), 16, 16),)


# ----- random numbers -----


def random_draws(seed: Array, x: Array) -> dict[str, Array]:
    """Draws the random numbers of a training run from one seed: initial weights, a dropout mask, a
    shuffle, classes, noise; `x` [n, d]."""
    init, mask, shuffle, classes, noise = jax.random.split(jax.random.key(seed), 5)
    keep = jax.random.bernoulli(mask, jnp.float32(0.8), x.shape)
    logits = jnp.log(jnp.arange(1, 6, dtype=jnp.float32))
    return {
        "weights": jax.random.truncated_normal(init, -2.0, 2.0, (6, 4), jnp.float32),
        "dropped": jnp.where(keep, x / 0.8, 0),
        "order": jax.random.permutation(shuffle, jnp.arange(20, dtype=jnp.int32)),
        "classes": jax.random.categorical(classes, logits, shape=(32,)).astype(jnp.int32),
        "noise": x + 0.1 * jax.random.normal(noise, x.shape, jnp.float32),
        "bits": jax.random.bits(init, (8,), jnp.uint16),
    }


def random_draws_inputs() -> tuple:
    return np.uint32(2024), _normal(np.random.default_rng(9), 8, 10)


# ----- Gaussian processes -----


def gaussian_process(inputs: Array, values: Array, queries: Array, log_scale: Array) -> tuple:
    """Gaussian process regression: inputs [n], values [n], queries [m].

    Returns mean and variance at the queries, and the marginal likelihood with its derivative in the
    logarithm of the length scale.
    """

    def kernel(a: Array, b: Array, log_scale: Array) -> Array:
        return jnp.exp(-0.5 * ((a[:, None] - b[None, :]) / jnp.exp(log_scale)) ** 2)

    def likelihood(log_scale: Array) -> Array:
        covariance = kernel(inputs, inputs, log_scale) + 0.1 * jnp.eye(inputs.shape[0], dtype=inputs.dtype)
        factor = jnp.linalg.cholesky(covariance)
        white = jax.scipy.linalg.solve_triangular(factor, values, lower=True)
        return -0.5 * white @ white - jnp.sum(jnp.log(jnp.diag(factor)))

    covariance = kernel(inputs, inputs, log_scale) + 0.1 * jnp.eye(inputs.shape[0], dtype=inputs.dtype)
    factor = jax.scipy.linalg.cho_factor(covariance, lower=True)
    cross = kernel(inputs, queries, log_scale)
    mean = cross.T @ jax.scipy.linalg.cho_solve(factor, values)
    variance = 1 - jnp.sum(cross * jax.scipy.linalg.cho_solve(factor, cross), axis=0)
    return mean, variance, jax.value_and_grad(likelihood)(log_scale)


def gaussian_process_inputs() -> tuple:
    rng = np.random.default_rng(10)
    inputs = np.sort(rng.uniform(-3, 3, 16)).astype(np.float32)
    values = np.sin(2 * inputs) + _normal(rng, 16, scale=0.2)
    return inputs, values, np.linspace(-3, 3, 9, dtype=np.float32), np.float32(-0.5)


# ----- decoding with a cache -----


def decode(params: Params, prompt: Array) -> tuple[Array, Array]:
    """Greedy decoding of eight tokens in bf16 with a key-value cache; prompt [batch] of i32.

    Returns the tokens [batch, 8] and the logits of the last step in f32.
    """
    batch, steps = prompt.shape[0], 8
    features = params["embed"].shape[1]

    def advance(step: Array, state: tuple) -> tuple:
        token, keys, values, tokens, _ = state
        x = params["embed"][token] + params["position"][step]
        query, key, value = jnp.split(x @ params["qkv"], 3, axis=-1)
        keys = lax.dynamic_update_index_in_dim(keys, key, step, axis=1)
        values = lax.dynamic_update_index_in_dim(values, value, step, axis=1)
        scores = jnp.einsum("bd,btd->bt", query, keys, preferred_element_type=params["scale"].dtype)
        scores = jnp.where(jnp.arange(steps) <= step, scores * params["scale"], -jnp.inf)
        weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
        x = x + jnp.einsum("bt,btd->bd", weights, values) @ params["output"]
        logits = (x @ params["embed"].T).astype(params["scale"].dtype)
        token = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        return token, keys, values, lax.dynamic_update_index_in_dim(tokens, token, step, axis=1), logits

    cache = jnp.zeros((batch, steps, features), params["embed"].dtype)
    start = (
        prompt,
        cache,
        cache,
        jnp.zeros((batch, steps), jnp.int32),
        jnp.zeros((batch, params["embed"].shape[0]), params["scale"].dtype),
    )
    state = lax.fori_loop(0, steps, advance, start)
    return state[3], state[4]


def decode_inputs() -> tuple:
    rng = np.random.default_rng(11)
    features, words = 16, 24

    def weights(*shape: int, scale: float) -> np.ndarray:
        return _normal(rng, *shape, scale=scale).astype(jnp.bfloat16)

    params = {
        "embed": weights(words, features, scale=1.0),
        "position": weights(8, features, scale=1.0),
        "qkv": weights(features, 3 * features, scale=0.25),
        "output": weights(features, features, scale=0.5),
        "scale": np.float32(features**-0.5),
    }
    return params, np.array([3, 11], np.int32)


# ----- all of them -----


@dataclass(frozen=True)
class Program:
    """A function with its arguments, and options for `convert`."""

    function: Callable
    inputs: Callable[[], tuple]
    platform: str = "cpu"


PROGRAMS: dict[str, Program] = {
    "conjugate_gradient": Program(conjugate_gradient, conjugate_gradient_inputs),
    "convnet_train_step": Program(convnet_train_step, convnet_train_step_inputs),
    "decode": Program(decode, decode_inputs),
    # On the CPU JAX calls LAPACK for the factorization.
    "gaussian_process": Program(gaussian_process, gaussian_process_inputs, platform="tpu"),
    "k_means": Program(k_means, k_means_inputs),
    "lstm": Program(lstm, lstm_inputs),
    "mlp_train_step": Program(mlp_train_step, mlp_train_step_inputs),
    "poisson": Program(poisson, poisson_inputs),
    "random_draws": Program(random_draws, random_draws_inputs),
    "transformer_block": Program(transformer_block, transformer_block_inputs),
    "word_vectors": Program(word_vectors, word_vectors_inputs),
}
