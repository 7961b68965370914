"""The JSON objects of runs, turns, actions and backfills: one type each, whose fields are the keys.

A command prints an object with `--json`, and the DAG's task returns it as XCom. They can't differ in a key, because
both have it from here, or from `status`, `explain` or `report` of this room, or from `ackline.backfill.perform`. The
keys are a public format. No object holds a secret, and only that of a dead letter holds a payload, where it is wanted.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, PlainSerializer, SerializerFunctionWrapHandler, model_serializer

from ackline.ledger.commit_rule import Committed
from ackline.ledger.offsets import LogBounds, TopicPartition, count
from ackline.ledger.planning import NO_LEADER
from ackline.ledger.turns import PlannedPartition, SettledPartition
from ackline.steps.plan import Planned
from ackline.steps.run import RunResult
from ackline.tables.store import LedgerStore

Time = Annotated[datetime, PlainSerializer(lambda time: time.isoformat())]
"""A time, which JSON holds as ISO 8601 with its zone."""


class JsonObject(BaseModel):
    """An object that a command prints and a task returns. The order of its fields is that of its keys.

    A value of the product that has the same fields can be given in place of an object.
    """

    # Built at first use: a command uses few of these objects, and `--help` none.
    model_config = ConfigDict(frozen=True, extra="forbid", from_attributes=True, defer_build=True)
    left_out: ClassVar[frozenset[str]] = frozenset()
    """The keys that are left out where another one would be null."""

    @model_serializer(mode="wrap")
    def _keys(self, values: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in values(self).items() if value is not None or key not in self.left_out}

    def dump(self) -> dict[str, Any]:
        """Returns the object as values that JSON holds."""
        return self.model_dump(mode="json", by_alias=True)


class OpenTransactionObject(JsonObject):
    """What an open transaction holds back between `log_end` and the high watermark: how many `records` (offsets), and
    `since` when it is open, by the time of its first record; null if that is not known."""

    since: Time | None = None
    records: int


class PartitionObject(JsonObject):
    """What is about one topic-partition."""

    topic: str
    partition: int


class RangeObject(PartitionObject):
    """A range of offsets of a partition; its end is exclusive."""

    start: int
    end: int


class PlannedObject(PartitionObject):
    """What a turn reads of a partition: the fresh range, and how many retries. Null where no leader could be asked."""

    start: int | None = None
    end: int | None = None
    retries: int = 0
    why: str | None = None
    """Why it reads nothing or less."""

    @classmethod
    def of(cls, tp: TopicPartition, planned: PlannedPartition) -> "PlannedObject":
        """Returns what a plan has for a partition."""
        return PlannedObject(
            topic=tp.topic, partition=tp.partition, start=planned.fresh.start, end=planned.fresh.end,
            retries=count(planned.retries), why=planned.why,
        )  # fmt: skip


class PlannedInDetailObject(PlannedObject):
    """What a turn reads of a partition, and where lane and log are."""

    floor: int | None = None
    complete_to: int | None = None
    log_start: int | None = None
    log_end: int | None = None
    high_watermark: int | None = None
    open_transaction: OpenTransactionObject | None = None


class PlanObject(JsonObject):
    """A plan, as `ackline plan --json` prints it; without a turn if there is nothing to plan."""

    pipeline: str
    lane: str
    epoch: int | None = None
    turn: int | None = None
    kind: str | None = None
    adopted: bool = False
    planned_at: Time | None = None
    partitions: tuple[PlannedInDetailObject, ...]
    missing_topics: tuple[str, ...]
    missing_partitions: tuple[str, ...]


def plan_object(pipeline: str, lane: str, planned: Planned) -> PlanObject:
    """Returns what a run would do, as an object.

    In the plan of an operator action, its reason is why each partition reads nothing. Partitions without a leader have
    not joined the lane, so all of them but `why` is unknown.
    """
    plan = planned.plan
    partitions = []
    for tp, of_tp in sorted(plan.partitions.items()) if plan else ():
        reads = {**dict(PlannedObject.of(tp, of_tp)), "why": of_tp.why or (plan.reason if plan else "") or None}
        log: dict[str, Any] = {"log_start": of_tp.log.start, "log_end": of_tp.log.end}
        log |= _above_end(of_tp.log)
        partitions.append(PlannedInDetailObject(**reads, floor=of_tp.floor, complete_to=of_tp.complete_to, **log))
    partitions += [
        PlannedInDetailObject(topic=tp.topic, partition=tp.partition, why=NO_LEADER) for tp in planned.leaderless
    ]
    of_turn: dict[str, Any] = {}
    if plan is not None:
        of_turn = {"epoch": plan.turn.epoch, "turn": plan.turn.n, "kind": plan.kind.value, "adopted": planned.adopted}
        of_turn |= {"planned_at": plan.planned_at}
    return PlanObject(
        pipeline=pipeline, lane=lane, **of_turn, partitions=tuple(partitions), **missing_keys(planned.missing)
    )


def _above_end(log: LogBounds) -> dict[str, Any]:
    """Returns the keys for what a plan has found above the readable end of a log. A plan holds no time of it."""
    held = OpenTransactionObject(records=log.open_transaction) if log.open_transaction else None
    return {"high_watermark": log.high_watermark, "open_transaction": held}


def missing_keys(missing: Iterable[str]) -> dict[str, Any]:
    """Returns the topics, and the partitions, that the file names and the broker does not have."""
    partitions = tuple(name for name in missing if name.endswith("]"))
    topics = tuple(name for name in missing if not name.endswith("]"))
    return {"missing_topics": topics, "missing_partitions": partitions}


class SettledObject(PartitionObject):
    """Where a partition is after a settlement; `committed` was read back from the broker."""

    floor: int
    complete_to: int
    pending: dict[str, int]
    outcomes: dict[str, int]
    committed: int | None

    @classmethod
    def of(cls, tp: TopicPartition, settled: SettledPartition, committed: Committed | None) -> "SettledObject":
        """Returns what a settlement has for a partition, with the group's commit as it was read back."""
        return SettledObject(
            topic=tp.topic, partition=tp.partition, floor=settled.state.floor, complete_to=settled.state.complete_to,
            pending={kind.value: number for kind, number in settled.state.pending_by_kind().items()},
            outcomes=dict(settled.counts), committed=committed.offset if committed else None,
        )  # fmt: skip


class RanObject(PlannedObject):
    """What all turns of a run have read of a partition, and where it is after the last one."""

    outcomes: dict[str, int] = {}
    pending: dict[str, int] = {}
    floor: int | None = None
    complete_to: int | None = None
    committed: int | None = None
    log_end: int | None = None
    lag: int | None = None
    high_watermark: int | None = None
    open_transaction: OpenTransactionObject | None = None


class RunObject(JsonObject):
    """The closing line of `ackline run --json`: `records` counts handler calls, `outcomes` offsets.

    Of its settled turns, `new_records` counts the records that were handled for the first time, and `new_failed` those
    of them that failed.
    Without an ack topic it has no answers, because zeros would read as an ack topic that got none.
    """

    left_out = frozenset({"answers", "warnings"})
    pipeline: str
    turn: int | None
    records: int
    new_records: int
    new_failed: int
    outcomes: dict[str, int]
    partitions: tuple[RanObject, ...]
    missing_topics: tuple[str, ...]
    answers: dict[str, int] | None = None
    warnings: tuple[str, ...] | None = None


def run_object(ran: RunResult, store: LedgerStore) -> RunObject:
    """Returns what a run did, as an object."""
    last = ran.plans[-1] if ran.plans else None
    settlement = store.settlement(last.turn) if last else None
    committed = ran.commit.committed if ran.commit else {}
    partitions = []
    for tp, settled in sorted(settlement.partitions.items() if settlement else ()):
        after = SettledObject.of(tp, settled, committed.get(tp))
        reads: dict[str, Any] = {"start": after.complete_to, "end": after.complete_to}
        if plans := [plan.partitions[tp] for plan in ran.plans if tp in plan.partitions]:
            first, newest = plans[0], plans[-1]
            reads = {"start": first.fresh.start, "end": newest.fresh.end, "why": newest.why}
            reads |= {"retries": sum(count(planned.retries) for planned in plans)}
            reads |= {"log_end": newest.log.end, "lag": newest.log.end - after.floor}
            reads |= _above_end(newest.log)
        partitions.append(RanObject(**{**dict(after), **reads}))
    partitions += [RanObject(topic=tp.topic, partition=tp.partition, why=NO_LEADER) for tp in ran.leaderless]
    return RunObject(
        pipeline=store.pipeline, turn=last.turn.n if last else None, records=ran.calls, new_records=ran.new_records,
        new_failed=ran.new_failed, outcomes=dict(ran.outcomes), partitions=tuple(partitions),
        missing_topics=ran.missing,
        answers=None if ran.answers is None else dict(ran.answers),
        warnings=None if ran.answers is None else tuple(ran.warnings),
    )  # fmt: skip


class TurnObject(JsonObject):
    """A settled turn, as `ackline history --json` lists it. `duration` is in seconds."""

    lane: str
    epoch: int
    turn: int
    kind: str
    run_id: str
    actor: str
    reason: str
    code: str | None
    start: Time | None
    end: Time
    duration: float | None
    partitions: int
    records: int
    new_records: int
    new_failed: int
    outcomes: dict[str, int]


class HistoryObject(JsonObject):
    """The settled turns of a pipeline, the newest first."""

    pipeline: str
    turns: tuple[TurnObject, ...]
