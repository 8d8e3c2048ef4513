"""Random numbers. A generator is a seed and how many calls have drawn from it; its state is these
two, as 16 bytes of the CPU."""

import torch

from ._devices import index_of

#: The generator that calls draw from which name none, for each device.
default_generators = ()


def set_up():
    """After the device is registered."""
    global default_generators
    default_generators = (torch.ops.fuseline.default_generator(),)
    return default_generators


def _get_generator(device=None):
    """The generator of a device."""
    return default_generators[index_of(device)]


def get_rng_state(device="fuseline"):
    """The state of the device's random numbers, as 16 bytes."""
    return _get_generator(device).get_state()


def set_rng_state(new_state, device="fuseline"):
    """Sets what :func:`get_rng_state` gave."""
    _get_generator(device).set_state(new_state.cpu().contiguous())


def get_rng_state_all():
    """The states of all devices."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state_all(new_states):
    """Sets what :func:`get_rng_state_all` gave."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed):
    """Seeds the device's random numbers."""
    _get_generator().manual_seed(int(seed))


def manual_seed_all(seed):
    """Seeds those of all devices."""
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed():
    """Seeds the device's random numbers with one that nobody knows before."""
    _get_generator().seed()


def seed_all():
    """Seeds those of all devices, alike."""
    manual_seed_all(_get_generator().seed())


def initial_seed():
    """The seed of the device's random numbers."""
    return _get_generator().initial_seed()
