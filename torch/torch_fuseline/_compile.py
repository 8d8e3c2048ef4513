"""``torch.compile`` on the device: a graph is one op of the engine, and one executable.

Dynamo and AOTAutograd turn a program into functional FX graphs, forward and backward. Each graph
runs once on placeholders, through the kernels of eager ops. What they record becomes the graph
(``csrc/graph.cpp``), so there is no second lowering. A call of the graph records one op between
flushes, at its place in program order: eager code before it is computed before it.

Varying sizes: Dynamo makes one graph with symbols for the sizes and does not trace Python again.
The graph is recorded once for each combination of sizes. A call then records its ops one by one
instead of as one op, so that sizes share executables through the engine's buckets, as in eager
code.

Some graphs are not recorded, and their ops run one by one; ``explain()`` says why. These are graphs
that need data while they are recorded (``item()``, an op that the CPU computes) and graphs that
repeat random numbers of the forward pass (activation checkpointing), because a recorded graph draws
new ones. In the modes strict and debug, every graph runs op by op.
"""

import functools
import threading
import warnings
import weakref

import torch

from . import get_mode, flush
from ._random import get_rng_state, set_rng_state
from ._vendor import NAME

_ops = torch.ops.fuseline
# Graphs that run op by op, by name, with the reason.
apart: dict[str, str] = {}
_numbers = {}
_lock = threading.Lock()
_TENSOR, _NONE, _BOOL, _INT = range(4)


class _Graph:
    """A graph as a function of a list of inputs. It empties the list, so that inputs without other
    owners are released before the graph runs."""

    def __init__(self, module, inputs, name):
        with _lock:
            number = _numbers[name] = _numbers.get(name, -1) + 1
        self.name = f"{name}_{number}"
        self._module = _fit(module)
        self._is_recorded = not _returns_cpu(module)
        if not self._is_recorded:
            apart[self.name] = "it returns a CPU tensor"
        if _draws_again(module):
            self._is_recorded = False
            apart[self.name] = "the backward pass repeats random numbers of the forward pass"
        # The name is part of the executable's key. It is the same for all graphs, so that another
        # process finds the same graph in the cache.
        self._id = _ops.graph_new(f"torch.{name}", _has_symbols(inputs))
        weakref.finalize(self, _ops.graph_forget, self._id)
        self._shape = {}

    def __call__(self, inputs):
        if not self._is_recorded or get_mode() != "fused":
            return self._run(inputs)
        tensors, numbers = [], []
        # Each input adds its kind, and a number adds its value: inputs that differ in anything but
        # tensors get other keys.
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
                return self._give_up(inputs, f"an input has the unsupported type {type(value).__name__}")
        found, made = _ops.graph_call(self._id, tensors, numbers)
        if not found:
            why = self._record(inputs, tensors, numbers)
            if why is not None:
                return self._give_up(inputs, why)
            found, made = _ops.graph_call(self._id, tensors, numbers)
            if not found:
                return self._give_up(inputs, "bug: the recorded graph was not found")
        shape = self._shape[tuple(numbers)]
        # This frame must hold no input when the flush ends the region.
        inputs.clear()
        tensors = value = None
        flush()
        made = iter(made)
        return [next(made) if is_tensor else constant for is_tensor, constant in shape]

    def _record(self, inputs, tensors, numbers):
        """Records the graph for these inputs. Returns ``None``, or why it cannot be recorded."""
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
    """Returns the tensor with the strides that it had when the graph was made."""
    if tensor.stride() == tuple(stride):
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _fit(module):
    """Makes a graph independent of the strides of results. This device always uses row-major
    strides; other devices may follow an operand's."""
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
    """Whether the graph returns a tensor of the CPU. For CPU tensors inside of the graph it makes
    no difference which device computes them."""
    values = [node.meta.get("val") for node in module.graph.find_nodes(op="output")[0].all_input_nodes]
    return any(isinstance(value, torch.Tensor) and value.device.type == "cpu" for value in values)


def _random_ops():
    """PyTorch's two ops that run another op: one also returns the generator's state, the other
    starts from such a state."""
    from torch._prims import rng_prims

    return rng_prims.run_and_save_rng_state, rng_prims.run_with_rng_state


def _draws_again(module):
    ops = _random_ops()
    return any(node.target in ops for node in module.graph.nodes)


def _run_and_save(op, *args, **kwargs):
    return get_rng_state(), op(*args, **kwargs)


def _run_with(state, op, *args, **kwargs):
    now = get_rng_state()
    set_rng_state(state)
    try:
        return op(*args, **kwargs)
    finally:
        set_rng_state(now)


@functools.cache
def _take_random_ops():
    """Makes these ops support the device. They dispatch on a fixed list of devices, and tracing
    calls their implementations directly."""
    from torch._higher_order_ops.utils import registered_hop_fake_fns
    from torch._prims.rng_prims import get_device
    from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, track_tensor_tree
    from torch.utils import _pytree as pytree

    def is_ours(args, kwargs):
        return get_device(args, kwargs) == NAME

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

        # PyTorch wraps the result and keeps attributes of plain functions only.
        def call(inputs):
            return graph(inputs)

        call._boxed_call = True
        return call

    return compile_graph


def backend(module, example_inputs, **options):
    """The backend ``fuseline`` of ``torch.compile``. The default backend also uses it for graphs
    with tensors of this device."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    if options.get("options"):
        warnings.warn(f"torch.compile: the backend {NAME} does not have these options: "
                      f"{', '.join(options['options'])}", stacklevel=2)
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
    """Whether a graph uses this device, in its inputs or in tensors that it creates."""

    def is_on_device(value):
        return isinstance(value, torch.Tensor) and value.device.type == NAME

    if any(is_on_device(value) for value in inputs):
        return True
    return any(is_on_device(node.meta.get("example_value")) for node in module.graph.nodes)


def take_default_backend():
    """Makes the default backend of ``torch.compile``, which does not support this device, pass
    graphs with tensors of the device to :func:`backend`."""
    wrapper = torch._TorchCompileInductorWrapper
    plain = wrapper.__call__

    @functools.wraps(plain)
    def __call__(self, model_, inputs_, **kwargs):
        if isinstance(model_, torch.fx.GraphModule) and _is_ours(model_, inputs_):
            return backend(model_, inputs_)
        return plain(self, model_, inputs_, **kwargs)

    wrapper.__call__ = __call__
