"""Call sites in errors and explanations. ``csrc/site.cpp`` finds them."""

import atexit
import ctypes
import os
import pathlib
import sys
import sysconfig

import torch

from ._library import shim

OFF, WALK, ASK = range(3)
#: The order is that of `Python` in csrc/site.cpp.
_FUNCTIONS = (
    "PyGILState_GetThisThreadState",
    "PyGILState_Ensure",
    "PyGILState_Release",
    "PyThreadState_GetFrame",
    "PyFrame_GetBack",
    "PyFrame_GetCode",
    "PyFrame_GetLineNumber",
    "PyObject_GetAttrString",
    "PyUnicode_AsUTF8",
    "Py_DecRef",
    "PyErr_Clear",
)


def call_sites(wanted=True):
    """Sets whether ops remember the line of the program that recorded them, for errors and
    :func:`explain`.

    By default they do where this costs next to nothing, which is on CPython 3.11 to 3.13. Elsewhere
    they do so in debug mode and after the first error. ``None`` means this default. Returns the
    previous setting. ``FUSELINE_TORCH_CALL_SITES=1`` or ``0`` sets it too.
    """
    before = shim.fuseline_torch_sites_want(-1 if wanted is None else int(bool(wanted)))
    return None if before < 0 else bool(before)


def _frames():
    """Returns code and next instruction of this thread's frames as the shim reads them, innermost
    first. The first is the frame of this function."""
    room = 64
    codes, instructions = (ctypes.c_void_p * room)(), (ctypes.c_void_p * room)()
    count = shim.fuseline_torch_frames(sys.hexversion >> 16, codes, instructions, room)
    return list(codes[:count]), list(instructions[:count])


def _is_read_right():
    """Whether the shim reads the same frames as Python, and different instructions for two
    calls."""

    def compare():
        frame, wanted = sys._getframe(), []
        codes, here = _frames()
        while frame is not None and len(wanted) < len(codes):
            wanted.append(id(frame.f_code))
            frame = frame.f_back
        # The frame of `_frames` comes first.
        return codes[1:] == wanted[: len(codes) - 1] and len(codes) > 3, here

    def in_generator():
        yield compare()

    (is_right, here), (is_right_too, there) = compare(), next(in_generator())
    is_right_as_well, again = compare()
    return is_right and is_right_too and is_right_as_well and here[2] != again[2] and here[1] == again[1] == there[1]


def set_up():
    """Turns call sites on until the interpreter ends."""
    if sys.implementation.name != "cpython" or sys.version_info < (3, 9):
        return
    addresses = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value for name in _FUNCTIONS]
    folders = (pathlib.Path(torch.__file__).parent, pathlib.Path(__file__).parent)
    skipped = "".join(f"{folder}{os.sep}\n" for folder in folders) + "<frozen \n"
    shim.fuseline_torch_sites_init((ctypes.c_void_p * len(addresses))(*addresses), skipped.encode())
    # Builds without the interpreter's lock have another frame layout.
    has_lock = not sysconfig.get_config_var("Py_GIL_DISABLED")
    way = WALK if has_lock and _is_read_right() else ASK
    asked = os.environ.get("FUSELINE_TORCH_CALL_SITES")
    if asked is not None:
        call_sites(asked not in ("0", "False", "false"))
    shim.fuseline_torch_sites_way(way)
    # Threads that record after the interpreter has ended have no frames.
    atexit.register(shim.fuseline_torch_sites_way, OFF)
