"""The evidence that the checker judges: plain data, as it was read from Kafka, the tables and the journal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ackline.verify.arrays import Ints


class Unreadable(Exception):
    """A topic, table or group cannot be read, so the checker has no verdict on the pipeline."""


class TopicPartition(NamedTuple):
    """A partition of a topic; `str` gives `topic[partition]`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True, slots=True)
class Log:
    """The log of one partition as a consumer sees it.

    `offsets` are the offsets in `[start, end)` that a consumer receives, sorted. `end` is the last stable offset under
    `read_committed`. `aborted` are the offsets of records in aborted transactions, which no consumer receives. It is
    None for a topic without compaction: no record vanishes from inside such a log, so an offset that is missing never
    was a record. `digests` maps the offset of each record that has a dead letter to the digest of its key and value.
    """

    start: int
    end: int
    offsets: Ints
    committed: int | None = None
    metadata: str = ""
    aborted: Ints | None = None
    digests: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter, by the origin in its headers.

    `digest` is of its key and value; None if a header marks it as sent without the value of its record. `turn` is the
    turn that sent it; None if no header names it.
    """

    lane: str
    epoch: int
    topic: str
    partition: int
    offset: int
    digest: str | None
    turn: int | None = None

    @property
    def tp(self) -> TopicPartition:
        """The topic-partition of the record that is dead."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class OutputTable:
    """An output table by its name or URI in the pipeline file.

    `rows` are those of the lane, with the columns of `read_outputs.SCHEMA`. `published` maps each transaction id that a
    settlement names to the newest turn under it in the log of the table; 0 if no turn is there. `foreign_writer` is
    another pipeline or ledger that has published rows of a lane of the same name; then `rows` may hold its rows, too.
    """

    name: str
    rows: pa.Table
    published: Mapping[str, int]
    foreign_writer: str | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the rules read. The tables hold the rows of one pipeline and lane.

    `ledger` is the id of the table `settlements`; None: commits of any ledger of the pipeline are taken as its own.
    `letters` are the dead letters of the pipeline, of all lanes; None if the pipeline writes no dead letters. `calls`
    has the columns topic, partition, offset and attempt, and holds the handler calls of this lane only; None if there
    is no journal. `outputs` are the output tables that any plan names.
    """

    pipeline: str
    lane: str
    logs: Mapping[TopicPartition, Log]
    plans: pa.Table
    outcomes: pa.Table
    settlements: pa.Table
    ledger: str | None = None
    letters: Sequence[DeadLetter] | None = None
    calls: pa.Table | None = None
    outputs: Sequence[OutputTable] = ()

    @property
    def planned(self) -> pa.Table:
        """The rows of `plans` that are a part of a plan."""
        return self.plans.filter(pc.is_valid(self.plans["topic"]))

    def marked(self, kind: str) -> set[tuple[int, int]]:
        """Return epoch and turn of each marker of this kind: a row of `plans` without a topic, such as a waiver."""
        markers = self.plans.filter(pc.and_(pc.is_null(self.plans["topic"]), pc.equal(self.plans["kind"], kind)))
        return {(row["epoch"], row["turn"]) for row in markers.select(["epoch", "turn"]).to_pylist()}

    @property
    def lane_letters(self) -> list[DeadLetter]:
        """The dead letters of this lane; empty if the pipeline writes none."""
        return [letter for letter in self.letters or () if letter.lane == self.lane]
