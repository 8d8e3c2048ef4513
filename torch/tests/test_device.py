"""What a program sees of the device: tensors, views, in-place ops, autograd, storages, random
numbers, modes, fallbacks.

Run with the package installed: ``python -m unittest discover -s torch/tests``.
"""

import copy
import gc
import io
import itertools
import os
import subprocess
import sys
import threading
import unittest

import torch

DEVICE = "fuseline"


def ours(tensor):
    return tensor.detach().clone().to(DEVICE)


class Case(unittest.TestCase):
    def same(self, found, wanted):
        torch.testing.assert_close(found.detach().cpu(), wanted.detach(), equal_nan=True)


class Lives(Case):
    def test_values_end_with_their_tensors(self):
        def round():
            x = torch.randn(8, 8).to(DEVICE).requires_grad_()
            y = (x @ x).relu()
            z = y[1:, ::2].contiguous()
            z.add_(1)[0].zero_()
            torch.cat([y, y]).sum().backward()
            parts = [z.sum().item(), x.grad.cpu(), y.detach().clone().tolist(), torch.stack([y, y]).split(1)]
            values, places = y.detach().topk(2)
            values.copy_(torch.ones(8, 2))
            storage = z.untyped_storage()
            del parts, values, places, storage

        def living():
            gc.collect()
            torch.fuseline.synchronize()
            stats = torch.fuseline.memory_stats()
            return stats["live_values"], stats["live_bytes"]

        round()
        before = living()
        for _ in range(5):
            round()
        self.assertEqual(living(), before)
        # They must stay alive to be counted.
        kept = [torch.ones(100).to(DEVICE) for _ in range(7)]
        self.assertEqual(living(), (before[0] + 7, before[1] + 2_800))
        del kept
        self.assertEqual(living(), before)


class Tensors(Case):
    def test_the_device_is_there_without_an_import(self):
        self.assertEqual(torch.ones(3, device=DEVICE).device, torch.device(DEVICE, 0))
        self.assertTrue(torch.fuseline.is_available())
        self.assertEqual(torch.accelerator.current_accelerator().type, DEVICE)

    def test_data_goes_there_and_back(self):
        for dtype in (torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
                      torch.bool, torch.float16, torch.bfloat16, torch.complex64, torch.complex128):
            for shape in ((), (0,), (3,), (2, 0, 3), (2, 3, 4)):
                data = torch.randint(0, 2, shape).to(dtype)
                there = data.to(DEVICE)
                self.assertEqual((there.dtype, there.shape, there.device.type), (dtype, data.shape, DEVICE))
                self.same(there, data)
                self.same(there.to(torch.float32), (data.real if dtype.is_complex else data).to(torch.float32))
        strided = torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1)[1:, :, ::2]
        self.same(strided.to(DEVICE), strided)

    def test_numbers_are_printed_and_read(self):
        tensor = torch.tensor([1.5, -2.0], device=DEVICE)
        self.assertEqual(repr(tensor), "tensor([ 1.5000, -2.0000], device='fuseline:0')")
        self.assertEqual((tensor[0].item(), tensor.tolist(), bool(tensor[1] < 0)), (1.5, [1.5, -2.0], True))

    def test_operands_of_two_devices_are_refused(self):
        with self.assertRaises((RuntimeError, NotImplementedError)):
            torch.ones(3, device=DEVICE) + torch.ones(3)

    def test_products_see_what_is_conjugated_by_a_mark(self):
        x = torch.randn(2, 3, dtype=torch.complex64)
        self.same(ours(x).mm(ours(x).mH), x.mm(x.mH))
        self.same(ours(x).conj().mm(ours(x).t()), x.conj().mm(x.t()))
        self.same(ours(x).conj_physical_(), x.conj())

    def test_sums_and_choices_have_their_short_ways_and_their_long_ones(self):
        x, y = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
        views = (lambda t: t, lambda t: t.transpose(0, 2), lambda t: t[:, 1:], lambda t: t.double(), lambda t: t.half(), lambda t: t.long())
        for view in views:
            there = view(ours(x))
            for dims, keeps in itertools.product((None, (), (0,), (-1, 0), (2, 1, 0)), (False, True)):
                self.same(there.sum(dims, keepdim=keeps), view(x).sum(dims, keepdim=keeps))
            self.same(there.sum(dtype=torch.float64), view(x).sum(dtype=torch.float64))
            self.same(torch.where(there < view(ours(y)), there, view(ours(y))), torch.where(view(x) < view(y), view(x), view(y)))
            self.same(torch.where(there < 0, there, 0), torch.where(view(x) < 0, view(x), 0))
        self.same(torch.tensor(3.0, device=DEVICE).sum(0, keepdim=True), torch.tensor(3.0).sum(0, keepdim=True))
        for dims in ((3,), (0, 0), (0, -3)):
            for tensor in (x, ours(x)):
                with self.assertRaises((IndexError, RuntimeError)):
                    tensor.sum(dims)

    def test_factories_make_what_they_write_to(self):
        for make in (lambda out: torch.linspace(0, 8, 5, out=out), lambda out: torch.eye(3, out=out), lambda out: torch.arange(4, out=out)):
            for dtype in (torch.int64, torch.float64):
                self.same(make(torch.empty(0, dtype=dtype, device=DEVICE)), make(torch.empty(0, dtype=dtype)))

    def test_any_byte_but_zero_is_true(self):
        flags = torch.tensor([0, 1, 7, 255], dtype=torch.uint8).view(torch.bool)
        self.assertEqual(flags.to(DEVICE).tolist(), [False, True, True, True])

    def test_there_is_one_device(self):
        with self.assertRaisesRegex(RuntimeError, "one device"):
            torch.fuseline.set_device(1)


class Views(Case):
    def both(self, change):
        """Makes the same change to a base on the CPU and the device. All aliases have to agree."""
        cpu = torch.arange(60.0).view(3, 4, 5)
        here = cpu.to(DEVICE)
        wanted, found = change(cpu), change(here)
        self.same(here, cpu)
        self.same(found, wanted)

    def test_views_alias(self):
        def slices(base):
            base[1:, ::2, 3].mul_(2)
            base.transpose(0, 2)[1].fill_(-1)
            base.view(60)[7:9] = 5
            base.permute(2, 0, 1).select(1, 2).add_(1)
            return base[:, 1]

        self.both(slices)

    def test_strides_of_any_kind(self):
        def strided(base):
            window = base.as_strided((2, 3), (7, 2), 4)
            window.add_(100)
            base.unfold(2, 3, 2)
            return base.as_strided((4, 4), (1, 1), 3) + base.unfold(2, 3, 2).sum()

        self.both(strided)

    def test_all_of_a_storage_after_a_write_to_a_part(self):
        found, wanted = torch.zeros(3, 4, device=DEVICE), torch.zeros(3, 4)
        for tensor in (found, wanted):
            tensor[:2].copy_(torch.arange(8.0).view(2, 4))
        # With sizes other than those of the write.
        row = torch.empty(12, dtype=torch.bfloat16, device=DEVICE)
        row.copy_(found.view(-1))
        self.same(row, wanted.view(-1).bfloat16())

    def test_a_view_sees_what_comes_later(self):
        base = torch.zeros(4, device=DEVICE)
        view = base[1:3]
        base += 1
        view += 1
        self.assertEqual(base.tolist(), [1, 2, 2, 1])
        self.assertTrue(view._is_view() and view.data_ptr() == base.data_ptr() + 4)

    def test_bytes_are_seen_as_other_types(self):
        data = torch.tensor([1.0, -2.0])
        here = data.to(DEVICE)
        self.same(here.view(torch.int32), data.view(torch.int32))
        here.view(torch.uint8)[3] ^= 128
        self.assertEqual(here.tolist(), [-1.0, -2.0])
        self.same(torch.view_as_complex(here), torch.view_as_complex(torch.tensor([-1.0, -2.0])))

    def test_storages_are_set_and_resized(self):
        here = torch.arange(6.0, device=DEVICE)
        other = torch.empty(0, device=DEVICE).set_(here.untyped_storage(), 1, (2, 2), (2, 1))
        self.assertEqual(other.tolist(), [[1, 2], [3, 4]])
        here.resize_(8)[6:] = 9
        self.assertEqual(here.tolist(), [0, 1, 2, 3, 4, 5, 9, 9])
        storage = here.untyped_storage()
        storage.resize_(0)
        storage.resize_(32)
        here.fill_(3)
        self.assertEqual(other[0].tolist(), [3, 3])

    def test_versions_are_counted(self):
        tensor = torch.zeros(3, device=DEVICE)
        before = tensor._version
        tensor[0].add_(1)
        self.assertEqual(tensor._version, before + 1)
        weight = torch.ones(3, device=DEVICE, requires_grad=True)
        product = (weight * tensor).sum()
        tensor.add_(1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            product.backward()


class Programs(Case):
    def test_gradients(self):
        def loss(x, w):
            y = torch.tanh(x @ w) * w.sum(0)
            return (y - y.mean()).pow(2).sum()

        torch.manual_seed(0)
        x, w = torch.randn(4, 3), torch.randn(3, 5)
        grads = []
        for device in ("cpu", DEVICE):
            args = [t.to(device).requires_grad_() for t in (x, w)]
            grads.append(torch.autograd.grad(loss(*args), args))
        for wanted, found in zip(*grads):
            self.same(found, wanted)

    def test_a_network_learns_as_on_the_cpu(self):
        losses = {}
        for device in ("cpu", DEVICE):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
            x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
            model, x, y = model.to(device), x.to(device), y.to(device)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            losses[device] = []
            for _ in range(5):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses[device].append(loss.item())
        torch.testing.assert_close(losses[DEVICE], losses["cpu"], rtol=1e-4, atol=1e-4)
        self.assertLess(losses[DEVICE][-1], losses[DEVICE][0])

    def test_modules_are_saved_loaded_and_copied(self):
        model = torch.nn.Linear(3, 2).to(DEVICE)
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        for place in (DEVICE, "cpu"):
            file.seek(0)
            state = torch.load(file, map_location=place)
            self.assertEqual(state["weight"].device.type, place)
            self.same(state["weight"], model.weight.cpu())
        twin = copy.deepcopy(model)
        with torch.no_grad():
            twin.weight.zero_()
        self.assertTrue(model.weight.abs().sum().item() > 0)

    def test_shared_weights_stay_shared(self):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        model[1].weight = model[0].weight
        weight = model[0].weight
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for device in (DEVICE, "cpu", DEVICE):
            model.to(device)
            self.assertIs(model[0].weight, weight)
            self.assertIs(model[1].weight, weight)
            self.assertEqual((weight.device.type, weight.is_leaf, weight.requires_grad), (device, True, True))
        before = weight.detach().cpu()
        out = model(torch.ones(1, 4, device=DEVICE)).sum()
        out.backward()
        self.assertEqual(weight.grad.device.type, DEVICE)
        optimizer.step()
        self.assertTrue((weight.detach().cpu() != before).any())
        # A graph that refers to the weights is no obstacle, and gradients move along.
        model.cpu()
        self.assertEqual((weight.device.type, weight.grad.device.type), ("cpu", "cpu"))
        model(torch.ones(1, 4)).sum().backward()
        self.assertFalse(out.grad_fn is None)

    def test_threads_share_the_stream(self):
        results = [None] * 4

        def work(place):
            x = torch.full((8,), float(place), device=DEVICE)
            for _ in range(50):
                x = x + 1
            results[place] = x.tolist()

        threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        self.assertEqual(results, [[place + 50.0] * 8 for place in range(4)])


class Device(Case):
    def test_random_numbers_follow_the_seed(self):
        def draw():
            return torch.rand(5, device=DEVICE).tolist(), torch.randn(5, device=DEVICE).tolist()

        torch.manual_seed(7)
        first, state = draw(), torch.fuseline.get_rng_state()
        second = draw()
        self.assertNotEqual(first, second)
        torch.fuseline.set_rng_state(state)
        self.assertEqual(draw(), second)
        torch.manual_seed(7)
        self.assertEqual(draw(), first)
        generator = torch.Generator(device=DEVICE)
        generator.manual_seed(7)
        own = torch.rand(5, device=DEVICE, generator=generator)
        generator.manual_seed(7)
        self.same(torch.rand(5, device=DEVICE, generator=generator), own.cpu())

    def test_random_numbers_are_spread_as_they_should_be(self):
        torch.manual_seed(11)
        normal = torch.randn(100_000, device=DEVICE).cpu()
        # Five standard errors each.
        self.assertLess(normal.mean().abs().item(), 5 / 316)
        self.assertLess((normal.var() - 1).abs().item(), 5 * 2**0.5 / 316)
        self.assertLess(((normal**4).mean() - 3).abs().item(), 5 * 96**0.5 / 316)
        unit = torch.rand(100_000, device=DEVICE).cpu()
        self.assertTrue(0 <= unit.min().item() and unit.max().item() < 1)
        bins = torch.histc(unit, 20, 0, 1)
        # Chi-square of 19 degrees of freedom: above 43.8 once in a thousand seeds.
        self.assertLess(((bins - 5000) ** 2 / 5000).sum().item(), 43.8)
        once, again = (torch.rand(1000, device=DEVICE).cpu() for _ in range(2))
        self.assertLess(torch.corrcoef(torch.stack([once, again]))[0, 1].abs().item(), 0.16)

    def test_attention(self):
        """Attention as one op and as PyTorch's composition of ops, with gradients, against double
        precision."""
        torch.manual_seed(2)
        shapes = (2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7)
        keep = torch.rand(2, 1, 5, 6) > 0.3
        keep[0, 0, 1] = False
        given = {
            "plain": {}, "causal": {"is_causal": True}, "scale": {"scale": 0.7}, "truth values": {"attn_mask": keep},
            "numbers": {"attn_mask": torch.randn(5, 6)}, "gradient": {"attn_mask": torch.randn(2, 1, 5, 6).requires_grad_()},
        }
        for name, options in given.items():
            with self.subTest(name):
                results = []
                tensors = [torch.randn(shape) for shape in shapes] + [torch.randn(2, 3, 5, 7)]
                for device, dtype in (("cpu", torch.float64), (DEVICE, torch.float32)):
                    q, k, v, seed = (tensor.to(device, dtype) for tensor in tensors)
                    leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
                    own = {
                        key: value.to(device, None if value.dtype == torch.bool else dtype) if torch.is_tensor(value) else value
                        for key, value in options.items()
                    }
                    out = torch.nn.functional.scaled_dot_product_attention(*leaves, **own)
                    results.append([out, *torch.autograd.grad((out * seed).sum(), leaves)])
                for ours, theirs in zip(results[1], results[0]):
                    torch.testing.assert_close(ours.cpu(), theirs.float(), rtol=1e-4, atol=1e-5)

    def test_convolutions_with_few_positions(self):
        """Convolutions computed as matrix products: the kernel has more features than positions."""
        F = torch.nn.functional
        for side, kernel, stride, padding, dilation in itertools.product((1, 2, 3, 5), (1, 2, 3), (1, 2), (0, 1, 2), (1, 2)):
            if side + 2 * padding < (kernel - 1) * dilation + 1:
                continue
            with self.subTest(side=side, kernel=kernel, stride=stride, padding=padding, dilation=dilation):
                x, weight = torch.randn(2, 3, side, side, requires_grad=True), torch.randn(60, 3, kernel, kernel, requires_grad=True)
                y = F.conv2d(x, weight, None, stride, padding, dilation)
                seed = torch.randn_like(y)
                wanted = [y, *torch.autograd.grad(y, (x, weight), seed)]
                there = [tensor.detach().to(DEVICE).requires_grad_() for tensor in (x, weight)]
                y = F.conv2d(*there, None, stride, padding, dilation)
                for ours, theirs in zip([y, *torch.autograd.grad(y, there, seed.to(DEVICE))], wanted):
                    torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4)

    def test_modes(self):
        self.assertEqual(torch.fuseline.get_mode(), "fused")
        for name in ("strict", "debug", "fused"):
            with torch.fuseline.mode(name):
                self.assertEqual(torch.fuseline.get_mode(), name)
                x = torch.ones(3, device=DEVICE)
                self.assertEqual((x * 2 + 1).tolist(), [3, 3, 3])
        self.assertEqual(torch.fuseline.get_mode(), "fused")
        with self.assertRaises(ValueError):
            torch.fuseline.mode("eager")

    def test_fallbacks_are_counted_and_can_be_errors(self):
        x = torch.eye(3, device=DEVICE)
        before = torch.fuseline.fallbacks()
        self.same(torch.linalg.eigvals(x), torch.ones(3, dtype=torch.complex64))
        self.assertNotEqual(torch.fuseline.fallbacks(), before)
        torch.fuseline.set_fallback(False)
        try:
            with self.assertRaisesRegex(RuntimeError, "fallbacks to the CPU are off"):
                torch.linalg.eigvals(x)
        finally:
            torch.fuseline.set_fallback(True)

    def test_a_steady_loop_compiles_nothing(self):
        w, x = torch.ones(16, 16, device=DEVICE), torch.randn(8, 16).to(DEVICE)
        for step in range(12):
            if step == 8:
                torch.fuseline.synchronize()
                before = torch.fuseline.counters()
            w = w - 0.01 * step * (x.t() @ torch.tanh(x @ w))
            torch.fuseline.flush()
        torch.fuseline.synchronize()
        after = torch.fuseline.counters()
        self.assertEqual(after["compiles_asked"], before["compiles_asked"])
        self.assertEqual(after["fallbacks"], before["fallbacks"])

    def test_the_module_may_come_before_torch(self):
        line = "import torch_fuseline, torch; print(torch.ones(2, device='fuseline').sum().item())"
        found = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, env=os.environ)
        self.assertEqual((found.returncode, found.stdout.strip()), (0, "2.0"), found.stderr)


if __name__ == "__main__":
    unittest.main()
