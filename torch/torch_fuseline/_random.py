"""Random numbers. The state of a generator is its seed and the number of calls that have drawn from
it, as a CPU tensor of 16 bytes."""

import torch

from ._devices import index_of
from ._vendor import NAME

#: The default generator of each device, for calls that name none.
default_generators = ()


def set_up():
    """Runs after the device is registered."""
    global default_generators
    default_generators = (torch.ops.fuseline.default_generator(),)
    return default_generators


def _get_generator(device=None):
    """Returns the default generator of a device."""
    return default_generators[index_of(device)]


def get_rng_state(device=NAME):
    """Returns the state of the device's random numbers, as 16 bytes."""
    return _get_generator(device).get_state()


def set_rng_state(new_state, device=NAME):
    """Sets a state that :func:`get_rng_state` returned."""
    _get_generator(device).set_state(new_state.cpu().contiguous())


def get_rng_state_all():
    """Returns the states of all devices."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state_all(new_states):
    """Sets states that :func:`get_rng_state_all` returned."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed):
    """Seeds the device's random numbers."""
    _get_generator().manual_seed(int(seed))


def manual_seed_all(seed):
    """Seeds the random numbers of all devices."""
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed():
    """Seeds the device's random numbers with a nondeterministic seed."""
    _get_generator().seed()


def seed_all():
    """Seeds the random numbers of all devices with one nondeterministic seed."""
    manual_seed_all(_get_generator().seed())


def initial_seed():
    """Returns the seed of the device's random numbers."""
    return _get_generator().initial_seed()
