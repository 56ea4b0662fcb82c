"""Sums of products by labels."""

import numpy as np
from op_case import Case

from psframework import ops

rng = np.random.default_rng(25)
SIZES = {"b": 2, "i": 2, "j": 3, "k": 4, "l": 2}
SUBSCRIPTS = (
    "ij,jk->ik", "ij,jk", "ji,jk->ki", "bij,bjk->bik", "bij,bjk", "bij,bij->b", "ij->ji", "ij->", "ij->j",
    "i->i", "ii->i", "ii", "iij->ji", "iji->ij", "i,j->ij", "i,i", "ij,ij->ij", "ij,j->i", "ij,k->ij",
    "ij,k->j", "ij,jk,kl->il", "ij,jk,ki", "i,i,i->i", "ii,ij->j", "iij,jkk->ki", "ij,jk,kl,li->k",
)  # fmt: skip


def einsum(subscripts):
    return lambda *operands: ops.einsum(subscripts, *operands)


def case(subscripts, *shapes):
    if not shapes:
        terms = subscripts.split("->")[0].split(",")
        shapes = [[SIZES[letter] for letter in term] for term in terms]
    operands = [np.array(rng.uniform(-1, 1, shape)) for shape in shapes]
    return Case(f"einsum: {subscripts} of {shapes}", einsum(subscripts), operands)


CASES = [
    *(case(subscripts) for subscripts in SUBSCRIPTS),
    case("...ij,...jk->...ik", (2, 1, 2, 3), (2, 3, 2)),
    case("...ij,jk", (2, 2, 3), (3, 2)),
    case("i...,i...->...", (2, 3), (2, 1)),
    case("...,...", (), (2, 3)),
    case("...i->i", (2, 3, 2)),
    case("i...i->...", (2, 3, 2)),
    case(",->", (), ()),
    case("ij,jk->ik", (2, 1), (3, 2)),
    case("ij,ij->i", (2, 1), (1, 3)),
    case("ij,jk->ik", (2, 0), (0, 3)),
    case("ij,jk->ik", (0, 2), (2, 3)),
]
