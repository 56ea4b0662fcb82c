"""Skip connections: a tensor that a later module takes by its name, past the modules between them.

In one process it waits in a context variable, so threads and tasks see their own. In a pipeline the host of a
stage hands in what comes from other stages, and sends on what is left for others (`carrying`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, NamedTuple, TypeVar

from psframework.autograd import Tensor
from psframework.errors import ArgumentError
from psframework.nn.module import Module

M = TypeVar("M", bound=Module)


class Skips(NamedTuple):
    """Names of the tensors that modules of a class stash and pop."""

    stash: tuple[str, ...] = ()
    pop: tuple[str, ...] = ()


class _Stashed(NamedTuple):
    tensor: Tensor
    by: weakref.ref[Module] | None  # None: it came from another stage


class _Store(NamedTuple):
    """What waits to be popped. It is replaced and never changed: copies of a context go on apart.

    Attributes:
        waiting: by name.
        hosted: it begins and ends with the forward of a stage, so nothing in it is of an earlier forward.
    """

    waiting: Mapping[str, _Stashed]
    hosted: bool


class _Forward:
    """A forward that runs.

    Attributes:
        module: whose.
        done: names that it has stashed, and popped.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.done: tuple[set[str], set[str]] = (set(), set())

    def check(self) -> None:
        """It has ended: others wait for what was declared."""
        for verb, declared, done in zip(Skips._fields, skips_of(self.module), self.done):
            missing = [name for name in declared if name not in done]
            if missing:
                raise ArgumentError(
                    f"{_kind(self.module)} is declared with {verb}={tuple(declared)}, but its forward did "
                    f"not {verb} {missing[0]!r}: call {verb}({missing[0]!r}, ...) in it, or do not declare it"
                )


_store: ContextVar[_Store] = ContextVar("psframework_skips")
_EMPTY = _Store({}, False)
_running: ContextVar[_Forward | None] = ContextVar("psframework_skippable", default=None)


def skippable(stash: Sequence[str] = (), pop: Sequence[str] = ()) -> Callable[[type[M]], type[M]]:
    """Decorates a Module whose forward stashes or pops tensors by name.

    @skippable(stash=("low",))
    class Encoder(nn.Module):
        def forward(self, x):
            stash("low", x)
            return self.body(x)

    @skippable(pop=("low",))
    class Decoder(nn.Module):
        def forward(self, x):
            return self.body(x) + pop("low")

    Each forward has to stash and to pop all of them. A subclass declares those of its bases too, so modules
    that do the same under different names are subclasses of one that is not decorated.

    Args:
        stash: names that the forward stashes, for a module of the same stage or of a later one.
        pop: names that it pops.

    Raises:
        ArgumentError: names that are no strings, or what is decorated is no Module.
    """
    for verb, names in zip(Skips._fields, (stash, pop)):
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise ArgumentError(f"skippable: {verb} takes a sequence of names, not {names!r}")

    def decorate(kind: type[M]) -> type[M]:
        if not (isinstance(kind, type) and issubclass(kind, Module)):
            raise ArgumentError(f"skippable decorates a class of nn.Module, not {kind!r}")
        both = [tuple(dict.fromkeys((*old, *new))) for old, new in zip(skips_of(kind), (stash, pop))]
        target: Any = kind
        target._skips = Skips(*both)
        target.forward = _followed(kind.forward)
        return kind

    return decorate


def skips_of(module: Module | type[Module]) -> Skips:
    """What a module, or its class, is declared to stash and pop."""
    found: Skips = getattr(module, "_skips", Skips())
    return found


def _followed(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def followed(self: Module, *args: Any, **kwargs: Any) -> Any:
        outer = _running.get()
        if outer is not None and outer.module is self:
            return forward(self, *args, **kwargs)  # of a base: it is part of the forward that runs
        token = _running.set(running := _Forward(self))
        try:
            answer = forward(self, *args, **kwargs)
        finally:
            _running.reset(token)
        running.check()
        return answer

    return followed


def stash(name: str, tensor: Tensor) -> None:
    """Leaves a tensor for the module that pops it; call it in the forward of a `skippable` module.

    Gradients come back through it as through any other use. Outside of a pipeline, what a failed forward has
    left behind is replaced when the same module stashes it again.

    Args:
        name: as declared.
        tensor: of any shape and dtype.

    Raises:
        ArgumentError: the name is not declared, what it names has not been popped yet, or no Tensor is given.
    """
    running = _inside("stash", name)
    if not isinstance(tensor, Tensor):
        raise ArgumentError(f"stash({name!r}) takes a Tensor, not {type(tensor).__name__}")
    store, module = _store.get(_EMPTY), running.module
    found = store.waiting.get(name)
    if found is not None and (store.hosted or name in running.done[0] or not _may_replace(found, module)):
        raise ArgumentError(
            f"{_kind(module)} stashes {name!r}, which was stashed before and not popped yet: give each its "
            "own name, and modules of one class a class each; if a forward that failed left it, run the next "
            "one in a context of its own"
        )
    running.done[0].add(name)
    stashed = _Stashed(tensor, weakref.ref(module))
    _store.set(_Store({**store.waiting, name: stashed}, store.hosted))


def _may_replace(found: _Stashed, module: Module) -> bool:
    """Whether it was left behind by an earlier forward of `module`, or of one that is no more."""
    return found.by is not None and found.by() in (None, module)


def pop(name: str) -> Tensor:
    """Takes the tensor that was stashed under this name; call it in the forward of a `skippable` module.

    Args:
        name: as declared.

    Raises:
        ArgumentError: the name is not declared, or nothing waits under it.
    """
    running = _inside("pop", name)
    store = _store.get(_EMPTY)
    found = store.waiting.get(name)
    if found is None:
        raise ArgumentError(
            f"{_kind(running.module)} pops {name!r}, which nobody has stashed, or which was popped before: "
            "the module that stashes it has to run first, under another name for each that pops it"
        )
    running.done[1].add(name)
    _store.set(_Store({key: other for key, other in store.waiting.items() if key != name}, store.hosted))
    return found.tensor


def _inside(verb: str, name: str) -> _Forward:
    """The forward that calls `verb`, which must be declared to."""
    running = _running.get()
    if running is None:
        raise ArgumentError(
            f"{verb}({name!r}) outside of the forward of a module that is declared with "
            f"@skippable({verb}=({name!r},))"
        )
    if name not in getattr(skips_of(running.module), verb):
        raise ArgumentError(
            f"the forward of {_kind(running.module)} calls {verb}({name!r}), which is not declared: add it "
            f"to @skippable({verb}=...)"
        )
    return running


@contextmanager
def carrying(incoming: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Around the forward of one stage: what came from other stages, and afterwards what is for others.

    Args:
        incoming: tensors that modules of this stage pop.

    Yields:
        A dict; when the block has ended without an error, it holds what nobody in it popped.

    Raises:
        ArgumentError: at the end, something of `incoming` was not popped.
    """
    outgoing: dict[str, Tensor] = {}
    token = _store.set(_Store({name: _Stashed(tensor, None) for name, tensor in incoming.items()}, True))
    try:
        yield outgoing
        for name, found in _store.get().waiting.items():
            if found.by is None:
                raise ArgumentError(
                    f"{name!r} came to this stage, and no forward in it popped it: a module that is declared "
                    "to pop it has to run in each forward"
                )
            outgoing[name] = found.tensor
    finally:
        _store.reset(token)


def routes(stages: Sequence[Module]) -> dict[str, tuple[int, int]]:
    """From which stage to which each skip goes; both are the same for one that stays inside.

    Args:
        stages: in the order in which they run.

    Returns:
        {name: (stage that stashes it, stage that pops it)}, in the order of the modules that stash.

    Raises:
        ArgumentError: a name is stashed or popped by several modules, or by none, or popped in a stage before
            that which stashes it.
    """
    found: dict[str, tuple[int, int]] = {}
    stashed, popped = (_places(stages, verb) for verb in Skips._fields)
    for name in {**stashed, **popped}:
        source = _only(name, "stash", stashed)
        target = _only(name, "pop", popped)
        if target < source:
            raise ArgumentError(
                f"skip {name!r} is stashed in stage {source} and popped in stage {target}, which runs "
                "before: a skip goes to the same stage or to a later one"
            )
        found[name] = source, target
    return found


_Places = dict[str, list[tuple[int, str]]]


def _places(stages: Sequence[Module], verb: str) -> _Places:
    """Each name, with (stage, words for the module) of all modules that are declared to `verb` it."""
    places: _Places = {}
    for number, stage in enumerate(stages):
        for path, module in stage.named_modules():
            where = f"{_kind(module)} ({path or 'all'} of stage {number})"
            for name in getattr(skips_of(module), verb):
                places.setdefault(name, []).append((number, where))
    return places


def _only(name: str, verb: str, places: _Places) -> int:
    """The one stage that is declared to `verb` it."""
    found = places.get(name, [])
    if len(found) == 1:
        return found[0][0]
    if not found:
        raise ArgumentError(f"skip {name!r} is never {_PAST[verb]}: declare it with @skippable({verb}=...)")
    fix = "stash it under a name for each of them" if verb == "pop" else "give each its own name"
    raise ArgumentError(
        f"skip {name!r} is {_PAST[verb]} by {' and by '.join(where for _, where in found)}: {fix}. "
        "Names belong to classes: modules of one class need a class each"
    )


_PAST = {"stash": "stashed", "pop": "popped"}


def _kind(module: Module) -> str:
    return type(module).__name__
