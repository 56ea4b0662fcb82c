"""Between the values of this package and the messages that carry them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from psframework.errors import WireError
from psframework.parameter_server.dedupe import Outcome
from psframework.parameter_server.layout import ParameterSpec
from psframework.parameter_server.partition import Partition
from psframework.parameter_server.registry import Applicant, ModelRecord, ModelSpec, Registration, ShardRef
from psframework.parameter_server.roster import Entry, Roster, Seal
from psframework.proto.v1 import parameter_server_pb2 as pb

SHARD_SERVICE: Final = "psframework.proto.v1.ParameterServerService"
KEEPER_SERVICE: Final = "psframework.proto.v1.ModelService"

_OUTCOMES: Final = {
    Outcome.STAGED: pb.OUTCOME_STAGED,
    Outcome.APPLIED: pb.OUTCOME_APPLIED,
    Outcome.DROPPED: pb.OUTCOME_DROPPED,
}
_BY_NUMBER: Final[dict[int, Outcome]] = {number: outcome for outcome, number in _OUTCOMES.items()}


def shard_method(name: str) -> str:
    """The path of a method of a shard."""
    return f"/{SHARD_SERVICE}/{name}"


def keeper_method(name: str) -> str:
    """The path of a method of the keeper."""
    return f"/{KEEPER_SERVICE}/{name}"


def outcome_to_message(outcome: Outcome) -> pb.Outcome.ValueType:
    """The number that an outcome travels as."""
    return _OUTCOMES[outcome]


def outcome_from_message(number: int) -> Outcome | None:
    """The outcome of a number; None if it was not said, or is of a newer version."""
    return _BY_NUMBER.get(number)


def spec_from_json(text: str, what: str) -> dict[str, Any]:
    """The values that describe a rule, a policy or a partitioner; WireError if it is no JSON object."""
    try:
        spec = json.loads(text)
    except ValueError as error:
        raise WireError(f"the {what} is not JSON: {error}") from None
    if not isinstance(spec, dict):
        raise WireError(f"the {what} is not a JSON object, but {type(spec).__name__}")
    return spec


def partition_to_message(partition: Partition) -> pb.Partition:
    """One partition."""
    return pb.Partition(
        index=partition.index,
        dtype=partition.dtype,
        offset=partition.offset,
        size=partition.size,
        shard=partition.shard,
    )


def partition_from_message(message: pb.Partition) -> Partition:
    """One partition."""
    return Partition(message.index, message.dtype, message.offset, message.size, message.shard)


def parameters_to_message(parameters: Iterable[ParameterSpec]) -> list[pb.Parameter]:
    """The parameters of a model."""
    return [pb.Parameter(name=p.name, dtype=p.dtype, shape=p.shape) for p in parameters]


def parameters_from_message(messages: Iterable[pb.Parameter]) -> tuple[ParameterSpec, ...]:
    """The parameters of a model."""
    return tuple(ParameterSpec(m.name, m.dtype, tuple(m.shape)) for m in messages)


def shard_to_message(shard: ShardRef) -> pb.Shard:
    """One shard."""
    return pb.Shard(name=shard.name, incarnation=shard.incarnation, addresses=shard.addresses)


def shard_from_message(message: pb.Shard) -> ShardRef:
    """One shard."""
    return ShardRef(message.name, message.incarnation, tuple(message.addresses))


def roster_to_message(roster: Roster) -> pb.Roster:
    """A roster."""
    return pb.Roster(
        number=roster.number,
        entries=map(_entry_to_message, roster.entries),
        readers=sorted(roster.readers),
        held=roster.held,
        ready=roster.ready,
        initializer=roster.initializer,
        seals=[pb.RoundSeal(step=seal.step, slots=seal.slots) for seal in roster.seals],
    )


def roster_from_message(message: pb.Roster) -> Roster:
    """A roster."""
    return Roster(
        message.number,
        tuple(map(_entry_from_message, message.entries)),
        frozenset(message.readers),
        message.held,
        message.ready,
        message.initializer,
        tuple(Seal(seal.step, tuple(seal.slots)) for seal in message.seals),
    )


def _entry_to_message(entry: Entry) -> pb.RosterEntry:
    return pb.RosterEntry(
        slot=entry.slot,
        writer=entry.writer,
        incarnation=entry.incarnation,
        name=entry.name,
        from_step=entry.from_step,
        until_step_plus_one=0 if entry.until_step is None else entry.until_step + 1,
    )


def _entry_from_message(message: pb.RosterEntry) -> Entry:
    return Entry(
        message.slot,
        message.writer,
        message.incarnation,
        message.name,
        message.from_step,
        message.until_step_plus_one - 1 if message.until_step_plus_one else None,
    )


def encode_record(record: ModelRecord) -> bytes:
    """A model as the keeper stores it."""
    message = pb.ModelRecord(
        job=record.job,
        model=record.name,
        parameters=parameters_to_message(record.spec.parameters),
        rule=record.spec.rule,
        policy=record.spec.policy,
        partitioner=record.partitioner,
        keep=record.keep,
        shards=map(shard_to_message, record.shards),
        creation=record.creation,
        roster=roster_to_message(record.roster),
        next_slot=record.next_slot,
        registrations=[
            pb.Registration(
                writer=r.writer,
                member=r.applicant.member,
                incarnation=r.applicant.incarnation,
                token=r.applicant.token,
                reader=r.applicant.reader,
            )
            for r in record.registrations
        ],
    )
    return message.SerializeToString(deterministic=True)


def decode_record(stored: bytes) -> ModelRecord:
    """Reads what `encode_record` wrote."""
    message = pb.ModelRecord.FromString(stored)
    return ModelRecord(
        message.job,
        message.model,
        ModelSpec(parameters_from_message(message.parameters), message.rule, message.policy),
        message.partitioner,
        message.keep,
        tuple(map(shard_from_message, message.shards)),
        message.creation,
        roster_from_message(message.roster),
        message.next_slot,
        tuple(
            Registration(r.writer, Applicant(r.member, r.incarnation, r.token, r.reader))
            for r in message.registrations
        ),
    )


def model_info(record: ModelRecord, partitions: int) -> pb.ModelInfo:
    """A model as `ListModels` describes it."""
    return pb.ModelInfo(
        job=record.job,
        model=record.name,
        parameters=parameters_to_message(record.spec.parameters),
        rule=record.spec.rule,
        policy=record.spec.policy,
        shards=map(shard_to_message, record.shards),
        roster=roster_to_message(record.roster),
        partitions=partitions,
    )
