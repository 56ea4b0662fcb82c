"""The catalogue of operations in `tests/support/op_cases` names every public one, and no other."""

import numpy as np
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
    tested = {getattr(psf.ops, name) for name in covered & set(psf.ops.__all__)}
    covered |= {name for name in psf.ops.__all__ if getattr(psf.ops, name) in tested}  # a second name
    assert not public - covered, "public operations without a case"
    assert not covered - public, "cases of operations that are not public"


# Of integers or times, without a derivative of use, or, as matrix products, not elementwise.
NOT_HERE = {
    "bitwise_count", "bitwise_invert", "bitwise_left_shift", "bitwise_not", "bitwise_right_shift", "conj",
    "conjugate", "gcd", "isnat", "lcm", "left_shift", "matvec", "nextafter", "right_shift", "signbit",
    "spacing", "vecdot", "vecmat",
}  # fmt: skip


def test_every_differentiable_function_of_numpy_is_here():
    elementwise = {name for name in dir(np) if isinstance(getattr(np, name), np.ufunc)}
    assert elementwise - set(psf.ops.__all__) <= NOT_HERE
