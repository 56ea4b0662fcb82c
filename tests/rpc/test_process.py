"""Process settings, asserted from inside real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from psframework.errors import ConfigurationError
from psframework.rpc import process
from psframework.rpc.process import ParentPipe

glibc = pytest.mark.skipif(process._glibc() is None, reason="needs glibc")
QUIET = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


def facts_of(code: str, **environment: str) -> dict:
    """Runs code in a process of its own and returns its facts."""
    clean = {k: v for k, v in os.environ.items() if k not in QUIET and not k.startswith("PSF_")}
    script = f"import json, numpy\nfrom psframework.rpc.process import *\n{code}\nprint(json.dumps(facts()))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@glibc
def test_a_service_has_its_share_of_threads_a_tuned_allocator_and_a_short_switch_interval():
    seen = facts_of("configure_process(1000, service=True)")
    assert seen["blas_threads"] == 1 and seen["blas"]
    assert seen["allocator"] == "tuned" and seen["large_blocks_return_to_kernel"] is False
    assert seen["switch_interval"] == pytest.approx(0.0005)


def test_one_process_alone_has_all_cores():
    seen = facts_of("configure_process()")
    assert seen["blas_threads"] == seen["cores"] == process.cores()
    assert seen["switch_interval"] == pytest.approx(0.005)


def test_the_environment_has_the_last_word():
    seen = facts_of("configure_process(1)", PSF_BLAS_THREADS="3", PSF_ALLOCATOR="default")
    assert seen["blas_threads"] == 3 and seen["allocator"] == "default"
    assert seen["large_blocks_return_to_kernel"] in (True, None)
    assert facts_of("configure_process(1000)", OPENBLAS_NUM_THREADS="2")["blas_threads"] == 2
    assert facts_of("configure_process()", PSF_LOCAL_PROCESSES="1000")["blas_threads"] == 1


@glibc
def test_large_blocks_stay_also_in_other_threads():
    code = """
import resource, threading
configure_process()
def work():
    for _ in range(3): numpy.ones(30_000_000, numpy.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3): numpy.ones(30_000_000, numpy.float32)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 50
thread = threading.Thread(target=work); threading.excepthook = lambda args: os._exit(3)
thread.start(); thread.join()
"""
    facts_of(code)


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_bad_numbers_are_refused(monkeypatch, value):
    monkeypatch.setenv("PSF_BLAS_THREADS", value)
    with pytest.raises(ConfigurationError, match="PSF_BLAS_THREADS"):
        process.blas_threads()


def test_an_unknown_allocator_is_refused():
    with pytest.raises(ConfigurationError, match="'tuned' or 'default'"):
        process.set_allocator("jemalloc")


CHILD = """
import signal, sys, time
from psframework.rpc.process import exit_with_parent
if {ignore}: signal.signal(signal.SIGTERM, signal.SIG_IGN)
assert exit_with_parent(drain_seconds=0.2)
print("up", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("ignore", "code"), [(False, -signal.SIGTERM), (True, 1)])
def test_a_child_ends_with_its_parent_whatever_it_does(ignore, code):
    pipe = ParentPipe.open()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(ignore=ignore)],
        env=os.environ | pipe.environment,
        pass_fds=[pipe.child_fd],
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout.readline() == b"up\n" and child.poll() is None
        pipe.close()
        assert child.wait(10) == code
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_a_child_ends_when_its_parent_is_killed():
    parent_code = f"""
import os, subprocess, sys
from psframework.rpc.process import ParentPipe
pipe = ParentPipe.open()
child = subprocess.Popen([sys.executable, "-c", {CHILD.format(ignore=False)!r}],
    env=os.environ | pipe.environment, pass_fds=[pipe.child_fd], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""
    parent = subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE)
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while alive(pid):
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.01)


def test_without_a_pipe_there_is_nothing_to_watch(monkeypatch):
    monkeypatch.delenv(process.PARENT_FD, raising=False)
    assert process.exit_with_parent() is False
    monkeypatch.setenv(process.PARENT_FD, "x")
    with pytest.raises(ConfigurationError):
        process.exit_with_parent()
