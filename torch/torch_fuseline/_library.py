"""Binds the shim (torch/csrc), and through it the engine, with ctypes."""

import ctypes
import pathlib
import warnings

import torch

from ._vendor import NAME

SIZE, TEXT = ctypes.c_size_t, ctypes.c_char_p
#: Result and argument types of each function. Call those that return a status through
#: :func:`check`.
FUNCTIONS = {
    "fuseline_torch_init": (TEXT, []),
    "fuseline_torch_fallbacks": (TEXT, []),
    "fuseline_torch_decomposed": (TEXT, []),
    "fuseline_torch_set_fallback": (None, [ctypes.c_int]),
    "fuseline_torch_settle": (None, [ctypes.c_int]),
    "fuseline_torch_synchronize": (ctypes.c_int, []),
    "fuseline_torch_sites_init": (None, [ctypes.POINTER(ctypes.c_void_p), TEXT]),
    "fuseline_torch_sites_way": (None, [ctypes.c_int]),
    "fuseline_torch_sites_want": (ctypes.c_int, [ctypes.c_int]),
    "fuseline_torch_sites_has": (ctypes.c_int, []),
    "fuseline_torch_frames": (SIZE, [ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_void_p), SIZE]),
    "flt_replicas_asked": (SIZE, []),
    "flt_message": (ctypes.POINTER(ctypes.c_char), [ctypes.POINTER(SIZE)]),
    "flt_flush": (ctypes.c_int, []),
    "flt_set_mode": (ctypes.c_int, [ctypes.c_uint32]),
    "flt_mode": (ctypes.c_int, [ctypes.POINTER(ctypes.c_uint32)]),
    "flt_counters": (ctypes.c_int, []),
    "flt_set_plugin": (None, [TEXT, SIZE]),
    "flt_configure": (ctypes.c_int, [TEXT, SIZE] * 2),
    "flt_explain": (ctypes.c_int, []),
    "flt_clear_cache": (ctypes.c_int, []),
    "flt_warm_cache": (ctypes.c_int, [TEXT, SIZE]),
    "flt_no_disk_cache": (ctypes.c_int, []),
    "flt_is_forked": (ctypes.c_bool, []),
    "flt_has_warnings": (ctypes.c_bool, []),
    "flt_warnings": (ctypes.c_int, []),
    "flt_checks": (ctypes.c_bool, []),
    "flt_profile_begin": (ctypes.c_int, []),
    "flt_profile_mark": (ctypes.c_int, [TEXT, SIZE]),
    "flt_profile_end": (ctypes.c_int, [TEXT, SIZE]),
    "fuseline_torch_ranges": (None, [ctypes.c_int]),
    "flt_custom_register": (ctypes.c_int, [TEXT, SIZE, TEXT, SIZE, ctypes.POINTER(SIZE)]),
    "flt_custom_arity": (ctypes.c_int, [SIZE, ctypes.POINTER(SIZE), ctypes.POINTER(SIZE)]),
}


def _check_torch():
    """Checks the PyTorch version: the shim uses C++ classes that change between minor versions."""
    try:
        from .built_for import TORCH
    except ImportError:
        return
    here = ".".join(torch.__version__.split(".")[:2])
    if here != TORCH:
        raise ImportError(
            f"torch-fuseline was built for PyTorch {TORCH}, but this is {torch.__version__}: reinstall torch-fuseline"
        )


def _open():
    _check_torch()
    folder = pathlib.Path(__file__).parent
    shim = ctypes.CDLL(str(folder / "libfuseline_torch_shim.so"), mode=ctypes.RTLD_GLOBAL)
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(shim, name)
        function.restype, function.argtypes = result, arguments
    return shim


shim = _open()


def message():
    """Returns the message of the latest call on this thread: the requested text or the error."""
    length = SIZE()
    text = shim.flt_message(ctypes.byref(length))
    return ctypes.string_at(text, length.value).decode()


def check(status):
    """Raises the error of a call that returned this status."""
    if status != 0:
        raise RuntimeError(f"{NAME}: {message()}")


def warn():
    """Warns about what the engine turned off by itself since the previous query. Reads of tensors
    also do this (``csrc/storage.cpp``)."""
    if shim.flt_has_warnings():
        check(shim.flt_warnings())
        for line in message().splitlines():
            warnings.warn(f"{NAME}: {line} (torch.{NAME}.explain() lists later ones)", stacklevel=3)


def text(words):
    """Converts text to two arguments, bytes and length."""
    words = words.encode() if isinstance(words, str) else words
    return words, len(words)
