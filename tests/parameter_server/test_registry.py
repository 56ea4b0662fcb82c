"""The keeper's record of a model: slots, vacancies, seals, and refusals that name the difference."""

import pytest

from psframework.errors import ModelMismatch, NotRegistered
from psframework.parameter_server.layout import ParameterSpec
from psframework.parameter_server.policy import ASP, BSP
from psframework.parameter_server.registry import (
    KEPT_SEALS,
    Applicant,
    ModelRecord,
    ModelSpec,
    due_seal,
    wanted_trainers,
)
from psframework.parameter_server.roster import VACANT, Entry, Roster, Seal

SPEC = ModelSpec((ParameterSpec("w", "float32", (2, 3)),), '{"name": "sgd"}', '{"name": "bsp"}')


def record(*, held: bool = False) -> ModelRecord:
    return ModelRecord("job", "net", SPEC, "", False, (), 1, Roster(held=held))


def who(name: str, token: str = "") -> Applicant:
    return Applicant(name, hash(name) & 0xFFFF, token or name)


def test_slots_are_given_in_order_and_never_twice():
    model = record().admit(10, who("a"), 0, BSP()).admit(11, who("b"), 0, BSP())
    assert [(e.slot, e.writer) for e in model.roster.entries] == [(0, 10), (1, 11)]
    model = model.ended(10, 7).admit(12, who("c"), 8, BSP())
    assert model.entry(12) == Entry(2, 12, who("c").incarnation, "c", 8)
    assert model.entry(10) is None
    assert [e.slot for e in model.roster.active(6)] == [0, 1]
    assert [e.slot for e in model.roster.active(8)] == [1, 2]


def test_each_change_raises_the_number_but_pruning_changes_no_meaning():
    model = record()
    changes = [
        lambda m: m.admit(10, who("a"), 0, BSP()),
        lambda m: m.initialized_by(10),
        lambda m: m.ready(),
        lambda m: m.moved(10, 2),
        lambda m: m.sealed(Seal(0, (0,))),
        lambda m: m.ended(10, 3),
    ]
    for number, change in enumerate(changes, start=1):
        model = change(model)
        assert model.roster.number == number
    assert model.pruned(2).roster.entries == model.roster.entries
    pruned = model.pruned(3)
    assert pruned.roster.entries == ()
    assert pruned.roster.number == model.roster.number


def test_a_retried_registration_is_found():
    model = record().admit(10, who("a", "token-1"), 0, BSP())
    assert model.registered("token-1").writer == 10
    assert model.registered("token-2") is None
    assert model.registration(10).applicant.member == "a"
    with pytest.raises(NotRegistered):
        model.ended(10, 0).registration(10)


def test_step_0_is_held_until_enough_trainers_live():
    policy = BSP(trainers=2)
    model = record(held=True).admit(10, who("a"), 0, policy)
    assert model.roster.held
    model = model.ended(10, 0).admit(11, who("b"), 0, policy)
    assert model.roster.held
    model = model.admit(12, who("c"), 0, policy)
    assert not model.roster.held
    assert not model.ended(12, 0).roster.held
    assert (wanted_trainers(policy), wanted_trainers(BSP()), wanted_trainers(ASP())) == (2, 1, 1)


def test_readers_have_no_slot():
    model = record().admit(10, Applicant("r", 1, "t", reader=True), 0, BSP())
    assert model.roster.readers == {10}
    assert model.roster.entries == ()
    assert model.next_slot == 0
    assert model.ended(10, 0).roster.readers == frozenset()


def test_a_vacant_slot_goes_to_the_restarted_member_at_its_step():
    model = record().admit(10, who("a"), 0, BSP()).admit(11, who("b"), 0, BSP()).ended(10, 5, vacant=True)
    assert [e.writer for e in model.roster.active(5)] == [VACANT, 11]
    assert model.vacancy("b") is None
    back = model.admit(12, who("a"), 99, BSP())
    assert back.entry(12) == Entry(0, 12, who("a").incarnation, "a", 5)
    assert [e.writer for e in back.roster.active(4)] == [10, 11]
    assert back.next_slot == 2
    gone = model.given_up(0)
    assert [e.writer for e in gone.roster.active(5)] == [11]
    assert [e.writer for e in gone.roster.active(4)] == [10, 11]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            ModelSpec((ParameterSpec("w", "float32", (3, 2)),)),
            r"'w' has shape \(3, 2\), registered is \(2, 3\)",
        ),
        (ModelSpec(SPEC.parameters, '{"name": "adam"}'), "optimizer .*adam.*, registered is .*sgd"),
        (ModelSpec(SPEC.parameters, "", '{"name": "asp"}'), "consistency policy .*asp.*registered is .*bsp"),
    ],
)
def test_what_differs_is_named(spec, words):
    with pytest.raises(ModelMismatch, match=words):
        record().check(spec)


def test_the_same_in_other_words_is_no_difference():
    model = ModelRecord("j", "n", ModelSpec(SPEC.parameters, '{"name": "sgd", "lr": 1.0}'), "", False, (), 1)
    model.check(ModelSpec(SPEC.parameters, '{"lr": 1, "name": "sgd"}'))
    with pytest.raises(ModelMismatch):
        model.check(ModelSpec(SPEC.parameters, '{"lr"'))


def test_no_opinion_is_no_difference():
    record().check(SPEC)
    record().check(ModelSpec(SPEC.parameters))


def test_seals_come_in_order_once_all_but_the_spares_are_there():
    model = record().admit(10, who("a"), 0, BSP()).admit(11, who("b"), 0, BSP()).admit(12, who("c"), 0, BSP())
    assert due_seal(model.roster, {10: 1, 11: 1, 12: 1}, 1) is None
    model = model.ready()
    assert due_seal(model.roster, {10: 1}, 1) is None
    assert due_seal(model.roster, {10: 1, 12: 1}, 1) == Seal(0, (0, 2))
    model = model.sealed(Seal(0, (0, 2)))
    assert due_seal(model.roster, {10: 1, 12: 1, 11: 1}, 1) is None
    assert due_seal(model.roster, {10: 2, 12: 1, 11: 2}, 1) == Seal(1, (0, 1))
    # a trainer that ended after its step still counts in it
    assert due_seal(model.ended(12, 2).roster, {10: 2}, 1) == Seal(1, (0, 2))


def test_old_seals_are_forgotten():
    model = record()
    for step in range(KEPT_SEALS + 5):
        model = model.sealed(Seal(step, (0,)))
    assert [seal.step for seal in model.roster.seals] == list(range(5, KEPT_SEALS + 5))
