"""Functions that travel as code, for notebooks: `psf.pickled(fn)`. Only where the process consents.

Whoever may send such a function may do in that process whatever its user may do there, so a worker runs them
only if it was started with `--cloudpickle`. Arguments and results are plain values, as in every call: nothing
else is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from psframework.errors import ArgumentError, ConfigurationError, PermissionDenied
from psframework.rpc.functions.context import current_caller
from psframework.rpc.registry import remote
from psframework.rpc.security import audit
from psframework.rpc.values.types import register_type

RUN: Final = "psframework.pickled.run"
STREAM: Final = "psframework.pickled.stream"
HINT: Final = "install it: pip install 'psframework[cloudpickle]'"

_consents = False


@register_type(name="psframework.pickled.Pickled")
@dataclass(frozen=True, slots=True)
class Pickled:
    """A function as code. It can be given wherever a registered function can.

    Attributes:
        name: of the function, for messages.
        code: what cloudpickle made of it.
    """

    name: str
    code: bytes


def pickled(fn: Callable[..., Any]) -> Pickled:
    """Packs a function that others can't import: a lambda, a notebook's, one with variables around it.

        await cluster.rpc_async("worker-0", psf.pickled(lambda x: x + 1), args=(41,))

    Args:
        fn: a function, an async function, or (for `rpc_stream`) a generator. What it refers to travels too.

    Raises:
        ConfigurationError: the extra "cloudpickle" is not installed.
        ArgumentError: it can't be pickled.
    """
    if not callable(fn):
        raise ArgumentError(f"pickled takes a function, not {type(fn).__name__}")
    try:
        code = _cloudpickle().dumps(fn)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ArgumentError(f"{fn!r} can't be pickled: {error}") from error
    return Pickled(getattr(fn, "__qualname__", type(fn).__name__), code)


def consent() -> None:
    """From now on this process runs such functions for peers that its rules let call `psframework.pickled.*`.

    Raises:
        ConfigurationError: the extra "cloudpickle" is not installed.
    """
    global _consents
    _cloudpickle()
    _consents = True


def withdraw() -> None:
    """Undoes `consent`."""
    global _consents
    _consents = False


def called(fn: Any, args: Sequence[Any], name: str = RUN) -> tuple[Any, Sequence[Any]]:
    """(function, arguments) to call for `fn`: itself, or what runs it where it is pickled."""
    return (name, (fn, *args)) if type(fn) is Pickled else (fn, args)


@remote(name=RUN)
def run(fn: Pickled, /, *args: Any, **kwargs: Any) -> Any:
    """Runs a pickled function here, for the peer that sent it."""
    return _unpack(fn)(*args, **kwargs)


@remote(name=STREAM)
def stream(fn: Pickled, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
    """Runs a pickled generator here, for the peer that sent it."""
    yield from _unpack(fn)(*args, **kwargs)


def _unpack(fn: Pickled) -> Any:
    if not _consents:
        error = PermissionDenied(
            f"this process runs no pickled functions ({fn.name}): start it with --cloudpickle if its callers "
            "may run any code there, or register the function with @psf.remote"
        )
        caller = current_caller()
        certificate = audit.certificate_of(caller.peer)
        audit.refused(RUN, error, name=caller.name, role=caller.role, certificate=certificate)
        raise error
    if type(fn) is not Pickled:
        raise ArgumentError(f"a pickled function comes from psf.pickled, and is no {type(fn).__name__}")
    return _cloudpickle().loads(fn.code)


def _cloudpickle() -> ModuleType:
    try:
        import cloudpickle
    except ImportError:
        raise ConfigurationError(f"the extra 'cloudpickle' is missing; {HINT}") from None
    module: ModuleType = cloudpickle
    return module
