"""Functions as code: only where the process consents, and only for those that may."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import pytest

import psframework as psf
from psframework.cluster.process import ServiceProcess
from psframework.errors import ArgumentError, PermissionDenied, RemoteError
from psframework.rpc.functions import pickled
from psframework.rpc.security import audit


@pytest.fixture(scope="module")
async def cluster() -> AsyncIterator[psf.Cluster]:
    async with psf.local_cluster(workers=1) as local:
        flags = ["--coordinator", local.address, "--name", "open", "--cloudpickle"]
        flags += ["--allow", "trainer:*", "--allow", "trainer/*:psframework.pickled.*"]
        worker = ServiceProcess("open", "services.worker", flags, environment={"PSF_TOKEN": local.token})
        worker.start()
        await worker.wait_serving(30, joined=True)
        async with psf.connect(local.address) as cluster, asyncio.timeout(30):
            while len(cluster.members("worker")) < 2:  # noqa: ASYNC110 (the view comes from the coordinator)
                await asyncio.sleep(0.01)
            yield cluster
        await worker.stop(5)


async def test_a_lambda_with_a_variable_around_it(cluster: psf.Cluster) -> None:
    offset = 2
    assert await cluster.rpc_async("open", psf.pickled(lambda x: x + offset), args=(40,)) == 42


async def test_an_async_function_and_a_generator(cluster: psf.Cluster) -> None:
    async def later(x: int) -> int:
        await asyncio.sleep(0)
        return 2 * x

    def up_to(n: int) -> Iterator[int]:
        yield from range(n)

    assert await cluster.rpc_async("open", psf.pickled(later), args=(21,)) == 42
    assert [each async for each in cluster.rpc_stream("open", psf.pickled(up_to), args=(3,))] == [0, 1, 2]


async def test_its_result_may_stay_there(cluster: psf.Cluster) -> None:
    async with cluster.remote("open", psf.pickled(lambda: {"a": 1})) as rref:
        assert await rref.to_here() == {"a": 1}


async def test_an_error_in_it_is_the_callers(cluster: psf.Cluster) -> None:
    def fails() -> None:
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose") as caught:
        await cluster.rpc_async("open", psf.pickled(fails))
    assert isinstance(caught.value, RemoteError)


async def test_a_worker_that_did_not_consent_refuses(cluster: psf.Cluster) -> None:
    with pytest.raises(PermissionDenied, match="start it with --cloudpickle"):
        await cluster.rpc_async("worker-0", psf.pickled(lambda: 1))


async def test_a_refusal_is_in_the_audit_log(cluster: psf.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(audit, "refused", lambda what, error, **who: lines.append(f"{who['name']}: {what}"))
    with pytest.raises(PermissionDenied):
        await cluster.rpc_async(cluster.name, psf.pickled(lambda: 1))
    assert lines == [f"{cluster.name}: psframework.pickled.run"]


async def test_only_functions_are_unpickled(cluster: psf.Cluster) -> None:
    with pytest.raises(ArgumentError, match=r"comes from psf\.pickled"):
        await cluster.rpc_async("open", pickled.RUN, args=(b"bytes",))


def test_what_can_not_be_pickled_is_told() -> None:
    with pytest.raises(ArgumentError, match="takes a function"):
        psf.pickled(3)  # type: ignore[arg-type]
    generator = (i for i in range(3))
    with pytest.raises(ArgumentError, match="can't be pickled"):
        psf.pickled(lambda: next(generator))


def test_without_the_extra_the_error_says_how_to_get_it() -> None:
    script = (
        "import sys; sys.modules['cloudpickle'] = None\n"
        "import psframework as psf\n"
        "try: psf.pickled(print)\n"
        "except psf.ConfigurationError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "pip install 'psframework[cloudpickle]'" in done.stdout, done
