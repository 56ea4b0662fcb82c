"""Which lanes there are, which two ends share, and which one a payload takes."""

import pytest

from psframework.errors import ConfigurationError
from psframework.wire import lanes, shm
from psframework.wire.lanes import Lane, LaneStats

ALL = frozenset(Lane)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("inline", {Lane.INLINE}),
        ("inline,striped", {Lane.INLINE, Lane.STRIPED}),
        (" Striped , ", {Lane.INLINE, Lane.STRIPED}),
        ("shm", {Lane.INLINE, Lane.SHM}),
        ("shm,device", {Lane.INLINE, Lane.SHM, Lane.DEVICE}),
    ],
)
def test_parse(text, expected):
    assert lanes.parse(text) == expected


@pytest.mark.parametrize("text", ["", ",", "inline,nccl", "gpu"])
def test_parse_names_the_choices(text):
    with pytest.raises(ConfigurationError, match="inline, striped, shm, device"):
        lanes.parse(text)


def test_a_lane_that_the_machine_lacks(monkeypatch):
    monkeypatch.setattr(shm, "available", lambda: False)
    assert lanes.available() == {Lane.INLINE, Lane.STRIPED}
    with pytest.raises(ConfigurationError, match="no shm"):
        lanes.parse("inline,shm")
    with pytest.raises(ConfigurationError, match="no device"):
        lanes.parse("inline,device")


def test_flag_before_environment_before_all():
    environment = {"PSF_LANES": "striped"}
    assert lanes.offered("inline", environment) == {Lane.INLINE}
    assert lanes.offered(None, environment) == {Lane.INLINE, Lane.STRIPED}
    assert lanes.offered(None, {}) == lanes.available()


@pytest.mark.parametrize(
    ("sizes", "shared", "in_segment", "expected"),
    [
        ([], ALL, False, Lane.INLINE),
        ([65_536], ALL, False, Lane.INLINE),
        ([65_536, 1], ALL, False, Lane.STRIPED),
        ([10 << 20], {Lane.INLINE, Lane.SHM}, False, Lane.INLINE),
        ([4], ALL, True, Lane.SHM),
        ([10 << 20], {Lane.INLINE, Lane.STRIPED}, True, Lane.STRIPED),
        ([10 << 20], {Lane.INLINE}, True, Lane.INLINE),
    ],
)
def test_choose(sizes, shared, in_segment, expected):
    assert lanes.choose(sizes, frozenset(shared), in_segment) is expected


def test_stats_add_up():
    total, one = LaneStats(), LaneStats()
    one.add_sent(Lane.SHM, 100)
    one.add_sent(Lane.SHM, 10, messages=2)
    one.add_received(Lane.INLINE, 7)
    total.merge(one)
    total.merge(one)
    sent, received = total.sent, total.received
    assert (sent[Lane.SHM].messages, sent[Lane.SHM].nbytes) == (6, 220)
    assert (received[Lane.INLINE].messages, received[Lane.INLINE].nbytes) == (2, 14)
    quiet = [sent[Lane.INLINE], received[Lane.SHM], sent[Lane.STRIPED], received[Lane.STRIPED]]
    assert all(not one.messages and not one.nbytes for one in quiet)


def test_sockets_are_wanted_unless_they_are_switched_off():
    assert lanes.sockets_wanted({}) and lanes.sockets_wanted({"PSF_SOCKETS": "1"})
    assert not lanes.sockets_wanted({"PSF_SOCKETS": "0"})
    with pytest.raises(ConfigurationError, match="PSF_SOCKETS='maybe'"):
        lanes.sockets_wanted({"PSF_SOCKETS": "maybe"})
