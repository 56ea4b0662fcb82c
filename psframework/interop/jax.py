"""A JAX function as a psframework module: JAX compiles its forward and backward, ours are the parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from psframework import backend, nn
from psframework.autograd import Tensor
from psframework.autograd.record import constant, record_many, recording
from psframework.backend import Array, DType
from psframework.errors import ArgumentError
from psframework.interop.structure import framework, plant

jax = framework("jax")


def to_jax(array: Array) -> Any:
    """A JAX array over the memory of `array` where JAX can have it so, else a copy.

    Raises:
        ArgumentError: JAX would silently convert it, as it does with float64 unless told otherwise. Integers
            that fit into its 32 bits it may convert.
    """
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    try:
        made = jax.dlpack.from_dlpack(array)
    except Exception:  # read-only, bfloat16, bool: each kind raises another class
        made = jax.numpy.array(array)
    if made.dtype != array.dtype and not _fits(array, np.dtype(made.dtype)):
        raise ArgumentError(
            f"JAX would compute in {made.dtype} instead of {array.dtype}: "
            f'call jax.config.update("jax_enable_x64", True), or convert with .astype(np.{made.dtype})'
        )
    return made


def _fits(array: Array, dtype: DType) -> bool:
    if array.dtype.kind not in "iu":
        return False
    limits = np.iinfo(dtype)
    return not array.size or bool(limits.min <= array.min() and array.max() <= limits.max)


def from_jax(value: Any) -> Array:
    """A copy of a JAX array, which nobody may change, in host memory or where CuPy can have it.

    It waits until the array is computed.
    """
    if next(iter(value.devices())).platform != "cpu":
        return backend.from_dlpack(value, copy=True)
    return np.array(value)


class JaxModule(nn.Module):
    """`function(params, *inputs)` as a module whose parameters are the leaves of `params`.

    Forward and backward are compiled by `jax.jit` once for each set of shapes. JAX reads the parameters'
    memory in place; they are named by their path in `params`: "layers.0.w".

    Args:
        function: pure, of the parameters and of pytrees of arrays and numbers; answers a pytree of arrays.
        params: a pytree of floating arrays (NumPy's or JAX's); they are copied.

    Raises:
        ArgumentError: no function, a parameter that is not floating, or two of one name.
    """

    def __init__(self, function: Callable[..., Any], params: Any) -> None:
        if not callable(function):
            raise ArgumentError(f"JaxModule takes a function, not {type(function).__name__}")
        leaves, self._tree = jax.tree_util.tree_flatten_with_path(params)
        self._function = function
        self._forward = jax.jit(self._pure, static_argnums=0)
        self._linearised = jax.jit(self._with_pullback, static_argnums=(0, 1))
        self._pull = jax.jit(lambda pullback, seeds: pullback(seeds))
        self._leaves: list[tuple[nn.Module, str]] = []
        for path, leaf in leaves:
            name = ".".join(_key(part) for part in path) or "param"
            array = np.array(jax.numpy.asarray(leaf) if type(leaf) is float else leaf)
            if not backend.is_floating(array.dtype):
                raise ArgumentError(
                    f"JaxModule: params {name!r} has dtype {array.dtype}: only floats train: "
                    "give the rest as inputs"
                )
            self._leaves.append(plant(self, name, nn.Parameter(array)))

    def _pure(self, tree: Any, leaves: Sequence[Any], inputs: Sequence[Any]) -> Any:
        args, kwargs = jax.tree_util.tree_unflatten(tree, inputs)
        return self._function(jax.tree_util.tree_unflatten(self._tree, leaves), *args, **kwargs)

    def _with_pullback(self, tree: Any, moving: tuple[int, ...], leaves: Any, inputs: Any) -> Any:
        """Results, and the function from their gradients to those of the leaves and the `moving` inputs."""

        def of_moving(leaves: Any, chosen: Any) -> Any:
            merged = list(inputs)
            for i, value in zip(moving, chosen):
                merged[i] = value
            return self._pure(tree, leaves, merged)

        return jax.vjp(of_moving, leaves, [inputs[i] for i in moving])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the function answers, with Tensors in the place of arrays."""
        parameters = [owner.__dict__[name] for owner, name in self._leaves]
        leaves = [to_jax(parameter.data) for parameter in parameters]
        inputs, tree = jax.tree_util.tree_flatten((args, kwargs))
        given = [_input(value) for value in inputs]
        if not recording(*parameters, *inputs):
            results, build = jax.tree_util.tree_flatten(self._forward(tree, leaves, given))
            return build.unflatten([_result(value) for value in results])
        moving = tuple(i for i, v in enumerate(inputs) if isinstance(v, Tensor) and v.requires_grad)
        result, pullback = self._linearised(tree, moving, leaves, given)
        results, build = jax.tree_util.tree_flatten(result)
        tensors = [_result(value) for value in results]
        live = [i for i, t in enumerate(tensors) if isinstance(t, Tensor) and backend.is_floating(t.dtype)]
        if live:
            rule = self._rule(pullback, results, build, live)
            sources = (*parameters, *(inputs[i] for i in moving))
            nodes = record_many(self.extra_repr(), [tensors[i].data for i in live], rule, sources, sources)
            for i, tensor in zip(live, nodes):
                tensors[i] = tensor
        return build.unflatten(tensors)

    def _rule(self, pullback: Any, results: list[Any], build: Any, live: list[int]) -> Any:
        likes = [(value.shape, value.dtype) for value in results]

        def rule(gradients: tuple[Array | None, ...]) -> list[Array]:
            seeds = [_zero_seed(*like) for like in likes]
            for i, gradient in zip(live, gradients):
                if gradient is not None:
                    seeds[i] = to_jax(gradient)
            leaves, chosen = self._pull(pullback, build.unflatten(seeds))
            return [from_jax(value) for value in (*leaves, *chosen)]

        return rule

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return getattr(self._function, "__name__", repr(self._function))


def _input(value: Any) -> Any:
    """An array for JAX; numbers and JAX's own arrays, keys of its random state too, as they are."""
    if isinstance(value, Tensor):
        return to_jax(value.data)
    return to_jax(value) if backend.is_array(value) else value


def _result(value: Any) -> Any:
    """A tensor over a copy; keys of JAX's random state as they are."""
    return value if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended) else constant(from_jax(value))


def _zero_seed(shape: tuple[int, ...], dtype: Any) -> Any:
    # Integers have gradients without content, of a dtype of their own.
    inexact = jax.numpy.issubdtype(dtype, jax.numpy.inexact)
    return jax.numpy.zeros(shape, dtype) if inexact else np.zeros(shape, jax.dtypes.float0)


def _key(part: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(part, attribute):
            return str(getattr(part, attribute))
    return str(part)
