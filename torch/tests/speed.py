"""Times training steps of the models in ``models.py``, and the dispatch of one op.

    python speed.py steps                 # per model: CPU and device, each eager and torch.compile;
                                          # on the device also strict mode
    python speed.py steps --xla PYTHON    # PyTorch/XLA too, of that interpreter (an older PyTorch)
    python speed.py steps --models vit --rounds 5
    python speed.py ops                   # ns of the dispatching thread per op, from Python
    python speed.py cpp                   # the same from a C++ loop

Each configuration runs in a process of its own. It warms up for ``--warm`` rounds, until nothing is
compiled any more, and then for as many again. Then it times ``--rounds`` rounds of ``--steps``
steps, each ended by a read of the loss; the best round counts. All use the same number of threads.
On a machine whose clock frequency changes, ``--turns`` repeats all of them in turns and prints the
best of each and all in order.
"""

import argparse
import json
import os
import subprocess
import sys
import time

# Sizes at which a step takes 20 to 100 ms of arithmetic on a CPU with two cores. With --small,
# those of the tests: 5 to 55 ms, much of it dispatch.
SIZES = {
    "resnet18": {"batch": 16, "size": 64},
    "nanogpt": {"batch": 4, "length": 128, "width": 128, "depth": 4, "heads": 4},
    "llama": {"batch": 4, "length": 64, "width": 128, "depth": 4},
    "vit": {"batch": 16, "size": 64, "width": 128, "depth": 6},
}
WAYS = ("cpu", "inductor", "fused", "compiled", "strict")


def step_time(name, way, warm, steps, rounds, is_small=False):
    """Returns the milliseconds of a step in the best round."""
    import torch

    import models

    torch.manual_seed(0)
    device = {"fused": "fuseline", "compiled": "fuseline", "strict": "fuseline", "xla": "xla"}.get(way, "cpu")
    if way == "xla":
        import torch_xla
    program = models.ALL[name](device, **({} if is_small else SIZES[name]))
    if way in ("fused", "strict"):
        torch.fuseline.mode(way)
    step = program.step if way != "xla" else lambda: (program.step(), torch_xla.sync())[0]
    if way in ("inductor", "compiled"):
        program.model = torch.compile(program.model)

    def run():
        for _ in range(steps - 1):
            step()
        step().item()

    # Warm up exactly as timed, because the read of the loss affects the regions, until nothing is
    # interpreted or run in parts any more.
    for _ in range(warm):
        run()
    while way in ("fused", "compiled") and torch.fuseline.counters()["pending_compiles"]:
        time.sleep(0.1)
        run()
    for _ in range(warm):
        run()
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        best = min(best, (time.perf_counter() - start) / steps)
    return best * 1e3


def in_turns(time_on, rounds=40):
    """Returns the minimum of ``time_on`` for each device, measured in turns because a processor's
    clock frequency changes."""
    import torch

    best = {"cpu": float("inf"), "fuseline": float("inf")}
    for _ in range(rounds):
        for device in best:
            best[device] = min(best[device], time_on(device))
        torch.fuseline.synchronize()
    return best


def op_times():
    """Returns the nanoseconds of CPU time that the calling thread spends on an op."""
    import torch

    torch.set_num_threads(1)

    def ops_on(device):
        x, y = torch.ones(1, device=device), torch.ones(1, device=device)
        return {
            "x + y": lambda: x + y,
            "x * 2.0": lambda: x * 2.0,
            "x < y": lambda: x < y,
            "-x": lambda: -x,
            "x.add_(y)": lambda: x.add_(y),
            "x.exp()": lambda: x.exp(),
            "x.sum()": lambda: x.sum(),
            "x.view(1, 1)": lambda: x.view(1, 1),
            "torch.where(m, x, y)": lambda: torch.where(x < y, x, y),
        }

    ops = {device: ops_on(device) for device in ("cpu", "fuseline")}

    def time_of(op):
        start = time.thread_time()
        for _ in range(300):
            op()
        return (time.thread_time() - start) / 300 * 1e9

    return {name: in_turns(lambda device: time_of(ops[device][name])) for name in ops["cpu"]}


# The order is that of dispatch.cpp.
CPP_OPS = ("add", "mul", "neg", "add_", "exp", "lt", "sum")


def cpp_op_times():
    """Like ``dispatch_on``, from a C++ loop."""
    import ctypes
    import pathlib
    import tempfile

    import torch

    torch.set_num_threads(1)
    here, package = pathlib.Path(__file__).parent, pathlib.Path(torch.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/dispatch.so"
        flags = ["-O2", "-std=c++20", "-fPIC", "-shared", f"-I{package}/include", f"-L{package}/lib", "-ltorch_cpu", "-lc10"]
        subprocess.run([os.environ.get("CXX", "c++"), here / "dispatch.cpp", *flags, "-o", library], check=True)
        time_of = ctypes.CDLL(library).dispatch_time
    time_of.restype, time_of.argtypes = ctypes.c_double, [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
    with torch.no_grad():
        return {
            name: in_turns(lambda device: time_of(device.encode(), which, 300)) for which, name in enumerate(CPP_OPS)
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["steps", "ops", "cpp", "one"])
    parser.add_argument("--models", nargs="*", default=list(SIZES))
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    parser.add_argument("--xla", metavar="PYTHON", help="an interpreter with PyTorch/XLA, which is measured too (way xla)")
    parser.add_argument("--small", action="store_true", help="the sizes of the tests")
    parser.add_argument("--warm", type=int, default=6)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--turns", type=int, default=1)
    args = parser.parse_args()
    if args.what == "one":
        print(json.dumps(step_time(args.models[0], args.ways[0], args.warm, args.steps, args.rounds, args.small)))
    elif args.what in ("ops", "cpp"):
        print(f"{'op':24} {'CPU eager':>10} {'fuseline':>10}  ns")
        for name, times in (op_times() if args.what == "ops" else cpp_op_times()).items():
            print(f"{name:24} {times['cpu']:10.0f} {times['fuseline']:10.0f}")
    else:
        args.ways += ["xla"] if args.xla and "xla" not in args.ways else []
        print(f"{'model':12}" + "".join(f"{way:>11}" for way in args.ways) + "  ms a step")
        for name in args.models:
            row = {}
            for way in args.ways * args.turns:
                counts = [f"--{word}={getattr(args, word)}" for word in ("warm", "steps", "rounds")]
                command = [args.xla if way == "xla" else sys.executable, __file__, "one", "--models", name, "--ways", way, *counts, *["--small"][: args.small]]
                environment = {**os.environ, "PJRT_DEVICE": "CPU"} if way == "xla" else os.environ
                told = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
                row.setdefault(way, []).append(json.loads(told.stdout.splitlines()[-1]) if told.returncode == 0 else float("nan"))
            print(f"{name:12}" + "".join(f"{min(row[way]):11.1f}" for way in args.ways), flush=True)
            if args.turns > 1:
                for way in args.ways:
                    print(f"  {way:10}" + "".join(f"{turn:11.1f}" for turn in row[way]), flush=True)


if __name__ == "__main__":
    main()
