"""The end of the program (``csrc/ending.cpp``)."""

import atexit

from ._library import shim

#: How long the thread of the backward pass is waited for, in milliseconds. It needs some
#: microseconds, unless it hangs.
PATIENCE = 2000


def set_up():
    """Handlers that are registered later, which most are, run before."""
    atexit.register(shim.fuseline_torch_settle, PATIENCE)
