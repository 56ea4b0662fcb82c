"""Policies: plain values that travel as specs; nonsense is refused when it is written."""

import json

import pytest

from psframework.errors import ArgumentError
from psframework.parameter_server.policy import ASP, BSP, SSP, for_world, policy_from_spec, policy_spec


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


@pytest.mark.parametrize(
    ("policy", "size", "expected"),
    [
        (BSP(), 4, BSP(trainers=4)),
        (BSP(spares=1), 4, BSP(trainers=4, spares=1)),
        (BSP(trainers=2), 4, BSP(trainers=2)),
        (BSP(), None, BSP()),
        (ASP(), 4, ASP()),
        (SSP(1), 4, SSP(1)),
    ],
)
def test_bsp_waits_for_all_ranks_of_a_program_unless_it_says_how_many(policy, size, expected):
    assert for_world(policy, size) == expected


def test_more_spares_than_ranks():
    with pytest.raises(ArgumentError, match="2 spares leave nobody of 2 trainers"):
        for_world(BSP(spares=2), 2)
