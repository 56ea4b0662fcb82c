"""Arrays in the order of hosts: there and back again, whatever the placement."""

import numpy as np
import pytest

from psframework.collective.hosts import Hosts

UNEVEN = [[0, 3, 4], [1], [2, 5]]


def test_place():
    hosts = Hosts(UNEVEN)
    assert (hosts.count, hosts.size, hosts.most) == (3, 6, 3)
    assert [hosts.place(rank) for rank in range(6)] == [(0, 0), (1, 0), (2, 0), (0, 1), (0, 2), (2, 1)]
    with pytest.raises(LookupError, match="rank 6"):
        hosts.place(6)


def test_by_host_pads_to_the_largest_host():
    by_rank = np.repeat(np.arange(1, 7), 2)
    by_host = Hosts(UNEVEN).by_host(by_rank)
    assert by_host.reshape(3, 3, 2)[:, :, 0].tolist() == [[1, 4, 5], [2, 0, 0], [3, 6, 0]]
    np.testing.assert_array_equal(Hosts(UNEVEN).by_rank(by_host), by_rank)


def test_nothing_is_copied_where_the_order_is_that_of_ranks():
    array = np.arange(8)
    hosts = Hosts([[0, 1], [2, 3]])
    assert hosts.by_host(array) is array
    assert hosts.by_rank(array) is array
    assert not Hosts([[0, 2], [1, 3]]).in_order
    assert not Hosts([[0, 1], [2]]).in_order


def test_blocks_of_an_all_to_all_meet():
    hosts = Hosts(UNEVEN)
    rows = {rank: np.array([10 * rank + to for to in range(6)]) for rank in range(6)}
    blocks = [
        hosts.to_hosts(np.concatenate([rows[rank] for rank in ranks]), host).reshape(3, -1)
        for host, ranks in enumerate(UNEVEN)
    ]
    for host, ranks in enumerate(UNEVEN):
        got = hosts.from_hosts(np.concatenate([block[host] for block in blocks]), host)
        assert got.tolist() == [10 * source + rank for rank in ranks for source in range(6)]


@pytest.mark.parametrize("ranks", [UNEVEN, [[0], [1], [2]], [[0, 1, 2]]])
def test_empty_arrays(ranks):
    hosts = Hosts(ranks)
    assert len(hosts.by_rank(hosts.by_host(np.empty(0)))) == 0
    assert len(hosts.from_hosts(hosts.to_hosts(np.empty(0), 0), 0)) == 0
