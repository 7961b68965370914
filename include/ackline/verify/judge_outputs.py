"""Rules on output tables: each row is of an acked record and one turn, and published before the group's commit."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ackline.verify.evidence import NEVER, Findings, Ints, OutputTable, TopicPartition, Turn, to_ints, turn_of
from ackline.verify.judge_floors import claimed_offset, own_turn
from ackline.verify.lane_history import LaneHistory
from ackline.verify.rows import ACKED, EpochPartition, OutcomeRows


@dataclass(frozen=True, slots=True)
class RowsOfRecords:
    """Rows of an output table: the record's offset, its attempt, and the turn that published the row."""

    offset: Ints
    attempt: Ints
    turn: Ints


def judge_outputs(lane: LaneHistory, settled: bool, found: Findings) -> None:
    """Apply all rules on output tables. With `settled`, each settled turn must be published."""
    for table in lane.evidence.outputs:
        if why_not_judged(lane, table) is not None:
            continue  # the report names the table as not judged
        for (epoch, tp), rows in _rows_by_partition(table.rows).items():
            check_rows_are_of_acked_attempts(lane, table, (epoch, tp), rows, found)
            check_a_record_has_rows_of_one_turn(table, tp, rows, found)
        check_rows_name_their_first_acked_record(table, found)
        check_anchors_have_the_outcomes_of_their_turn(lane, table, found)
        check_untracked_rows_are_of_settled_turns(lane, table, found)
        check_rows_are_of_the_newest_handling(lane, table, found)
    check_a_shadow_changes_nothing(lane, found)
    check_earlier_turns_are_published(lane, settled, found)
    check_commit_is_not_ahead_of_tables(lane, found)


def why_not_judged(lane: LaneHistory, table: OutputTable) -> str | None:
    """Return why the rows of an output table can't be judged; None if they can."""
    if table.foreign_writer is not None:
        return (
            f"{table.foreign_writer} has published rows there too, of lane {lane.evidence.lane}, and no column "
            f"names the pipeline or ledger of a row"
        )
    if (ahead := _ahead(lane, table)) is not None:
        return f"it has turn {ahead[1]} of epoch {ahead[0]}, which the ledger does not have: the ledger is a copy"
    return None


def _ahead(lane: LaneHistory, table: OutputTable) -> Turn | None:
    """Return a turn that a table has, or has had when a reset took it as it was, and the ledger had not settled: the
    ledger was set back to an older copy. None if there is none."""
    settled = dict[int, int]()
    for (epoch, _), settlements in lane.settlements.items():
        settled[epoch] = max([settled.get(epoch, 0), *(settlement.turn for settlement in settlements)])
    ahead = [(epoch, turn) for epoch, turn in table.published.values() if turn > settled.get(epoch, 0)]
    for turn, outputs in _outputs_by_turn(lane):
        for numbers in outputs.get("expected", {}).get(table.name, {}).values():
            ahead += [of_number for of_number in map(turn_of, numbers) if of_number > turn]
    return min(ahead, default=None)


def check_rows_are_of_acked_attempts(
    lane: LaneHistory, table: OutputTable, of: EpochPartition, rows: RowsOfRecords, found: Findings
) -> None:
    """I16: the turn of a row has acked the record of the row, in the attempt that the row names."""
    known = _acked_in(lane.partition(*of).outcomes, rows.offset, rows.attempt) == rows.turn
    what = f"has a row in output table {table.name} of an attempt and turn that did not ack it"
    found.add_offsets("I16", what, of[1], rows.offset[~known])


def check_a_record_has_rows_of_one_turn(
    table: OutputTable, tp: TopicPartition, rows: RowsOfRecords, found: Findings
) -> None:
    """I16: all rows of a record in one epoch are of one turn, so the record was not published twice."""
    order = np.lexsort((rows.turn, rows.offset))
    offset, turn = rows.offset[order], rows.turn[order]
    again = (np.diff(offset) == 0) & (np.diff(turn) != 0)
    found.add_offsets("I16", f"has rows of two turns in output table {table.name}", tp, offset[1:][again])


def check_rows_name_their_first_acked_record(table: OutputTable, found: Findings) -> None:
    """I16: the record that a row names is the first of its anchors that is acked."""
    anchors = table.rows["_anchors"].combine_chunks()
    flat, parents = pc.list_flatten(anchors), to_ints(pc.list_parent_indices(anchors))
    acked = np.flatnonzero(pc.fill_null(pc.equal(flat.field("outcome"), "acked"), False).to_numpy(zero_copy_only=False))
    of_row, place = np.unique(parents[acked], return_index=True)
    first = np.full(table.rows.num_rows, -1)
    first[of_row] = acked[place]
    expected = flat.take(pa.array(first, mask=first < 0))
    wrong = np.zeros(table.rows.num_rows, np.bool_)
    for name in ("topic", "partition", "offset", "attempt"):
        named, of_anchor = table.rows[f"_{name}"].combine_chunks(), expected.field(name)
        same = pc.fill_null(pc.equal(named, of_anchor), False)
        both_null = pc.and_(pc.is_null(named), pc.is_null(of_anchor))
        wrong |= ~pc.or_(same, both_null).to_numpy(zero_copy_only=False)
    # A row without an acked anchor is right only if it has no anchors at all: it belongs to no record.
    wrong |= (first < 0) & (pc.list_value_length(anchors).fill_null(0).to_numpy(zero_copy_only=False) > 0)
    if wrong.any():
        found.add("I16", f"{wrong.sum()} rows of output table {table.name} do not name their first acked record")


def check_anchors_have_the_outcomes_of_their_turn(lane: LaneHistory, table: OutputTable, found: Findings) -> None:
    """I16: a row is published by the first turn that acks one of its records, and names as acked those of that turn.

    Records in flight may be acked in different turns: a row that a later one had published would be there twice.
    """
    anchors = table.rows["_anchors"].combine_chunks()
    flat, parents = pc.list_flatten(anchors), to_ints(pc.list_parent_indices(anchors))
    epochs, turns = (to_ints(table.rows[name])[parents] for name in ("_epoch", "_turn"))
    words = pc.fill_null(pc.equal(flat.field("outcome"), "acked"), False).to_numpy(zero_copy_only=False)
    topics, partitions = flat.field("topic").to_numpy(zero_copy_only=False), to_ints(flat.field("partition"))
    offsets, attempts = to_ints(flat.field("offset")), to_ints(flat.field("attempt"))
    for epoch, topic, partition in sorted(set(zip(epochs.tolist(), topics.tolist(), partitions.tolist(), strict=True))):
        rows = (epochs == epoch) & (topics == topic) & (partitions == partition)
        tp = TopicPartition(topic, partition)
        acked = _acked_in(lane.partition(epoch, tp).outcomes, offsets[rows], attempts[rows])
        what = f"was acked before the turn of a row in output table {table.name} that is anchored to it"
        found.add_offsets("I16", what, tp, offsets[rows][acked < turns[rows]])
        wrong = (acked >= turns[rows]) & ((acked == turns[rows]) != words[rows])
        what = f"has another outcome among the anchors of a row in output table {table.name}"
        found.add_offsets("I16", what, tp, offsets[rows][wrong])


def _acked_in(outcomes: OutcomeRows, offsets: Ints, attempts: Ints) -> Ints:
    """Return the turn in which each attempt was acked; NEVER if it was not.

    A record has one acked outcome (I9), so its offset finds it.
    """
    acked = outcomes.where(outcomes.outcome == ACKED)
    turns = np.full(len(offsets), NEVER)
    if len(acked.offset):
        index = np.minimum(np.searchsorted(acked.offset, offsets), len(acked.offset) - 1)
        same = (acked.offset[index] == offsets) & (acked.attempt[index] == attempts)
        turns[same] = acked.turn[index][same]
    return turns


def check_untracked_rows_are_of_settled_turns(lane: LaneHistory, table: OutputTable, found: Findings) -> None:
    """I16: a row that belongs to no record is of a turn that is settled and not void."""
    untracked = table.rows.filter(pc.is_null(table.rows["_topic"])).select(["_epoch", "_turn"])
    turns = {(row["_epoch"], row["_turn"]) for row in untracked.group_by(["_epoch", "_turn"]).aggregate([]).to_pylist()}
    for epoch, turn in sorted(turns - lane.effective_turns):
        found.add("I16", f"output table {table.name} has rows of turn {turn} of epoch {epoch}, which did not count")


def check_rows_are_of_the_newest_handling(lane: LaneHistory, table: OutputTable, found: Findings) -> None:
    """I16 with `rows: newest`: no row of a record is older in the log of its table than a turn that has acked the
    record, or in which its handler has skipped it.

    A turn without an entry of its own has found no older row; so none is older than the entry before it of its lane.
    """
    named = {of: outputs["tables"][table.name].get("lowest") is not None
             for of, outputs in _outputs_by_turn(lane) if table.name in outputs.get("tables", ())}  # fmt: skip
    if table.every is None or not any(named.values()):
        return
    place = {entry: number for number, entry in enumerate(table.entries)}
    identity = zip(*(table.every[name].to_pylist() for name in ("_lane", "_epoch", "_turn")), strict=True)
    of_row = np.array([place.get(entry, -1) for entry in identity], np.int64)  # the log has expired those of -1
    anchors = table.every["_anchors"].combine_chunks()
    flat, parents = pc.list_flatten(anchors), to_ints(pc.list_parent_indices(anchors))
    acked = pc.fill_null(pc.equal(flat.field("outcome"), "acked"), False).to_numpy(zero_copy_only=False)
    topics, partitions = flat.field("topic").to_numpy(zero_copy_only=False), to_ints(flat.field("partition"))
    offsets, older = to_ints(flat.field("offset")), np.zeros(len(flat), np.bool_)
    is_own = pc.equal(table.every["_lane"], lane.evidence.lane).to_numpy()
    own = [(entry[1:], number) for entry, number in place.items() if entry[0] == lane.evidence.lane]
    for (epoch, tp), outcomes in lane.outcomes.items():
        handled = outcomes.where((outcomes.outcome == ACKED) | outcomes.raised_skip)
        of_tp = (topics == tp.topic) & (partitions == tp.partition)
        if (first := lane.first_of_log.get(tp)) is not None:
            # In the log before, the offsets are of other records; which one another lane has read is not known here.
            same_log = (to_ints(table.every["_epoch"]) >= first) == (epoch >= first)
            of_tp &= (is_own & same_log)[parents]
        rows = np.flatnonzero(of_tp)
        if not len(handled.offset) or not len(rows):
            continue
        places = {turn: _place_of((epoch, turn), named, own) for turn in np.unique(handled.turn).tolist()}
        index = np.minimum(np.searchsorted(handled.offset, offsets[rows]), len(handled.offset) - 1)
        newest = np.array([places[turn] for turn in handled.turn[index].tolist()], np.int64)
        older[rows] |= (handled.offset[index] == offsets[rows]) & (of_row[parents[rows]] < newest)
    # A row of several records goes when all of them are handled again.
    every, again = (np.bincount(parents[each], minlength=len(of_row)) for each in (acked, acked & older))
    wrong = np.flatnonzero(acked & older & (every == again)[parents])
    for topic, partition in sorted(set(zip(topics[wrong].tolist(), partitions[wrong].tolist(), strict=True))):
        of_tp = wrong[(topics[wrong] == topic) & (partitions[wrong] == partition)]
        what = f"has rows in output table {table.name} that are older than its newest handling"
        found.add_offsets("I16", what, TopicPartition(topic, partition), offsets[of_tp])


def _place_of(turn: Turn, named: Mapping[Turn, bool], own: Sequence[tuple[Turn, int]]) -> int:
    """Return the place of an entry in the log before which no row of a record that the turn has handled may be; -1 if
    there is none. `named` has the turns that the table gets, and whether each replaces older rows."""
    last, place = max((each for each in own if each[0] <= turn), default=((-1, -1), -1))
    return place if named.get(last, False) and (turn == last or turn not in named) else -1


def check_earlier_turns_are_published(lane: LaneHistory, settled: bool, found: Findings) -> None:
    """I16: a turn is in each table that its settlement names before a later turn begins."""
    turns = lane.effective_turns | {(epoch, plan.turn) for (epoch, _), plans in lane.plans.items() for plan in plans}
    newest = max(turns, default=(0, 0))
    for (epoch, turn), table in _unpublished(lane):
        if settled or (epoch, turn) < newest:
            found.add("I16", f"turn {turn} of epoch {epoch} is settled, but is not in output table {table}")


def check_commit_is_not_ahead_of_tables(lane: LaneHistory, found: Findings) -> None:
    """I16: a settled turn is in each table that its settlement names before its floor is committed.

    A claim commits before its turn is settled: then only the turns before it must be published.
    """
    if lane.evidence.lane != "live":
        return
    unpublished = _unpublished(lane)
    for tp, log in lane.evidence.logs.items():
        named = own_turn(lane.evidence, log)
        if named is None or log.committed is None:
            continue
        own_epoch, own = named
        claim = log.committed == claimed_offset(lane.partition(own_epoch, tp), own)
        for (epoch, turn), table in unpublished:
            if (epoch, turn) <= (own_epoch, own - claim):
                what = f"is committed for turn {own}, but output table {table} has no turn {turn} of epoch {epoch}"
                found.add_offsets("I16", what, tp, [log.committed])


def check_a_shadow_changes_nothing(lane: LaneHistory, found: Findings) -> None:
    """S87: a shadow publishes in tables of its own alone, has no row in a real one, and sends no dead letter."""
    suffix = lane.evidence.shadow_suffix
    if suffix is None:
        return
    named = {table for _, outputs in _outputs_by_turn(lane) for table in outputs.get("tables", ())}
    for table in sorted(each for each in named if not each.endswith(suffix)):
        found.add("I16", f"a shadow has published in output table {table}, which is not its own")
    for table, rows in sorted(lane.evidence.beside.items()):
        if rows.num_rows:
            found.add("I16", f"{rows.num_rows} rows of a shadow are in output table {table}, which is a real one")
    if letters := lane.evidence.lane_letters:
        found.add("I6", f"a shadow has sent {len(letters)} dead letters")


def _unpublished(lane: LaneHistory) -> list[tuple[Turn, str]]:
    """Return each turn with a table that its settlement names and whose log does not have the turn, in order."""
    tables = {table.name: table for table in lane.evidence.outputs}
    return sorted(
        (turn, table)
        for turn, outputs in _outputs_by_turn(lane)
        for table in outputs.get("tables", ())
        if not any(
            outputs["number"] in numbers and table in tables and tables[table].has_turn(id_, turn, outputs["number"])
            for id_, numbers in outputs["expected"][table].items()
        )
    )


def _outputs_by_turn(lane: LaneHistory) -> list[tuple[Turn, dict[str, Any]]]:
    """Return each turn whose settlement holds something of outputs, with that."""
    settlements = lane.effective
    if "outputs" not in settlements.column_names:  # a table of a version that had no outputs
        return []
    rows = settlements.select(["epoch", "turn", "outputs"]).group_by(["epoch", "turn", "outputs"]).aggregate([])
    return [((row["epoch"], row["turn"]), json.loads(row["outputs"])) for row in rows.to_pylist() if row["outputs"]]


def _rows_by_partition(table: pa.Table) -> dict[EpochPartition, RowsOfRecords]:
    tracked = table.filter(pc.is_valid(table["_topic"]))
    keys = tracked.select(["_epoch", "_topic", "_partition"]).group_by(["_epoch", "_topic", "_partition"])
    split: dict[EpochPartition, RowsOfRecords] = {}
    for key in keys.aggregate([]).to_pylist():
        own = [pc.equal(tracked[name], value) for name, value in key.items()]
        rows = tracked.filter(pc.and_(pc.and_(own[0], own[1]), own[2]))
        columns = (to_ints(rows[name]) for name in ("_offset", "_attempt", "_turn"))
        split[key["_epoch"], TopicPartition(key["_topic"], key["_partition"])] = RowsOfRecords(*columns)
    return split
