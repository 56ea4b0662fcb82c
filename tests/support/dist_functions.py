"""Functions that tests of distributed autograd call in other processes."""

from typing import Any

import psframework as psf


@psf.remote
def add(x: Any, y: Any) -> Any:
    return x + y


@psf.remote
def twice(x: Any) -> Any:
    return x * 2.0


@psf.remote
def both(x: Any) -> Any:
    """Two tensors and something else."""
    return x * 2.0, x * 3.0, "both"


@psf.remote
def requires_grad(x: Any) -> bool:
    return bool(x.requires_grad)
