"""What a user does with docker-compose.yml; run by test_compose.py, where an engine is reachable."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import psframework as psf

ROOT = Path(__file__).parents[2]
MINE = Path(__file__).with_name("mine")  # what a user might have written
SHIPPED = ("Dockerfile", ".dockerignore", "docker-compose.yml", "pyproject.toml", "README.md", "LICENSE")
FOLDERS = ("psframework", "services", "examples", "certs")
PUBLISHED = {  # member -> the variable of its port on the host
    "allreduce-0": "PSF_PORT_ALLREDUCE_0",
    "parameter-server-0": "PSF_PORT_0",
    "parameter-server-1": "PSF_PORT_1",
    "pipeline-0": "PSF_PORT_PIPELINE_0",
    "stage-0": "PSF_PORT_STAGE_0",
    "stage-1": "PSF_PORT_STAGE_1",
    "stage-2": "PSF_PORT_STAGE_2",
    "worker-0": "PSF_PORT_WORKER_0",
    "worker-1": "PSF_PORT_WORKER_1",
}
MEMBERS = sorted(PUBLISHED)
PORTS = ("PSF_PORT", *PUBLISHED.values())

RULES = "trainer:functions.*,*:stages.H*,*:psframework.nn.*,*:psframework.pipeline.*"

pytestmark = [pytest.mark.compose, pytest.mark.timeout(400)]


class Project:
    """A copy of the checkout with its cluster; the commands are those of the documentation."""

    def __init__(self, folder: Path, ports: dict[str, str]):
        self.folder = folder
        self.ports = ports

    def run(self, *command: str, timeout: float = 300, **variables: str) -> str:
        environment = {**os.environ, **self.ports, **variables}
        result = subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert result.returncode == 0, (
            f"{' '.join(command)}\n{result.stdout[-8000:]}\n{result.stderr[-8000:]}"
        )
        return result.stdout

    def compose(self, *arguments: str, timeout: float = 300, **variables: str) -> str:
        return self.run("docker", "compose", *arguments, timeout=timeout, **variables)

    def train(self, timeout: float = 120, **variables: str) -> str:
        """Runs the container of `train`, and does not start what runs already, certificates included."""
        flags = ("--rm", "--no-deps", "-T")
        return self.compose("--profile", "train", "run", *flags, "train", timeout=timeout, **variables)

    def bring_back(self, service: str) -> None:
        """Starts a killed service, in its container: a new one, without dependencies, would be replaced.

        That it is a member again shows sooner than its health does.
        """
        eventually(lambda: service not in self.names(), 20)
        self.compose("up", "-d", "--no-deps", "--no-recreate", service, timeout=120)
        eventually(lambda: service in self.names(), 60)

    @property
    def environment(self) -> dict[str, str]:
        """What README tells a user on the host to set."""
        return {"PSF_COORDINATOR": f"127.0.0.1:{self.ports['PSF_PORT']}", "PSF_TLS_DIR": "certs/trainer"}

    def status(self) -> dict:
        return json.loads(
            self.run(sys.executable, "-m", "psframework.cli.app", "status", "--json", **self.environment)
        )

    def names(self) -> list[str]:
        return sorted(member["name"] for member in self.status()["members"])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("project")
    for name in SHIPPED:
        shutil.copy(ROOT / name, folder / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "trainer"))
    shutil.copytree(MINE, folder / "mine", ignore=shutil.ignore_patterns("__pycache__"))
    own = {"PSF_CODE": "./mine", "PSF_IMPORT_WORKER": "functions,stages", "PSF_ALLOW": RULES}
    project = Project(folder, own | {key: str(free_port()) for key in PORTS})
    try:
        project.compose("build")
        project.compose("up", "-d", "--wait", timeout=240)
        yield project
    finally:
        print(
            subprocess.run(["docker", "compose", "logs"], cwd=folder, capture_output=True, text=True).stdout[
                -20_000:
            ]
        )
        project.compose("--profile", "train", "down", "-v")


def free_port() -> int:
    """A port to publish; the file's defaults may be taken on a developer's machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def eventually(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.5)


def test_all_members_are_there_with_both_addresses(project: Project) -> None:
    members = {member["name"]: member for member in project.status()["members"]}
    assert sorted(members) == MEMBERS
    for name, variable in PUBLISHED.items():
        assert members[name]["addresses"] == [f"{name}:7070", f"127.0.0.1:{project.ports[variable]}"]
    assert members["stage-2"]["role"] == "pipeline-stage"


def test_processes_are_not_root_and_keys_are_private(project: Project) -> None:
    assert project.compose("exec", "-T", "coordinator", "id", "-u").strip() == "10001"
    key = project.folder / "certs" / "trainer" / "key.pem"
    assert key.stat().st_mode & 0o077 == 0
    assert key.stat().st_uid == (project.folder / "certs").stat().st_uid
    assert not (project.folder / "certs" / "ca.key").exists(), "the authority's key stays in its volume"


async def test_a_script_on_the_host_trains_through_both_shards(project: Project) -> None:
    """README's own lines, outside the compose network, over mutual TLS."""
    address, tls = project.environment["PSF_COORDINATOR"], project.folder / "certs" / "trainer"
    command = (sys.executable, "examples/train.py")
    async with psf.connect(address, tls=tls):  # the model ends one lease after the last member of its job
        out = await asyncio.to_thread(project.run, *command, timeout=120, **project.environment)
        status = await asyncio.to_thread(project.status)
    assert "accuracy" in out
    models = {model["model"]: model for model in status["models"]}
    assert models["model"]["shards"] == ["parameter-server-0", "parameter-server-1"], "through both shards"


def test_the_train_profile(project: Project) -> None:
    out = project.compose("--profile", "train", "run", "--rm", "-T", "train", timeout=120, PSF_EPOCHS="8")
    moved, last = out.strip().splitlines()[-2:]
    assert last.startswith("test accuracy: 0.9"), out
    assert moved.startswith("moved shm"), "one volume is all that containers on one host need to share memory"


def test_the_users_own_module(project: Project) -> None:
    (project.folder / "mine" / "hello.py").write_text(
        "import psframework as psf; print('ran with', psf.__name__, __name__)"
    )
    out = project.train(PSF_IMPORT="hello")
    assert "ran with psframework __main__" in out


def test_without_a_certificate_nobody_gets_in(project: Project) -> None:
    command = [
        sys.executable,
        "-m",
        "psframework.cli.app",
        "status",
        "--coordinator",
        project.environment["PSF_COORDINATOR"],
    ]
    result = subprocess.run(
        command, cwd=project.folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr


def test_a_killed_shard_comes_back_and_training_works_again(project: Project) -> None:
    project.compose("kill", "parameter-server-1")
    project.bring_back("parameter-server-1")
    assert project.names() == MEMBERS
    out = project.train(PSF_EPOCHS="2")
    assert "test accuracy: " in out


def test_a_script_on_the_host_calls_workers_and_outlives_the_death_of_one(project: Project) -> None:
    """Over mutual TLS; a pending call of the one that dies ends, and its successor is called too."""
    script = subprocess.Popen(
        [sys.executable, "mine/caller.py"],
        cwd=project.folder,
        env={**os.environ, **project.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert script.stdin is not None and script.stdout is not None and script.stderr is not None
        names = script.stdout.readline()
        assert names == "names [('worker-0', 'caller'), ('worker-1', 'caller')]\n", script.stderr.read()
        assert script.stdout.readline() == "pending\n"
        project.compose("kill", "worker-1")
        began = time.monotonic()
        assert script.stdout.readline() == "lost worker-1 True\n"
        assert time.monotonic() - began < 6
        project.bring_back("worker-1")
        out, errors = script.communicate("go on\n", timeout=60)
        assert out == "again 3\n", errors
        assert script.returncode == 0, errors
    finally:
        script.kill()
        script.wait()


def test_pipelines_outlive_the_death_of_a_stage(project: Project) -> None:
    """One is driven from the host, one by a service; stages call each other, and a spare takes the seat."""
    environment = {**os.environ, **project.environment}
    with contextlib.ExitStack() as stack:
        scripts = [
            stack.enter_context(
                killed_in_the_end([sys.executable, "mine/pipe.py", driver], project.folder, environment)
            )
            for driver in ("here", "pipeline-0")
        ]
        for script in scripts:
            assert script.stdout is not None and script.stderr is not None
            assert script.stdout.readline() == "trained\n", script.stderr.read()
        project.compose("kill", "stage-1")
        for script in scripts:
            out, errors = script.communicate(timeout=120)
            assert out == "equal True\n", f"{out}{errors}"
    project.bring_back("stage-1")


def test_ranks_that_cannot_reach_each_other_train_together_until_one_is_killed(project: Project) -> None:
    """One on the host, where nobody listens to the outside, one in the network of the services."""
    environment = {**os.environ, **project.ports}
    flags = ["--rm", "--no-deps", "-T", "-e", "PSF_TEST_RANK=1"]
    inside = ["docker", "compose", "--profile", "train", "run", *flags, "train"]
    with contextlib.ExitStack() as stack:
        one, other = (
            stack.enter_context(killed_in_the_end(command, project.folder, environment | more))
            for command, more in (
                ([sys.executable, "mine/rank.py"], project.environment | {"PSF_TEST_RANK": "0"}),
                (inside, {"PSF_IMPORT": "rank"}),
            )
        )
        assert one.stdout is not None and one.stderr is not None
        assert other.stdout is not None and other.stderr is not None
        for rank in (one, other):
            assert rank.stdout.readline() == "trained central True True\n", rank.stderr.read()
        one.kill()
        began = time.monotonic()
        assert other.stdout.readline() == "lost rank-0 0\n", other.stderr.read()
        assert time.monotonic() - began < 6, "the lease is 5 s"
        assert other.stdout.readline() == "alone 1\n", other.stderr.read()
        assert other.wait(30) == 0


@contextlib.contextmanager
def killed_in_the_end(
    command: list[str], folder: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, env=environment, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def test_psf_call_from_the_host(project: Project) -> None:
    command = [sys.executable, "-m", "psframework.cli.app", "call", "worker-0", "functions.add", "20", "22"]
    assert project.run(*command, **project.environment) == "42\n"


def test_what_no_rule_allows_is_refused(project: Project) -> None:
    command = [sys.executable, "-m", "psframework.cli.app", "call", "worker-0", "stages.unlisted"]
    environment = {**os.environ, **project.environment}
    result = subprocess.run(
        command, cwd=project.folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 2
    assert "may not call stages.unlisted here: no rule allows it" in result.stderr


def test_the_coordinator_is_restarted_and_nobody_is_lost(project: Project) -> None:
    before = project.status()
    project.compose("restart", "coordinator")
    project.compose("up", "-d", "--wait", "--no-deps", "--no-recreate", "coordinator", timeout=120)
    after = project.status()
    assert after["term"] > before["term"]
    assert incarnations(after) == incarnations(before)


def incarnations(status: dict) -> dict[str, int]:
    return {member["name"]: member["incarnation"] for member in status["members"]}


def test_down_is_quick(project: Project) -> None:
    began = time.monotonic()
    project.compose("stop", timeout=60)
    assert time.monotonic() - began < 15
    states = project.compose("ps", "-a", "--format", "json")
    codes = {entry["Service"]: entry["ExitCode"] for entry in map(json.loads, states.splitlines())}
    assert codes == dict.fromkeys(codes, 0), "all drained within their grace, none was killed"
