"""The end of the program (``csrc/ending.cpp``)."""

import atexit

from ._library import shim

#: The longest time to wait for the thread of the backward pass, in milliseconds. It needs some
#: microseconds unless it hangs.
PATIENCE = 2000


def set_up():
    """Registers the exit handler early: handlers that are registered later run before it."""
    atexit.register(shim.fuseline_torch_settle, PATIENCE)
