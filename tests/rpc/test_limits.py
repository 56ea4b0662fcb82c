"""Defaults follow the machine and PSF_LANES."""

import pytest

from psframework.rpc.limits import AgentOptions
from psframework.wire.lanes import Lane


def test_lanes_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSF_LANES", "inline")
    assert AgentOptions().lanes == {Lane.INLINE}
    monkeypatch.delenv("PSF_LANES")
    assert {Lane.INLINE, Lane.STRIPED} <= AgentOptions().lanes


def test_a_broken_session_is_redialled_for_a_second() -> None:
    assert AgentOptions().resume_seconds == 1.0
