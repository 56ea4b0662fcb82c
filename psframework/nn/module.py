"""Module: parameters, buffers and submodules by attribute, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from psframework import backend
from psframework.autograd import SparseRows, Tensor
from psframework.backend import Array, is_array
from psframework.errors import ArgumentError
from psframework.nn import making
from psframework.nn.hooks import BackwardHook, ForwardHook, HookHandle, ModuleHooks, PreHook
from psframework.nn.moving import convert, move
from psframework.nn.parameter import Parameter
from psframework.nn.state import IncompatibleKeys, load, state_arrays

M = TypeVar("M", bound="Module")


class Module:
    """A piece of a model: subclasses assign parameters and submodules to attributes and define `forward`.

    Attributes:
        training: whether dropout and batch norm behave as in training; set by `train()` and `eval()`.
    """

    training: bool
    _constructor: tuple[tuple[Any, ...], dict[str, Any]]
    # Names by kind, in order of registration. The values are ordinary attributes.
    _parameters: dict[str, None]
    _buffers: dict[str, bool]
    _modules: dict[str, None]
    _hooks: ModuleHooks | None

    def __new__(cls: type[M], *args: Any, **kwargs: Any) -> M:
        """Keeps the constructor's arguments: a pipeline stage or a remote worker makes the module again."""
        making.count(modules=1)
        self = super().__new__(cls)
        # `_hooks` is set here because an instance's attribute is found faster than a class's.
        fresh: dict[str, Any] = {"_hooks": None, "_constructor": (args, kwargs)}
        fresh |= {"_parameters": {}, "_buffers": {}, "_modules": {}}
        self.__dict__.update(fresh, training=True)
        return self

    def __init__(self) -> None:
        """A module without constructor of its own takes no arguments."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The computation; subclasses define it."""
        raise ArgumentError(f"{type(self).__name__} defines no forward()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._hooks is None:
            return self.forward(*args, **kwargs)
        return self._hooks.call(self, args, kwargs)

    # Registration

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter):
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            if name not in self._modules:  # a module that replaces another keeps its place
                self._forget(name)
                self._modules[name] = None
        elif value is None:
            self._modules.pop(name, None)
        elif name in self._parameters:
            raise _misassigned(name, "a parameter", "an nn.Parameter", value)
        elif name in self._modules:
            raise _misassigned(name, "a submodule", "a Module", value)
        elif name in self._buffers and not is_array(value):
            raise _misassigned(name, "a buffer", "an array", value)
        self.__dict__[name] = value

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self._forget(name)

    def _forget(self, name: str) -> None:
        for kind in (self._parameters, self._buffers, self._modules):
            kind.pop(name, None)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Makes `param` the attribute `name`; None keeps a place that is empty (a layer without bias)."""
        if param is not None and not isinstance(param, Parameter):
            raise ArgumentError(
                f"parameter {name!r} must be an nn.Parameter or None, not {type(param).__name__}"
            )
        if name not in self._parameters:
            self._check_name(name)
            self._forget(name)
            self._parameters[name] = None
        self.__dict__[name] = param

    def register_buffer(self, name: str, array: Array | None, persistent: bool = True) -> None:
        """Makes an array that is not trained the attribute `name`, as batch norm's running mean.

        Args:
            name: attribute, without dots.
            array: the values, or None for an empty place.
            persistent: whether it is part of `state_dict()`.
        """
        if array is not None and not is_array(array):
            raise ArgumentError(f"buffer {name!r} must be an array or None, not {type(array).__name__}")
        self._check_name(name)
        if name not in self._buffers:
            self._forget(name)
        self._buffers[name] = persistent
        self.__dict__[name] = array

    def add_module(self, name: str, module: Module) -> None:
        """Makes `module` the attribute `name`."""
        if not isinstance(module, Module):
            raise ArgumentError(f"submodule {name!r} must be a Module, not {type(module).__name__}")
        self._check_name(name)
        setattr(self, name, module)

    def _check_name(self, name: str) -> None:
        if not name or "." in name:
            raise ArgumentError(f"{name!r} cannot name a part of a module: it is empty or has a dot")
        if hasattr(type(self), name):
            raise ArgumentError(f"{type(self).__name__}.{name} exists already")

    # Traversal

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Direct submodules with their attribute names."""
        for name in self._modules:
            yield name, self.__dict__[name]

    def children(self) -> Iterator[Module]:
        """Direct submodules."""
        return (child for _, child in self.named_children())

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all below it, each once, with dotted names."""
        seen: set[Module] = set()
        for name, module in self._walk(prefix):
            if module not in seen:
                seen.add(module)
                yield name, module

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def _walk(self, prefix: str) -> Iterator[tuple[str, Module]]:
        yield prefix, self
        for name, child in self.named_children():
            yield from child._walk(_join(prefix, name))

    def _places(self, prefix: str) -> Iterator[tuple[str, Module, str, bool]]:
        """Parameters and buffers that aren't empty: dotted name, module, attribute, is it a buffer."""
        for path, module in self._walk(prefix):
            for kind in (module._parameters, module._buffers):
                for name in kind:
                    if module.__dict__[name] is not None:
                        yield _join(path, name), module, name, kind is module._buffers

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Parameters with dotted names, in order of registration.

        Args:
            prefix: put before the names.
            recurse: submodules' too.
            remove_duplicate: a shared parameter once only, under its first name.
        """
        seen: set[Parameter] = set()
        for path, module, name, is_buffer in self._places(prefix):
            parameter = module.__dict__[name]
            if is_buffer or (not recurse and module is not self) or (remove_duplicate and parameter in seen):
                continue
            seen.add(parameter)
            yield path, parameter

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Parameters, each once, in order of registration."""
        return (parameter for _, parameter in self.named_parameters(recurse=recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Array]]:
        """Buffers with dotted names, each once, in order of registration."""
        seen: set[int] = set()
        for path, module, name, is_buffer in self._places(prefix):
            buffer = module.__dict__[name]
            if is_buffer and (recurse or module is self) and id(buffer) not in seen:
                seen.add(id(buffer))
                yield path, buffer

    def buffers(self, recurse: bool = True) -> Iterator[Array]:
        """Buffers, in order of registration."""
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    def apply(self: M, fn: Callable[[Module], object]) -> M:
        """Calls `fn` with each submodule, children first, then with this one."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def get_submodule(self, target: str) -> Module:
        """The submodule of this dotted name, such as "encoder.layers.0"; "" is this module."""
        module = self
        for name in target.split(".") if target else ():
            if name not in module._modules:
                known = ", ".join(module._modules) or "no submodules"
                raise ArgumentError(f"no submodule {target!r}: {type(module).__name__} has {known}")
            module = module.__dict__[name]
        return module

    def get_parameter(self, target: str) -> Parameter:
        """The parameter of this dotted name."""
        return self._get(target, "parameter")  # type: ignore[no-any-return]

    def get_buffer(self, target: str) -> Array:
        """The buffer of this dotted name."""
        return self._get(target, "buffer")  # type: ignore[no-any-return]

    def _get(self, target: str, kind: str) -> Any:
        path, _, name = target.rpartition(".")
        owner = self.get_submodule(path)
        names = owner._parameters if kind == "parameter" else owner._buffers
        if name not in names or owner.__dict__[name] is None:
            known = ", ".join(n for n in names if owner.__dict__[n] is not None) or "none"
            raise ArgumentError(f"no {kind} {target!r}: {type(owner).__name__} has {known}")
        return owner.__dict__[name]

    # Hooks

    def register_forward_pre_hook(
        self, hook: PreHook, *, prepend: bool = False, with_kwargs: bool = False
    ) -> HookHandle:
        """Calls `hook(module, args)` before each forward.

        Args:
            hook: may return other arguments: a tuple, or one value for a module of one argument.
            prepend: run it before the hooks registered so far.
            with_kwargs: call `hook(module, args, kwargs)`, which may return `(args, kwargs)`.
        """
        return self._own_hooks().add("before", hook, prepend, with_kwargs)

    def register_forward_hook(
        self, hook: ForwardHook, *, prepend: bool = False, with_kwargs: bool = False
    ) -> HookHandle:
        """Calls `hook(module, args, output)` after each forward.

        Args:
            hook: may return another output.
            prepend: run it before the hooks registered so far.
            with_kwargs: call `hook(module, args, kwargs, output)`.
        """
        return self._own_hooks().add("after", hook, prepend, with_kwargs)

    def register_full_backward_hook(self, hook: BackwardHook, prepend: bool = False) -> HookHandle:
        """Calls `hook(module, grad_input, grad_output)` once the gradients of a call's inputs are known.

        Args:
            hook: gets tuples of arrays: one for each positional argument (None where no gradient flows), and
                one for each output tensor. It may return a tuple that replaces `grad_input`.
            prepend: run it before the hooks registered so far.
        """
        return self._own_hooks().add("backward", hook, prepend)

    def _own_hooks(self) -> ModuleHooks:
        if self._hooks is None:
            self.__dict__["_hooks"] = ModuleHooks()
        return self._hooks  # type: ignore[return-value]

    # Moving

    def to(self: M, *targets: Any, device: Any = None, dtype: Any = None) -> M:
        """Moves parameters, their gradients and buffers to a device or a floating dtype, or both.

        Parameters stay the objects that optimizers hold; only their arrays are replaced. Buffers of integers
        keep their dtype.

        Args:
            targets: a device ("cuda:0"), a dtype, both, or a tensor or array to be like.
            device: the same by keyword.
            dtype: the same by keyword.

        Raises:
            ArgumentError: something else, or parameters whose gradients live in a buffer that somebody else
                owns (DistributedDataParallel): move the module before it is wrapped.
        """
        move(self, convert(*targets, device=device, dtype=dtype))
        return self

    def float(self: M) -> M:
        """Floating parameters and buffers in float32."""
        return self.to(np.float32)

    def double(self: M) -> M:
        """Floating parameters and buffers in float64."""
        return self.to(np.float64)

    def half(self: M) -> M:
        """Floating parameters and buffers in float16."""
        return self.to(np.float16)

    def bfloat16(self: M) -> M:
        """Floating parameters and buffers in bfloat16."""
        return self.to(backend.bfloat16)

    def cpu(self: M) -> M:
        """Moves to host memory."""
        return self.to("cpu")

    def cuda(self: M, device: int = 0) -> M:
        """Moves to a GPU, by its number."""
        return self.to(f"cuda:{device}")

    # Modes

    def train(self: M, mode: bool = True) -> M:
        """Sets the training mode of this module and all below it."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self: M) -> M:
        """Sets the evaluation mode: no dropout, batch norm by its running statistics."""
        return self.train(False)

    def requires_grad_(self: M, requires_grad: bool = True) -> M:
        """Freezes (or unfreezes) all parameters."""
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients (or, with `set_to_none=False`, fills those that are arrays with zeros)."""
        for parameter in self.parameters():
            if set_to_none or isinstance(parameter.grad, SparseRows):
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad[...] = 0

    # State

    def state_dict(self, prefix: str = "", *, copy: bool = True) -> dict[str, Array]:
        """All parameters and persistent buffers, by torch's names and in torch's order.

        Args:
            prefix: put before the names, with its dot.
            copy: False gives the arrays themselves, which go on changing as the model trains.
        """
        return {prefix + path: array.copy() if copy else array for path, array in state_arrays(self)}

    def load_state_dict(
        self, state_dict: Mapping[str, Array | Tensor], strict: bool = True
    ) -> IncompatibleKeys:
        """Copies values into the parameters and buffers, in place, in their dtype.

        Args:
            state_dict: arrays or Tensors by name, as `state_dict()` gives.
            strict: refuse missing and unexpected names.

        Raises:
            ModelMismatch: a shape differs or, if strict, names are missing or unexpected; the message lists
                them all, and nothing has been changed.
        """
        return load(self, state_dict, strict)

    # Display

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return ""

    def __repr__(self) -> str:
        lines = [f"({name}): {child!r}".replace("\n", "\n  ") for name, child in self.named_children()]
        own = self.extra_repr()
        if not lines:
            return f"{type(self).__name__}({own})"
        return "\n  ".join([f"{type(self).__name__}(", *([own] if own else []), *lines]) + "\n)"


def _misassigned(name: str, kind: str, wanted: str, value: Any) -> ArgumentError:
    return ArgumentError(f"{name!r} is {kind}: assign {wanted} or None, not {type(value).__name__}")


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
