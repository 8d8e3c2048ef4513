"""PyTorch's device ``acme``. Programs do not need to import this package."""
