"""Values survive their messages."""

from psframework.parameter_server.dedupe import Outcome
from psframework.parameter_server.layout import ParameterSpec
from psframework.parameter_server.messages import (
    decode_record,
    encode_record,
    keeper_method,
    model_info,
    outcome_from_message,
    outcome_to_message,
    partition_from_message,
    partition_to_message,
    roster_from_message,
    roster_to_message,
    shard_method,
)
from psframework.parameter_server.partition import Partition
from psframework.parameter_server.registry import Applicant, ModelRecord, ModelSpec, Registration, ShardRef
from psframework.parameter_server.roster import VACANT, Entry, Roster, Seal
from psframework.proto.v1.parameter_server_pb2 import DESCRIPTOR

ROSTER = Roster(
    7,
    (Entry(0, 5, 50, "a", 0, 0), Entry(0, VACANT, 0, "a", 0), Entry(1, 6, 60, "b", 3, 9)),
    frozenset({8, 9}),
    held=True,
    ready=True,
    initializer=5,
    seals=(Seal(0, (0, 1)), Seal(1, (1,))),
)
RECORD = ModelRecord(
    "job",
    "net",
    ModelSpec(
        (ParameterSpec("w", "bfloat16", (2, 3)), ParameterSpec("s", "float64", ())), "{}", '{"name":"asp"}'
    ),
    '{"name":"hash"}',
    True,
    (ShardRef("parameter-server-0", 4, ("a:1", "b:2")),),
    12,
    ROSTER,
    2,
    (Registration(5, Applicant("a", 50, "token", False)), Registration(8, Applicant("r", 70, "other", True))),
)


def test_records_and_rosters_survive():
    assert decode_record(encode_record(RECORD)) == RECORD
    assert roster_from_message(roster_to_message(ROSTER)) == ROSTER


def test_partitions_survive():
    partition = Partition(3, "float16", 1 << 40, 77, 2)
    assert partition_from_message(partition_to_message(partition)) == partition


def test_outcomes_survive_and_unknown_ones_are_none():
    for outcome in Outcome:
        assert outcome_from_message(outcome_to_message(outcome)) is outcome
    assert outcome_from_message(0) is None
    assert outcome_from_message(99) is None


def test_method_names_exist():
    services = DESCRIPTOR.services_by_name
    for method in services["ParameterServerService"].methods:
        assert shard_method(method.name) == "/psframework.proto.v1.ParameterServerService/" + method.name
    for method in services["ModelService"].methods:
        assert keeper_method(method.name) == "/psframework.proto.v1.ModelService/" + method.name


def test_models_are_described():
    info = model_info(RECORD, 5)
    assert (info.job, info.model, info.partitions) == ("job", "net", 5)
    assert list(info.parameters[0].shape) == [2, 3]
