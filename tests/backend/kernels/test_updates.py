"""Every fused update against its rule's own arithmetic, for several steps."""

import numpy as np
import pytest

from psframework import optim
from psframework.backend.kernels.updates import update_of

RULES = [
    optim.SGDRule(lr=0.1),
    optim.SGDRule(lr=0.1, weight_decay=0.2),
    optim.SGDRule(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    optim.SGDRule(lr=0.1, momentum=0.9, dampening=0.5),
    optim.AdamRule(lr=0.1),
    optim.AdamRule(lr=0.1, weight_decay=0.1, amsgrad=True),
    optim.AdamWRule(lr=0.1),
    optim.AdamWRule(lr=0.1, weight_decay=0.0, amsgrad=True),
    optim.AdagradRule(lr=0.1, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.1),
    optim.RMSpropRule(lr=0.1),
    optim.RMSpropRule(lr=0.1, centered=True, momentum=0.5, weight_decay=0.1),
    optim.FTRLRule(lr=0.1),
    optim.FTRLRule(lr=0.1, l1=0.05, l2=0.1, l2_shrinkage=0.1, beta=0.5),
    optim.FTRLRule(lr=optim.schedule.Step(0.1, 2), lr_power=-0.3, beta=0.5),
    optim.LAMBRule(lr=0.1, weight_decay=0.1),
    optim.LAMBRule(lr=0.1, adapt=False),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_as_the_rule(device, kernels, rule, dtype):
    rng = np.random.default_rng(4)
    host = rng.standard_normal((2, 5)).astype(dtype)
    there = device.to_device(host)
    host_state, state = rule.init_state(host), rule.init_state(there)
    for step in (1, 2, 3):
        gradient = rng.standard_normal((2, 5)).astype(dtype)
        if rule.grain == "parameter":
            state = fused_whole(rule, there, device.to_device(gradient), state, step, kernels, device)
        else:
            scalars = rule.scalars(step, there)
            assert kernels.update(rule, there, device.to_device(gradient), state, scalars)
        rule.update(host, gradient, host_state, step)
    tolerance = 20 * np.finfo(dtype).eps
    np.testing.assert_allclose(device.asnumpy(there), host, rtol=tolerance, atol=tolerance)
    for name, slot in host_state.items():
        allowed = tolerance * max(1, np.abs(slot).max())
        np.testing.assert_allclose(device.asnumpy(state[name]), slot, rtol=tolerance, atol=allowed)


def fused_whole(rule, p, g, state, step, kernels, device):
    """LAMB: its first pass is the rule's, its second the kernel's."""
    from psframework.optim.blocks import scratch_for

    scalars = rule.scalars(step, p)
    totals = rule.measure_block(p, g, state, scalars, scratch_for(p))
    assert kernels.update(rule, p, g, state, rule.settled(scalars, totals, p.dtype))
    return state


def test_what_has_no_kernel(device, kernels):
    assert update_of(optim.RowWiseAdagradRule()) is None
    half = device.zeros(2, "float16")
    assert not kernels.update(optim.SGDRule(), half, half, {}, (0.1, 0, 1, 0))
    assert not kernels.update(optim.RowWiseAdagradRule(), device.zeros(2), device.zeros(2), {}, ())
    assert not kernels.update(optim.SGDRule(), device.zeros(2), half, {}, (0.1, 0, 1, 0))


def test_every_elementwise_rule_has_one():
    rules = [kind for kind in optim.UpdateRule._registry.values() if kind.grain != "row"]
    assert not [
        kind.name for kind in rules if kind.__module__.startswith("psframework") and not update_of(kind())
    ]
