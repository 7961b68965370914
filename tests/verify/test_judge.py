"""Correct histories have no violation, and every rule is applied."""

import re
from pathlib import Path

from ackline import verify
from ackline.verify.check import LANE_RULES, PARTITION_RULES
from tests.verify.fabricated import History, after_noon, genesis, outcome, plan, row, settlement


def test_a_correct_history_has_no_violation() -> None:
    assert (History().judged().ok, History().violations()) == (True, [])


def test_rows_of_an_open_turn_do_not_count_and_its_letter_is_on_its_way() -> None:
    history = History(committed=3, turn=1)
    history.settlements = history.settlements[:2]
    assert history.violations(settled=False) == []
    assert "settled: turn 2 of epoch 0 is still open" in history.violations()


def test_rows_of_a_void_turn_do_not_count() -> None:
    history = History(turn=3)
    for rows in (history.outcomes, history.plans, history.settlements):
        for late in [r for r in rows if r["turn"] == 2]:
            late.update(turn=3, handled_at=after_noon(180))
    history.plans.append(plan(2, 10, 10))
    history.outcomes.append(outcome(2, 3, 2, "acked"))
    history.settlements.append(history.settlements[1] | row(2, kind="void", old_floor=3, reason="a test"))
    assert history.violations() == []


def test_expired_offsets_are_settled_by_a_range_s41() -> None:
    history = History(records=[8, 9], log_start=8)
    history.outcomes = [
        outcome(1, 0, 0, "expired", end_offset=8),
        *(outcome(1, offset, 1, "acked") for offset in (8, 9)),
    ]
    history.settlements = [genesis(), settlement(1, 0, 10, 10)]
    history.plans, history.letters, history.calls, history.turn = [plan(1, 8, 10)], [], [(8, 1), (9, 1)], 1
    report = history.judged()
    assert (report.violations, report.totals["expired"], report.totals["acked"]) == ([], 8, 2)


def test_a_genesis_of_a_new_partition_does_not_move_the_start_of_the_others() -> None:
    """Such a genesis settles every partition; the offsets below its floors are judged as before."""
    history = History(turn=3)
    history.plans.append(plan(3, 0, 0, kind="genesis", partition=1))
    history.settlements.append(settlement(3, 10, 10, 10, kind="genesis"))
    assert history.violations() == []
    history.outcomes = [r for r in history.outcomes if r["offset"] != 8]
    assert "I4 orders[0] offset 8: is neither settled nor pending, but below complete_to" in history.violations()


def history_with_reset() -> History:
    history = History(epoch=1, turn=1)
    history.plans += [plan(3, 8, 8, kind="reset"), plan(1, 8, 10, epoch=1)]
    history.settlements += [settlement(3, 10, 10, 10, kind="reset"), settlement(1, 8, 10, 10, epoch=1)]
    history.outcomes += [outcome(1, offset, 1, "acked", epoch=1) for offset in (8, 9)]
    return history


def test_a_reset_opens_an_epoch_that_is_judged_by_itself() -> None:
    report = history_with_reset().judged()
    assert (report.violations, report.totals["acked"], report.totals["dead"]) == ([], 2, 0)


def test_an_epoch_starts_at_the_floor_of_a_partition_that_its_reset_leaves_alone() -> None:
    history = history_with_reset()
    history.plans = [*(r for r in history.plans if r["turn"] != 3 and r["epoch"] == 0), plan(1, 10, 10, epoch=1)]
    history.plans.append(plan(3, 0, 0, kind="reset", partition=1))
    history.outcomes = [r for r in history.outcomes if r["epoch"] == 0]
    history.settlements[-1] = settlement(1, 10, 10, 10, epoch=1)
    assert history.violations() == []


def test_every_rule_is_applied() -> None:
    """A rule is in one of the lists, or its own module calls it."""
    listed = {rule.__name__ for rule in (*LANE_RULES, *PARTITION_RULES)}
    sources = [path.read_text() for path in Path(verify.__file__).parent.glob("*.py")]
    rules = {name for source in sources for name in re.findall(r"^def (check_\w+)", source, re.MULTILINE)}
    called = {name for source in sources for name in re.findall(r"(?<!def )\b(check_\w+)\(", source)}
    assert listed <= rules
    assert rules <= listed | called, rules - listed - called
    assert len(PARTITION_RULES) == len(set(PARTITION_RULES))
