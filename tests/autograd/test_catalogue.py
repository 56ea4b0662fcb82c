"""The catalogue of operations in `tests/support/op_cases` names every public one, and no other."""

from op_case import collect

import psframework as psf
import psframework.nn.functional as F

CASES = list(collect("op_cases"))


def test_the_catalogue_is_complete():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names), sorted(name for name in names if names.count(name) > 1)
    covered = {name for case in CASES for name in case.names}
    public = {name for name in psf.ops.__all__ if callable(getattr(psf.ops, name))}
    public |= {name for name in F.__all__ if callable(getattr(F, name))}
    assert not public - covered, "public operations without a case"
    assert not covered - public, "cases of operations that are not public"
