"""Writes numpy.json: NumPy's results for matrices, sorting and related functions, in float64.

    pip install numpy==1.26.4
    python generate_numpy.py
"""

import numpy as np

from reference import Cases, integers, numbers

CASES = Cases(numpy=np.__version__)


def squares():
    """Square matrices, well conditioned or not."""
    yield numbers(1, 1, 1)
    yield numbers(2, 2, 2)
    yield numbers(3, 5, 5)
    yield numbers(4, 2, 3, 4, 4)
    # The pivot of each column is below the diagonal.
    yield np.array([[0.0, 2.0, 1.0], [0.0, 0.0, 3.0], [4.0, 1.0, 1.0]])
    # Far from 1.
    yield 1e150 * numbers(5, 3, 3)
    yield np.array([[1e-12, 1.0], [1.0, 1.0]])
    yield np.diag([3.0, -2.0, 0.5])


def shapes():
    """Matrices of all shapes, some of lower rank."""
    yield from squares()
    yield numbers(6, 6, 3)
    yield numbers(7, 3, 6)
    yield numbers(8, 2, 5, 2)
    yield numbers(9, 7, 1)
    yield numbers(10, 1, 4)
    yield np.outer(numbers(11, 5), numbers(12, 4))
    yield numbers(13, 5, 2) @ numbers(14, 2, 5)
    yield np.zeros((3, 2))
    yield np.array([[3.0, 3.0], [4.0, 4.0], [0.0, 0.0]])
    yield 1e-180 * numbers(15, 4, 3)


def linalg():
    for a in squares():
        add("det", [a], np.linalg.det(a))
        add("slogdet", [a], list(np.linalg.slogdet(a)))
        add("inv", [a], np.linalg.inv(a))
        n = a.shape[-1]
        add("solve", [a, numbers(20, n, 3)], np.linalg.solve(a, np.broadcast_to(numbers(20, n, 3), a.shape[:-2] + (n, 3))))
        vector = numbers(21, n)
        add("solve", [a, vector], np.linalg.solve(a, np.broadcast_to(vector[:, None], a.shape[:-2] + (n, 1)))[..., 0])
        add("eigvalsh", [a], np.linalg.eigvalsh(a))
        add("trace", [a], np.trace(a, axis1=-2, axis2=-1))
        if np.abs(a).max() < 1e100:
            positive = a @ a.swapaxes(-1, -2) + 0.5 * np.eye(n)
            add("cholesky", [positive], np.linalg.cholesky(positive))
            add("cholesky_solve", [positive, numbers(22, n, 2)],
                np.linalg.solve(positive, np.broadcast_to(numbers(22, n, 2), a.shape[:-2] + (n, 2))))
    add("solve", [numbers(23, 2, 1, 3, 3), numbers(24, 4, 3, 2)],
        np.linalg.solve(np.broadcast_to(numbers(23, 2, 1, 3, 3), (2, 4, 3, 3)), np.broadcast_to(numbers(24, 4, 3, 2), (2, 4, 3, 2))))
    for a in shapes():
        m, n = a.shape[-2:]
        add("svdvals", [a], np.linalg.svd(a, compute_uv=False))
        # NumPy before version 2 counts singular values up to 1e-15. Version 2 uses the precision of
        # the type.
        limit = np.finfo(float).eps * max(m, n)
        add("pinv", [a], np.linalg.pinv(a, rcond=limit))
        # For a matrix of lower rank, the factors beyond its rank consist of rounding errors.
        if np.all(np.isin(np.linalg.matrix_rank(a), [0, min(m, n)])):
            add("qr", [a], list(np.linalg.qr(a)))
            add("qr_complete", [a], list(np.linalg.qr(a, mode="complete")))
        add("tril", [a], np.tril(a, -1), diagonal=-1)
        add("triu", [a], np.triu(a, 1), diagonal=1)
        if a.ndim == 2:
            add("lstsq", [a, numbers(25, m, 2)], np.linalg.lstsq(a, numbers(25, m, 2), rcond=limit)[0])
            add("lstsq", [a, numbers(26, m)], np.linalg.lstsq(a, numbers(26, m), rcond=limit)[0])
        if np.abs(a).max() < 1e100 and np.abs(a).max() > 1e-100:
            add("norm", [a], np.linalg.norm(a, axis=(-2, -1)), axes=[-2, -1])
            add("norm", [a], np.linalg.norm(a, axis=-1), axes=[-1])


def order():
    holes = numbers(30, 3, 6)
    holes[0, 2] = holes[1, 0] = holes[1, 4] = np.nan
    holes[2, 1], holes[2, 3], holes[0, 5] = np.inf, -np.inf, -0.0
    ties = integers(31, -2, 3, 4, 5)
    for x in [numbers(32, 7), numbers(33, 2, 3, 4), holes, ties, numbers(34, 3, 1), np.zeros((0, 3)), np.zeros((2, 0))]:
        for axis in range(-1, x.ndim - 1):
            add("sort", [x], np.sort(x, axis, kind="stable"), axis=axis)
            add("argsort", [x], np.argsort(x, axis, kind="stable"), axis=axis)
    # NumPy uses differences of neighbours, and so returns NaN if one of them is infinite.
    for x in [numbers(32, 7), numbers(33, 2, 3, 4), np.where(np.isinf(holes), 0.5, holes)]:
        for axis in range(-1, x.ndim - 1):
            add("median", [x], np.median(x, axis), axis=axis)
            for share in [0.0, 0.1, 0.25, 0.9, 1.0]:
                add("quantile", [x], np.quantile(x, share, axis), share=share, axis=axis)
    for x in [ties, integers(35, 0, 2, 9), numbers(36, 5), holes, np.array([2.5]), np.array([np.nan, 1.0, np.nan])]:
        values, places, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
        add("unique", [x], [values, counts, places, inverse.reshape(x.shape)])
    x, places = numbers(37, 3, 4), integers(38, 0, 3, 2, 4)
    add("take_along", [x, places], np.take_along_axis(x, places, 0), axis=0)
    places = integers(39, 0, 4, 3, 5)
    add("take_along", [x, places], np.take_along_axis(x, places, 1), axis=-1)
    for shape, axes in [((3, 3), (0, 1)), ((2, 3, 2), (0, 2)), ((2, 4, 4, 3), (2, 1)), ((1, 1), (0, 1))]:
        x = numbers(40, *shape)
        add("diagonal", [x], np.diagonal(x, axis1=axes[0], axis2=axes[1]), first=axes[0], second=axes[1])
    x, y = numbers(41, 2, 3, 4), numbers(42, 4, 3, 5)
    add("tensordot", [x, y], np.tensordot(x, y, ([1, 2], [1, 0])), lhs=[1, -1], rhs=[1, 0])


def parts_of_networks():
    x = numbers(60, 2, 3, 4)
    for axes in [[0], [-1], [0, 2], [0, 1, 2]]:
        add("mean", [x], np.mean(x, tuple(axes)), axes=axes)
    # Equal elements keep their order, and NaN is larger than all.
    ties = integers(61, -2, 3, 4, 6)
    holes = numbers(62, 3, 5)
    holes[0, 2] = holes[1, 0] = holes[1, 4] = np.nan
    for x in [ties, holes]:
        for axis in [0, 1]:
            for k in [0, 1, 3]:
                # A stable sort from the back reverses equal elements, so the array is flipped
                # twice.
                places = np.flip(x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
                places = np.take(places, range(k), axis)
                add("topk", [x], [np.take_along_axis(x, places, axis), places], k=k, axis=axis)
    indices = integers(63, 0, 5, 2, 3)
    add("one_hot", [indices], np.eye(5)[indices], classes=5)
    # An index that is no class has a row of zeros.
    add("one_hot", [np.array([1, -1, 5, 0])], np.eye(6)[[1, 5, 5, 0]][:, :5], classes=5)
    table = numbers(64, 5, 2, 2)
    add("embedding", [table, indices], table[indices])
    add("embedding", [table, np.array(3)], table[3])


def parts(z):
    """Complex numbers as two arrays of floats, because the files hold only floats."""
    return [np.asarray(z).real.copy(), np.asarray(z).imag.copy()]


def transforms():
    for shape in [(1,), (6,), (2, 5), (3, 4, 2)]:
        x, y = numbers(50, *shape), numbers(51, *shape)
        for count in range(1, len(shape) + 1):
            axes = list(range(-count, 0))
            add("fft", [x, y], parts(np.fft.fftn(x + 1j * y, axes=axes)), count=count)
            add("ifft", [x, y], parts(np.fft.ifftn(x + 1j * y, axes=axes)), count=count)
            half = np.fft.rfftn(x, axes=axes)
            add("rfft", [x], parts(half), count=count)
            add("irfft", parts(half), np.fft.irfftn(half, x.shape[-count:], axes=axes), count=count, size=shape[-1])


def add(name, inputs, outputs, **settings):
    CASES.add(name, inputs, outputs, **settings)


def main():
    linalg()
    order()
    parts_of_networks()
    transforms()
    CASES.save("numpy.json")


if __name__ == "__main__":
    main()
