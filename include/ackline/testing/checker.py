"""The independent checker: judges a pipeline by what anybody can read, with none of the product's code.

    python include/ackline/testing/checker.py --bootstrap HOST:PORT --audit ROOT --pipeline NAME --group G …

It reads the topics, the dead-letter topic, the three Delta tables, the group's committed offsets and, where
there is one, a journal of handler calls, and says which of the invariants of the design (I1 …) do not hold.
It is one file, and imports nothing of `ackline`, so that a mistake in the product cannot hide in the judge.
Reading and judging are apart: `gather` makes an `Evidence` of plain data, `judge` is a function of that
alone, `check` is both. What there is a million of is kept in arrays. It may run beside a working pipeline:
it reads the committed offsets first, then the settlements, and only then what has to be there before these.
"""

import argparse
import hashlib
import json
import sys
import time
import uuid
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Place = tuple[str, int]
"""A topic and a partition of it."""

TERMINAL = ("acked", "skipped", "dropped", "dead", "expired", "compacted", "lost")
OUTCOMES = (*TERMINAL, "failed", "in_flight")
FAILED, DEAD, LOST = OUTCOMES.index("failed"), OUTCOMES.index("dead"), OUTCOMES.index("lost")
OF_ATTEMPTS = [OUTCOMES.index(word) for word in ("acked", "failed", "dropped")]
OF_RECORDS = [OUTCOMES.index(word) for word in ("dead", "expired", "compacted", "lost")]
OF_RANGES = [OUTCOMES.index(word) for word in ("skipped", "expired", "lost")]
NEVER = np.iinfo(np.int64).max
SHOWN = 3
"""Offsets named in full for one kind of violation in one partition; the rest are counted."""
PATIENCE = 30.0
"""Seconds without any progress after which reading is given up."""


class Unreadable(Exception):
    """Something that has to be judged could not be read; nothing is said about the pipeline."""


# ---- what is judged ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Log:
    """One partition as a consumer sees it: the offsets it is given in `[start, end)`, sorted.

    `end` is the last stable offset under read_committed. `hidden`: offsets of records that nobody may be
    given (aborted); None: nothing vanishes from inside this log, so what is not given never was a record.
    `digests` are of the records whose dead letters have to be compared.
    """

    start: int
    end: int
    offsets: Ints
    committed: int | None = None
    metadata: str = ""
    hidden: Ints | None = None
    digests: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter, by the coordinates in its headers; `digest` None: it says that it has headers only."""

    lane: str
    epoch: int
    topic: str
    partition: int
    offset: int
    digest: str | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that `judge` looks at. The tables hold the rows of one pipeline and lane.

    `ledger` is the id of the table `settlements`. `letters` is None where no dead letters were to be written.
    `calls` has the columns topic, partition, offset, attempt, and is of this lane alone.
    """

    pipeline: str
    lane: str
    logs: Mapping[Place, Log]
    plans: pa.Table
    outcomes: pa.Table
    settlements: pa.Table
    ledger: str | None = None
    letters: Sequence[Letter] | None = None
    calls: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What does not hold, a sentence each; what became of how many records in the newest epoch."""

    violations: list[str]
    totals: dict[str, int]
    topics: dict[str, dict[str, int]]

    @property
    def ok(self) -> bool:
        """Whether everything holds."""
        return not self.violations


# ---- the tables as arrays ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rows:
    """Effective rows of `outcomes` of one partition in one epoch, sorted by offset, attempt and turn.

    `end` is `offset + 1` for a row of one record. `never`: the handler raised Dead; `uncalled`: a tombstone,
    or what was not decoded or is of no stream, which no handler saw.
    """

    turn: Ints
    offset: Ints
    end: Ints
    attempt: Ints
    outcome: Ints
    handled_at: Ints
    never: Mask
    uncalled: Mask

    def where(self, mask: Mask) -> "Rows":
        return Rows(*(getattr(self, name)[mask] for name in Rows.__slots__))

    @property
    def terminal(self) -> "Rows":
        return self.where((self.outcome >= 0) & (self.outcome < FAILED))

    @property
    def attempts(self) -> "Rows":
        return self.where(self.attempt >= 1)


@dataclass(frozen=True, slots=True)
class Pending:
    """Pending offsets of one partition, as sorted ranges of equal state; `due` in microseconds since 1970."""

    start: Ints
    end: Ints
    attempts: Ints
    due: Ints
    retry: Mask


@dataclass(frozen=True, slots=True)
class Settlement:
    """A row of `settlements`."""

    turn: int
    kind: str
    old_floor: int
    floor: int
    complete_to: int
    pending: Pending
    counts: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """A row of `plans`, as far as a turn that reads is judged by it."""

    turn: int
    kind: str
    start: int
    end: int
    settings: Mapping[str, Any]

    @property
    def once(self) -> bool:
        """Whether it was planned under at most once."""
        return self.settings.get("guarantee") == "at_most_once"


@dataclass(frozen=True, slots=True)
class Unkept:
    """Ranges of turns that kept no rows (`record_outcomes: false`): all that is said of them is counts."""

    turn: Ints
    start: Ints
    end: Ints

    def holding(self, offsets: Ints) -> Ints:
        """How many of the ranges hold each of `offsets`."""
        return covering(offsets, self.start, self.end)


NOTHING: Ints = np.empty(0, np.int64)
NO_ROWS = Rows(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING == 0, NOTHING == 0)
NO_RANGES = Unkept(NOTHING, NOTHING, NOTHING)
Chains = dict[tuple[int, Place], list[Settlement]]


def ints(column: Any) -> Ints:
    """Whole numbers and times as int64; null is −1."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", values.type.tz)).view(pa.int64())
    return np.asarray(values.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)


def codes(column: Any, words: Iterable[str]) -> Ints:
    """The place of each value in `words`; −1 where it is none of them."""
    return ints(pc.index_in(column.cast(pa.string()), pa.array(list(words), pa.string())))


def effective(evidence: Evidence, table: pa.Table) -> pa.Table:
    """The rows of `table` whose turn has a settlement that is not void."""
    settled = evidence.settlements.filter(pc.not_equal(evidence.settlements["kind"], "void"))
    return table.filter(pa.array(np.isin(turn_keys(table), turn_keys(settled))))


def turn_keys(table: pa.Table) -> Ints:
    return (ints(table["epoch"]) << 44) + ints(table["turn"])


def split_rows(table: pa.Table, topics: Sequence[str]) -> dict[tuple[int, Place], Rows]:
    epoch, turn, offset, attempt = (ints(table[name]) for name in ("epoch", "turn", "offset", "attempt"))
    topic, partition, end = codes(table["topic"], topics), ints(table["partition"]), ints(table["end_offset"])
    error = codes(table["error_class"], ("Dead", "Tombstone", "Undecodable", "Unmatched"))
    rows = Rows(turn, offset, np.where(end < 0, offset + 1, end), attempt, codes(table["outcome"], OUTCOMES),
                ints(table["handled_at"]), error == 0, error >= 1)  # fmt: skip
    order = np.lexsort((turn, attempt, offset, partition, topic, epoch))
    key = np.stack([epoch[order], topic[order], partition[order]])
    cuts = np.flatnonzero((np.diff(key, axis=1) != 0).any(axis=0)) + 1
    return {
        (int(epoch[part[0]]), (topics[int(topic[part[0]])], int(partition[part[0]]))):
            Rows(*(getattr(rows, name)[part] for name in Rows.__slots__))
        for part in np.split(order, cuts) if len(part)
    }  # fmt: skip


def split_settlements(table: pa.Table) -> Chains:
    """The settlements of each epoch and partition, by turn."""
    column = table["pending"].combine_chunks()
    bounds, runs = ints(column.offsets), column.values
    names = [runs.type.field(i).name for i in range(runs.type.num_fields)]
    flat = {name: runs.field(i) for i, name in enumerate(names)}
    wanted = ("start_offset", "end_offset", "attempts", "due")
    start, end, attempts, due = (ints(flat[name]) for name in wanted)
    retry = codes(flat["kind"], ["retry"]) == 0
    chains: Chains = {}
    for i, row in enumerate(table.drop_columns(["pending"]).to_pylist()):
        here = bounds[i] + np.argsort(start[bounds[i] : bounds[i + 1]], kind="stable")
        pending = Pending(start[here], end[here], attempts[here], due[here], retry[here])
        settlement = Settlement(
            row["turn"], row["kind"], row["old_floor"], row["new_floor"], row["complete_to"], pending,
            dict(row["counts"]) if row.get("counts") is not None and row.get("gaps") is not None else None,
        )  # fmt: skip
        chains.setdefault((row["epoch"], (row["topic"], row["partition"])), []).append(settlement)
    for chain in chains.values():
        chain.sort(key=lambda settlement: settlement.turn)
    return chains


def split_plans(table: pa.Table) -> dict[tuple[int, Place], list[Planned]]:
    """The plans of each epoch and partition, by turn, open and void ones too."""
    plans: dict[tuple[int, Place], list[Planned]] = {}
    read: dict[str, Any] = {}  # all partitions of a plan have the same settings
    for row in table.to_pylist():
        text = row.get("settings") or "{}"
        settings = read[text] = read.get(text) or json.loads(text)
        plan = Planned(row["turn"], row["kind"], row["start_offset"], row["end_offset"], settings)
        plans.setdefault((row["epoch"], (row["topic"], row["partition"])), []).append(plan)
    for some in plans.values():
        some.sort(key=lambda plan: plan.turn)
    return plans


def covering(offsets: Ints, starts: Ints, ends: Ints) -> Ints:
    """How many of the ranges `[starts, ends)` hold each of `offsets`."""
    begun, over = (np.searchsorted(np.sort(bounds), offsets, "right") for bounds in (starts, ends))
    return np.asarray(begun - over, dtype=np.int64)


def between(offsets: Ints, start: int, end: int) -> Ints:
    low, high = np.searchsorted(offsets, [start, end])
    return offsets[low : max(low, high)]


def uncovered(start: int, end: int, ranges: Iterable[tuple[int, int]]) -> Ints:
    """The first offset of each part of `[start, end)` that none of `ranges` holds."""
    missing = []
    for low, high in sorted(ranges):
        if start < min(low, end):
            missing.append(start)
        start = max(start, high)
    return np.array(missing + [start] * (start < end), dtype=np.int64)


def left_by(chain: list[Settlement]) -> Settlement:
    """What an epoch left: its last state. A reset speaks of the epoch that it opens."""
    return next((row for row in reversed(chain) if row.kind != "reset"), chain[-1])


# ---- judging -----------------------------------------------------------------------------------------------


class Findings:
    """Collects violations; of many offsets with one fault it names a few and counts the rest."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def add(self, invariant: str, what: str, place: Place | None = None, offsets: Iterable[int] = ()) -> None:
        where = f" {place[0]}[{place[1]}]" if place else ""
        found = np.unique(np.fromiter(offsets, dtype=np.int64))
        for offset in found[:SHOWN]:
            self.sentences.append(f"{invariant}{where} offset {offset}: {what}")
        if len(found) > SHOWN:
            self.sentences.append(f"{invariant}{where}: {what}, at {len(found) - SHOWN} more offsets")

    def say(self, invariant: str, what: str, place: Place | None = None) -> None:
        self.sentences.append(f"{invariant}{f' {place[0]}[{place[1]}]' if place else ''}: {what}")


class Judge:
    """One evidence taken apart by epoch and partition, and each invariant as a method over it."""

    def __init__(self, evidence: Evidence, max_retries: int | None, settled: bool) -> None:
        self.evidence, self.max_retries, self.settled, self.found = evidence, max_retries, settled, Findings()
        topics = sorted(pc.unique(evidence.outcomes["topic"]).to_pylist())
        self.rows = split_rows(effective(evidence, evidence.outcomes), topics)
        self.chains = split_settlements(evidence.settlements)
        self.plans = split_plans(evidence.plans)
        self.starts = self.lane_starts()
        self.unkept = self.without_rows()
        self.epoch = max((epoch for epoch, _ in self.starts), default=0)

    def lane_starts(self) -> dict[tuple[int, Place], int]:
        """Where each epoch starts in each partition: its genesis, or the end of the reset that opened it."""
        plans = effective(self.evidence, self.evidence.plans)
        starts: dict[tuple[int, Place], int] = {}
        for plan in plans.filter(pc.equal(plans["kind"], "reset")).to_pylist():
            starts[plan["epoch"] + 1, (plan["topic"], plan["partition"])] = plan["end_offset"]
        for kind, later in (("reset", 1), ("genesis", 0)):
            for (epoch, place), chain in self.chains.items():
                for row in chain:  # the first counts: a genesis turn, for a partition that is new, has rows of all
                    if row.kind == kind:
                        starts.setdefault((epoch + later, place), row.floor)
        return starts

    def without_rows(self) -> dict[tuple[int, Place], Unkept]:
        """What was read by turns whose plans say that no rows are kept, and which kept none."""
        plans = effective(self.evidence, self.evidence.plans)
        kept = {
            (epoch, int(turn))
            for (epoch, _), rows in self.rows.items()
            for turn in np.unique(rows.turn[(rows.attempt >= 1) | (rows.outcome == LOST)])
        }
        found: dict[tuple[int, Place], list[tuple[int, int, int]]] = {}
        for plan in plans.filter(pc.equal(plans["kind"], "run")).to_pylist():
            off = json.loads(plan["settings"] or "{}").get("record_outcomes") is False
            if off and plan["start_offset"] < plan["end_offset"] and (plan["epoch"], plan["turn"]) not in kept:
                place = plan["epoch"], (plan["topic"], plan["partition"])
                found.setdefault(place, []).append((plan["turn"], plan["start_offset"], plan["end_offset"]))
        return {place: Unkept(*np.array(sorted(ranges), dtype=np.int64).T) for place, ranges in found.items()}

    def run(self) -> Report:
        self.turns()
        for epoch, place in sorted(self.chains.keys() | self.rows.keys()):
            rows, chain = self.rows.get((epoch, place), NO_ROWS), self.chains.get((epoch, place), [])
            self.words(place, rows)
            self.floors(place, chain)
            self.steps(place, epoch, rows, chain)
            self.repeats(place, rows)
            self.attempts(place, rows, chain)
            self.accounts(place, epoch, rows, chain)
            self.history(place, epoch, rows, chain)
            self.counted(place, epoch, rows, chain)
            self.window(place, epoch, chain)
            self.unread(place, rows)
        for place, log in self.evidence.logs.items():
            if self.evidence.lane == "live":  # no other lane commits
                self.commit(place, log)
            if self.settled:
                self.end(place, log)
        self.dead_letters()
        self.journal()
        return self.report()

    def turns(self) -> None:
        """I11: one plan and one settlement a turn, one open plan at most, and no turn left out."""
        settled: dict[int, set[int]] = {}
        planned: dict[int, set[int]] = {}
        for name, table, turns in (("settlement", self.evidence.settlements, settled),
                                   ("plan", self.evidence.plans, planned)):  # fmt: skip
            rows = table.select(["epoch", "turn", "topic", "partition"]).to_pylist()
            for (epoch, turn, topic, partition), n in Counter(tuple(row.values()) for row in rows).items():
                turns.setdefault(epoch, set()).add(turn)
                if n > 1:
                    self.found.say("I11", f"turn {turn} of epoch {epoch} has {n} {name}s", (topic, partition))
        for epoch in settled.keys() | planned.keys():
            done, known = settled.get(epoch, set()), planned.get(epoch, set())
            for turn in sorted(done - known - {0}):
                self.found.say("I11", f"turn {turn} of epoch {epoch} is settled, but has no plan")
            for turn in sorted(known - done):
                if turn != max(known | done):
                    self.found.say("I11", f"turn {turn} of epoch {epoch} was left open, and later ones were taken")
                elif self.settled:
                    self.found.say("settled", f"turn {turn} of epoch {epoch} is still open")
            for turn in sorted(set(range(min(done | {1}), max(done, default=0))) - done - known):
                self.found.say("I11", f"turn {turn} of epoch {epoch} does not exist, but later ones do")
        self.whole(settled)

    def whole(self, settled: Mapping[int, set[int]]) -> None:
        """I4: a settlement has the state of every partition that the lane knows: the next turn begins with it."""
        known: set[Place] = set()
        said: dict[tuple[int, int], set[Place]] = {}
        for (epoch, place), chain in self.chains.items():
            for row in chain:
                said.setdefault((epoch, row.turn), set()).add(place)
        for epoch in sorted(settled):
            for turn in sorted(settled[epoch]):
                here = said[epoch, turn]
                for place in sorted(known - here):
                    self.found.say("I4", f"turn {turn} of epoch {epoch} is settled without this partition", place)
                known |= here

    def words(self, place: Place, rows: Rows) -> None:
        """I4: a row says something that a row of its kind can say."""
        self.found.add("I4", "has an outcome that is none", place, rows.offset[rows.outcome < 0])
        wrong = np.isin(rows.outcome, OF_ATTEMPTS) & (rows.attempt < 1)
        self.found.add("I4", "has the outcome of an attempt, but of no attempt", place, rows.offset[wrong])
        wrong = np.isin(rows.outcome, OF_RECORDS) & (rows.attempt != 0)
        self.found.add("I4", "has an outcome that no attempt can have", place, rows.offset[wrong])
        many = (rows.end != rows.offset + 1) & ((rows.attempt != 0) | ~np.isin(rows.outcome, OF_RANGES))
        what = "a range of offsets has the outcome of one record"
        self.found.add("I4", what, place, rows.offset[many | (rows.end <= rows.offset)])

    def floors(self, place: Place, chain: list[Settlement]) -> None:
        """I3: nothing lowers a floor; each settlement goes on from the last; a void one changes nothing."""
        for before, row in zip([None, *chain[:-1]], chain, strict=True):
            lowest = int(min(row.pending.start, default=row.complete_to))
            if row.kind == "reset":
                continue
            if row.floor != lowest:
                what = f"is the floor of turn {row.turn}, but what it leaves says {lowest}"
                self.found.add("I4", what, place, [row.floor])
            if before is None:
                continue
            if row.floor < before.floor:
                what = f"turn {row.turn} ({row.kind}) lowers the floor from {before.floor}"
                self.found.add("I3", what, place, [row.floor])
            if row.old_floor != before.floor:
                what = f"turn {row.turn} goes on from this floor, but turn {before.turn} left {before.floor}"
                self.found.add("I3", what, place, [row.old_floor])
            if row.complete_to < before.complete_to:
                what = f"turn {row.turn} lowers complete_to from {before.complete_to}"
                self.found.add("I3", what, place, [row.complete_to])
            if row.kind == "void" and (row.floor, row.complete_to) != (before.floor, before.complete_to):
                self.found.add("I11", f"turn {row.turn} is void, but changes the state", place, [row.floor])

    def steps(self, place: Place, epoch: int, rows: Rows, chain: list[Settlement]) -> None:
        """I4: complete_to moves over what the turn has read, or has a row for: nothing is passed over in silence.

        I11: a first attempt is of what the turn was to read.
        """
        plans = {plan.turn: plan for plan in self.plans.get((epoch, place), ()) if plan.kind == "run"}
        ranges = rows.where((rows.attempt == 0) & np.isin(rows.outcome, OF_RANGES))
        at = self.starts.get((epoch, place))
        for row in chain:
            if row.kind == "reset" or at is None:
                continue
            if row.complete_to > at:
                mine, plan = ranges.turn == row.turn, plans.get(row.turn)
                passed = list(zip(ranges.offset[mine].tolist(), ranges.end[mine].tolist(), strict=True))
                read = [(plan.start, plan.end)] if plan and row.kind == "run" else []
                what = f"turn {row.turn} ({row.kind}) passes it, but has neither read it nor a row for it"
                self.found.add("I4", what, place, uncovered(at, row.complete_to, [*passed, *read]))
            at = max(at, row.complete_to)
        first = rows.where(rows.attempt == 1)
        turns, which = np.unique(first.turn, return_inverse=True)
        none = Planned(0, "", 0, 0, {})
        bounds = [(plan.start, plan.end) for plan in (plans.get(int(turn), none) for turn in turns)]
        start, end = np.array(bounds, dtype=np.int64).reshape(-1, 2)[which].T
        strange = first.offset[(first.offset < start) | (first.offset >= end)]
        self.found.add("I11", "was read by a turn whose plan does not hold it", place, strange)

    def repeats(self, place: Place, rows: Rows) -> None:
        """I9, I11: no outcome twice; nothing is handled again once it is settled."""
        same = np.ones(max(len(rows.offset) - 1, 0), dtype=np.bool_)
        for column in (rows.offset, rows.attempt, rows.outcome, rows.end):
            same &= np.diff(column) == 0
        self.found.add("I9", "the same attempt and outcome are stored twice", place, rows.offset[1:][same])
        tried = rows.attempts
        again = (np.diff(tried.offset) == 0) & (tried.outcome[:-1] < FAILED)
        self.found.add("I9", "was attempted again after it was settled", place, tried.offset[1:][again])

    def attempts(self, place: Place, rows: Rows, chain: list[Settlement]) -> None:
        """I5: attempts are 1, 2 … max_retries + 1, in turns that follow, none before its due time."""
        tried = rows.attempts
        first = np.diff(tried.offset, prepend=-1) != 0
        step = np.where(first, tried.attempt, np.diff(tried.attempt, prepend=0))
        self.found.add("I5", "attempts are not 1, 2, 3 …", place, tried.offset[step != 1])
        backwards = ~first & (np.diff(tried.turn, prepend=-1) <= 0)
        self.found.add("I5", "a later attempt is not of a later turn", place, tried.offset[backwards])
        if self.max_retries is not None:
            over = tried.attempt > self.max_retries + 1
            self.found.add("I5", f"more than {self.max_retries + 1} attempts", place, tried.offset[over])
        retries = tried.where(tried.attempt > 1)
        for turn in np.unique(retries.turn):
            before = [row for row in chain if row.turn < turn]
            if before:
                self.due(place, retries.where(retries.turn == turn), before[-1].pending)

    def due(self, place: Place, retries: Rows, pending: Pending) -> None:
        if not len(pending.start):
            self.found.add("I5", "was tried again, but was not pending", place, retries.offset)
            return
        at = np.maximum(np.searchsorted(pending.start, retries.offset, "right") - 1, 0)
        inside = (pending.start[at] <= retries.offset) & (retries.offset < pending.end[at]) & pending.retry[at]
        known = inside & (pending.attempts[at] == retries.attempt - 1)
        self.found.add("I5", "was tried again, but no such retry was pending", place, retries.offset[~known])
        early = known & (retries.handled_at < pending.due[at])
        self.found.add("I5", "was tried again before its due time", place, retries.offset[early])

    def accounts(self, place: Place, epoch: int, rows: Rows, chain: list[Settlement]) -> None:
        """I4: each record below complete_to is settled or pending, never both; none above it is settled."""
        if (epoch, place) not in self.starts or not chain:
            self.found.say("I4", f"nothing says where epoch {epoch} starts or what it left", place)
            return
        start, last, ends = self.starts[epoch, place], left_by(chain), rows.terminal
        outside = (ends.offset < start) | (ends.end > last.complete_to)
        what = f"has an outcome, but epoch {epoch} read no more than [{start}, {last.complete_to})"
        self.found.add("I4", what, place, ends.offset[outside])
        log = self.evidence.logs.get(place)
        given = between(log.offsets, start, last.complete_to) if log else np.empty(0, np.int64)
        offsets = np.union1d(given, ends.offset)
        settled = covering(offsets, ends.offset, ends.end)
        settled = settled + self.unkept.get((epoch, place), NO_RANGES).holding(offsets)
        waiting = covering(offsets, last.pending.start, last.pending.end)
        self.found.add("I9", "has more than one terminal outcome", place, offsets[settled > 1])
        self.found.add("I4", "is settled, and pending as well", place, offsets[(settled > 0) & (waiting > 0)])
        self.found.add("I4", "is pending more than once", place, offsets[waiting > 1])
        neither = np.isin(offsets, given) & (settled == 0) & (waiting == 0)
        self.found.add("I4", "is neither settled nor pending, but below complete_to", place, offsets[neither])
        if log and epoch == self.epoch and last.complete_to > log.end:
            what = f"is said to be read up to here, but the log ends at {log.end}"
            self.found.add("I14", what, place, [last.complete_to])

    def history(self, place: Place, epoch: int, rows: Rows, chain: list[Settlement]) -> None:
        """I1, I4: the same was so after each turn: nothing below a floor waited, and what waited was pending."""
        chain = [row for row in chain if row.kind != "reset"]
        offsets, first, last, tried = spans(rows)
        late = (last < NEVER) & (tried > last)
        self.found.add("I9", "was attempted after a turn had settled it", place, offsets[late])
        for name, bound, needed in (("floor", [row.floor for row in chain], last),
                                    ("complete_to", [row.complete_to for row in chain], first)):  # fmt: skip
            at = np.searchsorted(np.maximum.accumulate(np.array(bound, dtype=np.int64)), offsets, "right")
            turns = np.array([*(row.turn for row in chain), NEVER], dtype=np.int64)[at]
            early = (needed < NEVER) & (turns < needed)
            what = f"{name} had passed it before the turn that settled it"
            self.found.add("I1" if name == "floor" else "I4", what, place, offsets[early])
        waited = last > first
        offsets, first, last = offsets[waited], first[waited], last[waited]
        for row in chain:
            there = covering(offsets, row.pending.start, row.pending.end) > 0
            due = (first <= row.turn) & (row.turn < last)
            what = f"had failed and was not settled, but is not pending after turn {row.turn}"
            self.found.add("I4", what, place, offsets[due & ~there])
            if int((row.pending.end - row.pending.start).sum()) > int((due & there).sum()):
                spread = [np.arange(a, b) for a, b in zip(row.pending.start, row.pending.end, strict=True)]
                what = f"is pending after turn {row.turn}, but no row says why"
                self.found.add("I4", what, place, np.setdiff1d(np.concatenate(spread), offsets[due]))

    def window(self, place: Place, epoch: int, chain: list[Settlement]) -> None:
        """I8: a turn reads nothing new beyond the window, as its plan has stored it."""
        turns = [row.turn for row in chain]
        for plan in self.plans.get((epoch, place), ()):
            window, before = plan.settings.get("max_uncommitted"), bisect_left(turns, plan.turn)
            windowed = plan.kind == "run" and plan.settings.get("guarantee") == "at_least_once"
            floor = chain[before - 1].floor if before else self.starts.get((epoch, place))
            if windowed and window and floor is not None and plan.start < plan.end > floor + window:
                what = f"turn {plan.turn} reads up to here, the floor was {floor}, max_uncommitted is {window}"
                self.found.add("I8", what, place, [plan.end])

    def counted(self, place: Place, epoch: int, rows: Rows, chain: list[Settlement]) -> None:
        """I4: as many outcomes were counted as there are rows; or, where none were kept, as there are records."""
        unkept, log = self.unkept.get((epoch, place), NO_RANGES), self.evidence.logs.get(place)
        said = {row.turn: row.counts for row in chain}
        stored = tallies(rows)
        for turn, counts in said.items():
            if counts is not None and turn not in unkept.turn and counts != stored.get(turn, {}):
                what = f"turn {turn} counted {dict(counts)}, but its rows are {stored.get(turn, {})}"
                self.found.say("I4", what, place)
        for turn, start, end in zip(unkept.turn, unkept.start, unkept.end, strict=True):
            counts = said.get(int(turn))
            if log is None or counts is None or log.start > start:
                continue  # no longer known, or no longer there
            outcomes = sum(counts.get(word, 0) for word in ("acked", "skipped", "dropped"))
            records = len(between(log.offsets, int(start), int(end)))
            if outcomes < records or (log.hidden is None and outcomes > records):
                what = f"turn {turn} counted {outcomes} outcomes of [{start}, {end}), which holds {records} records"
                self.found.say("I4", what, place)

    def unread(self, place: Place, rows: Rows) -> None:
        """I14: no handler was given what no consumer is: beyond the last stable offset, or aborted."""
        log, offset = self.evidence.logs.get(place), np.unique(rows.attempts.offset)
        if log is None:
            return
        self.found.add("I14", f"was handled, but the log ends at {log.end}", place, offset[offset >= log.end])
        inside = between(offset, log.start, log.end)
        wrong = np.setdiff1d(inside, log.offsets) if log.hidden is None else np.intersect1d(inside, log.hidden)
        self.found.add("I14", "was handled, but no consumer is given such a record", place, wrong)

    def commit(self, place: Place, log: Log) -> None:
        """I1: what Kafka holds from us is the floor that it names; I2: all below it is settled."""
        named = ours(self.evidence, log)
        if named is None and log.committed is not None and self.another(log):
            self.found.add("I1", "committed in the name of another ledger of this pipeline", place, [log.committed])
        if named is None or log.committed is None:
            return
        epoch, turn = named
        chain = [row for row in self.chains.get((epoch, place), []) if row.turn <= turn]
        turns = {row.turn for (e, _), rows in self.chains.items() if e == epoch for row in rows}
        floor = chain[-1].floor if chain else self.starts.get((epoch, place))
        claim = self.claimed(place, epoch, turn, floor)
        if claim == log.committed:
            floor = claim
        elif floor is None or turn not in turns | {0}:
            what = f"committed for turn {turn} of epoch {epoch}, which is not settled"
            self.found.add("I1", what, place, [log.committed])
        if floor is not None and log.committed != floor:
            side = "above" if log.committed > floor else "below"
            self.found.add("I1", f"committed, {side} the floor {floor} that it names", place, [log.committed])
        start = self.starts.get((epoch, place))
        if start is not None:
            rows = self.rows.get((epoch, place))
            before = [row for row in chain if row.turn < turn]
            known = before[-1].floor if before else start
            given = between(log.offsets, start, known if claim == log.committed else log.committed)
            lost = given if rows is None else given[covering(given, rows.terminal.offset, rows.terminal.end) == 0]
            lost = lost[self.unkept.get((epoch, place), NO_RANGES).holding(lost) == 0]
            self.found.add("I2", "is below the committed offset, but has no terminal outcome", place, lost)

    def another(self, log: Log) -> bool:
        """Whether a commit of this pipeline is not of the ledger that is judged."""
        return ours(replace(self.evidence, ledger=None), log) is not None

    def claimed(self, place: Place, epoch: int, turn: int, floor: int | None) -> int | None:
        """What at most once is committed before a turn is handed out: its plan's end, or the floor before it."""
        plans = [plan for plan in self.plans.get((epoch, place), ()) if plan.turn == turn and plan.once]
        before = [row.floor for row in self.chains.get((epoch, place), ()) if row.turn < turn]
        if not plans:
            return None
        return plans[0].end if plans[0].start < plans[0].end else before[-1] if before else floor

    def end(self, place: Place, log: Log) -> None:
        """All settled: floor, complete_to and committed are the log's end, and nothing is pending."""
        chain = self.chains.get((self.epoch, place))
        if not chain:
            self.found.say("settled", "no settlement of the newest epoch knows this partition", place)
            return
        last = chain[-1]
        if len(last.pending.start):
            self.found.add("settled", "is still pending", place, last.pending.start)
        for name, value in (("floor", last.floor), ("complete_to", last.complete_to)):
            if value != log.end:
                self.found.say("settled", f"{name} is {value}, but the log ends at {log.end}", place)
        if self.evidence.lane == "live" and (log.committed != log.end or ours(self.evidence, log) is None):
            held = "nothing" if log.committed is None else f"{log.committed} with metadata {log.metadata!r}"
            self.found.say("settled", f"Kafka holds {held}, but the log ends at {log.end}", place)

    def dead_letters(self) -> None:
        """I6: dead, and its letter is on the topic, or neither; letters may repeat."""
        letters = self.evidence.letters
        sent: dict[tuple[int, Place], set[int]] = {}
        for letter in self.letters():
            place = (letter.topic, letter.partition)
            sent.setdefault((letter.epoch, place), set()).add(letter.offset)
            log = self.evidence.logs.get(place)
            source = log.digests.get(letter.offset) if log else None
            if source is not None and letter.digest not in (None, source):
                what = "its dead letter does not carry the key and value of the record"
                self.found.add("I6", what, place, [letter.offset])
        for epoch, place in sorted(self.rows.keys() | sent.keys()):
            rows = self.rows.get((epoch, place), NO_ROWS)
            have = np.array(sorted(sent.get((epoch, place), ())), dtype=np.int64)
            dead = rows.offset[rows.outcome == DEAD]
            if letters is not None:
                self.found.add("I6", "is dead, but has no dead letter", place, np.setdiff1d(dead, have))
            self.early_deaths(place, rows, dead)
            extra, chain = np.setdiff1d(have, dead), self.chains.get((epoch, place))
            if chain is not None:  # a letter of a turn that is still open is on its way to be confirmed
                last = left_by(chain)
                extra = extra[extra < last.complete_to]
                extra = extra[covering(extra, last.pending.start, last.pending.end) == 0]
            self.found.add("I6", "has a dead letter, but is not dead", place, extra)

    def letters(self) -> list[Letter]:
        return [letter for letter in self.evidence.letters or () if letter.lane == self.evidence.lane]

    def early_deaths(self, place: Place, rows: Rows, dead: Ints) -> None:
        failed = rows.where((rows.outcome == FAILED) & (rows.attempt >= 1))
        self.found.add("I6", "is dead, but never failed", place, np.setdiff1d(dead, failed.offset))
        if self.max_retries is not None:
            enough = failed.offset[failed.never | (failed.attempt > self.max_retries)]
            early = np.setdiff1d(np.intersect1d(dead, failed.offset), enough)
            what = "is dead, but had retries left, and the handler did not say never"
            self.found.add("I6", what, place, early)

    def journal(self) -> None:
        """Handler calls: what counts was handled (I2), and, once settled, what was handled counts (I4)."""
        if self.evidence.calls is None:
            return
        calls = call_keys(self.evidence.calls)
        for place in sorted(calls.keys() | {place for _, place in self.rows}):
            called = calls.get(place, NOTHING)
            mine = [rows.attempts for (_, at), rows in self.rows.items() if at == place]
            keys = [(rows.offset << 16) + rows.attempt for rows in mine]
            must = [key[~rows.uncalled] for key, rows in zip(keys, mine, strict=True)]
            known, needed = (np.concatenate([NOTHING, *some]) for some in (keys, must))
            uncalled = np.setdiff1d(needed, called) >> 16
            self.found.add("I2", "has an outcome of an attempt that no handler was called for", place, uncalled)
            if self.settled:
                uncounted = np.setdiff1d(called, known) >> 16
                for (_, at), unkept in self.unkept.items():
                    uncounted = uncounted[unkept.holding(uncounted) == 0] if at == place else uncounted
                for (_, at), rows in self.rows.items():  # a report that came too late, or never
                    lost = rows.where(rows.outcome == LOST)
                    gone = covering(uncounted, lost.offset, lost.end) > 0
                    uncounted = uncounted[~gone] if at == place else uncounted
                what = "a handler was called, but no outcome of that attempt counts"
                self.found.add("I4", what, place, uncounted)
            self.once(place, called)
            if self.max_retries is not None:
                over = called[(called & 0xFFFF) > self.max_retries + 1] >> 16
                what = f"a handler was called for more than {self.max_retries + 1} attempts"
                self.found.add("I5", what, place, over)

    def once(self, place: Place, called: Ints) -> None:
        """I7: at most once, no handler is called twice for an offset in an epoch."""
        offsets, times = np.unique(called >> 16, return_counts=True)
        epochs = {epoch: some for (epoch, at), some in self.plans.items() if at == place}
        once, else_ = np.zeros(len(offsets), np.int64), np.zeros(len(offsets), np.int64)
        for plans in epochs.values():
            for kept, into in ((True, once), (False, else_)):
                ranges = [(plan.start, plan.end) for plan in plans if plan.kind == "run" and plan.once is kept]
                start, end = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
                into += covering(offsets, start, end) > 0
        again = offsets[(once > 0) & (else_ == 0) & (times > once)]
        self.found.add("I7", "a handler was called for it again, and it was planned at most once", place, again)

    def report(self) -> Report:
        names = sorted({topic for topic, _ in self.evidence.logs})
        topics = {topic: self.topic_totals(topic) for topic in names}
        totals: Counter[str] = Counter()
        for counts in topics.values():
            totals.update(counts)
        return Report(self.found.sentences, dict(totals), topics)

    def topic_totals(self, topic: str) -> dict[str, int]:
        places = [place for place in self.evidence.logs if place[0] == topic]
        counts = dict.fromkeys(("records", *TERMINAL, "pending", "attempts", "failed"), 0)
        for place in places:
            counts["records"] += len(self.evidence.logs[place].offsets)
            chain, rows = self.chains.get((self.epoch, place)), self.rows.get((self.epoch, place))
            if chain:
                counts["pending"] += int((chain[-1].pending.end - chain[-1].pending.start).sum())
            if rows:
                counts["attempts"] += int((rows.attempt >= 1).sum())
                for code, word in enumerate((*TERMINAL, "failed")):
                    counts[word] += int((rows.end - rows.offset)[rows.outcome == code].sum())
            without = set(self.unkept.get((self.epoch, place), NO_RANGES).turn.tolist())
            for row in chain or ():
                for word in ("acked", "skipped", "dropped") if row.turn in without else ():
                    counts[word] += (row.counts or {}).get(word, 0)
        letters = [
            (letter.partition, letter.offset)
            for letter in self.letters() if letter.topic == topic and letter.epoch == self.epoch
        ]  # fmt: skip
        counts["letters"] = len(set(letters))
        counts["letters_again"] = len(letters) - counts["letters"]
        if self.evidence.calls is not None:
            calls = [keys for place, keys in call_keys(self.evidence.calls).items() if place[0] == topic]
            counts["calls"] = sum(len(keys) for keys in calls)
            counts["calls_again"] = counts["calls"] - sum(len(np.unique(keys)) for keys in calls)
        return counts


def spans(rows: Rows) -> tuple[Ints, Ints, Ints, Ints]:
    """Offsets that rows speak of, with the first turn that has a row, the one that settled it, and the last attempt's.

    Of a range only the offsets that other rows speak of, and its first, are there. NEVER: not settled.
    """
    offsets = np.unique(rows.offset)
    first, last = np.full(len(offsets), NEVER), np.full(len(offsets), NEVER)
    tried = np.zeros(len(offsets), np.int64)
    at = np.searchsorted(offsets, rows.offset)
    ends = (rows.outcome >= 0) & (rows.outcome < FAILED)
    np.minimum.at(first, at, rows.turn)
    np.minimum.at(last, at[ends], rows.turn[ends])
    np.maximum.at(tried, at[rows.attempt >= 1], rows.turn[rows.attempt >= 1])
    ranges = rows.where(ends & (rows.end > rows.offset + 1))
    for turn, start, end in zip(ranges.turn, ranges.offset, ranges.end, strict=True):
        here = slice(*np.searchsorted(offsets, [start, end]))
        first[here], last[here] = np.minimum(first[here], turn), np.minimum(last[here], turn)
    return offsets, first, last, tried


def tallies(rows: Rows) -> dict[int, dict[str, int]]:
    """How many rows each turn has, by outcome."""
    found: dict[int, dict[str, int]] = {}
    known = rows.where(rows.outcome >= 0)
    keys, times = np.unique(known.turn * len(OUTCOMES) + known.outcome, return_counts=True)
    for key, count in zip(keys.tolist(), times.tolist(), strict=True):
        turn, word = divmod(key, len(OUTCOMES))
        found.setdefault(turn, {})[OUTCOMES[word]] = count
    return found


def call_keys(calls: Any) -> dict[Place, Ints]:
    """Offset and attempt of each handler call, in one number."""
    keys: dict[Place, Ints] = {}
    for topic in pc.unique(calls["topic"]).to_pylist():
        mine = calls.filter(pc.equal(calls["topic"], topic))
        partition, key = ints(mine["partition"]), (ints(mine["offset"]) << 16) + ints(mine["attempt"])
        for p in np.unique(partition):
            keys[topic, int(p)] = key[partition == p]
    return keys


def ours(evidence: Evidence, log: Log) -> tuple[int, int] | None:
    """The epoch and turn named by a commit of this pipeline and ledger; None where it is somebody else's."""
    try:
        said = json.loads(log.metadata)
        mine = said["pipeline"] == evidence.pipeline and evidence.ledger in (None, said["ledger"])
        return (int(said["epoch"]), int(said["n"])) if mine else None
    except (ValueError, TypeError, KeyError):
        return None


def judge(evidence: Evidence, *, max_retries: int | None = None, settled: bool = False) -> Report:
    """What does not hold in `evidence`. `settled`: nothing may be pending or behind any more."""
    return Judge(evidence, max_retries, settled).run()


# ---- reading -----------------------------------------------------------------------------------------------

Config = dict[str, Any]
COLUMNS = {
    "settlements": ["lane", "epoch", "turn", "kind", "topic", "partition", "old_floor", "new_floor",
                    "complete_to", "pending", "counts", "gaps"],
    "plans": ["lane", "epoch", "turn", "kind", "topic", "partition", "start_offset", "end_offset", "settings"],
    "outcomes": ["lane", "epoch", "turn", "topic", "partition", "offset", "end_offset", "attempt", "outcome",
                 "error_class", "handled_at"],
}  # fmt: skip
TEXTS = frozenset({"lane", "kind", "topic", "outcome", "error_class"})


def read_table(root: str, name: str, pipeline: str, lane: str) -> tuple[pa.Table, str]:
    """The rows of one pipeline and lane, and the table's id.

    Plans and outcomes that are not there are none: a lane that has only begun has neither, and where they were lost,
    the settlements convict it. Without settlements there is nothing to judge by.
    """
    try:
        table = DeltaTable(f"{root.rstrip('/')}/{name}")
        data = table.to_pyarrow_table(columns=COLUMNS[name], filters=[("pipeline", "=", pipeline)])
    except Exception as error:
        if isinstance(error, TableNotFoundError) and name != "settlements":
            return pa.table({c: pa.array([], pa.string() if c in TEXTS else pa.int64()) for c in COLUMNS[name]}), ""
        raise Unreadable(f"table {name} under {root}: {error}") from error
    return data.filter(pc.equal(data["lane"], lane)), str(table.metadata().id)


def digest(message: Message) -> str:
    """Of key and value; null and empty differ."""
    parts: tuple[Any, Any] = (message.key(), message.value())
    return hashlib.sha256(b"".join(b"-" if p is None else b"%d:%b" % (len(p), p) for p in parts)).hexdigest()


def consumer(config: Config, isolation: str, group: str | None = None) -> Consumer:
    return Consumer({
        **config, "group.id": group or f"ackline-checker-{uuid.uuid4()}", "isolation.level": isolation,
        "enable.auto.commit": False, "enable.partition.eof": True, "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 20,
    })  # fmt: skip


def bounds(config: Config, topic: str, isolation: str) -> dict[int, tuple[int, int]]:
    """Log start and last stable offset (or log end) of each partition."""
    admin, level = AdminClient(config), IsolationLevel[isolation.upper()]
    partitions = admin.list_topics(topic, timeout=PATIENCE).topics[topic].partitions

    def ask(spec: OffsetSpec) -> dict[int, int]:
        asked = {TopicPartition(topic, p): spec for p in partitions}
        futures = admin.list_offsets(asked, isolation_level=level, request_timeout=PATIENCE)
        return {tp.partition: int(future.result(PATIENCE).offset) for tp, future in futures.items()}

    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    starts, ends = ask(OffsetSpec.earliest()), ask(latest)  # type: ignore[no-untyped-call]
    if not ends:
        raise Unreadable(f"topic {topic} does not exist")
    return {p: (starts[p], ends[p]) for p in ends}


def read_topic(
    config: Config,
    topic: str,
    isolation: str,
    limits: Mapping[int, tuple[int, int]],
    take: Callable[[Message], None],
) -> dict[int, Ints]:
    """Give every record inside `limits` to `take`, and return their offsets. Gives up when nothing comes."""
    found = {p: array("q") for p in limits}
    left = {p: end for p, (start, end) in limits.items() if start < end}
    reader = consumer(config, isolation)
    try:
        reader.assign([TopicPartition(topic, p, limits[p][0]) for p in left])
        moved = time.monotonic()
        while left:
            # For many at once it would wait the whole time, be they there or not.
            for message in reader.consume(1, timeout=0.5) + reader.consume(10_000, timeout=0):
                p, offset, error = message.partition(), message.offset(), message.error()
                if p not in left or offset is None:
                    continue
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise Unreadable(f"topic {topic}: {error}")
                moved = time.monotonic()
                if error is None and offset < left[p]:
                    found[p].append(offset)
                    take(message)
                if offset >= left[p] - (error is None):
                    del left[p]
            if time.monotonic() - moved > PATIENCE:
                raise Unreadable(f"topic {topic}: nothing more came from partitions {sorted(left)}")
    finally:
        reader.close()
    return {p: np.array(offsets, dtype=np.int64) for p, offsets in found.items()}


def read_logs(config: Config, topic: str, isolation: str, wanted: Mapping[Place, set[int]]) -> dict[Place, Log]:
    limits, digests = bounds(config, topic, isolation), dict[Place, dict[int, str]]()
    chosen = {p: wanted.get((topic, p), set()) for p in limits}

    def take(message: Message) -> None:
        p, offset = message.partition(), message.offset()
        if p is not None and offset is not None and offset in chosen[p]:
            digests.setdefault((topic, p), {})[offset] = digest(message)

    given = read_topic(config, topic, isolation, limits, take)
    hidden: dict[int, Ints] = {}
    if compacted(config, topic):
        whole = given
        if isolation == "read_committed":
            whole = read_topic(config, topic, "read_uncommitted", limits, lambda message: None)
        hidden = {p: np.setdiff1d(whole[p], given[p]) for p in limits}
    return {
        (topic, p): Log(*limits[p], given[p], hidden=hidden.get(p), digests=digests.get((topic, p), {})) for p in limits
    }


def compacted(config: Config, topic: str) -> bool:
    admin, resource = AdminClient(config), ConfigResource(ResourceType.TOPIC, topic)
    settings = admin.describe_configs([resource])[resource].result(PATIENCE)
    return "compact" in str(settings["cleanup.policy"].value)


def read_committed_offsets(config: Config, group: str, places: Sequence[Place]) -> dict[Place, tuple[int, str]]:
    """What the group has committed, with its metadata; the coordinator of a fresh broker is waited for."""
    reader, deadline = consumer(config, "read_committed", group), time.monotonic() + PATIENCE
    held: list[TopicPartition] | None = None
    try:
        while held is None:
            try:
                held = reader.committed([TopicPartition(*place) for place in places], timeout=10)
            except KafkaException as error:
                if time.monotonic() > deadline:
                    raise Unreadable(f"committed offsets of group {group}: {error}") from error
                time.sleep(0.2)
    finally:
        reader.close()
    return {(tp.topic, tp.partition): (tp.offset, tp.metadata or "") for tp in held if tp.offset >= 0}


def read_letters(config: Config, topic: str, pipeline: str) -> list[Letter]:
    """The dead letters of `pipeline` on `topic`; others share it unnoticed."""
    letters: list[Letter] = []

    def take(message: Message) -> None:
        headers: Any = message.headers() or ()  # in Kafka's order: ours come after those of an earlier life
        said = {name: value for name, value in headers if name.startswith("ackline.")}
        if said.get("ackline.pipeline") != pipeline.encode():
            return
        try:
            lane, epoch, source, partition, offset = (
                said[f"ackline.{name}"].decode() for name in ("lane", "epoch", "topic", "partition", "offset")
            )
            # A record that the broker refused for good goes without value; a header of its own says so.
            bare = message.value() is None and said.keys() > HEADERS
            content = None if bare else digest(message)
            letters.append(Letter(lane, int(epoch), source, int(partition), int(offset), content))
        except (KeyError, ValueError, AttributeError) as error:
            where = f"{topic}[{message.partition()}] offset {message.offset()}"
            raise Unreadable(f"dead letter {where}: its headers do not say where it comes from") from error

    read_topic(config, topic, "read_committed", bounds(config, topic, "read_committed"), take)
    return letters


HEADERS = {
    f"ackline.{name}" for name in ("pipeline", "lane", "epoch", "topic", "partition", "offset", "timestamp",
                                   "attempts", "error_class", "turn")
}  # fmt: skip


def read_calls(path: str) -> pa.Table:
    """A journal of handler calls: topic, partition, offset, attempt, process id, separated by tabs."""
    names = ["topic", "partition", "offset", "attempt", "pid"]
    types = {name: pa.string() if name == "topic" else pa.int64() for name in names}
    if not Path(path).exists() or not Path(path).stat().st_size:
        return pa.table({name: pa.array([], types[name]) for name in names})
    return pa.csv.read_csv(
        path,
        read_options=pa.csv.ReadOptions(column_names=names),
        parse_options=pa.csv.ParseOptions(delimiter="\t", quote_char=False),
        convert_options=pa.csv.ConvertOptions(column_types=types),
    )


def gather(
    bootstrap: str | Config, audit: str, pipeline: str, group: str, topics: Sequence[str], *,
    dead_letter_topic: str | None = None, isolation: str = "read_committed", journal: str | None = None,
    lane: str = "live",
) -> Evidence:  # fmt: skip
    """Read all that is to be judged. Raises Unreadable; waits at most for as long as something comes."""
    config: Config = {"bootstrap.servers": bootstrap} if isinstance(bootstrap, str) else dict(bootstrap)
    config.setdefault("log_level", 0)  # what matters is raised; the client's own log would drown the verdict
    try:
        places = [(topic, p) for topic in topics for p in bounds(config, topic, isolation)]
        held = read_committed_offsets(config, group, places)
        settlements, ledger = read_table(audit, "settlements", pipeline, lane)
        outcomes, plans = (read_table(audit, name, pipeline, lane)[0] for name in ("outcomes", "plans"))
        letters = read_letters(config, dead_letter_topic, pipeline) if dead_letter_topic else None
        wanted: dict[Place, set[int]] = {}
        for letter in letters or ():
            wanted.setdefault((letter.topic, letter.partition), set()).add(letter.offset)
        logs: dict[Place, Log] = {}
        for topic in topics:
            logs |= read_logs(config, topic, isolation, wanted)
    except KafkaException as error:
        raise Unreadable(str(error)) from error
    for place, (committed, metadata) in held.items():
        log = logs[place]
        logs[place] = Log(log.start, log.end, log.offsets, committed, metadata, log.hidden, log.digests)
    calls = read_calls(journal) if journal else None
    return Evidence(pipeline, lane, logs, plans, outcomes, settlements, ledger, letters, calls)


def check(
    bootstrap: str | Config, audit: str, pipeline: str, group: str, topics: Sequence[str], *,
    dead_letter_topic: str | None = None, isolation: str = "read_committed", journal: str | None = None,
    lane: str = "live", max_retries: int | None = None, settled: bool = False,
) -> Report:  # fmt: skip
    """Gather and judge. `dead_letter_topic` None: no dead letters were to be written. Raises Unreadable."""
    evidence = gather(bootstrap, audit, pipeline, group, topics, dead_letter_topic=dead_letter_topic,
                      isolation=isolation, journal=journal, lane=lane)  # fmt: skip
    return judge(evidence, max_retries=max_retries, settled=settled)


# ---- the command -------------------------------------------------------------------------------------------


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Judge a pipeline of Ackline by what it left behind.")
    for name in ("bootstrap", "audit", "pipeline", "group"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--topic", action="append", required=True, help="may be given again")
    letters = parser.add_mutually_exclusive_group(required=True)
    letters.add_argument("--dead-letter-topic")
    letters.add_argument("--no-dead-letters", action="store_true", help="the file says `dead_letter: none`")
    levels = ["read_committed", "read_uncommitted"]
    parser.add_argument("--isolation", default=levels[0], choices=levels)
    parser.add_argument("--journal", help="file of handler calls")
    parser.add_argument("--max-retries", type=int)
    parser.add_argument("--lane", default="live")
    parser.add_argument("--settled", action="store_true", help="nothing may be pending or behind any more")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """0: everything holds; 1: something does not; 2: it could not be read."""
    args = arguments(argv)
    try:
        report = check(
            args.bootstrap, args.audit, args.pipeline, args.group, args.topic,
            dead_letter_topic=args.dead_letter_topic, isolation=args.isolation, journal=args.journal,
            lane=args.lane, max_retries=args.max_retries, settled=args.settled,
        )  # fmt: skip
    except Unreadable as error:
        print(f"cannot judge: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps({"ok": report.ok, **asdict(report)}))
        return 0 if report.ok else 1
    for name, counts in {**report.topics, "all": report.totals}.items():
        print(f"{name}: " + ", ".join(f"{count:,} {word}" for word, count in counts.items() if count))
    print("\n".join(report.violations) or "every invariant holds")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
