"""The language of `einsum`: `"bij,bjk->bik"`."""

from __future__ import annotations

from functools import lru_cache
from string import ascii_letters

from psframework.errors import ArgumentError

DOTS = "..."


@lru_cache(maxsize=1024)
def parse(subscripts: str, ndims: tuple[int, ...]) -> tuple[tuple[str, ...], str]:
    """The letters of each operand's axes, and those of the result.

    Args:
        subscripts: as `einsum` takes them.
        ndims: number of axes of each operand.

    Returns:
        The axes behind `...` have letters of their own; those that two operands share, counted from the last,
        have the same.

    Raises:
        ArgumentError: subscripts that are malformed, or that do not fit the operands.
    """
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ndims):
        raise _bad(subscripts, f"{len(terms)} terms for {len(ndims)} operands")
    hidden = [_hidden(subscripts, place, term, ndims[place]) for place, term in enumerate(terms)]
    used = set(left + right)
    free = [letter for letter in ascii_letters if letter not in used]
    width = max(hidden)
    if width > len(free):
        raise _bad(subscripts, "more axes than there are letters")
    dots = "".join(free[:width])
    inputs = tuple(term.replace(DOTS, dots[width - n :]) for term, n in zip(terms, hidden))
    if not arrow:
        plain = "".join(term.replace(DOTS, "") for term in terms)
        return inputs, dots + "".join(sorted(letter for letter in plain if plain.count(letter) == 1))
    output = right.replace(DOTS, dots, 1)
    if not set(output) <= set("".join(inputs)) or len(set(output)) != len(output):
        raise _bad(subscripts, f"the result {right!r} must name labels of the operands, each once")
    return inputs, output


def _hidden(subscripts: str, place: int, term: str, ndim: int) -> int:
    """How many axes the `...` of a term stands for."""
    named = term.replace(DOTS, "", 1)
    if not set(named) <= set(ascii_letters):
        raise _bad(subscripts, f"the labels of {term!r} must be letters, with one '...' at most")
    count = ndim - len(named)
    if count < 0 or (count and DOTS not in term):
        raise _bad(subscripts, f"{term!r} for operand {place}, which has {ndim} axes")
    return count


def _bad(subscripts: str, reason: str) -> ArgumentError:
    return ArgumentError(f"einsum {subscripts!r}: {reason}")
