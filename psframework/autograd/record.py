"""How an operation becomes a node: what every function in `ops` ends with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from psframework import backend
from psframework.autograd import watch
from psframework.autograd.grad_mode import is_grad_enabled
from psframework.autograd.node import Edge, Node, Parts, Rule, RuleOfMany, Version, next_order, part_rule
from psframework.autograd.tensor import Operand, Tensor
from psframework.backend import Array, DType
from psframework.errors import ArgumentError, AutogradError, PsfError

P = ParamSpec("P")
R = TypeVar("R")

_new: Callable[[type[Tensor]], Tensor] = Tensor.__new__
_new_node: Callable[[type[Node]], Node] = Node.__new__
_ndarray = np.ndarray
_SCALARS = (int, float, np.generic)  # named, because `int | float` in a call makes a new object each time


def constant(data: Array) -> Tensor:
    """A tensor that no gradient flows into, over `data`."""
    if type(data) is not _ndarray:
        data = backend.as_array(data)
    result = _new(Tensor)
    result._data = data
    result._node = None
    result._requires_grad = False
    result._version = [0]
    result._grad = result.grad_buffer = result.leaf_hooks = None
    return result


def recording(*inputs: object) -> bool:
    """Whether an operation on these inputs has to be recorded."""
    if is_grad_enabled():
        for value in inputs:
            if isinstance(value, Tensor) and value._requires_grad:
                return True
    return False


def needs_grad(value: object) -> bool:
    """Whether a gradient for this input is wanted."""
    return isinstance(value, Tensor) and value._requires_grad


def record(
    name: str,
    data: Array,
    rule: Rule,
    inputs: tuple[object, ...],
    saved: tuple[object, ...] = (),
    saves_output: bool = False,
) -> Tensor:
    """The result of an operation, with the node that can differentiate it.

    Args:
        name: of the operation, for messages.
        data: its result.
        rule: gradient of the result -> gradients of `inputs`, in order. It must hold arrays only, never
            tensors: a tensor holds its graph.
        inputs: tensors, and anything else as constants.
        saved: those inputs whose arrays `rule` holds, so that changing them in place is noticed.
        saves_output: whether `rule` holds `data`.
    """
    refuse_complex(name, data.dtype)
    return record_node(name, data, rule, edges_of(inputs), versions_of(saved), saves_output)


def refuse_complex(name: str, dtype: DType) -> None:
    """Raises AutogradError if a result is complex: the rules know real numbers only."""
    if dtype.kind == "c":
        raise AutogradError(
            f"{name}: the result is of dtype {dtype}, through which no gradients pass: use real numbers, or "
            "detach() what requires grad"
        )


def edges_of(inputs: Sequence[object]) -> tuple[Edge, ...]:
    """For each input the node that made it, the tensor itself if it is a leaf, None for a constant."""
    return tuple(
        [
            (value._node or value) if isinstance(value, Tensor) and value._requires_grad else None
            for value in inputs
        ]
    )


def versions_of(saved: Sequence[object]) -> tuple[tuple[Version, int], ...]:
    """(version, its count now) of each tensor."""
    return tuple([(value._version, value._version[0]) for value in saved if isinstance(value, Tensor)])


def record_node(
    name: str,
    data: Array,
    rule: Rule,
    edges: tuple[Edge, ...],
    versions: tuple[tuple[Version, int], ...],
    saves_output: bool = False,
) -> Tensor:
    """As `record`, for operations that run so often that they find edges and versions themselves."""
    version: Version = [0]
    # Filled here, because calling the classes would take longer than all the rest.
    node = _new_node(Node)
    node.name = name
    node.backward = rule
    node.edges = edges
    node.saved = (*versions, (version, 0)) if saves_output else versions
    node.order = next_order()
    node.hooks = None
    result = _new(Tensor)
    result._data = data if type(data) is _ndarray else backend.as_array(data)
    result._node = node
    result._requires_grad = True
    result._version = version
    result._grad = result.grad_buffer = result.leaf_hooks = None
    if watch.blocks:
        watch.tell(node, result._data)
    return result


def record_many(
    name: str,
    datas: Sequence[Array],
    rule: RuleOfMany,
    inputs: tuple[object, ...],
    saved: tuple[object, ...] = (),
    saves_output: bool = False,
) -> tuple[Tensor, ...]:
    """As `record`, for an operation with several results.

    Args:
        name: of the operation, for messages.
        datas: its results.
        rule: a tuple with one gradient for each result (None for one that nothing depends on) -> gradients of
            `inputs`, in order.
        inputs: tensors, and anything else as constants.
        saved: those inputs whose arrays `rule` holds.
        saves_output: whether `rule` holds any of `datas`.

    Returns:
        A tensor for each result.
    """
    results = record_results(name, datas, rule, edges_of(inputs), versions_of(saved))
    nodes = [result._node for result in results if result._node is not None]
    if saves_output and nodes:
        cast(Node, nodes[0].edges[0]).saved += versions_of(results)
    return results


def record_results(
    name: str,
    datas: Sequence[Array],
    rule: RuleOfMany,
    edges: tuple[Edge, ...],
    versions: tuple[tuple[Version, int], ...],
) -> tuple[Tensor, ...]:
    """As `record_many`, for operations that find edges and versions themselves."""
    node = Node(name, lambda parts: rule(cast(Parts, parts).gradients), edges, versions)
    if watch.blocks:
        watch.tell(node, None)
    # Results of no floating dtype (indices, masks) are constants.
    return tuple(
        [
            record_node(name, data, part_rule(i, len(datas)), (node,), ())
            if backend.is_floating(data.dtype)
            else constant(data)
            for i, data in enumerate(datas)
        ]
    )


def share_memory(view: Tensor, base: Tensor) -> Tensor:
    """Note that `view` is over the memory of `base`: both have one version from now on."""
    version = base._version
    if len(version) == 1:
        version.append(1)
    view._version = version
    return view


def value_of(operand: Operand, name: str) -> Any:
    """The array, or the number, that an operand stands for.

    Numbers stay numbers: an array made of 2.0 would turn float32 into float64 (NEP 50).
    """
    if isinstance(operand, Tensor):
        return operand._data
    if isinstance(operand, _SCALARS) or backend.is_array(operand):
        return operand
    raise ArgumentError(
        f"{name} takes tensors, arrays and numbers, not {_kind(operand)}: wrap it in psf.tensor(...)"
    )


def _kind(value: object) -> str:
    """The name of its type, with its home: other libraries have Tensors too."""
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def as_tensor(value: Operand, name: str) -> Tensor:
    """`value` as a tensor; an array becomes a constant."""
    if isinstance(value, Tensor):
        return value
    if backend.is_array(value) or isinstance(value, _SCALARS):
        return constant(backend.as_array(value))
    raise ArgumentError(f"{name} takes a tensor or an array, not {_kind(value)}: use psf.tensor(...)")


def sum_to(gradient: Array, shape: tuple[int, ...], dtype: DType) -> Array:
    """Undo broadcasting: `gradient` summed to `shape`, and in `dtype`."""
    if gradient.shape != shape:
        gradient = _reduce_to(gradient, shape)
    return gradient if gradient.dtype == dtype else gradient.astype(dtype)


def _reduce_to(gradient: Array, shape: tuple[int, ...]) -> Array:
    extra = gradient.ndim - len(shape)
    axes = tuple(range(extra)) + tuple(
        i + extra for i, n in enumerate(shape) if n == 1 and gradient.shape[i + extra] != 1
    )
    dtype = np.float32 if backend.is_narrow(gradient.dtype) else gradient.dtype
    total = gradient.sum(axis=axes, keepdims=True, dtype=dtype) if axes else gradient
    return cast(Array, total.reshape(shape))


def explain(name: str, error: Exception, *operands: object) -> ArgumentError:
    """What NumPy or CuPy said about operands that do not go together, in the user's terms.

    Args:
        name: of the operation.
        error: what it raised; a typed error of ours comes back as it is.
        operands: its arguments: tensors, arrays and lists of them count, the rest is passed over.
    """
    if isinstance(error, ArgumentError):
        return error
    arrays = list(_arrays(operands))
    devices = list(dict.fromkeys(str(backend.device_of(array)) for array in arrays))
    if len(devices) > 1:
        target = max(devices, key=lambda device: device != "cpu")
        return ArgumentError(
            f"{name}: operands are on {' and '.join(devices)}: move one with .to({target!r})"
        )
    # An index that is out of range stays an IndexError: it ends a loop over a sequence.
    kind = _BadIndex if isinstance(error, IndexError) else ArgumentError
    shapes = ", ".join(f"{array.shape} {array.dtype}" for array in arrays)
    return kind(f"{name}: {str(error).strip()} (operands: {shapes or 'no arrays'})")


class _BadIndex(ArgumentError, IndexError):
    """An index that does not fit, as both kinds of error; it says ArgumentError to its reader."""


_BadIndex.__name__ = _BadIndex.__qualname__ = ArgumentError.__name__
_BadIndex.__module__ = ArgumentError.__module__


def guarded(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates an operation: what NumPy or CuPy raise inside becomes an ArgumentError that names it.

    Args:
        name: of the operation, as users call it.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except (TypeError, ValueError, IndexError) as error:
                called = error.__traceback__ and error.__traceback__.tb_next
                if isinstance(error, PsfError) or not called:
                    raise  # ours, or a call that the signature does not allow
                raise explain(name, error, *args, *kwargs.values()) from error

        return checked

    return decorate


def _arrays(values: object) -> Iterator[Array]:
    if isinstance(values, Tensor):
        yield values._data
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _arrays(value)
    elif backend.is_array(values):
        yield cast(Array, values)
