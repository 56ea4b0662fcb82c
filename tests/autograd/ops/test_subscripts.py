import pytest

from psframework.autograd.ops.subscripts import parse
from psframework.errors import ArgumentError


@pytest.mark.parametrize(
    ("subscripts", "ndims", "expected"),
    [
        ("ij, jk -> ik", (2, 2), (("ij", "jk"), "ik")),
        ("ij,jk", (2, 2), (("ij", "jk"), "ik")),
        ("ba", (2,), (("ba",), "ab")),
        ("ii", (2,), (("ii",), "")),
        ("...i,i...", (3, 2), (("abi", "ib"), "ab")),
        ("...a,a->...", (2, 1), (("ba", "a"), "b")),
        ("...i->i", (2,), (("ai",), "i")),
        ("i->i...", (1,), (("i",), "i")),
        (",->", (0, 0), (("", ""), "")),
    ],
)
def test_letters(subscripts, ndims, expected):
    assert parse(subscripts, ndims) == expected


@pytest.mark.parametrize(
    ("subscripts", "ndims", "words"),
    [
        ("ij,jk", (2,), "2 terms for 1 operands"),
        ("ij", (3,), "'ij' for operand 0, which has 3 axes"),
        ("i,ij...", (1, 1), "operand 1, which has 1 axes"),
        ("i1", (2,), "must be letters"),
        ("i......", (2,), "one '...' at most"),
        ("i..", (1,), "must be letters"),
        ("ij->k", (2,), "the result 'k' must name labels"),
        ("ij->ii", (2,), "each once"),
        ("ij->i......", (2,), "must name labels"),
        ("...", (53,), "more axes than there are letters"),
    ],
)
def test_malformed(subscripts, ndims, words):
    with pytest.raises(ArgumentError, match=words):
        parse(subscripts, ndims)
