"""Changes of dtype and of device, there and back."""

import numpy as np
from op_case import Case

from psframework.autograd.ops.transfer import to

rng = np.random.default_rng(3)
A, B = rng.standard_normal((2, 3)), rng.standard_normal((3,))

CASES = [
    Case("to", lambda x: to(x, np.float64, copy=True), [A]),
    Case("to: without axes", lambda x: to(x, "float64", copy=True), [np.array(0.3)]),
    Case("to: no elements", lambda x: to(x, "float32"), [A[:0]]),
    Case("to: nothing to do", lambda x: to(x, x) * 2, [A]),
    Case("to: a copy", lambda x: to(x, x, copy=True), [A]),
    Case("to: by way of the host", lambda x: to(to(x * 2, "cpu") * 3, x), [A]),
    Case("to: like another", lambda x, y: to(to(y, "cpu"), x) * x, [A, B], mixed=False),
]
