"""What CuPy has of NumPy, so that the strict device refuses the rest: `cupy_api.txt`, out of a wheel."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

UFUNC_KEYWORDS = frozenset(("out", "dtype", "casting"))
_SCATTERS = frozenset(("add", "subtract", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"))
# CuPy's ufuncs have these methods, but most raise NotImplementedError (cupy/_core/_kernel.pyx).
UFUNC_METHODS: dict[str, tuple[frozenset[str] | None, tuple[str, ...]]] = {
    "reduce": (frozenset(("add", "multiply")), ("array", "axis", "dtype", "out", "keepdims")),
    "accumulate": (frozenset(("add", "multiply")), ("array", "axis", "dtype", "out")),
    "reduceat": (frozenset(("add",)), ("array", "indices", "axis", "dtype", "out")),
    "at": (_SCATTERS, ("a", "indices", "b")),
    "outer": (None, ("A", "B", "out", "dtype", "casting")),
}


@cache
def _table() -> tuple[str, dict[str, str]]:
    head, *lines = Path(__file__).with_name("cupy_api.txt").read_text().splitlines()
    return head.removeprefix("# ").partition(":")[0], dict(line.split(" ", 1) for line in lines)


def version() -> str:
    """Which CuPy the list was read from."""
    return _table()[0]


def require(name: str) -> None:
    """Raises AttributeError unless CuPy has `name`, such as "linalg.norm" or "ndarray.sum"."""
    if name not in _table()[1]:
        raise AttributeError(f"{version()} has no {name}: use something that NumPy and CuPy share")


def is_attribute(name: str) -> bool:
    """Whether `name` is no method but a property of arrays."""
    return _table()[1].get(f"ndarray.{name}") == "attribute"


def check_call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises TypeError for arguments that CuPy's function of this name does not take."""
    listed = _table()[1].get(name, "?")
    if listed != "?":
        check_parameters(name, () if listed == "-" else tuple(listed.split()), args, kwargs)


def check_parameters(
    name: str, parameters: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raises TypeError for arguments beyond `parameters`, in which "*" and "**" stand for any."""
    unknown = [] if "**" in parameters else [key for key in kwargs if key not in parameters]
    if unknown or ("*" not in parameters and len(args) > len(parameters)):
        given = f"{len(args)} arguments" if not unknown else f"{', '.join(unknown)}="
        raise TypeError(f"{version()}: {name}({', '.join(parameters)}) does not take {given}")


def check_ufunc_method(ufunc: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises NotImplementedError for ufunc methods that CuPy lacks, TypeError for their arguments."""
    ufuncs, parameters = UFUNC_METHODS[method]
    if ufuncs is not None and ufunc not in ufuncs:
        raise NotImplementedError(f"{version()}: {ufunc}.{method} is not supported; only {sorted(ufuncs)}")
    check_parameters(f"{ufunc}.{method}", parameters, args, kwargs)
