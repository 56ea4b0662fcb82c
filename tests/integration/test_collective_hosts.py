"""Collectives between hosts: each is a network namespace, with its own addresses and shared memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

SUPPORT, ROOT = Path(__file__).parent.parent / "support", Path(__file__).parent.parent.parent
ADDRESSES = ("10.77.0.1", "10.77.0.2")  # only in the namespaces
HOSTS = (0, 1, 0, 1)  # of worker-0, worker-1, ...


def can_make_namespaces() -> bool:
    if os.geteuid() != 0 or (not Path("/usr/sbin/ip").exists() and not Path("/sbin/ip").exists()):
        return False
    name = f"psf-can-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, timeout=20, check=False)
    if made.returncode == 0:
        ip("netns", "del", name)
    return made.returncode == 0


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=20, capture_output=True)


@contextmanager
def network(prefix: str) -> Iterator[list[str]]:
    """Two hosts with a cable between them."""
    names = [f"{prefix}-{host}" for host in range(2)]
    with ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
        cable = f"psf{os.getpid() % 100000}"
        ip("link", "add", cable, "netns", names[0], "type", "veth", "peer", cable, "netns", names[1])
        for name, address in zip(names, ADDRESSES):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
            for device in (cable, "lo"):
                ip("-n", name, "link", "set", device, "up")
        yield names


class Machines:
    """Processes on the two hosts; the coordinator is on the first.

    Args:
        names: of the namespaces.
        folder: where each host's processes hand over memory.
    """

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self._names, self._folder = names, folder
        self._processes: list[subprocess.Popen[str]] = []
        self.coordinator = ""

    def __enter__(self) -> Machines:
        try:
            self.coordinator = self._serving(self._serve(0, "coordinator"))
            workers = [
                self._serve(host, "worker", "--name", f"worker-{rank}", "--import", "host_ranks")
                for rank, host in enumerate(HOSTS)
            ]
            for worker in workers:
                self._serving(worker)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
            if process.stdout is not None:
                process.stdout.close()

    def exercise(self, algorithm: str) -> list[dict[str, Any]]:
        """What each rank says after every operation."""
        command = [str(SUPPORT / "host_ranks.py"), self.coordinator, str(len(HOSTS)), algorithm]
        process = self._start(0, [sys.executable, *command])
        output, _ = process.communicate(timeout=100)
        assert process.returncode == 0, output
        told: list[dict[str, Any]] = json.loads(output.splitlines()[-1])
        return told

    def _serve(self, host: int, service: str, *flags: str) -> subprocess.Popen[str]:
        bind = ["--bind", f"{ADDRESSES[host]}:0", "--plaintext"]
        coordinator = ["--coordinator", self.coordinator] if self.coordinator else []
        return self._start(host, [sys.executable, "-m", f"services.{service}", *bind, *coordinator, *flags])

    @staticmethod
    def _serving(process: subprocess.Popen[str]) -> str:
        """The address that a service says it has."""
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            found = re.search(r"serving on (\S+)", line)
            if found:
                return found[1]
        raise AssertionError("".join(lines))

    def _start(self, host: int, command: Sequence[str]) -> subprocess.Popen[str]:
        shared = self._folder / str(host)
        shared.mkdir(mode=0o700, exist_ok=True)
        process = subprocess.Popen(
            ["ip", "netns", "exec", self._names[host], *command],
            cwd=ROOT,
            env={
                **os.environ,
                "PSF_SHM_DIR": str(shared),
                "PSF_LOG_FORMAT": "logfmt",
                "PYTHONPATH": f"{ROOT}{os.pathsep}{SUPPORT}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._processes.append(process)
        return process


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    if not can_make_namespaces():
        pytest.skip("network namespaces need root")
    with network(f"psf-{os.getpid()}") as names, Machines(names, tmp_path_factory.mktemp("hosts")) as found:
        yield found


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("algorithm", "transport"), [("direct", "direct"), ("ring", "ring"), ("", "hierarchical")]
)
def test_every_operation(machines: Machines, algorithm: str, transport: str) -> None:
    told = machines.exercise(algorithm)
    assert [each["transport"] for each in told] == [transport] * len(HOSTS)
    assert len({str(each["first"]) for each in told}) == 1, "the same bits on all ranks"
    assert all(each["again"] == each["first"] for each in told), "and the next time"
    odd = len(HOSTS) - 1
    assert all(f"worker-{odd}" in each["difference"] and "(5,)" in each["difference"] for each in told), told
