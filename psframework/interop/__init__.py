"""Models of torch and JAX as psframework modules: `psf.interop.torch`, `psf.interop.jax`, each an extra."""

from importlib import import_module
from types import ModuleType

__all__ = ["jax", "torch"]


def __getattr__(name: str) -> ModuleType:
    """Imports a bridge on first use, and with it its framework."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
