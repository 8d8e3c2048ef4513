"""Exchange of tensors with other libraries and processes: DLPack, multiprocessing, safetensors.

A storage of the device has no address for others to use. DLPack consumers get a copy in host
memory, and ``__dlpack_device__`` says CPU. PyTorch itself gets the tensor with its storage shared,
as from any device. Another process gets the elements in shared host memory.
"""

import ctypes
import importlib.abc
import importlib.util
import sys
from multiprocessing import context

import torch
from torch.multiprocessing import reductions
from torch.overrides import has_torch_function_unary
from torch.utils import dlpack

from ._vendor import NAME

_CPU = (dlpack.DLDeviceType.kDLCPU, 0)


def _is_ours(value):
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def _from_start(tensor):
    """Returns the tensor, or a copy if it begins inside its storage, because the exported pointer
    cannot have an offset."""
    return tensor if tensor.storage_offset() == 0 else tensor.clone()


def _adapt_dlpack():
    export, device_of, take, give = torch.Tensor.__dlpack__, torch.Tensor.__dlpack_device__, dlpack.from_dlpack, dlpack.to_dlpack

    def __dlpack__(self, *, stream=-1, max_version=None, dl_device=None, copy=None, **options):
        if not has_torch_function_unary(self) and self.device.type == NAME:
            if self.requires_grad:
                raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
            if dl_device is None or tuple(dl_device) == _CPU:
                if copy is False:
                    raise BufferError(f"{NAME}: exporting a tensor of this device requires a "
                                      "copy, but copy=False forbids it")
                return export(self.resolve_conj().resolve_neg().cpu(), max_version=max_version, **options)
            return export(_from_start(self), max_version=max_version, dl_device=dl_device, copy=copy, **options)
        return export(self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy, **options)

    def __dlpack_device__(self):
        is_plain = not has_torch_function_unary(self) and self.device.type == NAME
        return _CPU if is_plain else device_of(self)

    def from_dlpack(ext_tensor, *, device=None, copy=None):
        if not _is_ours(ext_tensor) or has_torch_function_unary(ext_tensor):
            return take(ext_tensor, device=device, copy=copy)
        if ext_tensor.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        target = ext_tensor.device if device is None else torch.device(device)
        if target.type != NAME and copy is False:
            raise ValueError(f"cannot move DLPack tensor from device {NAME} to {target} without copying. Set copy=None or copy=True.")
        moved = ext_tensor.detach().to(target)
        return moved.clone() if copy and target.type == NAME else moved

    def to_dlpack(tensor):
        return give(_from_start(tensor) if _is_ours(tensor) else tensor)

    for function, plain in ((__dlpack__, export), (__dlpack_device__, device_of), (from_dlpack, take), (to_dlpack, give)):
        function.__doc__, function.__module__ = plain.__doc__, plain.__module__
    torch.Tensor.__dlpack__, torch.Tensor.__dlpack_device__ = __dlpack__, __dlpack_device__
    for module in (torch, dlpack):
        module.from_dlpack, module.to_dlpack = from_dlpack, to_dlpack
    # The wrapper lists the functions that accept it.
    read_only = getattr(dlpack, "ReadOnlyTensorWrapper", None)
    if read_only is not None:
        read_only._DLPACK_ALLOWED = read_only._DLPACK_ALLOWED | {__dlpack__, __dlpack_device__}


def _rebuild_storage(on_cpu, device):
    return on_cpu.to(device=device)


def _rebuild_storage_of_bytes(elements, device):
    on_cpu = torch.frombuffer(elements, dtype=torch.uint8).untyped_storage() if elements else torch.UntypedStorage(0)
    return on_cpu.to(device=device)


def _adapt_processes():
    """Sends storages to other processes by value. PyTorch pickles a tensor as its storage and a
    view of it, so views stay views."""
    plain = reductions.reduce_storage

    def reduce_storage(storage):
        if storage.device.type == NAME:
            on_cpu, device = storage.cpu(), torch.device(NAME)
            if context.get_spawning_popen() is not None:
                # The storage is an argument of a process. A file descriptor of shared memory would
                # be passed when the process starts, after the copy on the CPU is freed.
                elements = bytearray(ctypes.string_at(on_cpu.data_ptr(), on_cpu.nbytes()))
                return _rebuild_storage_of_bytes, (elements, device)
            return _rebuild_storage, (on_cpu, device)
        return plain(storage)

    reductions.reduce_storage = reduce_storage
    reductions.reduction.register(torch.UntypedStorage, reduce_storage)


class _Slice:
    """A slice of a file whose parts go to the device."""

    def __init__(self, of_cpu, device):
        self._of_cpu, self._device = of_cpu, device

    def __getitem__(self, index):
        return self._of_cpu[index].to(self._device)

    def __getattr__(self, name):
        return getattr(self._of_cpu, name)


class _File:
    """A safetensors file whose tensors go to the device. It delegates everything else."""

    def __init__(self, of_cpu, device):
        self._of_cpu, self._device = of_cpu, device

    def __enter__(self):
        self._of_cpu.__enter__()
        return self

    def __exit__(self, *error):
        return self._of_cpu.__exit__(*error)

    def __getattr__(self, name):
        return getattr(self._of_cpu, name)

    def get_tensor(self, name):
        return self._of_cpu.get_tensor(name).to(self._device)

    def get_tensors(self, *names):
        return {name: tensor.to(self._device) for name, tensor in self._of_cpu.get_tensors(*names).items()}

    def get_slice(self, name):
        return _Slice(self._of_cpu.get_slice(name), self._device)


def _adapt_safetensors(module):
    """Adds the device to ``safe_open``, which has a fixed list of devices."""
    plain = module.safe_open

    def safe_open(filename, framework, device="cpu", **options):
        is_named = isinstance(device, str) and device.split(":")[0] == NAME
        if framework not in ("pt", "torch", "pytorch") or not (is_named or getattr(device, "type", None) == NAME):
            return plain(filename, framework=framework, device=device, **options)
        # Reject a device that does not exist before the file is read.
        torch.empty(0, device=device)
        return _File(plain(filename, framework=framework, device="cpu", **options), torch.device(device))

    safe_open.__doc__ = plain.__doc__
    module.safe_open = safe_open


class _Finder(importlib.abc.MetaPathFinder):
    """Import hook that adapts safetensors when a program imports it."""

    def find_spec(self, name, path=None, target=None):
        if name != "safetensors":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            plain = spec.loader.exec_module

            def exec_module(module):
                plain(module)
                _adapt_safetensors(module)

            spec.loader.exec_module = exec_module
        return spec


def set_up():
    """Runs once, when the package is imported."""
    _adapt_dlpack()
    _adapt_processes()
    known = sys.modules.get("safetensors")
    if known is None:
        sys.meta_path.insert(0, _Finder())
        return
    _adapt_safetensors(known)
    if "safetensors.torch" in sys.modules:
        sys.modules["safetensors.torch"].safe_open = known.safe_open
