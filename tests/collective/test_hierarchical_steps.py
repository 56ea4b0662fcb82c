"""Which steps each rank takes, and what it says of them."""

import numpy as np
import pytest
from collective import describe, opened, prepare

from psframework.collective.descriptor import ANY, Descriptor, Operation
from psframework.collective.hierarchical_steps import Phase, Plan, Trip
from psframework.collective.hosts import Hosts
from psframework.collective.ops import ReduceOp
from psframework.errors import ArgumentError
from psframework.rpc.deadline import Deadline

HOSTS = Hosts([[0, 2], [1, 3]])


def steps(rank: int, said: Descriptor, array: np.ndarray | None) -> list[tuple[str, Descriptor]]:
    work = prepare(said, rank, HOSTS.size, array, Deadline.after(20))
    return [(phase.name, step.descriptor) for phase, step in Plan(HOSTS, rank).steps(work)]


def test_a_leader_goes_across_and_the_others_wait_for_it():
    said = describe(Operation.ALL_REDUCE, np.ones(3, np.float16), op=ReduceOp.AVG)
    leader, other = steps(1, said, np.ones(3, np.float16)), steps(3, said, np.ones(3, np.float16))
    names = [(phase, step.operation, step.dtype, step.op) for phase, step in leader]
    assert names == [
        ("UP", Operation.REDUCE, "float32", ReduceOp.SUM),
        ("ACROSS", Operation.ALL_REDUCE, "float32", ReduceOp.SUM),
        ("DOWN", Operation.BROADCAST, "float16", None),
    ]
    assert other == [each for each in leader if each[0] != "ACROSS"], "both say the same"
    assert {str(step) for _, step in leader} == {str(said)}, "people read of the operation that they called"


@pytest.mark.parametrize("root", range(4))
def test_every_rank_compares_in_each_step_also_where_no_data_goes(root):
    array = np.ones(4)
    said = describe(Operation.BROADCAST, array, root=root)
    for rank in range(4):
        phases = [phase for phase, _ in steps(rank, said, array)]
        assert phases == ["UP", "ACROSS", "DOWN"] if rank < 2 else ["UP", "DOWN"]


def test_the_leader_of_the_root_learns_from_it_what_goes_across():
    said = describe(Operation.SCATTER, np.ones(8), root=2)
    work = prepare(opened(said), 0, 4, None, Deadline.after(20))
    running = Plan(HOSTS, 0).steps(work)
    phase, up = next(running)
    assert (phase, up.descriptor.operation, up.descriptor.open) == (Phase.UP, Operation.BROADCAST, True)
    assert up.allocate is not None
    up.receive = up.allocate(describe(Operation.BROADCAST, np.ones(8), root=1))
    up.receive[:] = np.arange(8)
    phase, across = next(running)
    assert (phase, across.descriptor.open, across.descriptor.shape) == (Phase.ACROSS, False, (8,))
    assert across.send is not None and across.send.tolist() == [0, 1, 4, 5, 2, 3, 6, 7], "by host"


def test_a_trip_counts_shapes_in_parts():
    said = Descriptor(1, Operation.SCATTER, "float32", (8, 3), root=0)
    trip = Trip(prepare(said, 0, 4, np.zeros(24, np.float32), Deadline.after(20)), 4)
    assert trip.step(Operation.SCATTER, 0, 6, None, None).descriptor.shape == (12, 3)
    assert len(trip.room(said, 2, 4)) == 12


def test_send_and_recv_are_refused():
    with pytest.raises(ArgumentError, match="send"):
        steps(0, Descriptor(1, Operation.SEND, root=ANY), None)
