"""Programs of tests are real processes that end with their block."""

from pathlib import Path

import psutil
import pytest

from psframework.errors import DeadlineExceeded, PeerLost
from psframework.testing.cluster import program


async def test_a_program_prints_and_ends(tmp_path: Path) -> None:
    source = """
        import sys
        print("hello", sys.argv[1])
        sys.exit(3)
    """
    async with program(tmp_path, "greeter", source, ["you"]) as greeter:
        assert await greeter.line("hello") == "hello you"
        assert await greeter.end() == 3
        with pytest.raises(PeerLost, match="greeter ended"):
            await greeter.line("never")


async def test_it_is_gone_after_the_block(tmp_path: Path) -> None:
    async with program(
        tmp_path, "sleeper", "import time; print('up', flush=True); time.sleep(60)"
    ) as sleeper:
        await sleeper.line("up")
        pid = sleeper.process.pid
        with pytest.raises(DeadlineExceeded, match="no 'never' from sleeper"):
            await sleeper.line("never", timeout=0.1)
        with pytest.raises(DeadlineExceeded, match="sleeper still runs"):
            await sleeper.end(timeout=0.1)
    assert not psutil.pid_exists(pid)
