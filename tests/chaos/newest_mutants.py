"""Mutants of tables with `rows: newest`: each breaks one rule, and the machine of these tables must notice it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ackline.delta.table import Upon
from ackline.ledger.offsets import Bools, Ranges, TopicPartition, union
from ackline.ledger.published import Numbers, OutputsOfTurn, TableOfTurn, marks_with, may_replace
from ackline.ledger.turns import TurnId
from ackline.outputs import expected, newest_rows, publish, settled
from ackline.outputs.newest_rows import OlderRows
from ackline.outputs.written import ACKED, SKIPPED, AttemptOutcomes

Patch = pytest.MonkeyPatch


def _in_both(patch: Patch, name: str, rule: Callable[..., Any]) -> None:
    for module in (settled, publish):
        patch.setattr(module, name, rule, raising=False)


def a_new_epoch_replaces_nothing(patch: Patch) -> None:
    def rule(held: Mapping[str, int], application: str, turn: TurnId, lowest: Mapping[str, int]) -> bool:
        return turn.epoch == 0 and may_replace(held, application, turn, lowest)

    _in_both(patch, "may_replace", rule)


def a_first_epoch_replaces_nothing(patch: Patch) -> None:
    """Backfills look at no file, nor does the next ledger."""

    def rule(held: Mapping[str, int], application: str, turn: TurnId, lowest: Mapping[str, int]) -> bool:
        return turn.epoch > 0 and may_replace(held, application, turn, lowest)

    _in_both(patch, "may_replace", rule)


def each_turn_looks_at_files(patch: Patch) -> None:
    _in_both(patch, "may_replace", lambda *of: bool(of[3]))


def marks_are_not_raised(patch: Patch) -> None:
    patch.setattr(publish, "marks_with", lambda held, of, is_new: marks_with(held, replace(of, ends={}), is_new))


def rows_of_several_records_are_not_marked(patch: Patch) -> None:
    def rule(held: Mapping[str, int], of: TableOfTurn, is_new: bool) -> dict[str, int]:
        return marks_with(held, replace(of, several=False), is_new)

    patch.setattr(publish, "marks_with", rule)


def a_bound_is_off_by_one(patch: Patch) -> None:
    """Files whose highest offset is the first of the records are not opened."""
    real = newest_rows._bound

    def rule(files: pa.Table, bound: str, name: str, unknown: int) -> Any:
        return real(files, bound, name, unknown) - (bound == "max")

    patch.setattr(newest_rows, "_bound", rule)


def _handled_are(patch: Patch, codes: Collection[int] | None) -> None:
    """Lets a turn replace the older rows of the records whose attempts ended in one of these ways; None for all."""

    def rule(outcomes: AttemptOutcomes) -> dict[TopicPartition, Ranges]:
        found = {}
        for tp, of in outcomes.by_partition.items():
            chosen = of.offsets if codes is None else of.offsets[np.isin(of.codes, list(codes))]
            found[TopicPartition(*tp)] = union((chosen, chosen + 1))
        return {tp: ranges for tp, ranges in found.items() if len(ranges[0])}

    patch.setattr(AttemptOutcomes, "handled", rule)


def failures_remove_rows(patch: Patch) -> None:
    _handled_are(patch, None)


def tombstones_remove_rows(patch: Patch) -> None:
    _handled_are(patch, [ACKED, SKIPPED])


def skips_leave_rows(patch: Patch) -> None:
    _handled_are(patch, [ACKED])


def rivals_are_ignored(patch: Patch) -> None:
    """An entry without removals is made although another one has come since the version that was looked at."""
    real = publish._upon

    def rule(*of: Any) -> Upon:
        return replace(real(*of), exclusive=False)

    patch.setattr(publish, "_upon", rule)


def _seen_by(patch: Patch, own: bool) -> None:
    """Takes each attempt in flight that a row names for one of the turn's lane and epoch, or none."""
    real = OlderRows._are_whole

    def rule(older: OlderRows, rows: pa.Table, related: Any) -> Bools:
        turn = older.turn
        if turn is None or not own:
            return real(replace(older, turn=None), rows, related)
        older._of_one_ledger = True
        for name, value in (("_lane", turn.lane), ("_epoch", turn.epoch)):
            values = pa.array([value] * len(rows), rows.schema.field(name).type)
            rows = rows.set_column(rows.schema.get_field_index(name), name, values)
        return real(older, rows, related)

    patch.setattr(OlderRows, "_are_whole", rule)


def what_others_have_in_flight_is_no_origin(patch: Patch) -> None:
    _seen_by(patch, own=True)


def what_the_lane_has_in_flight_is_an_origin(patch: Patch) -> None:
    _seen_by(patch, own=False)


def lanes_of_two_ledgers_are_one(patch: Patch) -> None:
    patch.setattr(newest_rows, "is_of_one_ledger", lambda *_: True)


def parts_of_a_row_are_replaced(patch: Patch) -> None:
    """A turn that handles some of the records of a row removes it."""
    real = OlderRows._are_whole

    def rule(older: OlderRows, rows: pa.Table, related: Any) -> Bools:
        of_others: Any = {}
        whole = real(older, rows, of_others)
        return whole | bool(of_others)

    patch.setattr(OlderRows, "_are_whole", rule)


def older_copies_are_not_found(patch: Patch) -> None:
    for module in (expected, publish):
        patch.setattr(module, "older_copy", lambda *_: None)


def a_turn_that_was_given_up_is_expected(patch: Patch) -> None:
    """A table that an operator has given up is expected to hold the turn all the same."""
    real = OutputsOfTurn.expected_after
    patch.setattr(OutputsOfTurn, "expected_after", lambda outputs, _=(): real(outputs))


def a_reset_expects_what_the_lane_expected(patch: Patch) -> None:
    def rule(numbers: Numbers, *_: Any) -> Numbers:
        return numbers

    patch.setattr(settled, "expected_of_held", rule)


NEWEST_MUTANTS: dict[str, Callable[[Patch], Any]] = {
    mutant.__name__: mutant
    for mutant in (
        *(a_new_epoch_replaces_nothing, a_first_epoch_replaces_nothing, each_turn_looks_at_files, marks_are_not_raised),
        *(rows_of_several_records_are_not_marked, a_bound_is_off_by_one, failures_remove_rows, tombstones_remove_rows),
        *(skips_leave_rows, rivals_are_ignored, what_others_have_in_flight_is_no_origin, lanes_of_two_ledgers_are_one),
        *(what_the_lane_has_in_flight_is_an_origin, parts_of_a_row_are_replaced, older_copies_are_not_found),
        *(a_turn_that_was_given_up_is_expected, a_reset_expects_what_the_lane_expected),
    )
}
