"""Functions of one operand, and conversions."""

import numpy as np
from op_case import Case

from psframework import ops

rng = np.random.default_rng(11)
ANY = rng.uniform(0.2, 1.8, (2, 3)) * np.array([[1], [-1]])
POSITIVE = rng.uniform(0.4, 2.5, (2, 3))
FRACTION = rng.uniform(0.2, 0.8, (2, 3)) * np.array([[1], [-1]])
ABOVE_ONE = rng.uniform(1.4, 3, (2, 3))

# where the function is smooth: the numbers that its cases are made of
DOMAINS = {
    "negative": ANY, "positive": ANY, "absolute": ANY, "fabs": ANY, "square": ANY, "cbrt": ANY, "erf": ANY,
    "exp": ANY, "exp2": ANY, "expm1": ANY, "sin": ANY, "cos": ANY, "tan": FRACTION, "arctan": ANY,
    "sinh": ANY, "cosh": ANY, "arcsinh": ANY, "sinc": ANY, "deg2rad": ANY, "rad2deg": ANY, "clone": ANY,
    "log": POSITIVE, "log2": POSITIVE, "log10": POSITIVE, "log1p": POSITIVE, "sqrt": POSITIVE,
    "reciprocal": POSITIVE, "arcsin": FRACTION, "arccos": FRACTION, "arctanh": FRACTION,
    "arccosh": ABOVE_ONE, "sign": ANY, "nan_to_num": ANY, "i0": ANY,
}  # fmt: skip
ALIASES = {"absolute": "abs", "deg2rad": "radians", "rad2deg": "degrees"}
STEPS = ("floor", "ceil", "trunc", "rint", "round")


def replaced(x, mask):
    return ops.nan_to_num(ops.masked_fill(x, mask, np.inf), 2, 3, -4)


CASES = [
    *(
        Case(name, getattr(ops, name), [x], covers=(name, ALIASES.get(name, name)))
        for name, x in DOMAINS.items()
    ),
    *(Case(f"{name}: no axes", getattr(ops, name), [np.array(x[0, 1])]) for name, x in DOMAINS.items()),
    *(Case(f"{name}: empty", getattr(ops, name), [x[:, :0].copy()]) for name, x in DOMAINS.items()),
    *(Case(name, getattr(ops, name), [ANY + 0.05]) for name in STEPS),
    Case("round: places", lambda x: ops.round(x, 1), [np.array([0.23, -1.48])]),
    *(Case(name, getattr(ops, name), [ANY]) for name in ("isnan", "isinf", "isfinite")),
    Case("nan_to_num: numbers", replaced, [ANY], [ANY > 1]),
    Case("sinc: near 0", ops.sinc, [np.array([0.0, 1e-3, -0.02])]),
    Case("i0: large", ops.i0, [np.array([9.0, -12.0])]),
    Case("modf", ops.modf, [ANY]),
    Case("frexp", ops.frexp, [ANY]),
    Case("astype", lambda x: ops.astype(x, np.float32), [ANY], tolerance=1e-1),
]
