"""Which turns an output table may hold: an older copy of it or of the ledger is found, a table made anew is none."""

import re
from collections.abc import Mapping, Sequence

import pytest

from ackline.errors import ConfigError, FatalError
from ackline.ledger.published import (
    OutputsOfTurn,
    TableOfTurn,
    application_of,
    expected_of_held,
    expected_with,
    older_copy,
    without_effect,
)
from ackline.ledger.turns import TurnId, check_numbered, number_of, turn_in

TURN = TurnId("shop", "live", 2, 5)
NOW, OLD, OTHER = (application_of(ledger, TURN) for ledger in ("now", "old", "other"))
BACKFILL = application_of("now", TURN._replace(lane="backfill-b"))
OLDER_TABLE, OLDER_LEDGER = "the table is an older copy", "ACKLINE_AUDIT is an older copy"


def at(n: int, epoch: int = 2, identity: int = 7) -> int:
    return number_of(TURN._replace(epoch=epoch, n=n), identity)


@pytest.mark.parametrize(
    ("held", "expected", "why"),
    [
        ({NOW: at(5)}, {NOW: [at(5)]}, None),
        ({NOW: at(4)}, {NOW: [at(5)]}, f"holds turn 4 of .* epoch 2, .* published turn 5 of epoch 2 .*{OLDER_TABLE}"),
        ({NOW: at(5, identity=8)}, {NOW: [at(5)]}, f"holds turn 5 of .* epoch 2, .*{OLDER_LEDGER}"),
        ({NOW: at(6)}, {NOW: [at(5)]}, f"holds turn 6 of .* epoch 2, .*{OLDER_LEDGER}"),
        ({NOW: at(3)}, {}, OLDER_LEDGER),
        # turns that were given up, and that another process may have published
        ({NOW: at(3)}, {NOW: [at(3), at(5)]}, None),
        ({NOW: at(5)}, {NOW: [at(3), at(5)]}, None),
        ({NOW: at(4)}, {NOW: [at(3), at(5)]}, OLDER_LEDGER),
        # epochs
        ({NOW: at(900, 1)}, {NOW: [at(1)]}, f"holds turn 900 of .* epoch 1, .* turn 1 of epoch 2 .*{OLDER_TABLE}"),
        ({NOW: at(900, 1)}, {NOW: [at(900, 1)]}, None),
        ({NOW: at(899, 1)}, {NOW: [at(900, 1)]}, OLDER_TABLE),
        ({NOW: at(900, 1)}, {}, None),
        ({NOW: at(1, 3)}, {NOW: [at(5)]}, f"holds turn 1 of .* epoch 3, .*{OLDER_LEDGER}"),
        ({NOW: at(1, 3)}, {NOW: [at(1, 3)]}, OLDER_LEDGER),  # of a reset: its turns would take such numbers again
        # a table that was made anew, and tables that others write to
        ({}, {NOW: [at(5)]}, None),
        ({BACKFILL: at(9), OTHER: at(9)}, {NOW: [at(5)]}, None),
        # a ledger that has another id since it was adopted
        ({OLD: at(8)}, {OLD: [at(9)]}, f"published turn 9 of epoch 2 there: {OLDER_TABLE}"),
        ({OLD: at(9)}, {OLD: [at(9)]}, None),
        ({OLD: at(12)}, {OLD: [at(9)]}, None),
        ({}, {OLD: [at(9)]}, None),
        ({OLD: at(9), NOW: at(3)}, {OLD: [at(9)]}, OLDER_LEDGER),
        ({OLD: at(9), NOW: at(5)}, {OLD: [], NOW: [at(5)]}, None),
        ({OLD: at(9)}, {OLD: [], NOW: [at(5)]}, f"older ones of the lane, .* published turn 5 of .*{OLDER_TABLE}"),
        ({OLD: at(9)}, {OLD: [at(9)], NOW: [at(5)]}, None),  # turn 5 was given up, and nothing came before it
    ],
)
def test_an_older_copy_of_a_table_or_a_ledger_is_found_and_a_table_made_anew_is_none(
    held: Mapping[str, int], expected: Mapping[str, Sequence[int]], why: str | None
) -> None:
    found = older_copy(TURN, "totals", held, NOW, expected)
    assert (found is None) == (why is None), found
    assert why is None or re.search(why, found or ""), found


def test_what_tables_may_hold_follows_from_turns_that_are_published_given_up_void_or_of_another_id() -> None:
    numbers = expected_with({OLD: [at(3)]}, NOW, at(4))
    tables = {"a": TableOfTurn(1, []), "b": TableOfTurn(1, [])}
    turn = OutputsOfTurn({"a": numbers, "b": numbers, "c": {NOW: [at(1)]}}, at(4), 1, tables)
    assert OutputsOfTurn.decode(turn.encode()).encode() == turn.encode()
    assert turn.expected_before("a") == {OLD: [at(3)], NOW: []}
    after: dict[str, dict[str, Sequence[int]]] = {
        "a": {OLD: (), NOW: [at(4)]},
        "b": {OLD: [at(3)], NOW: [at(4)]},
        "c": {NOW: [at(1)]},
    }
    assert turn.expected_after(["b"]) == after
    void = OutputsOfTurn.decode(without_effect(turn.encode(), ["b"]))
    assert (void.number, void.tables, void.expected_after()) == (0, {}, void.expected)
    assert without_effect(void.encode()) == void.encode()
    assert expected_with(after["b"], NOW, at(5)) == {OLD: [at(3)], NOW: [at(4), at(5)]}
    assert without_effect("") == ""


def test_a_reset_expects_what_a_table_holds_or_a_later_turn_that_may_still_be_published() -> None:
    before = {OLD: [], NOW: [at(3), at(5)]}
    assert expected_of_held(before, NOW, {NOW: at(2), OLD: at(9)}) == {OLD: (), NOW: [at(2), at(3), at(5)]}
    assert expected_of_held(before, NOW, {NOW: at(4)}) == {OLD: (), NOW: [at(4), at(5)]}
    assert expected_of_held(before, NOW, {OLD: at(9)}) == {OLD: [at(9)], NOW: [at(3), at(5)]}
    assert expected_of_held(before, NOW, {}) == before
    # After two adoptions, of which the last has published nothing yet, a copy of before the first one is older.
    after = expected_of_held({OTHER: [], OLD: [at(9)], NOW: []}, NOW, {OTHER: at(5), OLD: at(9)})
    assert after == {OTHER: (), OLD: [at(9)], NOW: []}
    assert older_copy(TURN, "totals", {OTHER: at(5), OLD: at(3)}, NOW, after) is not None


def test_numbers_rise_over_turns_and_epochs_and_name_their_turn() -> None:
    last = TURN._replace(epoch=4095, n=(1 << 27) - 1)
    turns = [TURN._replace(epoch=1, n=900), TURN._replace(epoch=2, n=1), TURN._replace(epoch=2, n=2), last]
    numbers = [number_of(turn, identity) for turn in turns for identity in (0, (1 << 24) - 1)]
    assert numbers == sorted(numbers)
    assert [turn_in(number) for number in numbers] == [turn[2:] for turn in turns for _ in range(2)]
    assert numbers[-1] == (1 << 63) - 1


def test_a_turn_for_which_no_number_is_left_is_refused_with_what_to_do() -> None:
    many, late = TURN._replace(n=1 << 27), TURN._replace(epoch=1 << 12)
    with pytest.raises(FatalError, match="at most 134,217,727 turns"):
        number_of(many, 0)
    check_numbered(many, opens_epoch=True)
    for turn, opens_epoch in ((late, False), (late._replace(epoch=4095), True)):
        with pytest.raises(FatalError, match="at most 4,096 epochs"):
            check_numbered(turn, opens_epoch)


def test_outputs_that_an_earlier_version_has_stored_are_refused_with_what_to_do() -> None:
    earlier = '{"application":"ackline/id/shop/live/0/output","number":4294967303,"execution":1,"tables":{}}'
    for stored in (earlier, '{"tables":{"totals":3}}', "{"):
        with pytest.raises(ConfigError, match=r"earlier version of Ackline .* Point ACKLINE_AUDIT at an empty folder"):
            OutputsOfTurn.decode(stored)
