"""Sums of products by labels (Einstein's notation), and what is made of them: tensordot, dot, inner, outer.

Two operands at a time are laid out as batches of matrices, which is many times faster than `numpy.einsum`.
The gradient of an operand is another such sum: of the result's gradient and the other operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from string import ascii_letters
from typing import NamedTuple, TypeAlias, TypeVar, cast

import numpy as np

from psframework import backend
from psframework.autograd.ops.arithmetic import multiply
from psframework.autograd.ops.contract import contract, diagonal_view
from psframework.autograd.ops.matmul import matmul
from psframework.autograd.ops.shape import axis_list, ravel, reshape
from psframework.autograd.ops.subscripts import parse
from psframework.autograd.record import as_tensor, constant, explain, guarded, record, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array, DType
from psframework.errors import ArgumentError

T = TypeVar("T")
Axes: TypeAlias = "int | tuple[int | Sequence[int], int | Sequence[int]]"


def einsum(subscripts: str, *operands: Tensor | Array) -> Tensor:
    """The sum of products that `subscripts` describes: `einsum("bij,bjk->bik", x, y)`.

    A label that operands share pairs their axes; one that the result does not have is summed over; one that
    stands twice in an operand means its diagonal. Axes of length 1 are broadcast.

    Args:
        subscripts: a letter for each axis of each operand, commas between operands, and after `->` those of
            the result; without `->` all that occur once, in alphabetical order. `...` stands for any further
            axes, which come first in a result without `->`.
        operands: one or more.

    Raises:
        ArgumentError: subscripts that are malformed, or that do not fit the operands.
    """
    tensors = [as_tensor(operand, "einsum") for operand in operands]
    inputs, output = parse(subscripts, tuple(t.ndim for t in tensors))
    return _sum_of_products(f"einsum {subscripts!r}", tensors, inputs, output)


def _sum_of_products(name: str, tensors: list[Tensor], inputs: tuple[str, ...], output: str) -> Tensor:
    dtype = tensors[0].dtype
    if any(t.dtype != dtype for t in tensors):
        dtype = np.result_type(*(t.dtype for t in tensors))
    wide = np.dtype(np.float32) if backend.is_narrow(dtype) else dtype
    likes = [(t._data.shape, t._data.dtype) for t in tensors]
    terms = _terms(name, inputs, tuple([shape for shape, _ in likes]))
    arrays = [_prepared(t._data, wide, term) for t, term in zip(tensors, terms)]
    labels = [term.used for term in terms]
    try:
        out = contract(arrays, labels, output)
    except (TypeError, ValueError) as error:
        raise explain(name, error, *tensors) from error
    if len(arrays) == 1 and (out is arrays[0] or out.base is not None):
        out = out.copy()  # a transposed or diagonal view: the result has memory of its own
    out = out.astype(dtype, copy=False)
    if not recording(*tensors):
        return constant(out)
    wanted = [t._requires_grad for t in tensors]
    # An array is needed by the gradients of the others only.
    held = [any(_but(wanted, k)) for k in range(len(tensors))]
    kept = [array if hold else None for array, hold in zip(arrays, held)]

    def rule(gradient: Array, wanted: Sequence[bool] = wanted) -> Sequence[Array | None]:
        g = gradient.astype(wide, copy=False)
        answers: list[Array | None] = []
        for k, (shape, kind) in enumerate(likes):
            if not wanted[k]:
                answers.append(None)
                continue
            others = [array for array in _but(kept, k) if array is not None]
            into = _gradient([g, *others], [output, *_but(labels, k)], terms[k], shape)
            answers.append(into.astype(kind, copy=False))
        return answers

    saved = tuple([t if hold else None for t, hold in zip(tensors, held)])
    return record(name.partition(" ")[0], out, rule, tuple(tensors), saved)


def _but(items: Sequence[T], place: int) -> list[T]:
    return [*items[:place], *items[place + 1 :]]


class _Term(NamedTuple):
    """An operand's labels.

    Attributes:
        letters: of its axes, as the user has them.
        unique: each of them once; where that differs, the operand's diagonal is taken.
        used: without those whose axis of length 1 is broadcast.
        shape: of what is used.
    """

    letters: str
    unique: str
    used: str
    shape: tuple[int, ...]


@lru_cache(maxsize=4096)
def _terms(name: str, inputs: tuple[str, ...], shapes: tuple[tuple[int, ...], ...]) -> list[_Term]:
    sizes: dict[str, int] = {}
    for letters, shape in zip(inputs, shapes):
        for letter, n in zip(letters, shape):
            if n != shape[letters.index(letter)]:
                raise ArgumentError(f"{name}: {letter!r} means the diagonal of axes that differ: {shape}")
            if sizes.setdefault(letter, n) == 1:
                sizes[letter] = n
            elif n not in (1, sizes[letter]):
                raise ArgumentError(
                    f"{name}: {letter!r} is {sizes[letter]} and {n} long in shapes {list(shapes)}"
                )
    terms = []
    for letters, shape in zip(inputs, shapes):
        unique = "".join(dict.fromkeys(letters))
        used = "".join(letter for letter in unique if shape[letters.index(letter)] == sizes[letter])
        terms.append(_Term(letters, unique, used, tuple(sizes[letter] for letter in used)))
    return terms


def _prepared(array: Array, dtype: DType, term: _Term) -> Array:
    if array.dtype != dtype:
        array = array.astype(dtype)
    if term.unique != term.letters:
        array, _ = diagonal_view(array, term.letters)
    return array if array.shape == term.shape else array.reshape(term.shape)


def _gradient(arrays: list[Array], labels: list[str], term: _Term, shape: tuple[int, ...]) -> Array:
    """The gradient of an operand: the sum of products of the result's gradient and the other operands.

    Args:
        arrays: these.
        labels: theirs.
        term: the operand's.
        shape: of the operand.
    """
    present = "".join(labels)
    found = "".join([letter for letter in term.used if letter in present])
    part = contract(arrays, labels, found)
    if found == term.letters:
        return part if part.shape == shape else part.reshape(shape)
    # Along a letter that only this operand has, the sum's gradient is the same everywhere.
    lengths = [shape[term.letters.index(letter)] for letter in term.unique]
    part = part.reshape([n if letter in found else 1 for letter, n in zip(term.unique, lengths)])
    xp = backend.xp(part)
    part = xp.broadcast_to(part, lengths)
    if term.unique == term.letters:
        return cast(Array, part)
    into = xp.zeros(shape, part.dtype)
    diagonal_view(into, term.letters)[0][...] = part
    return cast(Array, into)


@guarded("tensordot")
def tensordot(a: Tensor | Array, b: Tensor | Array, axes: Axes = 2) -> Tensor:
    """The sum of products over axes of `a` and `b`; what is left of `a` comes before what is left of `b`.

    Args:
        a: any shape.
        b: any shape.
        axes: how many of the last of `a` go with the first of `b`; or the axes of `a`, and those of `b`.
    """
    a, b = as_tensor(a, "tensordot"), as_tensor(b, "tensordot")
    if isinstance(axes, int | np.integer):
        if not 0 <= axes <= min(a.ndim, b.ndim):
            raise ArgumentError(f"tensordot: {axes} axes of shapes {a.shape} and {b.shape}")
        of_a, of_b = list(range(a.ndim - int(axes), a.ndim)), list(range(int(axes)))
    else:
        of_a, of_b = axis_list("tensordot", a.ndim, axes[0]), axis_list("tensordot", b.ndim, axes[1])
    if [a.shape[i] for i in of_a] != [b.shape[i] for i in of_b]:
        raise ArgumentError(
            f"tensordot: axes {of_a} of shape {a.shape} and {of_b} of {b.shape} differ in length"
        )
    left = ascii_letters[: a.ndim]
    right = list(ascii_letters[a.ndim : a.ndim + b.ndim])
    for i, j in zip(of_a, of_b):
        right[j] = left[i]
    output = [x for x in left if x not in right] + [y for y in right if y not in left]
    return _sum_of_products("tensordot", [a, b], (left, "".join(right)), "".join(output))


def dot(a: Tensor | Array, b: Tensor | Array) -> Tensor:
    """NumPy's dot: the sum of products over the last axis of `a` and the last but one (or only) of `b`."""
    a, b = as_tensor(a, "dot"), as_tensor(b, "dot")
    if not a.ndim or not b.ndim:
        return multiply(a, b)
    if a.ndim <= 2 and b.ndim <= 2:
        return matmul(a, b)
    return tensordot(a, b, (-1, -2 if b.ndim > 1 else 0))


def inner(a: Tensor | Array, b: Tensor | Array) -> Tensor:
    """The sum of products over the last axes of both."""
    a, b = as_tensor(a, "inner"), as_tensor(b, "inner")
    return tensordot(a, b, (-1, -1)) if a.ndim and b.ndim else multiply(a, b)


def vdot(a: Tensor | Array, b: Tensor | Array) -> Tensor:
    """The sum of products of all elements in their flat order."""
    return matmul(ravel(a), ravel(b))


def outer(a: Tensor | Array, b: Tensor | Array) -> Tensor:
    """The product of each element of `a` with each of `b`: (a.size, b.size)."""
    return tensordot(ravel(a), ravel(b), 0)


def kron(a: Tensor | Array, b: Tensor | Array) -> Tensor:
    """Kronecker's product: each element of `a` replaced by its product with all of `b`."""
    a, b = as_tensor(a, "kron"), as_tensor(b, "kron")
    ndim = max(a.ndim, b.ndim)
    m, n = ((1,) * (ndim - t.ndim) + t.shape for t in (a, b))
    left, right = ascii_letters[:ndim], ascii_letters[ndim : 2 * ndim]
    output = "".join(x + y for x, y in zip(left, right))
    pairs = _sum_of_products("kron", [reshape(a, m), reshape(b, n)], (left, right), output)
    return reshape(pairs, tuple(i * j for i, j in zip(m, n)))
