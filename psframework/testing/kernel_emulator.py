"""CuPy's `RawKernel` and `ElementwiseKernel` without a GPU: the same sources, thread by thread, in Python.

Slow, but exact in structure: threads of a block advance together from one barrier to the next. A barrier or
shuffle that not all of them reach is an error; so are a race between two barriers, and a place outside of an
array. Numbers are Python's: rounding happens where a kernel stores.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from psframework.testing.c_translator import translate

_WARP = 32


def _guarded(function: Callable[..., float], error: float = math.nan) -> Callable[..., float]:
    """A function of `math` that answers as C's: no exceptions."""

    def call(*arguments: float) -> float:
        try:
            return function(*map(float, arguments))
        except OverflowError:
            return math.inf
        except ValueError:
            return error

    return call


BUILT_IN: dict[str, Callable[..., Any]] = {
    "exp": _guarded(math.exp),
    "log": lambda x: -math.inf if x == 0 else _guarded(math.log)(x),
    "sqrt": _guarded(math.sqrt),
    "pow": _guarded(math.pow),
    "erf": math.erf,
    "tanh": math.tanh,
    "load": float,
    "store": float,
}
_NAMES = frozenset(BUILT_IN)


def _compiled(source: str, types: str, itemsize: int) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    exec(translate(source, types, _NAMES), scope)
    scope["itemsize"] = itemsize
    return scope


class _Places:
    """An array as a kernel sees it: flat, without negative places."""

    def __init__(self, flat: Any) -> None:
        self.flat = flat

    def _check(self, place: int) -> int:
        if not 0 <= place < len(self.flat):
            raise IndexError(f"a kernel went to place {place} of an array of {len(self.flat)}")
        return place

    def __getitem__(self, place: int) -> Any:
        value = self.flat[self._check(place)]
        return value.item() if isinstance(value, np.generic) and value.dtype.kind in "iub" else float(value)

    def __setitem__(self, place: int, value: float) -> None:
        self.flat[self._check(place)] = value


class _Block:
    """What the threads of a block share: arrays, and who used them since the last barrier."""

    def __init__(self) -> None:
        self.arrays: dict[str, _Places] = {}
        self.used: dict[tuple[str, int], tuple[set[int], set[int]]] = {}


class _Shared:
    """A shared array as one thread sees it: a race with another thread is an error."""

    def __init__(self, block: _Block, name: str, thread: int) -> None:
        self._block, self._name, self._thread = block, name, thread

    def _use(self, place: int, writes: bool) -> None:
        readers, writers = self._block.used.setdefault((self._name, place), (set(), set()))
        (writers if writes else readers).add(self._thread)
        if writers and len(readers | writers) > 1:
            raise RuntimeError(f"threads {sorted(readers | writers)} race for {self._name}[{place}]")

    def __getitem__(self, place: int) -> Any:
        self._use(place, False)
        return self._block.arrays[self._name][place]

    def __setitem__(self, place: int, value: float) -> None:
        self._use(place, True)
        self._block.arrays[self._name][place] = value


class _Thread(SimpleNamespace):
    """One thread: where it is, and the functions that CUDA has."""

    def shared(self, name: str, count: int) -> _Shared:
        """An array of its block."""
        self.block.arrays.setdefault(name, _Places([math.nan] * count))
        return _Shared(self.block, name, self.threadIdx.x)


def _run_block(threads: Sequence[Iterator[Any]], block: _Block, number: int) -> None:
    """All threads from one meeting to the next."""
    answers: list[Any] = [None] * len(threads)
    while True:
        calls = []
        for thread, answer in zip(threads, answers):
            try:
                calls.append(thread.send(answer))  # type: ignore[attr-defined]
            except StopIteration:
                calls.append(None)
        if all(call is None for call in calls):
            return
        kinds = {call and call[0] for call in calls}
        if len(kinds) > 1:
            raise RuntimeError(f"the threads of block {number} are at different places: {kinds}")
        if kinds == {"sync"}:
            answers = [None] * len(threads)
            block.used.clear()
        else:
            answers = [
                calls[i - i % _WARP + ((i % _WARP) ^ calls[i][2])][1]  # the other lane's value
                for i in range(len(threads))
            ]


class RawKernel:
    """A kernel that computes by blocks and threads, as `cupy.RawKernel`.

    Args:
        device: the strict device whose arrays it takes.
        code: CUDA C; `load` and `store` convert by the arrays' own dtypes.
        name: of the kernel in it.
    """

    def __init__(self, device: Any, code: str, name: str) -> None:
        head, body = code.split("// The sum over all threads", 1)  # conversions are in PTX
        types = "".join(line + "\n" for line in head.splitlines() if line.startswith("typedef"))
        self._scope = _compiled("// The sum over all threads" + body, types, 8 if "double C" in types else 4)
        self._device, self._name = device, name

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        values = [self._value(argument) for argument in arguments]
        size = SimpleNamespace(x=block[0], y=1)
        shape = SimpleNamespace(x=grid[0], y=grid[1] if len(grid) > 1 else 1)
        for y in range(shape.y):
            for x in range(shape.x):
                shared, at = _Block(), SimpleNamespace(x=x, y=y)
                threads = [
                    self._scope[self._name](
                        _Thread(
                            block=shared, blockIdx=at, blockDim=size, gridDim=shape,
                            threadIdx=SimpleNamespace(x=i, y=0), itemsize=self._scope["itemsize"], **BUILT_IN,
                        ),
                        *values,
                    )
                    for i in range(size.x)
                ]  # fmt: skip
                _run_block(threads, shared, x)

    def _value(self, argument: Any) -> Any:
        if isinstance(argument, np.generic):
            return argument.item()
        host = self._device.unwrap(argument)
        if not host.flags.c_contiguous:
            raise ValueError(f"{self._name}: an array that is not contiguous")
        return _Places(host.reshape(-1))


class ElementwiseKernel:
    """A kernel over elements, as `cupy.ElementwiseKernel`.

    Args:
        device: the strict device whose arrays it takes.
        in_params: "T x, T y": type T is that of the arrays.
        out_params: the same; arrays for them may be given, and are then written.
        operation: statements in C.
        name: of the kernel.
    """

    def __init__(self, device: Any, in_params: str, out_params: str, operation: str, name: str) -> None:
        self._device, self._name, self._operation = device, name, operation
        self._inputs = [parameter.split()[1] for parameter in in_params.split(",")]
        self._outputs = [parameter.split()[1] for parameter in out_params.split(",")]

    def __call__(self, *arguments: Any) -> Any:
        hosts = [self._device.unwrap(argument) for argument in arguments]
        arrays = [host for host in hosts if isinstance(host, np.ndarray)]
        (dtype,) = {array.dtype for array in arrays}
        inputs, outputs = hosts[: len(self._inputs)], hosts[len(self._inputs) :]
        shape = np.broadcast_shapes(*(np.shape(host) for host in hosts))
        made = outputs or [np.empty(shape, dtype) for _ in self._outputs]
        inputs = [np.broadcast_to(np.asarray(value, dtype), shape) for value in inputs]
        self._run(dtype, [np.atleast_1d(value) for value in inputs], [np.atleast_1d(array) for array in made])
        if outputs:
            return arguments[len(self._inputs)]
        return self._device.wrap(made[0], ())

    def _run(self, dtype: Any, inputs: list[Any], outputs: list[Any]) -> None:
        names = [*self._inputs, *self._outputs]
        places = re.sub(rf"\b({'|'.join(names)})\b", r"\1[0]", self._operation)
        code = f"void run({', '.join(f'T* {name}' for name in names)}) {{ {places} }}"
        scope = _compiled(code, "typedef float T; typedef float C;\n", dtype.itemsize)
        thread = _Thread(itemsize=dtype.itemsize, **BUILT_IN)
        for index in np.ndindex(outputs[0].shape):
            cells = [_Places([float(array[index])]) for array in (*inputs, *outputs)]
            for _ in scope["run"](thread, *cells):
                raise RuntimeError(f"{self._name}: elements do not meet")
            for array, cell in zip(outputs, cells[len(inputs) :]):
                array[index] = cell.flat[0]


def kernels(device: Any) -> Any:
    """What stands for CuPy in `backend.kernels.Kernels`: its functions and these two classes."""
    return SimpleNamespace(
        RawKernel=lambda code, name: RawKernel(device, code, name),
        ElementwiseKernel=lambda *parts: ElementwiseKernel(device, *parts),
        empty=device.empty,
        zeros=device.zeros,
        ascontiguousarray=device.ascontiguousarray,
    )
