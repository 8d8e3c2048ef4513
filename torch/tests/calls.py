"""Times the ATen calls that training scripts make most, on tensors of one element: the cost of a
call itself.

    calls.py [--count N] [--rounds N] [NAME ...]

The calls are 60 of the most frequent ones of the models in ``models.py``, counted below autograd,
without reads. Python makes each call ``--count`` times and then reads one element, so that all work
is done. CPU and device take turns, and the best of ``--rounds`` rounds counts. The script prints
wall time and CPU time of the process (all threads) for each call in microseconds, the ratios of
device to CPU, and their geometric means. A call that fails is printed, and the status is then 1.
"""

import argparse
import math
import sys
import time
from statistics import geometric_mean

import torch
import torch.nn.functional as F

A = torch.ops.aten


def calls(device):
    """Returns the calls by name."""

    def ones(*sizes, **options):
        return torch.ones(*sizes, device=device, **options)

    x, y, z = ones(1), ones(1), ones(1)
    matrix, other = ones(1, 1), ones(1, 1)
    image, kernel = ones(1, 1, 1, 1), ones(1, 1, 1, 1)
    heads = ones(1, 1, 1, 1)
    batch, weight, bias, mean, variance = ones(1, 1, 1, 1), ones(1), ones(1), ones(1), ones(1)
    label = torch.zeros(1, dtype=torch.int64, device=device)
    _, batch_mean, batch_scale = A.native_batch_norm(batch, weight, bias, mean, variance, True, 0.1, 1e-5)
    _, layer_mean, layer_scale = A.native_layer_norm(matrix, [1], weight, bias, 1e-5)
    losses = A._log_softmax(matrix, 1, False)
    _, total = A.nll_loss_forward(losses, label, None, 1, -100)
    return {
        "add_": lambda: x.add_(y),
        "detach": lambda: x.detach(),
        "mul_": lambda: z.mul_(y),
        "view": lambda: x.view(1, 1),
        "t": lambda: matrix.t(),
        "lerp_.Scalar": lambda: z.lerp_(y, 0.5),
        "addcmul_": lambda: z.addcmul_(y, y, value=0.5),
        "sqrt": lambda: y.sqrt(),
        "div": lambda: x / y,
        "addcdiv_": lambda: z.addcdiv_(y, y, value=-0.5),
        "mm": lambda: matrix.mm(other),
        "_to_copy": lambda: y.to(torch.bfloat16),
        "add": lambda: x + y,
        "mul": lambda: x * y,
        "_unsafe_view": lambda: matrix.reshape(1),
        "transpose": lambda: matrix.transpose(0, 1),
        "sum.dim": lambda: matrix.sum(1),
        "addmm": lambda: torch.addmm(bias, matrix, other),
        "slice": lambda: matrix[:, 0:1],
        "convolution": lambda: F.conv2d(image, kernel),
        "convolution_backward": lambda: A.convolution_backward(
            image, image, kernel, [0], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]
        ),
        "empty": lambda: torch.empty(1, device=device),
        "native_batch_norm": lambda: A.native_batch_norm(batch, weight, bias, mean, variance, True, 0.1, 1e-5),
        "native_batch_norm_backward": lambda: A.native_batch_norm_backward(
            batch, batch, weight, mean, variance, batch_mean, batch_scale, True, 1e-5, [True, True, True]
        ),
        "pow.Tensor_Scalar": lambda: y**3,
        "native_layer_norm": lambda: A.native_layer_norm(matrix, [1], weight, bias, 1e-5),
        "native_layer_norm_backward": lambda: A.native_layer_norm_backward(
            matrix, matrix, [1], layer_mean, layer_scale, weight, bias, [True, True, True]
        ),
        "relu_": lambda: z.relu_(),
        "threshold_backward": lambda: A.threshold_backward(x, y, 0),
        "cat": lambda: torch.cat([x, y]),
        "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(heads, heads, heads),
        "neg": lambda: -y,
        "mean.dim": lambda: matrix.mean(1),
        "unsqueeze": lambda: y.unsqueeze(0),
        "mul.Scalar": lambda: y * 2.0,
        "rsqrt": lambda: y.rsqrt(),
        "clone": lambda: y.clone(),
        "slice_backward": lambda: A.slice_backward(matrix, [1, 1], 1, 0, 1, 1),
        "expand": lambda: matrix.expand(3, 1),
        "gelu": lambda: F.gelu(y),
        "gelu_backward": lambda: A.gelu_backward(x, y),
        "permute": lambda: matrix.permute(1, 0),
        "div.Scalar": lambda: y / 2.0,
        "_log_softmax": lambda: A._log_softmax(matrix, 1, False),
        "nll_loss_forward": lambda: A.nll_loss_forward(losses, label, None, 1, -100),
        "ones_like": lambda: torch.ones_like(y),
        "nll_loss_backward": lambda: A.nll_loss_backward(y[0], losses, label, None, 1, -100, total),
        "_log_softmax_backward_data": lambda: A._log_softmax_backward_data(matrix, losses, 1, torch.float32),
        "split": lambda: matrix.split(1),
        "silu": lambda: F.silu(y),
        "unbind": lambda: matrix.unbind(),
        "stack": lambda: torch.stack([x, y]),
        "embedding": lambda: F.embedding(label, matrix),
        "embedding_dense_backward": lambda: A.embedding_dense_backward(matrix, label, 1, -1, False),
        "arange": lambda: torch.arange(1, device=device),
        "sub": lambda: x - y,
        "select": lambda: matrix[0],
        "silu_backward": lambda: A.silu_backward(x, y),
        "cos": lambda: y.cos(),
        "cumsum": lambda: y.cumsum(0),
    }


def last_element(result):
    """Reads one element of a result."""
    while not isinstance(result, torch.Tensor):
        result = result[0]
    return result.flatten()[0].item()


def times(call, count):
    """Returns the microseconds of wall time and of CPU time of a call."""
    begin, begin_cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        result = call()
    last_element(result)
    return (time.perf_counter() - begin) / count * 1e6, (time.process_time() - begin_cpu) / count * 1e6


def measure(cpu, device, count, rounds):
    """Returns the best times of both, wall and CPU time."""
    for _ in range(2):
        times(cpu, count)
        times(device, count)
        # Background compiles would count.
        while torch.fuseline.counters()["pending_compiles"]:
            time.sleep(0.02)
    best = [(math.inf, math.inf)] * 2
    for _ in range(rounds):
        for side, call in enumerate((cpu, device)):
            best[side] = tuple(map(min, best[side], times(call, count)))
    return best


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    cpu, device = calls("cpu"), calls("fuseline")
    unknown = set(args.names) - set(cpu)
    if unknown:
        parser.error(f"no such call: {', '.join(sorted(unknown))}")
    ratios, cpu_ratios, failed = [], [], False
    columns = f"{'CPU':>7} {'device':>7} {'ratio':>6}"
    print(f"{'call':30} {columns}   {columns}  (wall, CPU time; us)")
    for name in args.names or cpu:
        try:
            (wall, used), (device_wall, device_used) = measure(cpu[name], device[name], args.count, args.rounds)
        except Exception as error:
            print(f"{name:30} failed: {str(error).splitlines()[0]}", flush=True)
            failed = True
            continue
        ratios.append(device_wall / wall)
        cpu_ratios.append(device_used / used)
        print(
            f"{name:30} {wall:7.2f} {device_wall:7.2f} {ratios[-1]:6.2f}   "
            f"{used:7.2f} {device_used:7.2f} {cpu_ratios[-1]:6.2f}",
            flush=True,
        )
    if ratios:
        wall, used = geometric_mean(ratios), geometric_mean(cpu_ratios)
        print(f"{len(ratios)} calls, geometric mean: {wall:.2f} of wall time, {used:.2f} of CPU time")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
