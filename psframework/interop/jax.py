"""A JAX function as a psframework module: JAX compiles its forward and backward, ours are the parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from psframework import backend, nn
from psframework.autograd import Tensor
from psframework.autograd.record import constant, record_many, recording
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.interop.structure import flatten, framework, home, plant

jax = framework("jax")


def to_jax(array: Array) -> Any:
    """A JAX array over the memory of `array` where JAX can have it so, else a copy.

    Raises:
        ArgumentError: JAX would silently convert it, as it does with float64 unless told otherwise.
    """
    try:
        made = jax.dlpack.from_dlpack(array)
    except Exception:  # read-only, bfloat16, bool: each kind raises another class
        made = jax.numpy.array(array)
    if made.dtype != array.dtype:
        raise ArgumentError(
            f"JAX would compute in {made.dtype} instead of {array.dtype}: "
            'call jax.config.update("jax_enable_x64", True), or convert with .astype(np.float32)'
        )
    return made


def from_jax(value: Any) -> Array:
    """A JAX array in host memory, or where CuPy can have it; waits until it is computed."""
    if next(iter(value.devices())).platform != "cpu":
        return backend.from_dlpack(value)
    return np.asarray(value)


class JaxModule(nn.Module):
    """`function(params, *inputs)` as a module whose parameters are the leaves of `params`.

    Forward and backward are compiled by `jax.jit` once for each set of shapes. JAX reads the parameters'
    memory in place; they are named by their path in `params`: "layers.0.w".

    Args:
        function: pure, of the parameters and arrays; answers an array, or several in tuples, lists, dicts.
        params: nested dicts, lists and tuples of arrays (NumPy's or JAX's); they are copied.

    Raises:
        ArgumentError: no function, or parameters without a floating array.
    """

    def __init__(self, function: Callable[..., Any], params: Any) -> None:
        if not callable(function):
            raise ArgumentError(f"JaxModule takes a function, not {type(function).__name__}")
        leaves, self._tree = jax.tree_util.tree_flatten_with_path(params)
        self._leaves: list[tuple[nn.Module, str]] = []
        for path, leaf in leaves:
            name = ".".join(_key(part) for part in path) or "param"
            array = np.array(leaf)
            if not backend.is_floating(array.dtype):
                raise ArgumentError(f"JaxModule: params {name!r} has dtype {array.dtype}: only floats train")
            plant(self, name, array, True)
            self._leaves.append(home(self, name))
        self._function = function
        self._forward = jax.jit(self._pure)
        self._linearised = jax.jit(self._with_pullback, static_argnums=0)
        self._pull = jax.jit(lambda pullback, seeds: pullback(seeds))

    def _pure(self, leaves: Sequence[Any], inputs: Sequence[Any]) -> Any:
        return self._function(jax.tree_util.tree_unflatten(self._tree, leaves), *inputs)

    def _with_pullback(self, moving: tuple[int, ...], leaves: Any, inputs: Any) -> Any:
        """Results, and the function from their gradients to those of the leaves and the `moving` inputs."""

        def of_moving(leaves: Any, chosen: Any) -> Any:
            merged = list(inputs)
            for i, value in zip(moving, chosen):
                merged[i] = value
            return self._pure(leaves, merged)

        return jax.vjp(of_moving, leaves, [inputs[i] for i in moving])

    def forward(self, *inputs: Tensor | Array) -> Any:
        """What the function answers, with Tensors in the place of arrays."""
        parameters = [owner.__dict__[name] for owner, name in self._leaves]
        leaves = [to_jax(parameter.data) for parameter in parameters]
        given = [to_jax(value.data if isinstance(value, Tensor) else np.asarray(value)) for value in inputs]
        if not recording(*parameters, *inputs):
            results, build = flatten(self._forward(leaves, given), jax.Array)
            return build([constant(from_jax(value)) for value in results])
        moving = tuple(i for i, v in enumerate(inputs) if isinstance(v, Tensor) and v.requires_grad)
        result, pullback = self._linearised(moving, leaves, given)
        results, build = flatten(result, jax.Array)
        sources = (*parameters, *(inputs[i] for i in moving))
        rule = self._rule(pullback, results, build)
        arrays = [from_jax(value) for value in results]
        tensors = [constant(array) for array in arrays]
        live = [i for i, array in enumerate(arrays) if backend.is_floating(array.dtype)]
        if live:
            nodes = record_many(self.extra_repr(), [arrays[i] for i in live], rule, sources, sources)
            for i, tensor in zip(live, nodes):
                tensors[i] = tensor
        return build(tensors)

    def _rule(self, pullback: Any, results: list[Any], build: Callable[[Sequence[Any]], Any]) -> Any:
        likes = [(value.shape, value.dtype) for value in results]
        live = [i for i, (_, dtype) in enumerate(likes) if backend.is_floating(np.dtype(dtype))]

        def rule(gradients: tuple[Array | None, ...]) -> list[Array]:
            seeds = [_zero_seed(*like) for like in likes]
            for i, gradient in zip(live, gradients):
                if gradient is not None:
                    seeds[i] = to_jax(np.ascontiguousarray(gradient))
            leaves, chosen = self._pull(pullback, build(seeds))
            return [from_jax(value) for value in (*leaves, *chosen)]

        return rule

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return getattr(self._function, "__name__", repr(self._function))


def _zero_seed(shape: tuple[int, ...], dtype: Any) -> Any:
    # Integers have gradients without content, of a dtype of their own.
    inexact = jax.numpy.issubdtype(dtype, jax.numpy.inexact)
    return jax.numpy.zeros(shape, dtype) if inexact else np.zeros(shape, jax.dtypes.float0)


def _key(part: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(part, attribute):
            return str(getattr(part, attribute))
    return str(part)
