"""The offsets of a lane that ended with a given outcome: what a backfill by outcome chooses from.

The rows may be millions, so they stay columns: an offset costs 16 bytes until neighbours are joined.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ackline.delta.reads import Where, as_expression, pruned_dataset
from ackline.ledger.account import Result, ResultRuns, joined_runs
from ackline.ledger.copies import NO_COPIES, Copies
from ackline.ledger.offsets import Ranges, TopicPartition, union
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnKind
from ackline.stored import decode_or_none
from ackline.tables.columns import COPIES
from ackline.tables.layout import EffectiveTurns, LaneTables


class DeadRow(NamedTuple):
    """A dead record, and when it was given up."""

    tp: TopicPartition
    offset: int
    error_class: str | None
    at: datetime
    error_place: str | None = None
    """Where its last failed attempt raised the error; None if that is not known."""


class TurnDone(NamedTuple):
    """A settled turn: its kind, the code that it ran with, empty if that is not known, and the settings of its plan."""

    kind: str
    code: str
    settings: Mapping[str, Any]


MOST_PLACES = 50_000
"""For how many dead records of an epoch, the newest, the rows of their failed attempts are read."""
RangesByPartition = dict[TopicPartition, Ranges]
_COLUMNS = ["topic", "partition", "offset", "end_offset", "epoch", "turn"]
_TERMINAL = [outcome.value for outcome in Outcome if outcome.terminal]


@dataclass(frozen=True, slots=True)
class OutcomeFilter:
    """Which terminal outcomes are wanted; None means any, and an empty error class those without one."""

    outcome: str | None = None
    error_class: str | None = None
    run_id: str | None = None
    code: str | None = None
    """The code of the turn."""


class ChosenOutcomes(LaneTables):
    """Which offsets and records of a lane have ended, and how."""

    def terminal_offsets(
        self, epoch: int, topic_ids: Mapping[str, str], wanted: OutcomeFilter | None
    ) -> tuple[RangesByPartition, RangesByPartition]:
        """Returns the offsets of an epoch whose terminal outcome is wanted, None for any, by partition: of turns whose
        plan has the given id of the topic, and of turns in an older topic of the same name. Raises FatalError if the
        tables can't be read."""
        named = asdict(wanted) if wanted is not None else {}
        code = named.pop("code", None)
        turns = None if code is None else pa.array(self.turns_of_code(code).get(epoch, ()), pa.int64())
        where: Where = {"epoch": epoch, **{name: value for name, value in named.items() if value is not None}}
        if named.get("error_class") == "":
            where = {**where, "error_class": None}
        older = self.turns_in_older_topics(epoch, topic_ids)
        found: tuple[dict[TopicPartition, list[Ranges]], ...] = ({}, {})
        for rows in self._effective_rows(where, topic_ids, _COLUMNS):
            rows = rows if turns is None else rows.filter(pc.is_in(rows["turn"], turns))
            for (topic, partition), part in _split(rows, ["topic", "partition"]):
                tp, (starts, ends) = TopicPartition(topic, partition), _bounds(part)
                in_older = np.isin(part["turn"].to_numpy(), older.get(tp.topic, []))
                for is_older, chosen in ((0, ~in_older), (1, in_older)):
                    if chosen.any():
                        found[is_older].setdefault(tp, []).append(union((starts[chosen], ends[chosen])))
        current, older_topics = ({tp: union(*parts) for tp, parts in sorted(by_tp.items())} for by_tp in found)
        return current, older_topics

    def copies_of(self, topic_ids: Mapping[str, str]) -> dict[TopicPartition, Copies]:
        """Returns where any turn of the lane has stored copies of records in the topics of these ids, the newest copy
        of each. They may be gone by now: the records are settled. Raises FatalError if the table can't be read."""
        columns = ["epoch", "turn", "topic", "partition", "topic_id", "rescued"]
        rows = self.settlements.read(None, columns).sort_by([("epoch", "descending"), ("turn", "descending")])
        rows = rows.filter(pc.greater(pc.fill_null(pc.list_value_length(rows["rescued"]), 0), 0))
        found: dict[TopicPartition, Copies] = {}
        for row, copies in zip(
            rows.drop_columns(["rescued"]).to_pylist(), COPIES.from_arrow(rows["rescued"]), strict=True
        ):
            if topic_ids.get(row["topic"]) == row["topic_id"]:
                tp = TopicPartition(row["topic"], row["partition"])
                newer = found.get(tp, NO_COPIES)
                found[tp] = newer.plus(copies.minus(newer.ranges))
        return found

    def turns_of_code(self, code: str) -> dict[int, list[int]]:
        """Returns the turns that ran with a code, by epoch. Raises FatalError if the table can't be read."""
        rows = self.settlements.read({"code": code}, ["epoch", "turn"])  # one row a turn holds the code
        turns: dict[int, list[int]] = {}
        for row in rows.to_pylist():
            turns.setdefault(row["epoch"], []).append(row["turn"])
        return turns

    def turns_of_epoch(self, epoch: int) -> list[TurnDone]:
        """Returns the turns of an epoch that are settled and not void, without the genesis. Raises FatalError if the
        tables can't be read."""
        settled = self.settlements.read({"epoch": epoch}, ["turn", "kind", "code"]).to_pylist()
        planned = self.plans.read({"epoch": epoch}, ["turn", "settings"]).to_pylist()
        codes = {row["turn"]: row["code"] for row in settled if row["code"]}  # one row of a turn holds it
        settings = {row["turn"]: row["settings"] for row in planned if row["settings"]}
        kinds = {row["turn"]: row["kind"] for row in settled if row["turn"] and row["kind"] != TurnKind.VOID}
        return [
            TurnDone(kind, codes.get(turn, ""), decode_or_none(settings.get(turn), dict[str, Any]) or {})
            for turn, kind in sorted(kinds.items())
        ]

    def terminal_results(self, epoch: int, topic_ids: Mapping[str, str]) -> dict[TopicPartition, ResultRuns]:
        """Returns the terminal outcome and error class of each offset that an epoch has settled, in the topics of these
        ids. Raises FatalError if the tables can't be read."""
        older = self.turns_in_older_topics(epoch, topic_ids)
        found: dict[TopicPartition, list[ResultRuns]] = {}
        columns = [*_COLUMNS, "outcome", "error_class"]
        for rows in self._effective_rows({"epoch": epoch}, topic_ids, columns):
            for (topic, partition, outcome, error_class), part in _split(
                rows, ["topic", "partition", "outcome", "error_class"]
            ):
                starts, ends = _bounds(part)
                current = ~np.isin(part["turn"].to_numpy(), older.get(topic, []))
                starts, ends = union((starts[current], ends[current]))
                runs = ResultRuns(starts, ends, np.zeros(len(starts), np.int64), (Result(outcome, error_class),))
                if len(starts):
                    found.setdefault(TopicPartition(topic, partition), []).append(runs)
        return {tp: joined_runs(parts) for tp, parts in sorted(found.items())}

    def dead_rows(self, epoch: int, topic_ids: Mapping[str, str]) -> Iterator[DeadRow]:
        """Yields the dead records of an epoch in the topics of these ids, the newest first; the MOST_PLACES first ones
        with the place of their last failed attempt. Raises FatalError if the tables can't be read."""
        older = self.turns_in_older_topics(epoch, topic_ids)
        columns, found = [*_COLUMNS, "error_class", "handled_at"], list[DeadRow]()
        for rows in self._effective_rows({"epoch": epoch, "outcome": Outcome.DEAD.value}, topic_ids, columns):
            for row in rows.to_pylist():
                if row["turn"] not in older.get(row["topic"], ()):
                    tp = TopicPartition(row["topic"], row["partition"])
                    found.append(DeadRow(tp, row["offset"], row["error_class"], row["handled_at"]))
        found.sort(key=lambda row: row.at, reverse=True)
        places = self._last_places(epoch, found[:MOST_PLACES])
        for row in found:
            yield row._replace(error_place=places.get((row.tp, row.offset)))

    def _last_places(self, epoch: int, dead: Sequence[DeadRow]) -> dict[tuple[TopicPartition, int], str | None]:
        """Returns the place of the last failed attempt of each of these records; a decision has none."""
        if not dead:
            return {}
        column, offsets = ds.field("offset"), sorted({row.offset for row in dead})
        # Arrow skips files and row groups by the bounds; `isin` alone does not always let it.
        wanted = (column >= offsets[0]) & (column <= offsets[-1]) & column.isin(offsets)
        columns = ["topic", "partition", "offset", "attempt", "epoch", "turn", "error_place"]
        rows = self.outcomes.read({"epoch": epoch, "outcome": Outcome.FAILED.value}, columns, also=wanted)
        rows = rows.filter(EffectiveTurns(self).mask(rows)).sort_by("attempt")
        return {
            (TopicPartition(row["topic"], row["partition"]), row["offset"]): row["error_place"]
            for row in rows.to_pylist()
        }

    def _effective_rows(self, where: Where, topic_ids: Mapping[str, str], columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yields the effective terminal rows that match `where`."""
        outcomes, effective = self.outcomes, EffectiveTurns(self)
        version = outcomes.open()
        if version is None or not topic_ids:
            return
        chosen = as_expression(where) & ds.field("topic").isin(list(topic_ids))
        chosen = chosen & ds.field("outcome").isin(_TERMINAL)
        with outcomes.errors():
            dataset = pruned_dataset(outcomes, version, where)
            for batch in dataset.to_batches(columns=list(columns), filter=chosen, batch_readahead=2):
                rows = pa.table(batch)
                rows = rows.filter(effective.mask(rows))
                if rows.num_rows:
                    yield rows

    def turns_in_older_topics(self, epoch: int, topic_ids: Mapping[str, str]) -> dict[str, list[int]]:
        """Returns the turns of an epoch that were planned in an older topic of the same name, by topic. Raises
        FatalError if the table can't be read."""
        if not topic_ids:
            return {}
        rows = self.plans.read({"epoch": epoch}, ["topic", "topic_id", "turn"])
        rows = rows.group_by(["topic", "topic_id", "turn"]).aggregate([])
        turns: dict[str, list[int]] = {}
        for topic, topic_id in topic_ids.items():
            older = rows.filter((pc.field("topic") == topic) & (pc.field("topic_id") != topic_id))
            turns[topic] = older["turn"].to_pylist()
        return turns


def _split(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Yields the distinct values of some columns, each with its rows."""
    for values in rows.group_by(list(columns)).aggregate([]).to_pylist():
        chosen = pc.scalar(True)
        for name in columns:
            value = values[name]
            same = pc.field(name).is_null() if value is None else pc.field(name) == value
            chosen = chosen & same
        yield tuple(values[name] for name in columns), rows.filter(chosen)


def _bounds(rows: pa.Table) -> Ranges:
    """Returns the starts and ends of the rows' offsets."""
    ends = pc.coalesce(rows["end_offset"], pc.add(rows["offset"], 1))
    return rows["offset"].to_numpy(), ends.to_numpy()
