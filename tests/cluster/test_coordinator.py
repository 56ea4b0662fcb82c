"""Where the coordinator keeps its state, and what happens when it can't."""

from pathlib import Path

import pytest

from psframework.cluster.coordinator import default_state
from psframework.cluster.process import ServiceProcess
from psframework.errors import PeerLost


def test_a_fixed_port_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_state("127.0.0.1:7070") == tmp_path / "psframework" / "coordinator-7070.sqlite"
    assert default_state("127.0.0.1:0") is None


async def test_two_coordinators_can_not_share_a_state(tmp_path: Path) -> None:
    state = ["--state", str(tmp_path / "deep" / "state.sqlite")]
    first, second = (ServiceProcess(name, "services.coordinator", state) for name in ("first", "second"))
    first.start()
    try:
        await first.wait_serving(30)
        second.start()
        with pytest.raises(PeerLost, match=r"status 2.*error: .*another coordinator uses this store"):
            await second.wait_serving(30)
    finally:
        await first.stop(5)
        await second.stop(5)


async def test_a_state_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("not a database" * 100)
    process = ServiceProcess("coordinator", "services.coordinator", ["--state", str(tmp_path / "state")])
    process.start()
    try:
        with pytest.raises(PeerLost, match=r"status 2.*error: .*can't be used as a store"):
            await process.wait_serving(30)
    finally:
        await process.stop(5)
