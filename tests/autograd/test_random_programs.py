"""Random programs of 30 operations give torch's values and gradients in float32 (an oracle test)."""

import os
import random
from dataclasses import replace

import numpy as np
import pytest
from random_programs import error, make_program, run_ours, run_torch

from psframework.autograd.record import record, sum_to

TOLERANCE = 1e-5


@pytest.fixture
def one_thread():
    """Threads of torch's only get in each other's way at this size."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check(seeds, change=lambda ops: ops):
    """Compare the programs of these seeds; how many of them float32 itself can't settle."""
    torch = pytest.importorskip("torch")
    from random_program_ops import SCALE
    from random_program_products import OPS

    ops, unsettled = change(OPS), 0
    for seed in seeds:
        program = make_program(seed, ops, SCALE)
        ours, theirs = run_ours(program), run_torch(program, torch.float32)
        found = error(ours, theirs)
        if found <= TOLERANCE:
            continue
        # Is it us, or the program? In float64, torch with and without rounding shows what float32 can settle.
        exact = run_torch(program, torch.float64)
        noisy = [run_torch(program, torch.float64, noise) for noise in range(4)]
        best, mine = max(error(result, exact) for result in (theirs, *noisy)), error(ours, exact)
        assert mine <= max(TOLERANCE, 4 * best), (
            f"seed {seed}: {found:.1e} from torch, {mine:.1e} from torch in float64, of which rounding to "
            f"float32 explains {best:.1e}\n{program}"
        )
        unsettled += 1
    return unsettled


@pytest.mark.oracle
def test_random_programs(one_thread):
    assert check(range(80)) == 0


@pytest.mark.oracle
@pytest.mark.soak
def test_many_random_programs(one_thread):
    first = int(os.environ.get("PSF_SEED", "0")) or random.randrange(10**9)
    print(f"PSF_SEED={first}")
    assert check(range(first, first + 2000)) <= 10


@pytest.mark.oracle
def test_a_wrong_gradient_is_noticed_and_the_program_printed(one_thread):
    def wrong(x, y):
        return record("add", x.data + y.data, lambda g: (sum_to(g, x.shape, g.dtype), None), (x, y))

    def change(ops):
        return [replace(op, ours=wrong) if op.name == "add" else op for op in ops]

    with pytest.raises(AssertionError, match=r"(?s)seed \d+: .* from torch.*v0 = leaf of shape .*= add\(v"):
        check(range(40), change)


def test_the_comparison_notices_a_difference():
    right = [np.array([1.0, 200.0], np.float32)]
    assert error(right, right) == 0
    assert error([right[0] * np.float32(1.001)], right) > TOLERANCE
    assert error([right[0][:1]], right) == np.inf
    assert error([np.array([np.nan, 200.0])], right) == np.inf
