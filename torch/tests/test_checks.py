"""Indices, labels, probabilities and repeats out of range are errors, as on the CPU.

In debug mode the call raises them. In the other modes the next read does, unless ``check_indices``
is off.
"""

import os
import subprocess
import sys
import unittest

import torch
import torch.nn.functional as F

from test_module import program

DEVICE = "fuseline"


def cases(device):
    """Calls by name, each with an element that PyTorch's CPU refuses."""

    def ones(*dims, **options):
        return torch.ones(*dims, device=device, **options)

    def of(*values):
        return torch.tensor(values, device=device)

    def change(x, index):
        x[index] = 1.0
        return x

    nothing = float("nan")
    return {
        "index": lambda: ones(3)[of(3)],
        "index from the end": lambda: ones(3)[of(-4)],
        "index of two": lambda: ones(3, 4)[of(0, 1), of(0, 4)],
        "index_put": lambda: ones(3).index_put((of(3),), of(1.0)),
        "index_put, added": lambda: ones(3).index_put((of(-4),), of(1.0), accumulate=True),
        "assignment": lambda: change(ones(3), of(3)),
        "take": lambda: torch.take(ones(3), of(3)),
        "put": lambda: ones(3).put(of(3), of(1.0)),
        "index_select": lambda: torch.index_select(ones(3, 2), 0, of(3)),
        "index_select, negative": lambda: torch.index_select(ones(3, 2), 0, of(-1)),
        "index_select of a number": lambda: torch.index_select(torch.tensor(1.0, device=device), 0, of(1)),
        "index_add": lambda: ones(3, 2).index_add(0, of(3), ones(1, 2)),
        "index_copy": lambda: ones(3, 2).index_copy(0, of(3), ones(1, 2)),
        "index_fill": lambda: ones(3).index_fill(0, of(3), 2.0),
        "embedding": lambda: F.embedding(of(7), ones(3, 2)),
        "embedding, negative": lambda: F.embedding(of(-1), ones(3, 2)),
        "embedding_bag": lambda: F.embedding_bag(of(0, 7), ones(3, 2), of(0)),
        "label": lambda: F.cross_entropy(torch.zeros(2, 3, device=device), of(0, 5)),
        "label, negative": lambda: F.cross_entropy(torch.zeros(2, 3, device=device), of(0, -1)),
        "labels of an image": lambda: F.cross_entropy(torch.zeros(1, 3, 2, 2, device=device), torch.full((1, 2, 2), 3, device=device)),
        "label, smoothed": lambda: F.cross_entropy(torch.zeros(2, 3, device=device), of(0, 5), label_smoothing=0.1),
        "label, weighted": lambda: F.nll_loss(torch.zeros(2, 3, device=device), of(0, 4), weight=ones(3)),
        "gather": lambda: torch.gather(ones(3), 0, of(4)),
        "gather, negative": lambda: torch.gather(ones(3, 2), 1, of(0, -1).reshape(2, 1)),
        "scatter": lambda: torch.zeros(3, device=device).scatter(0, of(4), 1.0),
        "scatter, negative": lambda: torch.zeros(3, device=device).scatter(0, of(-1), ones(1)),
        "scatter_add": lambda: torch.zeros(3, device=device).scatter_add(0, of(4), ones(1)),
        "scatter_reduce": lambda: torch.zeros(3, device=device).scatter_reduce(0, of(4), ones(1), "sum"),
        "one_hot": lambda: F.one_hot(of(4), 3),
        "one_hot, negative": lambda: F.one_hot(of(-1), 3),
        "multinomial": lambda: torch.multinomial(of(-1.0, 2.0), 1),
        "multinomial, NaN": lambda: torch.multinomial(of(nothing, 2.0), 1),
        "multinomial of nothing": lambda: torch.multinomial(of(0.0, 0.0), 1),
        "bernoulli": lambda: torch.bernoulli(of(1.5, 0.5)),
        "bernoulli_": lambda: ones(2).bernoulli_(of(nothing, 0.5)),
        "bernoulli_ of a number": lambda: ones(2).bernoulli_(1.5),
        "uniform_": lambda: ones(2).uniform_(2, 1),
        "normal_": lambda: ones(2).normal_(0, -1),
        "exponential_": lambda: ones(2).exponential_(-1.0),
        "repeats": lambda: torch.repeat_interleave(ones(2), of(-1, 1)),
        "repeats of a known size": lambda: torch.repeat_interleave(ones(2), of(-1, 1), output_size=0),
        "repeats of another size": lambda: torch.repeat_interleave(ones(2), of(1, 1), output_size=3),
        "bincount": lambda: torch.bincount(of(-1, 1)),
        "floor division": lambda: of(4, 1) // of(2, 0),
        "truncating division": lambda: torch.div(of(4, 1), of(2, 0), rounding_mode="trunc"),
        "remainder": lambda: of(4, 1) % of(2, 0),
        "remainder of the dividend's sign": lambda: torch.fmod(of(4, 1), of(2, 0)),
        "binary_cross_entropy": lambda: F.binary_cross_entropy(of(1.5), of(0.5)),
        "quantile": lambda: torch.quantile(ones(3), of(0.5, 1.5)),
        "quantile, negative": lambda: torch.quantile(ones(2, 3), of(-0.1), dim=1, keepdim=True),
        "quantile, NaN": lambda: torch.quantile(ones(3), torch.tensor(nothing, device=device)),
        "nanquantile": lambda: torch.nanquantile(ones(3), of(0.5, -1.5)),
        "nanquantile into a result": lambda: torch.nanquantile(ones(3), of(2.0), out=ones(1)),
        "assert_async": lambda: torch._assert_async(torch.tensor(False, device=device)),
        "assert_async, in words": lambda: torch._assert_async(torch.tensor(0, device=device), "words"),
    }


def outcome(call, device, reads=True):
    """Returns the type of the error of a call, or of waiting for its result."""
    try:
        result = call()
        if torch.is_tensor(result) and reads:
            result.cpu()
        if device != "cpu" and reads:
            torch.fuseline.synchronize()
    except Exception as error:
        return type(error).__name__, str(error)
    return "accepted", ""


# Errors of the call in every mode: types and numbers show them, or the op has to wait anyway.
AT_ONCE = {
    "embedding_bag", "bernoulli_ of a number", "uniform_", "normal_", "exponential_", "repeats", "bincount",
}  # fmt: skip


class Checks(unittest.TestCase):
    def test_debug_mode_refuses_what_the_cpu_refuses(self):
        theirs = cases("cpu")
        with torch.fuseline.mode("debug"):
            for name, call in cases(DEVICE).items():
                with self.subTest(name):
                    wanted, _ = outcome(theirs[name], "cpu")
                    found, message = outcome(call, DEVICE, reads=False)
                    self.assertNotEqual(wanted, "accepted")
                    self.assertEqual(found, wanted, message)
                    if message.startswith("fuseline:"):
                        self.assertIn(f"{os.path.basename(__file__)}:", message)
                        self.assertNotIn("later read", message)

    def test_without_checks_the_results_are_defined(self):
        source = """
            import torch
            x = torch.tensor([1.0, 2.0, 3.0], device="fuseline")
            bad = torch.tensor([0, 7], device="fuseline")
            print(x[bad].tolist(), torch.zeros(3, device="fuseline").scatter(0, bad, 1.0).tolist())
            """
        self.assertEqual(program(source, FUSELINE_TORCH_CHECK_INDICES="0"), "[1.0, 3.0] [1.0, 0.0, 0.0]")

    def test_an_assertion_holds_in_every_mode(self):
        good, bad = torch.ones(1, device=DEVICE), torch.zeros(1, device=DEVICE)
        torch._assert_async(good)
        torch.fuseline.synchronize()
        torch._assert_async(bad, "it is zero")
        with self.assertRaisesRegex(RuntimeError, "it is zero"):
            torch.fuseline.synchronize()
        torch.fuseline.synchronize()

    def run_checked(self, program):
        environment = {**os.environ, "FUSELINE_TORCH_INTERPRET_COLD": "0"}
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, cwd=os.path.dirname(os.path.abspath(__file__)), capture_output=True, text=True, timeout=600
        )
        self.assertEqual((run.returncode, run.stdout.split()[-1:]), (0, ["done"]), run.stdout + run.stderr)

    def test_with_checks_the_next_read_is_the_error(self):
        self.run_checked(LATER)

    def test_a_steady_loop_with_checks_compiles_nothing(self):
        self.run_checked(STEADY)

    def test_graphs_are_checked(self):
        self.run_checked(COMPILED)


LATER = """
import torch
from test_checks import AT_ONCE, DEVICE, cases, outcome

theirs = cases("cpu")
for name, call in cases(DEVICE).items():
    wanted, _ = outcome(theirs[name], "cpu")
    if name in AT_ONCE:
        assert outcome(call, DEVICE, reads=False)[0] == wanted, name
        continue
    try:
        made = call()
    except Exception as error:
        raise AssertionError(f"{name}: {error}")
    found, message = outcome(lambda: made, DEVICE)
    # What is read later is an error of the engine's.
    wanted = "RuntimeError" if name == "index_select of a number" else wanted
    assert found == wanted, (name, found, wanted, message)
    assert "test_checks.py:" in message and "later read" in message, message
    # Told once.
    assert outcome(lambda: made, DEVICE)[0] == "accepted", name
print("done")
"""

STEADY = """
import torch
import torch.nn.functional as F

torch.manual_seed(0)
table = torch.nn.Embedding(20, 8).to("fuseline")
head = torch.nn.Linear(8, 20).to("fuseline")
opt = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.1)
places = torch.arange(4, device="fuseline")
for step in range(120):
    tokens = torch.randint(0, 20, (4, 6))
    if step == 110:
        tokens[1, 2] = 20
    labels = torch.randint(0, 20, (4,)).to("fuseline")
    x = table(tokens.to("fuseline")).mean(1)[places]
    loss = F.cross_entropy(head(x), labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step == 60:
        torch.fuseline.synchronize()
        before = torch.fuseline.counters()
    # The reads themselves are a part of what repeats.
    if step in range(64, 110, 5):
        loss.item()
        after = torch.fuseline.counters()
        assert after["compiles_asked"] == before["compiles_asked"] or step < 104, (before, after)
        before = after
    if step == 110:
        # In the backward pass too nothing is made of it but what the ops say; it is told once, at
        # the line of the forward pass.
        try:
            loss.item()
        except IndexError as error:
            assert "index_select, recorded at <string>:15" in str(error) and "the index 20 is out of range" in str(error), error
        else:
            raise AssertionError("accepted")
        loss.item()
torch.fuseline.synchronize()
print("done")
"""

COMPILED = """
import torch
import torch.nn.functional as F

@torch.compile
def score(table, index, label):
    return F.cross_entropy(table[index] @ table.t(), label)

table = torch.randn(5, 4, device="fuseline", requires_grad=True)
of = lambda *values: torch.tensor(values, device="fuseline")
for index, label, wrong in [((0, 4), (1, 2), None), ((0, 5), (1, 2), "the index 5"), ((0, 4), (1, 2), None), ((0, 4), (1, 6), "the index 6")]:
    loss = score(table, of(*index), of(*label))
    loss.backward()
    try:
        loss.item()
        table.grad.sum().item()
    except (IndexError, RuntimeError) as error:
        assert wrong is not None and wrong in str(error), error
        # The backward pass writes at the same place, and is told for itself.
        try:
            torch.fuseline.synchronize()
        except (IndexError, RuntimeError):
            pass
    else:
        assert wrong is None, wrong
assert not torch.fuseline.not_recorded(), torch.fuseline.not_recorded()
print("done")
"""


if __name__ == "__main__":
    unittest.main()
