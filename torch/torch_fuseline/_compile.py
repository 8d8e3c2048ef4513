"""``torch.compile`` on the device: a graph is one op of the engine, and one executable.

Dynamo and AOTAutograd make functional FX graphs of a program, forward and backward. Each is run
once through the kernels that eager ops run through, on placeholders; what they record is the graph
(``csrc/graph.cpp``), and there is no second lowering. A call of it records one op between flushes,
at its place in the program's order: what eager code before it computes is computed before.

Sizes that vary: Dynamo makes a graph whose sizes are symbols, and Python is not traced again. Its
ops are recorded once for each combination of sizes, and written out at a call instead of standing
in one op, so that sizes share executables by the engine's buckets as they do in eager code.

A graph that needs data while it is recorded (``item()``, an op that the CPU computes) is not
recorded: its ops run one by one, and ``explain()`` says why. Nor is one that draws random numbers
of the forward pass again (activation checkpointing): what is recorded draws anew. So they do in the
modes strict and debug, which are about single ops.
"""

import functools
import threading
import warnings
import weakref

import torch

from . import get_mode, flush

_ops = torch.ops.fuseline
# Graphs by name that run op by op, with the reason.
apart: dict[str, str] = {}
_numbers = {}
_lock = threading.Lock()
_TENSOR, _NONE, _BOOL, _INT = range(4)


class _Graph:
    """A graph as a function of its inputs in a list, which it empties, so that what nobody else
    holds is gone when it runs."""

    def __init__(self, module, inputs, name):
        with _lock:
            number = _numbers[name] = _numbers.get(name, -1) + 1
        self.name = f"{name}_{number}"
        self._module = _fit(module)
        self._is_recorded = not _returns_cpu(module)
        if not self._is_recorded:
            apart[self.name] = "it returns a tensor of the CPU"
        if _draws_again(module):
            self._is_recorded = False
            apart[self.name] = "random numbers of the forward pass are drawn once more in the backward pass"
        # The name is part of the executable's key: the same for all graphs, so that the same graph
        # is the same program in another process.
        self._id = _ops.graph_new(f"torch.{name}", _has_symbols(inputs))
        weakref.finalize(self, _ops.graph_forget, self._id)
        self._shape = {}

    def __call__(self, inputs):
        if not self._is_recorded or get_mode() != "fused":
            return self._run(inputs)
        tensors, numbers = [], []
        # What kind each input is, and then the number: a list of inputs that differs in what is no
        # tensor has other numbers.
        for value in inputs:
            if isinstance(value, torch.Tensor):
                tensors.append(value)
                numbers.append(_TENSOR)
            elif isinstance(value, bool):
                numbers += [_BOOL, int(value)]
            elif isinstance(value, int):
                numbers += [_INT, value]
            elif value is None:
                numbers.append(_NONE)
            else:
                return self._give_up(inputs, f"an input is {type(value).__name__}")
        found, made = _ops.graph_call(self._id, tensors, numbers)
        if not found:
            why = self._record(inputs, tensors, numbers)
            if why is not None:
                return self._give_up(inputs, why)
            found, made = _ops.graph_call(self._id, tensors, numbers)
            if not found:
                return self._give_up(inputs, "bug: what was recorded is not found")
        shape = self._shape[tuple(numbers)]
        # Nothing here holds an input any more when the region ends.
        inputs.clear()
        tensors = value = None
        flush()
        made = iter(made)
        return [next(made) if is_tensor else constant for is_tensor, constant in shape]

    def _record(self, inputs, tensors, numbers):
        """Records the graph for such inputs; returns why it cannot be."""
        try:
            with torch.no_grad():
                placeholders = iter(_ops.graph_begin(self._id, tensors, numbers))
                arguments = [next(placeholders) if isinstance(value, torch.Tensor) else value for value in inputs]
                results = self._module(*arguments)
                results = list(results) if isinstance(results, (list, tuple)) else [results]
                _ops.graph_end([value for value in results if isinstance(value, torch.Tensor)])
        except BaseException as error:
            _ops.graph_abort()
            if not isinstance(error, Exception):
                raise
            return str(error).splitlines()[0] if str(error) else type(error).__name__
        is_tensor = [isinstance(value, torch.Tensor) for value in results]
        self._shape[tuple(numbers)] = [(tensor, None if tensor else value) for tensor, value in zip(is_tensor, results)]
        return None

    def _give_up(self, inputs, why):
        self._is_recorded = False
        apart[self.name] = why
        return self._run(inputs)

    def _run(self, inputs):
        arguments = list(inputs)
        inputs.clear()
        return self._module(*arguments)


def _laid_out(tensor, stride):
    """The tensor with these strides, which are those that it had when the graph was made."""
    if tensor.stride() == tuple(stride):
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _fit(module):
    """Has a graph not rely on strides of results, which on this device are those of row-major order
    and on others may follow an operand's."""
    aten = torch.ops.aten
    for node in module.graph.nodes:
        if node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default
        elif node.target is aten.as_strided.default and isinstance(node.args[0].meta.get("val"), torch.Tensor):
            with module.graph.inserting_before(node):
                laid_out = module.graph.call_function(_laid_out, (node.args[0], tuple(node.args[0].meta["val"].stride())))
            node.args = (laid_out, *node.args[1:])
    module.recompile()
    return module


def _returns_cpu(module):
    """Whether the CPU has a part in a graph that others see: what it computes in between may as
    well be computed by the device."""
    values = [node.meta.get("val") for node in module.graph.find_nodes(op="output")[0].all_input_nodes]
    return any(isinstance(value, torch.Tensor) and value.device.type == "cpu" for value in values)


def _random_ops():
    """PyTorch's ops that run another one and keep the generator's state, and that run it from such
    a state."""
    from torch._prims import rng_prims

    return rng_prims.run_and_save_rng_state, rng_prims.run_with_rng_state


def _draws_again(module):
    ops = _random_ops()
    return any(node.target in ops for node in module.graph.nodes)


def _run_and_save(op, *args, **kwargs):
    return torch.fuseline.get_rng_state(), op(*args, **kwargs)


def _run_with(state, op, *args, **kwargs):
    now = torch.fuseline.get_rng_state()
    torch.fuseline.set_rng_state(state)
    try:
        return op(*args, **kwargs)
    finally:
        torch.fuseline.set_rng_state(now)


@functools.cache
def _take_random_ops():
    """Has these ops know the device. They choose by a list of their own, and while graphs are made
    call that directly."""
    from torch._higher_order_ops.utils import registered_hop_fake_fns
    from torch._prims.rng_prims import get_device
    from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, track_tensor_tree
    from torch.utils import _pytree as pytree

    def is_ours(args, kwargs):
        return get_device(args, kwargs) == "fuseline"

    save, again = _random_ops()
    plain_save, plain_again = (op.py_kernels[torch._C.DispatchKey.BackendSelect] for op in (save, again))
    plain_fake, plain_proxy = registered_hop_fake_fns[save], save.python_key_table[ProxyTorchDispatchMode]

    def select_save(op, *args, **kwargs):
        return (_run_and_save if is_ours(args, kwargs) else plain_save)(op, *args, **kwargs)

    def select_again(state, op, *args, **kwargs):
        return (_run_with if is_ours(args, kwargs) else plain_again)(state, op, *args, **kwargs)

    def fake_save(op, *args, **kwargs):
        return (_run_and_save if is_ours(args, kwargs) else plain_fake)(op, *args, **kwargs)

    def proxy_save(mode, op, *args, **kwargs):
        if not is_ours(args, kwargs):
            return plain_proxy(mode, op, *args, **kwargs)
        out = _run_and_save(op, *args, **kwargs)
        args, kwargs = (pytree.tree_map(mode.tracer.unwrap_proxy, given) for given in ((op, *args), kwargs))
        proxy = mode.tracer.create_proxy("call_function", save, args, kwargs)
        return track_tensor_tree(out, proxy, constant=None, tracer=mode.tracer)

    save.py_kernels[torch._C.DispatchKey.BackendSelect] = select_save
    again.py_kernels[torch._C.DispatchKey.BackendSelect] = select_again
    registered_hop_fake_fns[save], save.python_key_table[ProxyTorchDispatchMode] = fake_save, proxy_save
    for op in (save, again):
        op._dispatch_cache.clear()


def _has_symbols(inputs):
    def is_symbolic(value):
        if isinstance(value, torch.Tensor):
            return any(isinstance(size, torch.SymInt) for size in (*value.shape, *value.stride()))
        return isinstance(value, torch.SymInt)

    return any(is_symbolic(value) for value in inputs)


def _compiler(name):
    def compile_graph(module, inputs):
        graph = _Graph(module, inputs, name)

        # PyTorch wraps what it gets, and keeps the attributes of functions only.
        def call(inputs):
            return graph(inputs)

        call._boxed_call = True
        return call

    return compile_graph


def backend(module, example_inputs, **options):
    """The backend ``fuseline`` of ``torch.compile``, which is also what its default backend is for
    graphs with tensors of this device."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    if options.get("options"):
        warnings.warn(f"torch.compile: the device fuseline has no such options: {', '.join(options['options'])}", stacklevel=2)
    _take_random_ops()
    make = aot_autograd(
        fw_compiler=_compiler("forward"),
        bw_compiler=_compiler("backward"),
        inference_compiler=_compiler("inference"),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    return make(module, example_inputs)


def _is_ours(module, inputs):
    """Whether a graph has to do with this device: by its inputs, or by what it makes."""

    def is_on_device(value):
        return isinstance(value, torch.Tensor) and value.device.type == "fuseline"

    if any(is_on_device(value) for value in inputs):
        return True
    return any(is_on_device(node.meta.get("example_value")) for node in module.graph.nodes)


def take_default_backend():
    """Has the default backend of ``torch.compile``, which knows no such device, give graphs with
    tensors of this device to :func:`backend`."""
    wrapper = torch._TorchCompileInductorWrapper
    plain = wrapper.__call__

    @functools.wraps(plain)
    def __call__(self, model_, inputs_, **kwargs):
        if isinstance(model_, torch.fx.GraphModule) and _is_ours(model_, inputs_):
            return backend(model_, inputs_)
        return plain(self, model_, inputs_, **kwargs)

    wrapper.__call__ = __call__
