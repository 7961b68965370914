"""The rows that one lane has in an output table of the records that it has settled; of a shadow, in the table beside.

The rows are read by blocks of offsets of one topic-partition, so that a block fits in memory. Whether it does is
counted first, from the columns of the record alone; a larger block is halved.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ackline.delta.reads import dataset_of
from ackline.errors import AcklineError, ConfigError, FatalError, did_you_mean
from ackline.forms.arguments import BackfillArguments, id_of
from ackline.lane.adapters import Adapters
from ackline.lane.ways_out import run
from ackline.ledger.offsets import NO_RANGES, Int64s, Ranges, TopicPartition, index_of_range, subtract, union
from ackline.ledger.outcomes import ErrorClass
from ackline.ledger.published import OutputsOfTurn
from ackline.ledger.turns import LIVE, Settlement, TurnId
from ackline.outputs.output_table import OutputTable, location_of, table_of
from ackline.outputs.publish import lacks_rows
from ackline.pipeline.outputs import shadow_table
from ackline.scrub import scrub_address
from ackline.tables.store import LedgerStore

MOST_ROWS = 100_000
"""Rows of all lanes that are in memory at once, unless one record has more."""
_READERS = 1
"""The version of Delta's protocol for readers whose files hold all rows and columns as they are."""


class SettledOffsets(NamedTuple):
    """The offsets of a topic-partition that a lane has settled, each range with the newest epoch that has."""

    ranges: Ranges
    epochs: Int64s

    def epoch_of(self, offsets: Int64s) -> Int64s:
        """Returns the epoch of each offset; -1 for one that is not settled."""
        if not len(self.epochs):
            return np.full(len(offsets), -1)
        index = index_of_range(offsets, self.ranges)
        return np.where(index >= 0, self.epochs[index], -1)


@dataclass(frozen=True, slots=True)
class LaneRows:
    """The rows of one lane in one table. `open_rows` opens it."""

    lane: str
    settled: Mapping[TopicPartition, SettledOffsets]
    dataset: ds.Dataset

    def wanted(self, tp: TopicPartition, low: int, high: int) -> ds.Expression:
        """Returns the filter of the rows of the offsets `[low, high)`, of any lane."""
        of_tp = (ds.field("_topic") == tp.topic) & (ds.field("_partition") == pa.scalar(tp.partition, pa.int32()))
        return of_tp & (ds.field("_offset") >= low) & (ds.field("_offset") < high)

    def own(self, tp: TopicPartition, rows: pa.Table) -> pa.Table:
        """Returns those rows that are the lane's: of the newest epoch that has settled their record. A record of which
        the live lane has no row has those of other lanes: where the newest handling replaces the rows of an older one,
        a backfill has replaced its rows."""
        offsets = rows["_offset"].to_numpy()
        of_lane = pc.equal(rows["_lane"], self.lane).to_numpy(zero_copy_only=False).astype(bool)
        own = of_lane & (rows["_epoch"].to_numpy() == self.settled[tp].epoch_of(offsets))
        if self.lane == LIVE:
            own |= ~of_lane & ~np.isin(offsets, offsets[own])
        return rows.filter(pa.array(own))


def named_table(adapters: Adapters, table: str) -> str:
    """Returns the output table of the pipeline file that `--rows` names, by its name or its URI. Raises ConfigError for
    another one."""
    names = [output.table for output in adapters.pipeline.outputs or () if output.table is not None]
    location = location_of(adapters.store, table)
    for name in names:
        if location_of(adapters.store, name) == location:
            return name
    known = f"; its output tables are {', '.join(map(scrub_address, names))}" if names else "; it has none"
    raise ConfigError(
        f"--rows {scrub_address(table)}: no output table of {adapters.pipeline.name}"
        f"{did_you_mean(table, names) or known}",
        key="--rows",
    )


def open_rows(adapters: Adapters, store: LedgerStore, table: str, topic_ids: Mapping[str, str]) -> LaneRows:
    """Returns the rows of a lane that has begun in an output table; `table` is the real one.

    Raises ConfigError if the table of the lane does not exist or needs a newer reader, and FatalError while it may lack
    rows of a settled turn.
    """
    newest = store.newest()
    assert newest is not None
    settled = _settled(store, newest, topic_ids)
    # After the outcomes were read: then the table has the rows of each turn that is among them.
    newest = store.newest()
    if newest is not None and lacks_rows(replace(adapters, store=store), newest):
        raise FatalError(
            f"{newest.turn} is settled, and its rows are not in each output table yet: `{run(store)}` publishes them. "
            f"Nothing was compared"
        )
    assert newest is not None
    place = shadow_table(table, id_of(store.lane)) if _is_shadow(store, newest) else table
    return LaneRows(store.lane, settled, _dataset(table_of(store, place), store.lane))


def _settled(
    store: LedgerStore, newest: Settlement, topic_ids: Mapping[str, str]
) -> dict[TopicPartition, SettledOffsets]:
    parts: dict[TopicPartition, list[tuple[Ranges, int]]] = {}
    covered: dict[TopicPartition, Ranges] = {}
    for epoch in range(newest.turn.epoch, -1, -1):
        for tp, results in store.terminal_results(epoch, topic_ids).items():
            # What `--where` leaves out changes no table, so there is nothing to compare.
            matches = np.array([result.error_class != ErrorClass.UNMATCHED for result in results.results])
            matched = matches[results.codes] if len(matches) else np.zeros(0, np.bool_)
            ranges, before = union((results.starts[matched], results.ends[matched])), covered.get(tp, NO_RANGES)
            parts.setdefault(tp, []).append((subtract(ranges, before)[:2], epoch))
            covered[tp] = union(before, results.ranges)
    return {tp: _joined(of_tp) for tp, of_tp in parts.items()}


def _joined(parts: Sequence[tuple[Ranges, int]]) -> SettledOffsets:
    starts, ends = (np.concatenate([ranges[bound] for ranges, _ in parts]) for bound in (0, 1))
    epochs = np.concatenate([np.full(len(ranges[0]), epoch, np.int64) for ranges, epoch in parts])
    order = np.argsort(starts, kind="stable")
    return SettledOffsets((starts[order], ends[order]), epochs[order])


def _is_shadow(store: LedgerStore, newest: Settlement) -> bool:
    if store.lane == LIVE:
        return False
    genesis = store.settlement(TurnId(store.pipeline, store.lane, newest.turn.epoch, 0))
    with store.settlements.errors():
        return BackfillArguments.decode(genesis.arguments).shadow


def _dataset(table: OutputTable, lane: str) -> ds.Dataset:
    version = table.open()
    if version is None:
        raise ConfigError(
            f"--rows: there is no table at {scrub_address(table.uri)}, where {lane} has its rows: none was written "
            f"yet, or the table was removed. Nothing was compared",
            key="--rows",
        )
    with table.errors():
        if version.protocol().min_reader_version > _READERS:
            raise ConfigError(
                f"--rows: the table at {scrub_address(table.uri)} has a feature of Delta that only newer readers have; "
                f"compare with `ackline sql --engine spark`",
                key="--rows",
            )
        return dataset_of(table, version, ("_partition", "_offset"))


def blocks(lanes: Sequence[LaneRows], tp: TopicPartition, low: int, high: int) -> Iterator[list[pa.Table]]:
    """Yields the own rows of each lane by blocks of the offsets `[low, high)`, in order; none of a block without rows.
    A block has MOST_ROWS at most, of all lanes that the tables hold, or those of one offset."""
    wanted = [(lane, lane.wanted(tp, low, high)) for lane in lanes]
    rows = sum(lane.dataset.count_rows(filter=chosen) for lane, chosen in wanted)
    if rows > MOST_ROWS and high - low > 1:
        middle = (low + high) // 2
        yield from chain(blocks(lanes, tp, low, middle), blocks(lanes, tp, middle, high))
    elif rows:
        yield [lane.own(tp, lane.dataset.to_table(filter=chosen)) for lane, chosen in wanted]


class TableVersions(NamedTuple):
    """The versions of an output table `before` the first turn that a lane has published there and `after` the last one.
    None for one that the log of the table does not hold any more, or of a table that can't be read."""

    before: int | None = None
    after: int | None = None


def versions_of_tables(store: LedgerStore) -> dict[str, TableVersions]:
    """Returns the versions of each output table, by its place, between which a lane has published, over all its epochs.
    Turns of other lanes and compactions may be between them, too."""
    commits, found = dict[str, list[tuple[str, int]]](), dict[str, TableVersions]()
    settled = store.settlements.read(None, ["epoch", "turn", "outputs"]).to_pylist()
    for row in sorted((row for row in settled if row["outputs"]), key=lambda row: (row["epoch"], row["turn"])):
        outputs = OutputsOfTurn.decode(row["outputs"])
        for place in outputs.tables:
            commits.setdefault(place, []).append((outputs.application(place), outputs.number))
    for place, of_table in sorted(commits.items()):
        table, found[place] = table_of(store, place), TableVersions()
        with suppress(AcklineError), table.errors():
            if (state := table.state()) is not None:
                found[place] = TableVersions(*table.states.versions_around(state, of_table))
    return found
