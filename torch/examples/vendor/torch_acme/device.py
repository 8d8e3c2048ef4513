"""What torch-fuseline has to know about the device. ``import torch`` reads this file, so it does
not import torch."""

DEVICE = {
    # The file of the plugin in its package. An absolute path works too, and a function that returns
    # a path.
    "plugin": "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
    # The result of torch.acme.get_device_name().
    "device_name": "Acme One",
    # Options of the plugin's client: integers, floats, booleans, strings, lists of integers.
    "client_options": {},
    # Defaults for torch.acme.configure. The user's call and the user's variables come after them.
    "options": {"size_buckets": "powers"},
}
