"""Writes text.json and text/*.mlir: functions exported by JAX, with JAX's results for some inputs.

    pip install jax==0.10.2 jaxlib==0.10.2 numpy
    python generate_text.py
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax
from jax.experimental import pallas as pl

from reference import Cases, integers, numbers

CASES = Cases(jax=jax.__version__, numpy=np.__version__)
FOLDER = pathlib.Path(__file__).with_name("text")


def floats(seed, *dims):
    return numbers(seed, *dims, scale=1.0).astype(np.float32)


def add(name, function, *arrays, form="exported"):
    """Adds a function: its text in one of the forms that JAX and MLIR print, and a call of it."""
    lowered = jax.jit(function).lower(*arrays)
    text = {
        "exported": lambda: export.export(jax.jit(function))(*arrays).mlir_module(),
        "lowered": lowered.as_text,
        "generic": lambda: lowered.compiler_ir().operation.get_asm(print_generic_op_form=True),
    }[form]()
    # The location of this file on the generating machine must not get into the data.
    text = text.replace(str(pathlib.Path(__file__).parent.resolve()) + "/", "")
    (FOLDER / f"{name}.mlir").write_text(text.rstrip() + "\n")
    results = jax.tree.leaves(jax.jit(function)(*arrays))
    CASES.add(name, arrays, [np.asarray(value) for value in results])


def softmax(x):
    return jax.nn.softmax(x, axis=-1)


def block(x, gain, w, b, v):
    """A layer norm and a two-layer network with its gradient."""

    def loss(w, v):
        mean = x.mean(-1, keepdims=True)
        normal = (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * gain
        return (jax.nn.gelu(normal @ w + b) @ v).sum()

    return jax.value_and_grad(loss, argnums=(0, 1))(w, v)


def recurrent(xs, w, u):
    """A scan whose step uses weights from outside."""

    def step(state, x):
        state = jnp.tanh(x @ w + state @ u)
        return state, state.sum()

    return lax.scan(step, jnp.zeros(4, jnp.float32), xs)


def branches(choice, x, y):
    """A switch in a loop, both of which use values from outside."""

    def body(i, total):
        picked = lax.switch(
            (choice + i) % 3, [lambda t: t + x, lambda t: t * y, lambda t: jnp.where(t > 1, t - y, x)], total
        )
        return lax.cond(i % 2 == 0, lambda t: t, lambda t: -t, picked)

    return lax.fori_loop(0, 5, body, x), lax.while_loop(lambda c: c.sum() < 10.0, lambda c: c + jnp.abs(x) + 0.1, y)


def kernel(x_ref, y_ref, o_ref):
    o_ref[...] = jnp.maximum(x_ref[...], 0.0) + 2.0 * y_ref[...]


def pallas(x, y):
    """A Pallas kernel over blocks, which JAX lowers to a loop in interpreter mode."""
    block = pl.BlockSpec((4,), lambda i: (i,))
    call = pl.pallas_call(
        kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), grid=(3,), in_specs=[block, block], out_specs=block, interpret=True
    )
    return call(x, y)


def order(x, i):
    """Sorts, positions, gathers and scatters."""
    best, places = lax.sort_key_val(x, lax.broadcasted_iota(np.int32, x.shape, 1), dimension=1)
    return best, places, jnp.argmax(x, axis=1), x[i], x.at[i].add(1.0), jnp.take_along_axis(x, i[:, None], 1), jnp.cumsum(x, 0)


def images(x, k):
    """Convolutions with every dimension number, and pooling with its gradient."""
    dims = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(x, k, (1, 2), ((1, 1), (0, 1)), rhs_dilation=(1, 2), dimension_numbers=dims)
    z = lax.conv_transpose(x, k, (2, 2), "SAME")

    def pool(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    return y, z, pool(x), jax.grad(lambda x: (pool(x) ** 2).sum())(x)


def bits(key):
    """A generator written as loops over unsigned integers."""
    return jax.random.bits(key, (3, 2)), jax.random.uniform(key, (5,)), jax.random.permutation(key, 6)


def moves(x):
    """All ops that move elements."""
    table = np.arange(300, dtype=np.float32).reshape(150, 2)
    flags = np.arange(130) % 3 == 0
    return (
        x[::2, 1:3], x.T, jnp.flip(x), jnp.pad(x, ((1, 0), (0, 2)), constant_values=7.0), jnp.concatenate([x, x], 1),
        lax.pad(x, np.float32(-1), ((0, -1, 1), (-1, 2, 0))), x.astype(jnp.int8), x.astype(jnp.bfloat16).astype(jnp.float32),
        lax.reduce_precision(x, 5, 3), lax.dynamic_slice(x, (1, 2), (2, 2)), lax.dynamic_update_slice(x, x[:1, :2], (2, 9)),
        lax.bitcast_convert_type(x, np.int32), jnp.array([[np.inf, -np.inf], [1e-10, -0.0]]), jnp.asarray(table), jnp.asarray(flags),
        jnp.arange(6).reshape(2, 3), lax.clamp(np.float32(-1), x, np.float32(1)), jnp.einsum("ij,kj->ik", x, x),
    )



smooth = lax.composite(lambda x, *, factor: x / (jnp.abs(x) * factor + 1.0), name="test.smooth", version=2)


def composed(x):
    return smooth(x * 2.0, factor=0.5) + smooth(x, factor=3.0)


def waves(x):
    """Complex numbers."""
    spectrum = jnp.fft.fft(x) * (1.0 + 2.0j)
    return spectrum.real, spectrum.imag, jnp.abs(jnp.fft.ifft(spectrum))


FOLDER.mkdir(exist_ok=True)
X = floats(1, 3, 4)
add("softmax", softmax, X)
add("softmax_generic", softmax, X, form="generic")
add("block", block, X, floats(2, 4), floats(3, 4, 5), floats(4, 5), floats(5, 5, 2))
add("recurrent", recurrent, floats(6, 7, 3), floats(7, 3, 4), floats(8, 4, 4))
add("branches", branches, np.int32(1), floats(9, 3), floats(10, 3))
add("branches_generic", branches, np.int32(2), floats(9, 3), floats(10, 3), form="generic")
add("pallas", pallas, floats(11, 12), floats(12, 12))
add("order", order, floats(13, 4, 5), integers(14, 0, 4, 4).astype(np.int32))
add("order_lowered", order, floats(13, 4, 5), integers(14, 0, 4, 4).astype(np.int32), form="lowered")
add("images", images, floats(15, 2, 6, 6, 3), floats(16, 3, 3, 3, 4))
add("images_generic", images, floats(15, 2, 6, 6, 3), floats(16, 3, 3, 3, 4), form="generic")
add("bits", bits, np.array([1, 2], np.uint32))
add("moves", moves, X)
add("moves_generic", moves, X, form="generic")
add("composed", composed, X, form="lowered")
add("waves", waves, floats(17, 2, 8))
CASES.save("text.json")
