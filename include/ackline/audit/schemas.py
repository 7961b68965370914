"""The columns of a lane's three tables. They are append-only, and partitioned by the plan's date.

Each column has a comment, which Delta stores in the table and other tools show; a table of an earlier version keeps its
columns as they are. A new column goes to the end and is nullable. `AuditTable` adds it to a table of an earlier version
before its first write there, and reads it as null from older rows.
"""

from collections.abc import Iterable, Mapping

import pyarrow as pa

from ackline.audit.column_comments import OUTCOME_COMMENTS, PLAN_COMMENTS, SETTLEMENT_COMMENTS, TURN_COMMENTS

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
        pa.field("seen", pa.int64()),
        pa.field("settings", pa.string()),
        pa.field("planned_at", TIME),
        pa.field("actor", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("leader_epoch", pa.int32()),
    ],
)
"""A row is one topic-partition of a plan: what the turn reads of it, or why it reads nothing. A row without a topic is
a marker of the turn (`ackline.turns.MarkerKind`), and no part of its plan."""

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
        pa.field("seen", pa.int64()),
        pa.field("held", pa.int64()),
        pa.field("held_metadata", pa.string()),
        pa.field("evidence", pa.string()),
        pa.field("paused", pa.bool_()),
        pa.field("actor", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("settled_at", TIME),
        pa.field("figures", pa.map_(pa.string(), pa.float64())),
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
