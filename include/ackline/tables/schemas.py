"""The columns of a lane's three tables, and what each one holds.

What each column of the tables holds, for readers of the tables with other tools.

Offsets are as in Kafka, times are in UTC, and an end is exclusive.

The columns of a lane's three tables. They are append-only, and partitioned by the plan's date.

Each column has a comment, which Delta stores in the table and other tools show; a table of an earlier version keeps its
columns as they are. A new column goes to the end and is nullable. `AuditTable` adds it to a table of an earlier version
before its first write there, and reads it as null from older rows.
"""

from collections.abc import Iterable, Mapping

import pyarrow as pa

TURN_COMMENTS = {
    "pipeline": "The pipeline's name.",
    "plan_date": "The UTC day on which the turn was planned. The table is partitioned by it.",
    "lane": "An independent position in the log: live, or backfill-ID.",
    "epoch": "The number of resets of the lane before this turn. With lane and turn it identifies the turn.",
    "turn": "The number of the turn in its lane and epoch.",
    "run_id": "The run that wrote the row. An attribute of the turn; it never identifies one.",
    "topic": "The topic.",
    "partition": "The number of the partition.",
}

OUTCOME_COMMENTS = {
    "offset": "The record's offset, or the first one of a range.",
    "end_offset": "The end of the range, exclusive; null if the row is for one record.",
    "attempt": "The number of the attempt, from 1; 0 for a decision, for which no handler was called.",
    "outcome": "acked, failed, skipped, dropped, in_flight of an attempt; dead, expired, compacted, skipped, lost by "
    "decision. All but failed and in_flight are terminal: a record has one of these a lane and epoch.",
    "error_class": "The class of the error, or Ackline's own word such as Skip, Timeout, WorkerLost.",
    "error_message": "The error's text, at most 200 characters, scrubbed of payloads and secrets.",
    "record_timestamp": "The record's timestamp in Kafka; null if it is no time.",
    "handled_at": "When the attempt ended, or when the decision was made.",
    "key_hash": "The keyed hash of the record's key (HMAC-SHA256, 128 bits in hexadecimal), if the pipeline file has "
    "`audit: {key_hash: true}`. Null of a record without a key, and of a decision.",
    "due": "Of an attempt in flight: the deadline of its answer. Null without one, and in every other row.",
    "answer": "Of a row that ends or renews an attempt in flight: ack, fail, renew, or timeout. Null in every other "
    "row, that of the attempt itself too.",
    "tree": "Of an attempt, in a pipeline with steps: how many of the record's tuples each step acked and failed, and "
    "how many are missing, as JSON. Null in a decision, an answer, and where no step got a tuple.",
}

PLAN_COMMENTS = {
    "kind": "What the turn does: run, genesis, or an act such as skip, reset, pause. In a marker: start or waiver.",
    "topic_id": "The id of the topic that the offsets are of. It changes when the topic is created again.",
    "start_offset": "The start of the fresh range: offsets that are read for the first time.",
    "end_offset": "The end of the fresh range, exclusive; in an act, the offset that it moves the partition to.",
    "retries": "The due retries, as ranges with the number of the attempt to be made.",
    "floor": "The lowest offset that was not settled when the turn was planned.",
    "complete_to": "The end of what was read and handled whole when the turn was planned.",
    "log_start": "The log start, as the broker reported it.",
    "log_end": "The end of the readable log: the last stable offset under read_committed.",
    "isolation": "Kafka's isolation.level of the turn.",
    "why": "Why the turn reads nothing of the partition; in a genesis, why it starts where it does.",
    "committed": "What the consumer group had committed; null if nothing.",
    "committed_metadata": "The metadata of that commit.",
    "acknowledged_foreign_offset": "A foreign commit that a genesis or an act acknowledged, so that the floor may be "
    "committed over it.",
    "settings": "The settings that the turn keeps to, as JSON.",
    "planned_at": "When the turn was planned.",
    "actor": "Who started the run or took the act: airflow, or a user.",
    "reason": "Why the act was taken, or why a run of a backfill was started; empty in another run.",
    "leader_epoch": "The epoch of the leader that reported the log; null if it is not known.",
}

SETTLEMENT_COMMENTS = {
    "kind": "The kind of the plan; void if the turn was closed without effect, and none of its rows counts.",
    "topic_id": "The id of the topic that the offsets are of. It changes when the topic is created again.",
    "old_floor": "The floor before the turn.",
    "new_floor": "The floor after the turn: the lowest offset that is not settled, and what may be committed.",
    "complete_to": "The end of what is proved to have been read and handled whole.",
    "pending": "The offsets that hold the floor: runs of equal state, with kind, attempts so far, due time and last "
    "error class.",
    "counts": "How many offsets got each outcome in this turn. A range counts all its offsets.",
    "gaps": "How many offsets of the fresh range held no record; null if it is not known.",
    "acknowledged_foreign_offset": "A foreign commit that a genesis or an act acknowledged, so that the floor may be "
    "committed over it.",
    "committed": "What the consumer group had committed just before the settlement; null if nothing.",
    "committed_metadata": "The metadata of that commit.",
    "evidence": "What the settlement rests on, in words.",
    "paused": "Whether an operator has paused the partition.",
    "actor": "Who started the run or took the act: airflow, or a user.",
    "reason": "Why the act was taken, or why a run of a backfill was started; of a void turn, why it was closed.",
    "settled_at": "When the turn was settled.",
    "metrics": "Metrics of the partition after the turn, such as lag, lag_seconds, due.",
    "totals": "The offsets of the epoch so far by outcome, and how many attempts were retries.",
    "leader_epoch": "The epoch of the leader whose log has all that was read; null if it is not known.",
    "gaps_above_floor": "Ranges between floor and complete_to, with how many of their offsets held no record.",
    "ranges": "In the genesis of a backfill lane: the ranges that it reads whole. Null elsewhere.",
    "arguments": "In the genesis of a backfill lane: what was asked, as it was written, as JSON. Null elsewhere.",
    "answers": "How far the lane has read its ack topic, and how many answers of this turn were applied and ignored, "
    "as JSON. Null without an ack topic.",
    "outputs": "The execution whose rows this turn publishes, how many rows each output table gets at most, and the "
    "files of rows that wait for records in flight, as JSON. Null if the turn has none of these.",
    "steps": "What the steps of the pipeline did in the turn, as JSON: tuples, calls, and times in milliseconds. In "
    "one row of the turn, and null in the others; null with neither steps nor outputs.",
}


PARTITION_BY = ["plan_date"]
TIME = pa.timestamp("us", "UTC")

_TURN = [
    pa.field("pipeline", pa.string()),
    pa.field("plan_date", pa.date32()),
    pa.field("lane", pa.string()),
    pa.field("epoch", pa.int32()),
    pa.field("turn", pa.int64()),
    pa.field("run_id", pa.string()),
]


def _described(comments: Mapping[str, str], fields: Iterable[pa.Field]) -> pa.Schema:
    """Returns a schema whose columns carry their comments."""
    texts = {**TURN_COMMENTS, **comments}
    return pa.schema([field.with_metadata({"comment": texts.get(field.name, "")}) for field in fields])


OUTCOMES = _described(
    OUTCOME_COMMENTS,
    [
        *_TURN,
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("end_offset", pa.int64()),
        pa.field("attempt", pa.int32()),
        pa.field("outcome", pa.string()),
        pa.field("error_class", pa.string()),
        pa.field("error_message", pa.string()),
        pa.field("record_timestamp", TIME),
        pa.field("handled_at", TIME),
        pa.field("key_hash", pa.string()),
        pa.field("due", TIME),
        pa.field("answer", pa.string()),
        pa.field("tree", pa.string()),
    ],
)
"""The audit table. A row is one attempt at a record, or a decision on a record or a range of them (attempt 0)."""

RETRIES = pa.list_(
    pa.struct(
        [
            pa.field("start_offset", pa.int64()),
            pa.field("end_offset", pa.int64()),
            pa.field("attempt", pa.int32()),
        ]
    )
)

PLANS = _described(
    PLAN_COMMENTS,
    [
        *_TURN,
        pa.field("kind", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("topic_id", pa.string()),
        pa.field("start_offset", pa.int64()),
        pa.field("end_offset", pa.int64()),
        pa.field("retries", RETRIES),
        pa.field("floor", pa.int64()),
        pa.field("complete_to", pa.int64()),
        pa.field("log_start", pa.int64()),
        pa.field("log_end", pa.int64()),
        pa.field("isolation", pa.string()),
        pa.field("why", pa.string()),
        pa.field("committed", pa.int64()),
        pa.field("committed_metadata", pa.string()),
        pa.field("acknowledged_foreign_offset", pa.int64()),
        pa.field("settings", pa.string()),
        pa.field("planned_at", TIME),
        pa.field("actor", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("leader_epoch", pa.int32()),
    ],
)
"""A row is one topic-partition of a plan: what the turn reads of it, or why it reads nothing. A row without a topic is
a marker of the turn (`ackline.ledger.turns.MarkerKind`), and no part of its plan."""

PENDING = pa.list_(
    pa.struct(
        [
            pa.field("start_offset", pa.int64()),
            pa.field("end_offset", pa.int64()),
            pa.field("kind", pa.string()),
            pa.field("attempts", pa.int32()),
            pa.field("due", TIME),
            pa.field("error_class", pa.string()),
        ]
    )
)

GAPS_ABOVE_FLOOR = pa.list_(
    pa.struct(
        [
            pa.field("start_offset", pa.int64()),
            pa.field("end_offset", pa.int64()),
            pa.field("gaps", pa.int64()),
        ]
    )
)

RANGES = pa.list_(
    pa.struct(
        [
            pa.field("start_offset", pa.int64()),
            pa.field("end_offset", pa.int64()),
        ]
    )
)

SETTLEMENTS = _described(
    SETTLEMENT_COMMENTS,
    [
        *_TURN,
        pa.field("kind", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("topic_id", pa.string()),
        pa.field("old_floor", pa.int64()),
        pa.field("new_floor", pa.int64()),
        pa.field("complete_to", pa.int64()),
        pa.field("pending", PENDING),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
        pa.field("gaps", pa.int64()),
        pa.field("acknowledged_foreign_offset", pa.int64()),
        pa.field("committed", pa.int64()),
        pa.field("committed_metadata", pa.string()),
        pa.field("evidence", pa.string()),
        pa.field("paused", pa.bool_()),
        pa.field("actor", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("settled_at", TIME),
        pa.field("metrics", pa.map_(pa.string(), pa.float64())),
        pa.field("totals", pa.map_(pa.string(), pa.int64())),
        pa.field("leader_epoch", pa.int32()),
        pa.field("gaps_above_floor", GAPS_ABOVE_FLOOR),
        pa.field("ranges", RANGES),
        pa.field("arguments", pa.string()),
        pa.field("answers", pa.string()),
        pa.field("outputs", pa.string()),
        pa.field("steps", pa.string()),
    ],
)
"""A row is one topic-partition after a turn. The next turn starts from these rows alone."""

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
