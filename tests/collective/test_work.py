"""Every transport has what the queue of a group asks of one."""

import inspect

import pytest

from psframework.collective.alone import Alone
from psframework.collective.central import Central
from psframework.collective.hierarchical import Hierarchical
from psframework.collective.nccl import Nccl
from psframework.collective.network import Network
from psframework.collective.shm import SharedMemory
from psframework.collective.work import Transport


@pytest.mark.parametrize("kind", [Alone, Central, Hierarchical, Nccl, Network, SharedMemory])
def test_transports(kind):
    wanted = {name for name in vars(Transport) if not name.startswith("_")}
    assert wanted >= {"name", "lives_on", "start", "abort", "close"}
    for name in wanted:
        asked, made = getattr(Transport, name), getattr(kind, name, None)
        assert made is not None, f"{kind.__name__}.{name}"
        if inspect.isfunction(asked):
            assert list(inspect.signature(made).parameters) == list(inspect.signature(asked).parameters), name
            assert inspect.iscoroutinefunction(made) == inspect.iscoroutinefunction(asked), name
