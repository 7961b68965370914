"""Reads the failing records of a lane: groups by error class, and the records of a group. All reads are bounded."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ackline.audit.last_failures import Failures
from ackline.audit.queries import AuditFilter, audit_rows
from ackline.offsets import TopicPartition, ValuedRange
from ackline.outcome import Outcome
from ackline.paths import audit_root
from ackline.pending import Pending, PendingRuns
from ackline.turns import TurnId
from ackline.ui.readings import LaneReading, store_of

MOST_RECORDS = 50
"""How many failing records a list shows at most."""
MOST_DEAD = 5_000
"""How many of the newest dead records are grouped by error class."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Failing records of one error class: pending ones, or dead ones of the newest turns."""

    error_class: str
    kind: str
    """A kind of pending, or `dead`."""
    records: int
    partitions: int
    first: datetime | None
    """Of dead records when the first one was settled; of pending ones the earliest due time."""
    last: datetime | None


@dataclass(frozen=True, slots=True)
class FailingRecord:
    """One failing record of a list."""

    tp: TopicPartition
    offset: int
    attempts: int
    at: datetime | None
    """When its last attempt failed, or it was declared dead."""
    due: datetime | None
    message: str | None
    turn: TurnId | None = None


def failures(reading: LaneReading) -> list[Failure]:
    """Returns the failing records of a lane by error class, most records first: pending ones, then dead ones."""
    groups = _pending_failures(reading) + _dead_failures(reading)
    return sorted(groups, key=lambda group: (-group.records, group.kind, group.error_class))


def _pending_failures(reading: LaneReading) -> list[Failure]:
    records: Counter[tuple[str, str]] = Counter()
    partitions: Counter[tuple[str, str]] = Counter()
    dues: dict[tuple[str, str], datetime] = {}
    for partition in reading.partitions:
        runs = PendingRuns.of(partition.settled.state.pending)
        for state in {(state.kind, state.error_class) for state in runs.states}:
            chosen = runs.where(lambda other, state=state: (other.kind, other.error_class) == state)  # type: ignore[misc]
            if not len(chosen):
                continue
            key = (state[0].value, state[1] or "")
            records[key] += chosen.offsets
            partitions[key] += 1
            due = chosen[:1][0].value.due
            if due is not None:
                dues[key] = min(due, dues.get(key, due))
    return [
        Failure(error_class, kind, count, partitions[kind, error_class], dues.get((kind, error_class)), None)
        for (kind, error_class), count in records.items()
    ]


def _dead_failures(reading: LaneReading) -> list[Failure]:
    if not any(turn.outcomes.get(Outcome.DEAD.value) for turn in reading.turns):
        return []  # the settlements count dead records, so nothing is read where there are none
    groups: dict[str, list[tuple[TopicPartition, datetime]]] = {}
    for row in _dead_rows(reading, None, MOST_DEAD):
        tp = TopicPartition(row["topic"], row["partition"])
        groups.setdefault(row["error_class"] or "", []).append((tp, row["handled_at"]))
    return [
        Failure(
            error_class, "dead", len(rows), len({tp for tp, _ in rows}), min(at for _, at in rows),
            max(at for _, at in rows),
        )
        for error_class, rows in groups.items()
    ]  # fmt: skip


def _dead_rows(reading: LaneReading, error_class: str | None, limit: int) -> Iterable[dict[str, Any]]:
    """Returns decisions, newest first. They have attempt 0, by which statistics rule out the files of attempts."""
    return audit_rows(
        audit_root(),
        reading.name,
        AuditFilter(
            outcome=Outcome.DEAD.value, error_class=error_class, attempt=0, lane=reading.lane, limit=limit,
            newest_first=True,
        ),
    )  # fmt: skip


def failing_records(reading: LaneReading, kind: str, error_class: str) -> list[FailingRecord]:
    """Returns MOST_RECORDS failing records of a group at most: the lowest offsets, or the newest dead ones."""
    if kind == Outcome.DEAD.value:
        store = store_of(reading.name, reading.lane)
        return [
            FailingRecord(
                TopicPartition(row["topic"], row["partition"]), row["offset"], 0, row["handled_at"], None,
                row["error_message"], TurnId(store.pipeline, reading.lane, row["epoch"], row["turn"]),
            )
            for row in _dead_rows(reading, error_class, MOST_RECORDS)
        ]  # fmt: skip
    pending = _pending_records(reading, kind, error_class)
    messages = _messages(reading, pending)
    records = []
    for tp, offset, state in pending:
        last = messages.get((tp, offset))
        records.append(
            FailingRecord(tp, offset, state.attempts, last.failed_at if last else None, state.due,
                          last.message if last else None)
        )  # fmt: skip
    return records


def _pending_records(reading: LaneReading, kind: str, error_class: str) -> list[tuple[TopicPartition, int, Pending]]:
    records: list[tuple[TopicPartition, int, Pending]] = []
    for partition in reading.partitions:
        runs: Iterable[ValuedRange[Pending]] = PendingRuns.of(partition.settled.state.pending).where(
            lambda state: state.kind.value == kind and (state.error_class or "") == error_class
        )
        for run in runs:
            left = MOST_RECORDS - len(records)
            records += [
                (partition.tp, offset, run.value) for offset in range(run.start, min(run.end, run.start + left))
            ]
            if len(records) >= MOST_RECORDS:
                return records
    return records


def _messages(reading: LaneReading, pending: Iterable[tuple[TopicPartition, int, Pending]]) -> Failures:
    attempts: dict[TopicPartition, dict[int, int]] = {}
    for tp, offset, state in pending:
        attempts.setdefault(tp, {})[offset] = state.attempts
    if reading.newest is None:
        return {}
    return store_of(reading.name, reading.lane).last_failures(reading.newest.turn, attempts)
