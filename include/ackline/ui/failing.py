"""Reads the failing records of a lane from its tables: groups by error class and place, the records of a group, those
of a step.

The newest settlement has the pending records, without places, messages and times. Places and times of all of them are
read from the rows of their failed attempts, as long as these are few (`last_failures`), and a message of each place.
Otherwise a class is one group, and what it has is read for a few of its records: the lowest offsets of its partitions.
Records are read in the order of their offsets, so the one that failed first is among these.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ackline.audit.history import AttemptsAt, attempts_at, last_failures
from ackline.audit.queries import AuditFilter, audit_rows
from ackline.ledger.offsets import TopicPartition, ValuedRange
from ackline.ledger.outcomes import Outcome
from ackline.ledger.pending import Pending, PendingKind, time_of
from ackline.ledger.turns import TurnId
from ackline.pipeline.folder import audit_root
from ackline.ui.readings import LaneReading, store_of

MOST_RECORDS = 50
"""How many failing records a list shows at most."""
MOST_DEAD = 5_000
"""How many of the newest dead records are grouped by error class."""
MOST_GROUPS = 20
"""For how many groups the rows of attempts are read. The others have no message."""
_SAMPLE = 20
"""How many pending ranges of a partition are searched for the record that has waited longest."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Failing records of one error class and place: pending ones, or dead ones of the newest turns."""

    error_class: str
    kind: str
    """A kind of pending, or `dead`."""
    records: int
    partitions: int
    attempts: int
    """The most attempts that one of them has had; 0 if that is not known."""
    since: datetime | None = None
    """When the first of them first failed, was put in flight, or died; None if its row is gone."""
    last: datetime | None = None
    """When the last of the records that were looked at failed, was put in flight, or died."""
    due: datetime | None = None
    """The earliest due time or deadline."""
    message: str | None = None
    """The message of the last of the records that were looked at."""
    place: str | None = None
    """Where the last of the records that were looked at raised its error; None if that is not known."""


@dataclass(frozen=True, slots=True)
class FailingRecord:
    """One record, or one attempt, in a list of failures."""

    tp: TopicPartition
    offset: int
    attempts: int
    at: datetime | None
    """When its last attempt failed or was put in flight, or when it was declared dead."""
    due: datetime | None
    message: str | None
    turn: TurnId | None = None
    since: datetime | None = None
    """When it failed, or was put in flight, for the first time."""
    place: str | None = None
    """Where its last attempt raised the error."""


@dataclass(frozen=True, slots=True)
class FailureEverywhere:
    """Failing records of one error class and one place in several pipelines."""

    error_class: str
    place: str | None
    found: Sequence[tuple[LaneReading, Failure]]
    """The groups of the pipelines, the one with the most records first."""

    @property
    def records(self) -> int:
        """The failing records of all these pipelines."""
        return sum(group.records for _, group in self.found)

    @property
    def last(self) -> Failure:
        """The group with the newest failure."""
        return max((group for _, group in self.found), key=lambda group: group.last or _LONG_AGO)


_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def failures_everywhere(readings: Iterable[LaneReading]) -> list[FailureEverywhere]:
    """Returns the failing records of some lanes by error class and place, most records first. What is in flight or held
    back does not fail, so it is not among them. Raises FatalError if tables can't be read."""
    same: dict[tuple[str, str | None], list[tuple[LaneReading, Failure]]] = {}
    for reading in readings:
        for group in failures(reading):
            if group.kind not in (PendingKind.IN_FLIGHT.value, PendingKind.HELD_BACK.value):
                same.setdefault((group.error_class, group.place), []).append((reading, group))
    joined = [
        FailureEverywhere(error_class, place, sorted(found, key=lambda each: -each[1].records))
        for (error_class, place), found in same.items()
    ]
    return sorted(joined, key=lambda each: (-each.records, each.error_class, each.place or ""))


def failures(reading: LaneReading, by_place: bool = True) -> list[Failure]:
    """Returns the failing records of a lane by error class and place, or by class alone, most records first."""
    groups = _pending_failures(reading, by_place) + _dead_failures(reading, by_place)
    return sorted(groups, key=lambda group: (-group.records, group.kind, group.error_class, group.place or ""))


def failure_of(groups: Iterable[Failure], kind: str, error_class: str) -> Failure | None:
    """Returns the group of a kind and an error class; None if it has no record any more."""
    return next((group for group in groups if (group.kind, group.error_class) == (kind, error_class)), None)


def oldest_in_flight(reading: LaneReading) -> datetime | None:
    """Returns since when the record in flight that waits longest has waited; None without one."""
    groups = (
        group for group in _pending_failures(reading, by_place=False) if group.kind == PendingKind.IN_FLIGHT.value
    )
    return min((group.since for group in groups if group.since is not None), default=None)


@dataclass(slots=True)
class _Group:
    """The figures of a group of pending records, by the settlement."""

    records: int = 0
    partitions: int = 0
    attempts: int = 0
    due: datetime | None = None


@dataclass(slots=True)
class _Place:
    """The figures of the records of a group that failed at one place, by the rows of their attempts."""

    records: int = 0
    tps: set[TopicPartition] = field(default_factory=set)
    attempts: int = 0
    since: datetime | None = None
    last: datetime | None = None
    due: datetime | None = None
    newest: tuple[TopicPartition, int] | None = None

    def add(self, tp: TopicPartition, row: Mapping[str, Any], due: datetime | None) -> None:
        """Adds a record by what `last_failures` has of it."""
        self.records += 1
        self.tps.add(tp)
        self.attempts = max(self.attempts, row["attempt"])
        self.since = min(filter(None, (self.since, row["first_at"])))
        self.due = min(filter(None, (self.due, due)), default=None)
        if self.last is None or row["last_at"] > self.last:
            self.last, self.newest = row["last_at"], (tp, row["offset"])

    def failure(self, error_class: str, kind: str, place: str | None, message: str | None) -> Failure:
        """Returns the group of these records."""
        return Failure(error_class, kind, self.records, len(self.tps), self.attempts, self.since, self.last, self.due,
                       message, place)  # fmt: skip


_Places = dict[tuple[str, str], dict[str | None, _Place]]
"""The places of each kind and error class."""


def _pending_places(reading: LaneReading) -> _Places:
    """Returns the pending records whose last attempt has failed, by kind, error class and place; a class only if the
    row of each of its records was read."""
    if reading.newest is None:
        return {}
    failed = {
        partition.tp: partition.settled.state.pending.where(
            lambda state: state.kind not in (PendingKind.IN_FLIGHT, PendingKind.HELD_BACK)
        )
        for partition in reading.partitions
    }
    ranges = {tp: runs.ranges for tp, runs in failed.items()}
    found: _Places = {}
    for row in last_failures(store_of(reading.name, reading.lane), reading.newest.turn.epoch, ranges).to_pylist():
        tp = TopicPartition(row["topic"], row["partition"])
        run = int(np.searchsorted(failed[tp].starts, row["offset"], side="right")) - 1
        state, due = failed[tp].states[failed[tp].codes[run]], time_of(int(failed[tp].dues[run]))
        if state.attempts == row["attempt"]:
            places = found.setdefault((state.kind.value, state.error_class or ""), {})
            places.setdefault(row["error_place"], _Place()).add(tp, row, due)
    return found


def _with_messages(reading: LaneReading, epoch: int, found: _Places) -> list[Failure]:
    """Returns a group for each place, with the message of the newest failure for the MOST_GROUPS largest ones."""
    every = [(*key, name, place) for key, places in found.items() for name, place in places.items()]
    every.sort(key=lambda each: -each[3].records)
    offsets: dict[TopicPartition, list[int]] = {}
    for *_, place in every[:MOST_GROUPS]:
        if place.newest is not None:
            offsets.setdefault(place.newest[0], []).append(place.newest[1])
    made = attempts_at(store_of(reading.name, reading.lane), epoch, offsets, Outcome.FAILED)
    messages = {record: attempts.message for record, attempts in made.items()}
    return [
        place.failure(error_class, kind, name, messages.get(place.newest) if place.newest else None)
        for kind, error_class, name, place in every
    ]


def _pending_failures(reading: LaneReading, by_place: bool) -> list[Failure]:
    groups: dict[tuple[PendingKind, str], _Group] = {}
    lowest: dict[tuple[PendingKind, str], dict[TopicPartition, list[int]]] = {}
    for partition in reading.partitions:
        runs = partition.settled.state.pending
        for kind, error_class in {(state.kind, state.error_class) for state in runs.states}:
            chosen = runs.where(_is(kind, error_class or ""))
            if not len(chosen):
                continue
            group = groups.setdefault((kind, error_class or ""), _Group())
            group.records += chosen.offsets
            group.partitions += 1
            group.attempts = max(group.attempts, *(run.value.attempts for run in chosen[:_SAMPLE]))
            due = None if kind is PendingKind.HELD_BACK else chosen[:1][0].value.due
            group.due = min(filter(None, (due, group.due)), default=None)
            # In flight, a later offset may wait longer than a lower one, which was handed on again.
            first = chosen[: _SAMPLE if kind is PendingKind.IN_FLIGHT else 1]
            lowest.setdefault((kind, error_class or ""), {})[partition.tp] = [run.start for run in first]
    whole: _Places = {}
    for key, places in (_pending_places(reading) if by_place else {}).items():
        of_class = PendingKind(key[0]), key[1]
        if sum(place.records for place in places.values()) == groups[of_class].records:
            whole[key] = places
            del groups[of_class]
    placed = _with_messages(reading, reading.newest.turn.epoch, whole) if reading.newest is not None else []
    ordered = sorted(groups, key=lambda key: -groups[key].records)[:MOST_GROUPS]
    looked_at = {key: _attempts_of(reading, key[0], lowest[key]) for key in ordered}
    return placed + [
        Failure(error_class, kind.value, group.records, group.partitions, group.attempts,
                *_summed(kind, looked_at.get((kind, error_class), {}).values(), group.due))
        for (kind, error_class), group in groups.items()
    ]  # fmt: skip


def _is(kind: PendingKind, error_class: str) -> Callable[[Any], bool]:
    return lambda state: state.kind is kind and (state.error_class or "") == error_class


def _attempts_of(
    reading: LaneReading, kind: PendingKind, offsets: Mapping[TopicPartition, list[int]]
) -> dict[tuple[TopicPartition, int], AttemptsAt]:
    if reading.newest is None:
        return {}
    outcome = Outcome.IN_FLIGHT if kind is PendingKind.IN_FLIGHT else Outcome.FAILED
    return attempts_at(store_of(reading.name, reading.lane), reading.newest.turn.epoch, offsets, outcome)


def _summed(
    kind: PendingKind, looked_at: Iterable[AttemptsAt], due: datetime | None
) -> tuple[datetime | None, datetime | None, datetime | None, str | None, str | None]:
    """Returns `since`, `last`, `due`, `message` and `place` of a Failure. In flight, `since` is the last attempt."""
    every = list(looked_at)
    if not every:
        return None, None, due, None, None
    in_flight = kind is PendingKind.IN_FLIGHT
    since = min(attempts.last_at if in_flight else attempts.first_at for attempts in every)
    last = max(every, key=lambda attempts: attempts.last_at)
    return since, last.last_at, due, last.message, last.place


def _dead_failures(reading: LaneReading, by_place: bool) -> list[Failure]:
    if not reading.dead and not any(turn.outcomes.get(Outcome.DEAD.value) for turn in reading.turns):
        return []  # nothing is read where there are none
    classes: dict[str, list[dict[str, Any]]] = {}
    epochs: dict[int, dict[TopicPartition, list[int]]] = {}
    for row in _dead_rows(reading, None, MOST_DEAD):
        classes.setdefault(row["error_class"] or "", []).append(row)
        tp = TopicPartition(row["topic"], row["partition"])
        epochs.setdefault(row["epoch"], {}).setdefault(tp, []).append(row["offset"])
    store = store_of(reading.name, reading.lane)
    groups: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    places: dict[tuple[int, str, int, int], str | None] = {}
    for epoch, offsets in epochs.items() if by_place else ():
        ranges = {tp: (starts := np.unique(of_tp), starts + 1) for tp, of_tp in offsets.items()}
        for row in last_failures(store, epoch, ranges).to_pylist():
            places[epoch, row["topic"], row["partition"], row["offset"]] = row["error_place"]
    for error_class, rows in classes.items():
        keys = [(row["epoch"], row["topic"], row["partition"], row["offset"]) for row in rows]
        is_whole = by_place and all(key in places for key in keys)
        for key, row in zip(keys, rows, strict=True):
            groups.setdefault((error_class, places[key] if is_whole else None), []).append(row)
    found = []
    for number, ((error_class, place), rows) in enumerate(groups.items()):
        newest = rows[0]
        tp, offset = TopicPartition(newest["topic"], newest["partition"]), newest["offset"]
        attempts = None
        if number < MOST_GROUPS:
            attempts = attempts_at(store, newest["epoch"], {tp: [offset]}, Outcome.FAILED).get((tp, offset))
        found.append(
            Failure(
                error_class, Outcome.DEAD.value, len(rows), len({(row["topic"], row["partition"]) for row in rows}),
                attempts.number if attempts else 0, min(row["handled_at"] for row in rows), newest["handled_at"], None,
                attempts.message if attempts else None, place or (attempts.place if attempts else None),
            )
        )  # fmt: skip
    return found


def _dead_rows(reading: LaneReading, error_class: str | None, limit: int) -> Iterable[dict[str, Any]]:
    """Returns the decisions `dead`, newest first. Their attempt is 0, so statistics rule out the files of attempts."""
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
        return _dead_records(reading, error_class)
    if kind not in set(PendingKind):
        return []
    pending = _pending_records(reading, PendingKind(kind), error_class)
    offsets: dict[TopicPartition, list[int]] = {}
    for tp, offset, _ in pending:
        offsets.setdefault(tp, []).append(offset)
    made = _attempts_of(reading, PendingKind(kind), offsets)
    return [
        FailingRecord(
            tp, offset, state.attempts, found.last_at, state.due, found.message, None, found.first_at, found.place
        )
        if (found := made.get((tp, offset))) is not None
        else FailingRecord(tp, offset, state.attempts, None, state.due, None)
        for tp, offset, state in pending
    ]


def _dead_records(reading: LaneReading, error_class: str) -> list[FailingRecord]:
    """Returns the newest dead records, with the message of their last failed attempt: the decision has none."""
    rows = list(_dead_rows(reading, error_class, MOST_RECORDS))
    made: dict[tuple[int, TopicPartition, int], AttemptsAt] = {}
    store = store_of(reading.name, reading.lane)
    for epoch in {row["epoch"] for row in rows}:
        offsets: dict[TopicPartition, list[int]] = {}
        for row in rows:
            if row["epoch"] == epoch:
                offsets.setdefault(TopicPartition(row["topic"], row["partition"]), []).append(row["offset"])
        of_epoch = attempts_at(store, epoch, offsets, Outcome.FAILED)
        made |= {(epoch, tp, offset): attempts for (tp, offset), attempts in of_epoch.items()}
    records = []
    for row in rows:
        tp, turn = (
            TopicPartition(row["topic"], row["partition"]),
            TurnId(store.pipeline, store.lane, row["epoch"], row["turn"]),
        )
        attempts = made.get((row["epoch"], tp, row["offset"]))
        number, message, since = (
            (attempts.number, attempts.message, attempts.first_at) if attempts else (0, row["error_message"], None)
        )
        place = attempts.place if attempts else None
        records.append(FailingRecord(tp, row["offset"], number, row["handled_at"], None, message, turn, since, place))
    return records


def _pending_records(
    reading: LaneReading, kind: PendingKind, error_class: str
) -> list[tuple[TopicPartition, int, Pending]]:
    records: list[tuple[TopicPartition, int, Pending]] = []
    for partition in reading.partitions:
        runs: Iterable[ValuedRange[Pending]] = partition.settled.state.pending.where(_is(kind, error_class))
        for run in runs:
            left = MOST_RECORDS - len(records)
            records += [
                (partition.tp, offset, run.value) for offset in range(run.start, min(run.end, run.start + left))
            ]
            if len(records) >= MOST_RECORDS:
                return records
    return records


def records_at_step(reading: LaneReading, step: str) -> list[FailingRecord]:
    """Returns the newest failed attempts that a step has ended, MOST_RECORDS at most."""
    rows = audit_rows(
        audit_root(),
        reading.name,
        AuditFilter(
            outcome=Outcome.FAILED.value, lane=reading.lane, limit=MOST_RECORDS, newest_first=True, step=step,
        ),
    )  # fmt: skip
    return [
        FailingRecord(
            TopicPartition(row["topic"], row["partition"]), row["offset"], row["attempt"], row["handled_at"], None,
            row["error_message"], TurnId(reading.name, reading.lane, row["epoch"], row["turn"]), None,
            row["error_place"],
        )
        for row in rows
    ]  # fmt: skip
