"""Policies: plain values that travel as specs; nonsense is refused when it is written."""

import json

import pytest

from psframework.errors import ArgumentError
from psframework.parameter_server.policy import ASP, BSP, SSP, policy_from_spec, policy_spec


@pytest.mark.parametrize("policy", [ASP(), BSP(), BSP(3, 1, "wait", 5.0), SSP(), SSP(staleness=4)])
def test_a_policy_survives_the_wire(policy):
    assert policy_from_spec(json.loads(json.dumps(policy_spec(policy)))) == policy


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BSP(trainers=0), "trainers"),
        (lambda: BSP(trainers=True), "trainers"),
        (lambda: BSP(spares=-1), "spares"),
        (lambda: BSP(trainers=2, spares=2), "leave nobody"),
        (lambda: BSP(on_loss="stop"), "on_loss"),
        (lambda: BSP(on_loss="wait", wait=0), "wait"),
        (lambda: SSP(staleness=-1), "staleness"),
        (lambda: policy_from_spec({"name": "tsp"}), "known: asp, bsp, ssp"),
        (lambda: policy_from_spec({"name": "asp", "x": 1}), "asp"),
    ],
)
def test_nonsense_is_refused(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()
