"""`psf up` is a cluster in the foreground that ends with Ctrl-C."""

import re
import signal
from pathlib import Path

import psutil
import pytest

from psframework.cluster.connect import connect
from psframework.errors import PermissionDenied
from psframework.testing.cluster import program

SOURCE = "import sys; from psframework.cli.app import main; sys.exit(main(sys.argv[1:]))"
FUNCTIONS = """
import psframework as psf

@psf.remote
def double(x):
    print("doubling", x, flush=True)
    return 2 * x

@psf.remote
def other():
    pass
"""
STUCK = """
import asyncio, sys
from psframework.cli.app import main
from psframework.cluster.process import ServiceProcess

async def for_ever(self, timeout, *, joined=False):
    print("waiting for process", self.pid, flush=True)
    await asyncio.Event().wait()

ServiceProcess.wait_serving = for_ever
sys.exit(main(sys.argv[1:]))
"""


async def test_up_serves_until_interrupted(tmp_path: Path) -> None:
    (tmp_path / "up_functions.py").write_text(FUNCTIONS)
    flags = ["--parameter-servers", "1", "--workers", "1", "--allreduce", "1", "--import", "up_functions"]
    flags += ["--stages", "1", "--pipelines", "1", "--allow", "trainer:up_functions.double"]
    async with program(tmp_path, "psf_up", SOURCE, ["up", *flags]) as up:
        line = await up.line("export PSF_COORDINATOR=")
        async with connect(line.split("=")[1]) as cluster:
            assert [member.name for member in cluster.members(role="parameter-server")] == [
                "parameter-server-0"
            ]
            assert [member.name for member in cluster.members(role="allreduce")] == ["allreduce-0"]
            for name in ("worker-0", "stage-0", "pipeline-0"):
                assert await cluster.rpc_async(name, "up_functions.double", (21,)) == 42
                with pytest.raises(PermissionDenied, match="no rule allows it"):
                    await cluster.rpc_async(name, "up_functions.other")
        await up.line("worker-0 | doubling 21")
        table = "\n".join(up.process.output)
        pids = [
            int(pid)
            for pid in re.findall(r"(?:coordinator|parameter-server-0|worker-0|stage-0)\D*?│\s*(\d+)", table)
        ]
        assert len(pids) == 4
        psutil.Process(pids[1]).kill()
        await up.line("parameter-server-0 ended with status -9")
        up.process.send_signal(signal.SIGINT)
        assert await up.end(15) == 0
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_one_that_does_not_come_up_can_be_interrupted(tmp_path: Path, number: int, code: int) -> None:
    async with program(tmp_path, "psf_up", STUCK, ["up"]) as up:
        pid = int((await up.line("waiting for process")).split()[-1])
        up.process.send_signal(number)
        assert await up.end(15) == code
        assert "Traceback" not in up.process.last_words
    assert not psutil.pid_exists(pid)
