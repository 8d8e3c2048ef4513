"""Writes nn.json: PyTorch's results for the functions of `fuseline::nn`, in float64.

    pip install torch==1.13.1 "numpy<2"
    python generate_nn.py
"""

import itertools

import numpy as np
import torch
import torch.nn.functional as F

from reference import Cases, integers, numbers

CASES = Cases(torch=torch.__version__, numpy=np.__version__)


def tensor(array):
    return torch.from_numpy(np.array(array))


def add(name, function, *arrays, **settings):
    """Adds a case of a function of tensors."""
    result = function(*(tensor(array) for array in arrays))
    results = result if isinstance(result, (list, tuple)) else [result]
    CASES.add(name, arrays, [value.numpy() for value in results], **settings)


# Around all corners of the functions, and far from them.
POINTS = np.array([
    -1e4, -800.0, -40.0, -6.5, -6.0, -3.5, -3.0, -2.0, -1.0, -0.5, -1e-3, -1e-12, -0.0, 0.0, 1e-12, 1e-3, 0.5, 1.0, 2.0, 3.0, 3.5,
    6.0, 6.5, 40.0, 800.0, 1e4,
])


def activations():
    for name, function in {
        "relu": F.relu, "relu6": F.relu6, "selu": F.selu, "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
        "log_sigmoid": F.logsigmoid, "silu": F.silu, "mish": F.mish, "gelu_exact": F.gelu,
        "gelu": lambda x: F.gelu(x, approximate="tanh"), "hard_sigmoid": F.hardsigmoid, "hard_swish": F.hardswish,
        "softsign": F.softsign,
    }.items():
        add(name, function, POINTS)
    add("leaky_relu", lambda x: F.leaky_relu(x, 0.2), POINTS, slope=0.2)
    add("elu", lambda x: F.elu(x, 1.5), POINTS, alpha=1.5)
    add("celu", lambda x: F.celu(x, 0.75), POINTS, alpha=0.75)
    add("hard_tanh", lambda x: F.hardtanh(x, -0.5, 2.0), POINTS, low=-0.5, high=2.0)
    x = numbers(1, 2, 3, 4)
    add("prelu", lambda x, w: torch.where(x > 0, x, w * x), x, numbers(2, 4))
    add("glu", lambda x: F.glu(x, 2), x, axis=2)
    add("glu", lambda x: F.glu(x, 0), x, axis=-3)


def over_a_dimension():
    far = numbers(3, 4, 5) + np.array([[0.0], [900.0], [-900.0], [1e300]])
    holes = numbers(4, 3, 4)
    holes[0, 1] = holes[1] = -np.inf
    ends = np.array([[np.inf, 0.0, -np.inf], [np.nan, 1.0, 2.0]])
    for axis in [0, 1, -1]:
        add("softmax", lambda x: F.softmax(x, axis), far[:3], axis=axis)
        add("log_softmax", lambda x: F.log_softmax(x, axis), far[:3], axis=axis)
        add("logsumexp", lambda x: torch.logsumexp(x, axis), far, axes=[axis])
        add("logsumexp", lambda x: torch.logsumexp(x, axis), holes, axes=[axis])
        add("cumlogsumexp", lambda x: torch.logcumsumexp(x, axis), far, axis=axis)
        add("cumsum", lambda x: torch.cumsum(x, axis), holes, axis=axis)
        add("cumprod", lambda x: torch.cumprod(x, axis), far[:1], axis=axis)
        add("cummax", lambda x: torch.cummax(x, axis).values, holes, axis=axis)
        add("cummin", lambda x: torch.cummin(x, axis).values, far, axis=axis)
        add("argmin", lambda x: torch.argmin(x, axis), far[:3], axis=axis)
        add("argmax", lambda x: torch.argmax(x, axis), far[:3], axis=axis)
        for ddof in [0, 1]:
            add("var", lambda x: torch.var(x, axis, unbiased=ddof == 1), far[:3], axes=[axis], ddof=ddof)
            add("std", lambda x: torch.std(x, axis, unbiased=ddof == 1), far[:3], axes=[axis], ddof=ddof)
    add("logsumexp", lambda x: torch.logsumexp(x, (0, 2)), numbers(5, 2, 3, 4), axes=[0, -1])
    add("logsumexp", lambda x: torch.logsumexp(x, 1), ends, axes=[1])
    add("softmax", lambda x: F.softmax(x, 1), holes, axis=1)
    add("var", lambda x: torch.var(x, (0, 2), unbiased=True), numbers(6, 2, 3, 4), axes=[0, -1], ddof=1)
    add("var", lambda x: torch.var(x, 0, unbiased=True), numbers(6, 1, 3), axes=[0], ddof=1)


def norms():
    x, epsilon = numbers(7, 3, 4, 5), 1e-3
    for dims in [(5,), (4, 5)]:
        gamma, beta = numbers(8, *dims), numbers(9, *dims)
        add("layer_norm", lambda x, g, b: F.layer_norm(x, dims, g, b, epsilon), x, gamma, beta, epsilon=epsilon)
        add("rms_norm", lambda x, g: x * torch.rsqrt((x * x).mean([-1, -2][:len(dims)], True) + epsilon) * g, x, gamma,
            epsilon=epsilon)
    images = numbers(10, 2, 6, 3, 2)
    gamma, beta = numbers(11, 6), numbers(12, 6)
    for groups in [1, 2, 6]:
        add("group_norm", lambda x, g, b: F.group_norm(x, groups, g, b, epsilon), images, gamma, beta, groups=groups, axis=1,
            epsilon=epsilon)
        add("group_norm", lambda x, g, b: F.group_norm(x.permute(0, 3, 1, 2), groups, g, b, epsilon).permute(0, 2, 3, 1),
            images.transpose(0, 2, 3, 1), gamma, beta, groups=groups, axis=-1, epsilon=epsilon)
    mean, variance = numbers(13, 6), np.abs(numbers(14, 6))
    add("batch_norm", lambda x, m, v, g, b: F.batch_norm(x, m, v, g, b, False, 0.1, epsilon), images, mean, variance, gamma, beta,
        axis=1, epsilon=epsilon)

    def train(x, m, v, g, b):
        m, v = m.clone(), v.clone()
        return [F.batch_norm(x, m, v, g, b, True, 0.1, epsilon), m, v]

    add("batch_norm_train", train, images, mean, variance, gamma, beta, axis=1, momentum=0.1, epsilon=epsilon)


def losses():
    x, y = numbers(15, 3, 4), numbers(16, 3, 4)
    signs = np.sign(numbers(17, 3, 4))
    shares = np.abs(numbers(18, 3, 4)) / 6.0
    shares[0, 1] = 0.0
    far = x * np.array([[1.0], [300.0], [1e-3]])
    for reduction in ["none", "mean", "sum"]:
        how = {"reduction": reduction}
        add("mse", lambda x, y: F.mse_loss(x, y, **how), x, y, **how)
        add("mae", lambda x, y: F.l1_loss(x, y, **how), x, y, **how)
        add("huber", lambda x, y: F.huber_loss(x, y, delta=1.5, **how), x, y, delta=1.5, **how)
        add("smooth_l1", lambda x, y: F.smooth_l1_loss(x, y, beta=0.7, **how), x, y, beta=0.7, **how)
        add("smooth_l1", lambda x, y: F.smooth_l1_loss(x, y, beta=0.0, **how), x, y, beta=0.0, **how)
        add("kl_div", lambda x, y: F.kl_div(x, y, **how), x, shares, **how)
        add("bce_with_logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y, **how), far, shares, **how)
        add("bce_with_logits", lambda x, y, w: F.binary_cross_entropy_with_logits(x, y, pos_weight=w, **how), far, shares,
            np.array([0.5, 2.0, 1.0, 3.0]), **how)
        reduce = {"none": lambda x: x, "mean": torch.mean, "sum": torch.sum}[reduction]
        add("hinge", lambda x, y: reduce(torch.clamp(1 - x * y, min=0)), x, signs, **how)

        labels, weights = integers(19, 0, 4, 3), np.array([0.5, 1.0, 2.0, 0.25])
        holes = labels.copy()
        holes[1] = -100
        for smoothing, ignore, weighted in itertools.product([0.0, 0.3], [None, -100, 2], [False, True]):
            chosen = holes if ignore == -100 else labels
            settings = dict(label_smoothing=smoothing, **how)
            given = dict(settings, ignored=ignore)
            if ignore is not None:
                settings["ignore_index"] = ignore
            arrays = [far, chosen] + ([weights] if weighted else [])
            add("cross_entropy", lambda x, y, w=None: F.cross_entropy(x, y, weight=w, **settings), *arrays, **given)
        add("cross_entropy", lambda x, y: F.cross_entropy(x, y, label_smoothing=0.2, **how), far, shares, label_smoothing=0.2,
            ignored=None, **how)
        add("cross_entropy", lambda x, y, w: F.cross_entropy(x, y, w, **how), far, shares, weights, label_smoothing=0.0,
            ignored=None, **how)
        logs = torch.log_softmax(tensor(x), -1).numpy()
        add("nll", lambda x, y, w: F.nll_loss(x, y, w, ignore_index=-100, **how), logs, holes, weights, ignored=-100, **how)
    # A class with probability 0 that no target uses.
    hole = x.copy()
    hole[0, (labels[0] + 1) % 4] = -np.inf
    add("cross_entropy", lambda x, y: F.cross_entropy(x, y), hole, labels, label_smoothing=0.0, ignored=None, reduction="mean")
    a, b = numbers(20, 2, 3, 4), numbers(21, 1, 3, 4)
    for axis in [0, 1, -1]:
        add("cosine_similarity", lambda a, b: F.cosine_similarity(a, b, axis, 1e-8), a, b, axis=axis, epsilon=1e-8)


def pools():
    """All combinations of settings that a window of two by three on seven by eight allows, and some
    of them with more dimensions."""
    def case(name, function, x, space, **settings):
        add(name, function, x, space=space, **settings)

    image = numbers(22, 1, 2, 7, 8)
    operators = {
        1: (F.max_pool1d, F.avg_pool1d, F.lp_pool1d), 2: (F.max_pool2d, F.avg_pool2d, F.lp_pool2d),
        3: (F.max_pool3d, F.avg_pool3d, None),
    }
    shapes = {1: numbers(23, 2, 1, 9), 2: image, 3: numbers(24, 1, 1, 4, 5, 3)}
    sizes = {1: [[3], [2]], 2: [[2, 3]], 3: [[2, 2, 3]]}
    for space, x in shapes.items():
        maximum, average, power = operators[space]
        for size, step, pad, wide, ceil in itertools.product(sizes[space], [1, 2, 3], [0, 1], [1, 2], [False, True]):
            stride, padding, dilation = [step] * space, [pad] * space, [wide] * space
            if any(wide * (k - 1) + 1 > n + 2 * pad for k, n in zip(size, x.shape[2:])):
                continue
            settings = dict(size=size, stride=stride, padding=padding, ceil_mode=ceil)
            case("max_pool", lambda x: maximum(x, size, stride, padding, dilation, ceil), x, space, dilation=dilation, **settings)
            if wide > 1:
                continue
            for counted in [False, True]:
                case("avg_pool", lambda x: average(x, size, stride, padding, ceil, counted), x, space, count_padding=counted,
                     **settings)
            # PyTorch rescales windows that extend beyond the edge.
            if power and pad == 0 and not ceil:
                p = 3.0
                kernel = size if space > 1 else size[0]
                case("lp_pool", lambda x: power(x.abs(), p, kernel, step, ceil), x, space, p=p, **settings)
    for sizes in [[3, 4], [7, 8], [1, 1], [5, 3], [9, 2]]:
        add("adaptive_avg_pool", lambda x: F.adaptive_avg_pool2d(x, sizes), image, sizes=sizes)
        add("adaptive_max_pool", lambda x: F.adaptive_max_pool2d(x, sizes), image, sizes=sizes)
    add("adaptive_avg_pool", lambda x: F.adaptive_avg_pool1d(x, 4), shapes[1], sizes=[4])
    add("adaptive_max_pool", lambda x: F.adaptive_max_pool3d(x, (2, 3, 2)), shapes[3], sizes=[2, 3, 2])


def sizes():
    modes = {1: ["nearest", "nearest-exact", "linear"], 2: ["nearest", "nearest-exact", "bilinear", "bicubic"],
             3: ["nearest", "trilinear"]}
    inputs = {1: numbers(25, 2, 1, 5), 2: numbers(26, 1, 2, 4, 5), 3: numbers(27, 1, 1, 2, 3, 2)}
    targets = {1: [[8], [3], [1], [10]], 2: [[8, 10], [3, 7], [1, 5], [4, 2]], 3: [[3, 2, 5]]}
    for space, x in inputs.items():
        for mode, target in itertools.product(modes[space], targets[space]):
            for corners in [False, True] if "linear" in mode or "cubic" in mode else [None]:
                add("resize", lambda x: F.interpolate(x, target, mode=mode, align_corners=corners), x, sizes=target,
                    method=mode, align_corners=bool(corners))


def main():
    activations()
    over_a_dimension()
    norms()
    losses()
    pools()
    sizes()
    CASES.save("nn.json")


if __name__ == "__main__":
    main()
