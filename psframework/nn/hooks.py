"""Hooks of modules: functions that see, and may replace, what goes in and out of a module."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from psframework.autograd import Tensor
from psframework.autograd.record import record_many, recording, share_memory
from psframework.backend import Array
from psframework.errors import ArgumentError

if TYPE_CHECKING:
    from psframework.nn.module import Module

PreHook: TypeAlias = Callable[..., Any]
ForwardHook: TypeAlias = Callable[..., Any]
Gradients: TypeAlias = "tuple[Array | None, ...]"
BackwardHook: TypeAlias = "Callable[[Module, Gradients, Gradients], Gradients | None]"


class _Entry(NamedTuple):
    hook: Callable[..., Any]
    with_kwargs: bool


class HookHandle:
    """A registered hook: `remove()` ends it, and so does leaving `with handle:`."""

    __slots__ = ("_entries", "_entry")

    def __init__(self, entries: list[_Entry], entry: _Entry) -> None:
        self._entries, self._entry = entries, entry

    def remove(self) -> None:
        """Calls the hook no more; a second time does nothing."""
        self._entries[:] = [entry for entry in self._entries if entry is not self._entry]

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


class ModuleHooks:
    """The hooks of one module, in the order in which they run.

    Attributes:
        before: each forward.
        after: each forward.
        backward: of each call.
    """

    def __init__(self) -> None:
        self.before: list[_Entry] = []
        self.after: list[_Entry] = []
        self.backward: list[_Entry] = []

    def add(
        self, when: str, hook: Callable[..., Any], prepend: bool, with_kwargs: bool = False
    ) -> HookHandle:
        """Registers a hook in the list named `when`."""
        if not callable(hook):
            raise ArgumentError(f"a hook must be callable, not {type(hook).__name__}")
        entries: list[_Entry] = getattr(self, when)
        entry = _Entry(hook, with_kwargs)
        entries.insert(0 if prepend else len(entries), entry)
        return HookHandle(entries, entry)

    def call(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The module's forward with the hooks around it."""
        for hook, with_kwargs in tuple(self.before):
            if with_kwargs:
                changed = hook(module, args, kwargs)
                args, kwargs = args_and_kwargs(changed) if changed is not None else (args, kwargs)
            else:
                changed = hook(module, args)
                if changed is not None:
                    args = changed if isinstance(changed, tuple) else (changed,)
        watch = _Watch(module, tuple(entry.hook for entry in self.backward)) if self.backward else None
        if watch is not None:
            args = watch.enter(args)
        output = module.forward(*args, **kwargs)
        for hook, with_kwargs in tuple(self.after):
            changed = hook(module, args, kwargs, output) if with_kwargs else hook(module, args, output)
            output = output if changed is None else changed
        return output if watch is None else watch.leave(output)


def args_and_kwargs(changed: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a pre-hook with keywords returned, checked."""
    if not (isinstance(changed, tuple) and len(changed) == 2 and isinstance(changed[1], dict)):
        raise ArgumentError(
            "a forward pre-hook with with_kwargs=True must return None or a tuple (args, kwargs), "
            f"not {type(changed).__name__}"
        )
    return (changed[0] if isinstance(changed[0], tuple) else (changed[0],)), changed[1]


class _Watch:
    """The backward hooks of one call: one node before the module and one after it, both identities.

    The node after it is the first of the module's backward and sees the gradients of the outputs; the node
    before it is the last one, sees those of the inputs, and then calls the hooks.
    """

    def __init__(self, module: Module, hooks: tuple[BackwardHook, ...]) -> None:
        self.module, self.hooks = module, hooks
        self.grad_output: Gradients = ()
        self.has_inputs = False

    def enter(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, those that require grad through the node before the module."""
        if not recording(*args):
            return args
        places = [i for i, arg in enumerate(args) if isinstance(arg, Tensor) and arg.requires_grad]
        self.has_inputs = True

        def rule(gradients: Gradients) -> Gradients:
            full: list[Array | None] = [None] * len(args_count)
            for place, gradient in zip(places, gradients):
                full[place] = gradient
            changed = self._run(tuple(full))
            return tuple(changed[place] for place in places)

        args_count = range(len(args))
        watched = _identity("module inputs", [args[i] for i in places], rule)
        by_place = dict(zip(places, watched))
        return tuple(by_place.get(i, arg) for i, arg in enumerate(args))

    def leave(self, output: Any) -> Any:
        """The output, through the node after the module."""
        outputs = list(output) if isinstance(output, tuple | list) else [output]
        places = [i for i, out in enumerate(outputs) if isinstance(out, Tensor) and out.requires_grad]
        if not places or not recording(*outputs):
            return output
        count = len(outputs)

        def rule(gradients: Gradients) -> Gradients:
            full: list[Array | None] = [None] * count
            for place, gradient in zip(places, gradients):
                full[place] = gradient
            self.grad_output = tuple(full)
            if not self.has_inputs:
                self._run((None,))
            return gradients

        for place, watched in zip(places, _identity("module outputs", [outputs[i] for i in places], rule)):
            outputs[place] = watched
        if not isinstance(output, tuple | list):
            return outputs[0]
        named = hasattr(output, "_fields")  # a named tuple takes its items one by one
        return type(output)(*outputs) if named else type(output)(outputs)

    def _run(self, grad_input: Gradients) -> Gradients:
        for hook in self.hooks:
            changed = hook(self.module, grad_input, self.grad_output)
            if changed is None:
                continue
            changed = changed if isinstance(changed, tuple) else (changed,)
            if len(changed) != len(grad_input):
                raise ArgumentError(
                    f"a backward hook of {type(self.module).__name__} returned {len(changed)} gradients "
                    f"for {len(grad_input)} inputs"
                )
            grad_input = changed
        return grad_input


def _identity(name: str, tensors: list[Tensor], rule: Callable[[Gradients], Gradients]) -> tuple[Tensor, ...]:
    results = record_many(name, [tensor.data for tensor in tensors], rule, tuple(tensors))
    return tuple(share_memory(result, tensor) for result, tensor in zip(results, tensors))
