"""Session-wide guards: nothing may be left behind, and every skip must be one we know of."""

import os
import shutil
import sys
import tempfile
import uuid
from pathlib import Path

import psutil
import pytest
import threadpoolctl
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parent.parent
MARK = "PSF_TEST_SESSION"
SKIPS = Path(__file__).parent / "skips.txt"

# A slow machine is no failure, and `make test` tries the same examples on each; `make soak` tries new ones.
settings.register_profile(
    "psf",
    deadline=None,
    derandomize=not os.environ.get("PSF_SOAK"),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("psf")


def _is_controller(config: pytest.Config) -> bool:
    return not hasattr(config, "workerinput")


def _traces() -> set[str]:
    """Names outside the project that a test could leave: shared memory and our temporary entries."""
    temporary = Path(tempfile.gettempdir())
    shared = Path("/dev/shm")
    found = {str(path) for path in temporary.glob("psf-*") if "compose" not in path.name}
    found |= {str(path) for path in temporary.glob("psframework-*")}
    return found | ({str(path) for path in shared.iterdir()} if shared.is_dir() else set())


def _project_files() -> set[str]:
    tools = {f".{name}_cache" for name in ("pytest", "mypy", "ruff", "import_linter")}
    skipped = {".git", ".venv", "__pycache__", ".hypothesis"} | tools  # which others may run meanwhile
    return {str(path) for path in ROOT.iterdir() if path.name not in skipped}


def pytest_configure(config: pytest.Config) -> None:
    if _is_controller(config):
        os.environ[MARK] = uuid.uuid4().hex  # children inherit it, and are found by it
        # Processes that tests kill can't remove their sockets and tokens.
        os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="psf-run-")
        os.environ["PSF_TUNING"] = "built-in"  # not what whoever runs the tests has measured
        config.stash[_BEFORE] = (_traces(), _project_files())


_BEFORE: pytest.StashKey[tuple[set[str], set[str]]] = pytest.StashKey()


def _marked_processes() -> list[psutil.Process]:
    """Processes of this test session other than pytest's own."""
    mine = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid not in mine and process.environ().get(MARK) == os.environ[MARK]:
                found.append(process)
        except psutil.Error:
            continue
    return found


def _describe(process: psutil.Process) -> str:
    try:
        return f"process {process.pid}: {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return f"process {process.pid}"


@pytest.fixture(scope="session", autouse=True)
def one_thread_for_algebra():
    """Pytest processes run beside each other: with a BLAS thread a core they would slow each other down.

    `psf.connect` is told too, or the first test that joins a cluster would undo it for all that follow.
    Processes that tests start decide for themselves.
    """
    os.environ["PSF_BLAS_THREADS"] = "1"
    with threadpoolctl.threadpool_limits(1, "blas"):
        yield


@pytest.fixture(scope="session", autouse=True)
def bytecode_for_children():
    """Processes that tests start compile each module once, also where nobody wants a __pycache__."""
    if sys.dont_write_bytecode:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = os.path.join(os.environ["XDG_RUNTIME_DIR"], "bytecode")


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind():
    """Each pytest process ends without children and without listening sockets."""
    yield
    _, alive = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=5)
    left = [_describe(process) for process in alive]
    left += [
        f"port {c.laddr}" for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN
    ]
    assert not left, f"the tests left behind: {left}"


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if not _is_controller(config):
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    shutil.rmtree(os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)
    problems = _left_behind(config)
    if os.environ.get("PSF_CHECK_SKIPS") and reporter is not None:
        problems += _unknown_skips(reporter.stats.get("skipped", []))
    if problems and reporter is not None:
        for problem in problems:
            reporter.write_line(f"ERROR: {problem}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _left_behind(config: pytest.Config) -> list[str]:
    traces, files = config.stash[_BEFORE]
    workers = {p.pid for p in psutil.Process().children()}  # xdist's, which are still closing
    left = [p for p in _marked_processes() if p.pid not in workers]
    _, alive = psutil.wait_procs(left, timeout=5)
    problems = [f"left behind: {_describe(process)}" for process in alive]
    return problems + [
        f"left behind: {name}" for name in sorted((_traces() - traces) | (_project_files() - files))
    ]


def _unknown_skips(reports: list[pytest.TestReport]) -> list[str]:
    """Differences between the skips of this run and tests/skips.txt."""
    seen = {str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports if report.longrepr}
    lines = SKIPS.read_text().splitlines()
    known = {line.strip() for line in lines if line.strip() and not line.startswith("#")}
    problems = [f"a skip that tests/skips.txt does not list: {reason}" for reason in sorted(seen - known)]
    return problems + [f"tests/skips.txt lists a skip that did not happen: {r}" for r in sorted(known - seen)]
