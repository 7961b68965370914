"""The columns of a lane's three tables, each declared once (`ackline.tables.columns`).

Offsets are as in Kafka, times are in UTC, and an end is exclusive. The tables are append-only, and partitioned by the
plan's date.

Delta stores the comments in the table, and other tools show them; a table of an earlier version keeps its columns as
they are. A new column goes to the end and is nullable. `AuditTable` adds it to a table of an earlier version before its
first write there, and reads it as null from older rows.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from itertools import islice
from typing import NamedTuple

import pyarrow as pa

from ackline.ledger.commit_rule import Committed
from ackline.ledger.fold import OutcomeRow, PartitionState
from ackline.ledger.metrics import StepFigures
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition
from ackline.ledger.outcomes import AnswerKind, Outcome
from ackline.ledger.turns import (
    AnswerReport,
    Marker,
    MarkerKind,
    Plan,
    PlannedPartition,
    SettledPartition,
    Settlement,
    TurnId,
    TurnKind,
)
from ackline.scrub import MESSAGE_LIMIT
from ackline.stored import decode
from ackline.tables.columns import (
    COPIES,
    JSON,
    KEYS,
    MAP,
    OFFSET_RANGES,
    OFFSET_RUNS,
    PENDING_RUNS,
    RETRY_RUNS,
    TEXT,
    TIMES,
    VALUED_RANGES,
    Column,
    Makers,
    each,
    enum,
    rows_of,
    values_of,
)

PARTITION_BY = ["plan_date"]
STRING, INT, LONG, TIME = pa.string(), pa.int32(), pa.int64(), pa.timestamp("us", "UTC")


def _ranges(**values: pa.DataType) -> pa.ListType:
    """Returns the type of a list of offset ranges that have these values."""
    return pa.list_(pa.struct({"start_offset": LONG, "end_offset": LONG, **values}))


_TURN = [
    Column("pipeline", STRING, "whole.turn.pipeline", comment="The pipeline's name."),
    Column("plan_date", pa.date32(), "day",
           comment="The UTC day on which the turn was planned. The table is partitioned by it."),
    Column("lane", STRING, "whole.turn.lane", comment="An independent position in the log: live, or backfill-ID."),
    Column("epoch", INT, "whole.turn.epoch",
           comment="The number of resets of the lane before this turn. With lane and turn it identifies the turn."),
    Column("turn", LONG, "whole.turn.n", comment="The number of the turn in its lane and epoch."),
    Column("run_id", STRING, "whole.run_id",
           comment="The run that wrote the row. An attribute of the turn; it never identifies one."),
]  # fmt: skip

_TOPIC_PARTITION = [
    Column("topic", STRING, "tp.topic", comment="The topic."),
    Column("partition", INT, "tp.partition", comment="The number of the partition."),
]

# fmt: off
_TOPIC_ID = Column("topic_id", STRING, "part.topic_id",
                   comment="The id of the topic that the offsets are of. It changes when the topic is created again.")
_ACKNOWLEDGED = Column("acknowledged_foreign_offset", LONG, "part.acknowledged_foreign_offset",
                       comment="A foreign commit that a genesis or an action acknowledged, so that the floor may be "
                               "committed over it.")
_COMMITTED_METADATA = Column("committed_metadata", STRING, "part.committed.metadata", TEXT,
                             comment="The metadata of that commit.")
_ACTOR = Column("actor", STRING, "whole.actor", comment="Who started the run or took the action: airflow, or a user.")
# fmt: on

OUTCOME_COLUMNS = [
    *_TURN,
    *_TOPIC_PARTITION,
    Column("offset", LONG, "part.offset", comment="The record's offset, or the first one of a range."),
    Column("end_offset", LONG, "part.end_offset",
           comment="The end of the range, exclusive; null if the row is for one record."),
    Column("attempt", INT, "part.attempt",
           comment="The number of the attempt, from 1; 0 if no handler was called: a decision, and held_back."),
    Column("outcome", STRING, "part.outcome", enum(Outcome),
           comment="acked, failed, skipped, dropped, in_flight of an attempt; dead, expired, compacted, skipped, "
                   "lost by decision; held_back of a record that waits for a lower one. All but failed, in_flight and "
                   "held_back are terminal: a record has one of these a lane and epoch."),
    Column("error_class", STRING, "part.error_class",
           comment="The class of the error, or Ackline's own word such as Skip, Timeout, WorkerLost."),
    Column("error_message", STRING, "part.reason", each(lambda reason: reason[:MESSAGE_LIMIT] or None, str),
           comment="The error's text, at most 200 characters, scrubbed of payloads and secrets."),
    Column("record_timestamp", TIME, None, comment="The record's timestamp in Kafka; null if it is no time."),
    Column("handled_at", TIME, "part.handled_at", TIMES,
           comment="When the attempt ended, or when the decision was made."),
    Column("key_hash", STRING, None, in_every_file=False,
           comment="In a row that version 0.2.0 has written: the keyed hash of the record's key, whose first 16 "
                   "hexadecimal digits are key_hash64. Null in every other row."),
    Column("due", TIME, "part.due", TIMES, in_every_file=False,
           comment="Of an attempt in flight: the deadline of its answer. Null without one, and in every other row."),
    Column("answer", STRING, "part.answer", enum(AnswerKind), in_every_file=False,
           comment="Of a row that ends or renews an attempt in flight: ack, fail, renew, or timeout. Null in every "
                   "other row, that of the attempt itself too."),
    Column("tree", STRING, None, in_every_file=False,
           comment="Of an attempt, in a pipeline with steps: how many of the record's tuples each step acked and "
                   "failed, and how many are missing, as JSON. Null in a decision, an answer, and where no step got "
                   "a tuple."),
    Column("error_place", STRING, None, in_every_file=False,
           comment="Of a failed attempt: the innermost line of the handler's own code that raised, such as "
                   "handlers/shop.py:41 in price. Null if no line did, and in every other row."),
    Column("letter", STRING, "part.letter", in_every_file=False,
           comment="Of a dead record: where its dead letter is, as TOPIC[PARTITION] OFFSET. Null in every other row, "
                   "and without dead letters."),
    Column("key_hash64", LONG, None, in_every_file=False,
           comment="The keyed hash of the record's key (the first 64 bits of HMAC-SHA256), if the pipeline file has "
                   "`audit: {key_hash: true}`. Null of a record without a key, and of a decision."),
]  # fmt: skip
"""The audit table. A row is one attempt at a record, or a decision on a record or a range of them (attempt 0)."""

PLAN_COLUMNS = [
    *_TURN,
    Column("kind", STRING, "whole.kind", enum(TurnKind),
           comment="What the turn does: run, genesis, or an action such as skip, reset, pause. In a marker: start or "
                   "waiver."),
    *_TOPIC_PARTITION,
    _TOPIC_ID,
    Column("start_offset", LONG, "part.fresh.start",
           comment="The start of the fresh range: offsets that are read for the first time."),
    Column("end_offset", LONG, "part.fresh.end",
           comment="The end of the fresh range, exclusive; in an action, the offset that it moves the partition to."),
    Column("retries", _ranges(attempt=INT), "part.retries", RETRY_RUNS,
           comment="The due retries, as ranges with the number of the attempt to be made."),
    Column("floor", LONG, "part.floor", comment="The lowest offset that was not settled when the turn was planned."),
    Column("complete_to", LONG, "part.complete_to",
           comment="The end of what was read and handled whole when the turn was planned."),
    Column("log_start", LONG, "part.log.start", comment="The log start, as the broker reported it."),
    Column("log_end", LONG, "part.log.end",
           comment="The end of the readable log: the last stable offset under read_committed."),
    Column("isolation", STRING, "whole.isolation", comment="Kafka's isolation.level of the turn."),
    Column("why", STRING, "part.why",
           comment="Why the turn reads nothing of the partition; in a genesis, why it starts where it does."),
    Column("committed", LONG, "part.committed.offset",
           comment="What the consumer group had committed; null if nothing."),
    _COMMITTED_METADATA,
    _ACKNOWLEDGED,
    Column("settings", STRING, "whole.settings", JSON, comment="The settings that the turn keeps to, as JSON."),
    Column("planned_at", TIME, "whole.planned_at", TIMES, comment="When the turn was planned."),
    _ACTOR,
    Column("reason", STRING, "whole.reason",
           comment="Why the action was taken, or why a run of a backfill was started; empty in another run."),
    Column("leader_epoch", INT, "part.log.leader_epoch",
           comment="The epoch of the leader that reported the log; null if it is not known."),
    Column("code", STRING, "whole.code", TEXT,
           comment="The code of the process that stored the plan of a run: the version of a DAG bundle, a git commit, "
                   "or a hash of files. Null if it is not known, and in an action."),
    Column("open_transaction", LONG, "part.log.open_transaction", each(int, lambda offsets: offsets or 0),
           comment="How many offsets an open transaction holds back above log_end, which is no part of any other "
                   "number. The high watermark is the sum of the two."),
]  # fmt: skip
"""A row is one topic-partition of a plan: what the turn reads of it, or why it reads nothing. A row without a topic is
a marker of the turn (`ackline.ledger.turns.MarkerKind`), and no part of its plan."""

SETTLEMENT_COLUMNS = [
    *_TURN,
    Column("kind", STRING, "whole.kind", enum(TurnKind),
           comment="The kind of the plan; void if the turn was closed without effect, and none of its rows counts."),
    *_TOPIC_PARTITION,
    _TOPIC_ID,
    Column("old_floor", LONG, "part.old_floor", comment="The floor before the turn."),
    Column("new_floor", LONG, "part.state.floor", derived=True,
           comment="The floor after the turn: the lowest offset that is neither settled nor released, and what may be "
                   "committed."),
    Column("complete_to", LONG, "part.state.complete_to",
           comment="The end of what is proved to have been read and handled whole."),
    Column("pending", _ranges(kind=STRING, attempts=INT, due=TIME, error_class=STRING),
           "part.state.pending", PENDING_RUNS,
           comment="The offsets that are not settled: runs of equal state, with kind, attempts so far, due time and "
                   "last error class. The lowest one that is not released holds the floor."),
    Column("counts", pa.map_(STRING, LONG), "part.counts", MAP,
           comment="How many offsets got each outcome in this turn. A range counts all its offsets."),
    Column("gaps", LONG, "part.gaps",
           comment="How many offsets of the fresh range held no record; null if it is not known."),
    _ACKNOWLEDGED,
    Column("committed", LONG, "part.committed.offset",
           comment="What the consumer group had committed just before the settlement; null if nothing."),
    _COMMITTED_METADATA,
    Column("evidence", STRING, "part.evidence", comment="What the settlement rests on, in words."),
    Column("paused", pa.bool_(), "part.paused", comment="Whether an operator has paused the partition."),
    _ACTOR,
    Column("reason", STRING, "whole.reason",
           comment="Why the action was taken, or why a run of a backfill was started; of a void turn, why it was "
                   "closed."),
    Column("settled_at", TIME, "whole.settled_at", TIMES, comment="When the turn was settled."),
    Column("metrics", pa.map_(STRING, pa.float64()), "part.metrics", MAP,
           comment="Metrics of the partition after the turn, such as lag, lag_seconds, due."),
    Column("totals", pa.map_(STRING, LONG), "part.totals", MAP,
           comment="The offsets of the epoch so far by outcome, and how many attempts were retries."),
    Column("leader_epoch", INT, "part.leader_epoch",
           comment="The epoch of the leader whose log has all that was read; null if it is not known."),
    Column("gaps_above_floor", _ranges(gaps=LONG), "part.state.gaps_above_floor", VALUED_RANGES,
           comment="Ranges between floor and complete_to, with how many of their offsets held no record."),
    Column("ranges", _ranges(), "part.ranges", OFFSET_RANGES,
           comment="In the genesis of a backfill lane: the ranges that it reads whole. Null elsewhere."),
    Column("arguments", STRING, "whole.arguments", TEXT,
           comment="In the genesis of a backfill lane: what was asked, as it was written, as JSON. Null elsewhere."),
    Column("answers", STRING, "whole.answers", each(AnswerReport.encode, AnswerReport.decode),
           comment="How far the lane has read its ack topic, and how many answers of this turn were applied and "
                   "ignored, as JSON. Null without an ack topic."),
    Column("outputs", STRING, "whole.outputs", TEXT, once=True,
           comment="The execution whose rows this turn publishes, the files of these rows in each output table, and "
                   "the files of rows that wait for records in flight, as JSON. In one row of the turn, and null in "
                   "the others; null if the turn has none of these."),
    Column("steps", STRING, "whole.steps", each(StepFigures.encode, StepFigures.decode), once=True,
           comment="What the steps of the pipeline did in the turn, as JSON: tuples, calls, and times in "
                   "milliseconds. In one row of the turn, and null in the others; null with neither steps nor "
                   "outputs."),
    Column("code", STRING, "whole.code", TEXT, once=True,
           comment="The code that replayed the turn: the version of a DAG bundle, a git commit, or a hash of files. In "
                   "one row of the turn, and null in the others; null if it is not known, and in an action."),
    Column("pending_keys", pa.list_(LONG), "part.state.pending_keys", KEYS,
           comment="With `order: key`: a number for the key of each range of pending, made from its hash. Null if none "
                   "is known."),
    Column("rescued", _ranges(topic=STRING, topic_id=STRING, partition=INT, offset=LONG), "part.state.copies", COPIES,
           comment="With `rescue`: ranges of pending records, and where their copies are in the rescue topic: the "
                   "copies of a range are neighbours too, from `offset` on."),
    Column("released", _ranges(), "part.state.released", OFFSET_RUNS,
           comment="With `rescue: {release: true}`: the ranges of pending that do not hold the floor, because their "
                   "copies were stored. A range stays here until it is settled."),
]  # fmt: skip
"""A row is one topic-partition after a turn. The next turn starts from these rows alone."""

IN_EVERY_TABLE = tuple(column.name for column in (*_TURN, *_TOPIC_PARTITION))
"""The columns that each table has had from its first version on."""
PLANS, OUTCOMES, SETTLEMENTS = (
    pa.schema([column.arrow_field for column in columns])
    for columns in (PLAN_COLUMNS, OUTCOME_COLUMNS, SETTLEMENT_COLUMNS)
)

DESCRIPTIONS = {
    "plans": "What each turn is to read: a row a topic-partition of a plan. A row without a topic marks the turn.",
    "outcomes": "The audit table: a row is one attempt at a record, or a decision on a record or a range (attempt 0). "
    "A row counts once a settlement names its turn, unless that is void.",
    "settlements": "The state of each topic-partition after each turn; the newest rows are the state of the lane.",
}
"""What each table holds, as Delta stores it with the table."""

TABLES = {"plans": PLANS, "outcomes": OUTCOMES, "settlements": SETTLEMENTS}

FORMER_COLUMNS = {
    "seen": "acknowledged_foreign_offset",
    "held": "committed",
    "held_metadata": "committed_metadata",
    "figures": "metrics",
}
"""Columns that had another name before the first release. A table that has one of them is refused."""


_ROWS = 1_000
"""How many decisions are Python objects at a time: as such, one takes several times as much memory as in Arrow."""


def plan_date(planned_at: datetime) -> date:
    """Returns the UTC day on which a turn was planned: the partition column of all rows of that turn."""
    return planned_at.astimezone(UTC).date()


_MAKERS: Makers = {
    "whole.turn": TurnId,
    "tp": TopicPartition,
    "part.committed": lambda offset, metadata: None if offset is None else Committed(offset, metadata),
}


def plan_rows(plan: Plan) -> pa.Table:
    """Returns a plan as rows of `plans`, one for each topic-partition."""
    return rows_of(PLAN_COLUMNS, plan, plan_date(plan.planned_at), sorted(plan.partitions.items()))


def plan_from_rows(rows: pa.Table) -> Plan:
    """Returns the plan that these rows hold. There is at least one."""
    makers: Makers = {**_MAKERS, "part": PlannedPartition, "part.fresh": OffsetRange, "part.log": LogBounds}
    whole, partitions = values_of(PLAN_COLUMNS, rows, makers)
    return Plan(**whole, partitions=partitions)


def settlement_rows(settlement: Settlement, day: date) -> pa.Table:
    """Returns a settlement as rows of `settlements`, one for each topic-partition. `day` is that of its plan."""
    return rows_of(SETTLEMENT_COLUMNS, settlement, day, sorted(settlement.partitions.items()))


def settlement_from_rows(rows: pa.Table) -> Settlement:
    """Returns the settlement that these rows hold. There is at least one."""
    makers: Makers = {**_MAKERS, "part": SettledPartition, "part.state": PartitionState}
    whole, partitions = values_of(SETTLEMENT_COLUMNS, rows, makers)
    return Settlement(**whole, partitions=partitions)


class _OfTurn(NamedTuple):
    """What all rows of a turn's decisions have in common, or of its marker."""

    turn: TurnId
    run_id: str
    kind: MarkerKind | None = None
    settings: Mapping[str, bool] | None = None
    planned_at: datetime | None = None
    actor: str | None = None
    reason: str | None = None
    isolation: None = None
    code: None = None


def decision_rows(
    turn: TurnId, day: date, run_id: str, decisions: Mapping[TopicPartition, Iterable[OutcomeRow]]
) -> pa.Table:
    """Returns the decisions of a turn as rows of `outcomes`: one for each record, or for each range of offsets. A turn
    may decide all records in flight at once, so few rows at a time are Python objects."""
    rows = ((tp, row) for tp, decided in sorted(decisions.items()) for row in decided)
    parts = [OUTCOMES.empty_table()]
    while part := list(islice(rows, _ROWS)):
        parts.append(rows_of(OUTCOME_COLUMNS, _OfTurn(turn, run_id), day, part))
    return pa.concat_tables(parts)


def marker_rows(plan: Plan, marker: Marker) -> pa.Table:
    """Returns a marker as one row of `plans` without a topic, so that no reader takes it for a part of the plan."""
    settings = {"by_operator": marker.by_operator, "pause": marker.pause}
    whole = _OfTurn(plan.turn, marker.run_id, marker.kind, settings, marker.at, marker.actor, marker.reason)
    return rows_of(PLAN_COLUMNS, whole, plan_date(plan.planned_at), [(None, None)])


def marker_from_rows(rows: pa.Table) -> Marker | None:
    """Returns the marker that these rows hold; None if there are none."""
    for row in rows.drop_columns(["retries"]).to_pylist():
        settings = decode(row["settings"], dict[str, bool])
        kind, at = MarkerKind(row["kind"]), row["planned_at"].astimezone(UTC)
        return Marker(kind, row["run_id"], at, row["actor"], row["reason"], settings["by_operator"], settings["pause"])
    return None
