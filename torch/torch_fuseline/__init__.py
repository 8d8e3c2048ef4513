"""PyTorch's device ``fuseline``: eager ops are recorded, fused, compiled by XLA and run on a PJRT
device.

Importing this module registers the device as ``torch.fuseline``, or under the name that a vendor's
package gives it (``_vendor.py``). The entry point ``torch.backends`` imports the installed package
with ``import torch``, so ``torch.ones(3, device="fuseline")`` needs no further import.
"""

import ctypes
import functools
import importlib.util
import os
import pathlib
import sys

# With the entry point installed, ``import torch`` would import this module again before it is
# initialized.
_autoload = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
if "torch" not in sys.modules:
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch  # noqa: E402

if _autoload is None:
    os.environ.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
else:
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = _autoload

# Unless this is set before they are loaded, XLA's plugins log every client on standard error.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

from _fuseline_command import tool_path as _tool_path  # noqa: E402

from . import _device_checks, _ending, _exchange, _random, _sites, _vendor  # noqa: E402
from ._library import check as _check, message as _message, shim as _shim, text as _text, warn as _warn  # noqa: E402
from ._custom import custom_op  # noqa: E402, F401
from ._devices import (  # noqa: E402, F401
    Properties,
    _exchange_device,
    _initialized,
    _is_in_bad_fork,
    _lazy_call,
    _lazy_init,
    _maybe_exchange_device,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    exchange_device,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_current_stream_capturing,
    is_initialized,
    maybe_exchange_device,
    set_device,
    synchronize,
)
from ._memory import (  # noqa: E402, F401
    empty_cache,
    ipc_collect,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_peak_memory_stats,
)
from ._random import (  # noqa: E402, F401
    _get_generator,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from ._replicas import per_replica, replica_count, replica_group, replica_index, shard, unshard  # noqa: E402, F401
from ._report import cache_stats, profile, warm_cache  # noqa: E402, F401
from ._sites import call_sites  # noqa: E402, F401
from ._streams import Event, Stream, current_stream, default_stream, set_stream, stream  # noqa: E402, F401
from ._vendor import NAME  # noqa: E402

_MODES = ("fused", "strict", "debug")

#: Packages with XLA's CPU backend and the place of the plugin in them, in order of preference.
_CPU_PLUGINS = (
    ("fastatomstruct_xla_cpu", "*.so"),
    ("xla_plugins", "xla_cpu_pjrt/*.so"),
    ("lammps_jax_pjrt_cpu", "*.so"),
)


@functools.cache
def plugin_path():
    """Returns the path of the vendor's plugin, or of the preferred CPU plugin that is installed
    as a package, or ``None``."""
    if _vendor.vendor is not None:
        return _vendor.plugin()
    for package, pattern in _CPU_PLUGINS:
        spec = importlib.util.find_spec(package)
        for folder in spec.submodule_search_locations if spec else ():
            for path in sorted(pathlib.Path(folder).glob(pattern)):
                return str(path)
    return None


def _rows(text):
    """Splits each line into a name, a number and the rest."""
    return [(line + " ").split(" ", 2) for line in text.splitlines()]


def _table(text):
    return {name: int(number) for name, number, _ in _rows(text)}


def flush():
    """Starts everything that was recorded, without waiting for it."""
    _check(_shim.flt_flush())


def get_mode():
    """Returns how ops run: ``fused``, ``strict`` (each op has its own executable) or ``debug`` (the
    caller waits for each op, and its result is checked)."""
    mode = ctypes.c_uint32()
    _check(_shim.flt_mode(ctypes.byref(mode)))
    return _MODES[mode.value]


class mode:
    """Sets how ops run. As a context manager (``with torch.fuseline.mode("debug"): ...``) it
    restores the previous mode at the end."""

    def __init__(self, name):
        if name not in _MODES:
            raise ValueError(f"the mode must be one of {', '.join(_MODES)}, not {name!r}")
        self._before = get_mode()
        _check(_shim.flt_set_mode(_MODES.index(name)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        _check(_shim.flt_set_mode(_MODES.index(self._before)))


def configure(**options):
    """Sets options of the engine. Call it before the first op of the process.

    - ``interpret_cold=False``: a new region is compiled before it runs. By default the interpreter
      runs it until its executable is ready. With this option, nothing compiles in the background.
    - ``cache``: ``"off"``, or the folder of the disk cache.
    - ``cache_only=True``: a cache miss is an error that says what differs.
    - ``manifest=FILE``: regions are written to a manifest for ``fuseline cache warm``.
    - ``numerics="exact"``: results have the bits that they have op by op.
    - ``check_finite=True``: in debug mode a NaN or an infinity is an error.
    - ``check_indices=False``: an index, label or probability out of range is an error in debug mode
      only. By default it is an error in every mode, at the next read.
    - ``shape_classes``: which regions are padded when a size varies: ``"off"``, ``"unmasked"`` (the
      default) or ``"masked"``.
    - ``size_buckets``: the sizes that they are padded to: ``"halves"``, ``"powers"`` or a number.
    - ``client_options``: options of the plugin's client, as a dict.
    - ``qualifier=PROGRAM``: the command-line tool that qualifies a plugin without a certificate, in
      the background; by default the one in this package.
    - ``replicas=N``: the device consists of N XLA devices that run one program (:func:`shard`,
      :func:`replica_group`).

    Environment variables such as ``FUSELINE_TORCH_INTERPRET_COLD`` set the same options.
    """
    for name, value in options.items():
        if name != "client_options":
            _check(_shim.flt_configure(*_text(name), *_text(str(value))))
            continue
        for option, given in value.items():
            words = " ".join(map(str, given)) if isinstance(given, (list, tuple)) else str(given)
            kind = "list" if isinstance(given, tuple) else type(given).__name__
            _check(_shim.flt_configure(*_text(f"client.{option}"), *_text(f"{kind} {words}")))


def explain():
    """Explains why ops were slow: what was compiled and why it was not in a cache, what failed, and
    what the CPU computed and why."""
    _check(_shim.flt_explain())
    lines = _message().splitlines()
    whys = why_fallbacks()
    lines += [f"the CPU computed {name} {number} times: {whys[name]}" for name, number in fallbacks().items()]
    lines += [f"{name} was decomposed in Python {number} times" for name, number in decompositions().items()]
    lines += [f"torch.compile: the ops of {name} run one by one: {why}" for name, why in not_recorded().items()]
    return "\n".join(lines)


def clear_cache():
    """Drops the executables in memory. The disk cache stays (``fuseline cache prune`` empties
    it)."""
    _check(_shim.flt_clear_cache())


def counters():
    """Returns the engine's counters by name; ``fallbacks`` counts the calls that the CPU
    computed."""
    _check(_shim.flt_counters())
    text = _message()
    _warn()
    table = _table(text)
    table["engine_fallbacks"] = table.pop("fallbacks", 0)
    table["fallbacks"] = sum(fallbacks().values())
    return table


def fallbacks():
    """Returns how often the CPU computed calls that have no kernel for this device, by overload."""
    return _table(_shim.fuseline_torch_fallbacks().decode())


def why_fallbacks():
    """Returns, for each of these overloads, what the device had no kernel for at its latest
    call."""
    return {name: why.strip() for name, _, why in _rows(_shim.fuseline_torch_fallbacks().decode())}


def decompositions():
    """Returns how often PyTorch's Python decompositions replaced calls that have no kernel for this
    device, by overload."""
    return _table(_shim.fuseline_torch_decomposed().decode())


def compile_backend(module, example_inputs, **options):
    """The backend of ``torch.compile`` for this device, for entry points of vendors."""
    from . import _compile

    return _compile.backend(module, example_inputs, **options)


def mark_dynamic(tensor, dim):
    """Declares that the size of one or several dimensions varies, so that a graph of
    ``torch.compile`` has a symbol for it from the first call on.

    Eager code does not need this: regions that recur with other sizes share executables through the
    engine's buckets (``configure(shape_classes=..)``).
    """
    torch._dynamo.mark_dynamic(tensor, dim)


def not_recorded():
    """Returns the graphs of ``torch.compile`` whose ops run one by one, with the reason, such as
    that recording the graph would need data."""
    from . import _compile

    return dict(_compile.apart)


def set_fallback(allowed):
    """Sets whether the CPU may compute calls that have no kernel. If it may not, they are errors.
    By default it may."""
    _shim.fuseline_torch_set_fallback(int(bool(allowed)))


def _crosses(module, convert):
    """Whether a conversion of a module moves parameters to or from this device."""
    try:
        with torch.no_grad():
            there = convert(torch.empty(0)).device.type == NAME
    except Exception:
        return False
    return any((parameter.device.type == NAME) != there for parameter in module.parameters())


def _move(module, convert):
    """Does what ``module._apply`` does, but replaces the data of parameters in place, as PyTorch
    does between the devices that it lists."""
    for child in module.children():
        _move(child, convert)
    for parameter in module._parameters.values():
        if parameter is None:
            continue
        with torch.no_grad():
            torch.ops.fuseline.set_data(parameter, convert(parameter))
            if parameter.grad is not None:
                grad, needs_grad = parameter.grad, parameter.grad.requires_grad
                torch.ops.fuseline.set_data(grad, convert(grad).requires_grad_(needs_grad))
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = convert(buffer)
    return module


def _keep_parameters():
    """Makes ``module.to`` move parameters in place, as on CUDA.

    For devices that PyTorch does not list, it makes new parameters. Weights that two layers share
    would then become two weights with half of the gradient each, and an optimizer that was made
    before would train parameters that no layer uses.
    """
    plain = torch.nn.Module._apply

    def _apply(self, fn, recurse=True):
        future = torch.__future__
        is_asked_otherwise = (
            future.get_swap_module_params_on_conversion() or future.get_overwrite_module_params_on_conversion()
        )
        # Functions of other packages may rely on being called, and subclasses of tensors override
        # this.
        is_torchs = getattr(fn, "__module__", None) == "torch.nn.modules.module"
        is_plain = all(type(parameter) is torch.nn.Parameter for parameter in self.parameters())
        if is_asked_otherwise or not recurse or not is_torchs or not is_plain or not _crosses(self, fn):
            return plain(self, fn, recurse)
        return _move(self, fn)

    torch.nn.Module._apply = _apply


def _register():
    vendor = _vendor.load()
    _vendor.check_name(torch)
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_storage=True)
    is_chosen = any(os.environ.get(name) for name in ("FUSELINE_TORCH_DEVICE", "FUSELINE_PJRT_PLUGIN"))
    plugin = None if is_chosen else plugin_path()
    if plugin is not None:
        _shim.flt_set_plugin(*_text(plugin))
    tool = _tool_path()
    if tool is not None:
        configure(qualifier=tool)
    if vendor is not None:
        configure(client_options=vendor.client_options, **vendor.options)
    for name in ("interpret_cold", "cache_only", "check_finite", "check_indices", "manifest", "numerics", "replicas", "shape_classes", "size_buckets"):
        value = os.environ.get(f"FUSELINE_TORCH_{name.upper()}")
        if value is not None:
            configure(**{name: value})
    wrong = _shim.fuseline_torch_init()
    if wrong is not None:
        raise ImportError(wrong.decode())
    from . import _compile, _decompositions, _distributed  # noqa: F401

    globals()["default_generators"] = _random.set_up()
    _exchange.set_up()
    _device_checks.set_up()
    # Handlers run in reverse order of registration, so call sites are turned off before the rest
    # ends.
    _ending.set_up()
    _sites.set_up()

    _distributed.register()
    _keep_parameters()
    _compile.take_default_backend()


_register()


def _autoload_entry():
    """The entry point that PyTorch calls. The import has already done the work."""
