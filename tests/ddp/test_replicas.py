"""Replicas: copies that follow the module, sums of gradients, calls in threads."""

from typing import Any

import numpy as np
import pytest

from psframework import nn
from psframework.autograd.sparse import SparseRows
from psframework.backend import CPU
from psframework.ddp.replicas import Replicas, added, cut
from psframework.testing.strict_device import strict_devices


def test_copies_share_the_arrays_of_their_device_and_have_buffers_of_their_own() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    replicas = Replicas(module, [CPU, CPU])
    module.get_parameter("0.weight").data = np.ones((3, 2), np.float32)
    module.get_buffer("1.running_mean")[...] = 7
    module.eval()
    replicas.follow(2)
    twin = replicas.modules[1]
    assert replicas.modules[0] is module
    assert twin.get_parameter("0.weight") is not module.get_parameter("0.weight")
    assert twin.get_parameter("0.weight").data is module.get_parameter("0.weight").data
    assert twin.get_buffer("1.running_mean") is not module.get_buffer("1.running_mean")
    assert twin.get_buffer("1.running_mean").tolist() == [7, 7, 7]
    assert not any(each.training for each in twin.modules())


def test_what_is_shared_stays_shared() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            self.one = nn.Linear(2, 2)
            self.other = nn.Linear(2, 2)
            self.other.weight = self.one.weight

    twin: Any = Replicas(Tied(), [CPU, CPU]).modules[1]
    assert twin.other.weight is twin.one.weight


def test_run_gives_results_in_order_and_the_first_error_of_all() -> None:
    replicas = Replicas(nn.Identity(), [CPU] * 3)
    assert replicas.run([lambda: 1, lambda: 2, lambda: 3]) == [1, 2, 3]
    ended = []

    def fail(number: int) -> int:
        ended.append(number)
        raise ValueError(number)

    with pytest.raises(ValueError, match="1"):
        replicas.run([lambda: 0, lambda: fail(1), lambda: fail(2)])
    assert sorted(ended) == [1, 2]


def test_added() -> None:
    assert added([None, None], CPU) is None
    assert added([np.array([1.0]), None, np.array([2.0])], CPU).tolist() == [3]  # type: ignore[union-attr]
    rows = [SparseRows(np.array([i]), np.ones(1), (4,)) for i in (2, 0, 2)]
    total = added(rows, CPU)
    assert isinstance(total, SparseRows)
    assert (total.rows.tolist(), total.values.tolist()) == ([0, 2], [1, 2])
    with strict_devices("replica-0") as (device,):
        total = added([np.ones(2), device.to_device(np.ones(2))], device.device)
        assert isinstance(total, device.ndarray)


def test_cut() -> None:
    assert [part.tolist() for part in cut(np.arange(5), [0, 2, 2, 5])] == [[0, 1], [], [2, 3, 4]]
