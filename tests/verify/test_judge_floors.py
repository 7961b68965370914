"""The state that settlements leave, the committed offsets of the group, and the journal of handler calls."""

import pytest

from tests.verify.fabricated import (
    Change,
    History,
    after_noon,
    assert_found,
    at_most_once,
    outcome,
    plan,
    retry,
    settlement,
    violation,
)


def floor_passes_a_failure(history: History) -> None:
    """Offset 3 is dead in turn 2 only, but below the floor after turn 1 already."""
    history.find(1, 3).update(error_class="Dead")
    history.outcomes.remove(history.find(2, 3, 2))
    history.settlements[1:] = [settlement(1, 0, 5, 10, retry(5, 6, 1, after_noon(100))), settlement(2, 5, 10, 10)]


def forget_a_failure(history: History) -> None:
    """Offset 5 has failed and is not pending; turn 2 has a decision on it all the same."""
    history.settlements[1]["pending"].pop()
    history.find(2, 5, 2).update(attempt=0, outcome="compacted")


def void_forgets(history: History) -> None:
    history.settlements[2].update(kind="void", new_floor=3, pending=[retry(3, 4, 1, after_noon(100))])


@pytest.mark.parametrize(("change", "sentences"), [
    violation(lambda h: h.settlements.append(settlement(3, 10, 5, 10, retry(5, 6, 1, after_noon(0)))),
              "I3 orders[0] offset 5: turn 3 (run) lowers the floor from 10"),
    violation(lambda h: h.settlements[2].update(old_floor=2),
              "I3 orders[0] offset 2: is the old floor of turn 2, but turn 1 left the floor 3"),
    violation(lambda h: h.settlements[2].update(complete_to=9, new_floor=9),
              "I3 orders[0] offset 9: turn 2 lowers complete_to from 10"),
    violation(lambda h: h.settlements[1].update(new_floor=4),
              "I4 orders[0] offset 4: is the floor of turn 1, but by its pending offsets and complete_to it is 3"),
    violation(lambda h: h.settlements[2].update(kind="void"),
              "I11 orders[0] offset 10: turn 2 is void, but changes the floor or complete_to"),
    violation(floor_passes_a_failure,
              "I1 orders[0] offset 3: the floor passed it before the turn that settled it",
              "I4 orders[0] offset 3: has failed and is not settled, but is not pending after turn 1"),
    violation(forget_a_failure,
              "I4 orders[0] offset 5: has failed and is not settled, but is not pending after turn 1"),
    violation(void_forgets,
              "I4 orders[0] offset 5: has failed and is not settled, but is not pending after turn 2"),
    violation(lambda h: h.settlements[1]["pending"].append(retry(8, 9, 1, after_noon(100))),
              "I4 orders[0] offset 8: is pending after turn 1, but its outcomes do not make it so"),
    violation(lambda h: h.find(1, 9).update(turn=2),
              "I4 orders[0] offset 9: complete_to passed it before the turn of its first outcome",
              "I11 orders[0] offset 9: has a first attempt in a turn whose plan does not contain it"),
    violation(lambda h: setattr(h, "committed", 11),
              "I1 orders[0] offset 11: is committed, above the floor 10 of the turn that its metadata names"),
    violation(lambda h: setattr(h, "committed", 9),
              "I1 orders[0] offset 9: is committed, below the floor 10 of the turn that its metadata names"),
    violation(lambda h: setattr(h, "turn", 3),
              "I1 orders[0] offset 10: is committed for turn 3 of epoch 0, which is not settled"),
    violation(lambda h: setattr(h, "ledger", "another"),
              "I1 orders[0] offset 10: is committed by another ledger of this pipeline"),
    violation(lambda h: h.records.insert(6, 6),
              "I2 orders[0] offset 6: is below the committed offset, but has no terminal outcome"),
    violation(lambda h: h.calls.remove((8, 1)),
              "I2 orders[0] offset 8: has the outcome of an attempt for which no handler was called"),
    violation(lambda h: h.calls.append((3, 3)),
              "I5 orders[0] offset 3: has a handler call of an attempt above the limit of 2 attempts",
              "I4 orders[0] offset 3: has a handler call, but no outcome of that attempt counts"),
    violation(lambda h: h.calls.append((3, 2**16 + 1)),  # is no call of attempt 1 at offset 4
              "I4 orders[0] offset 3: has a handler call, but no outcome of that attempt counts"),
])  # fmt: skip
def test_each_violation_is_named(change: Change, sentences: tuple[str, ...]) -> None:
    assert_found(change, sentences)


def test_at_most_once_a_claim_is_committed_before_its_turn_is_settled_i1() -> None:
    history = at_most_once(settled=False)
    assert history.violations(settled=False) == []
    history.committed = 9
    assert any(line.startswith("I1") for line in history.violations(settled=False))
    history.committed, history.plans = 10, [plan(1, 0, 10)]
    found = history.violations(settled=False)
    assert "I1 orders[0] offset 10: is committed for turn 1 of epoch 0, which is not settled" in found
    assert "I2 orders[0] offset 0: is below the committed offset, but has no terminal outcome" in found


def test_at_most_once_a_call_that_was_never_reported_is_lost() -> None:
    assert at_most_once(outcome(1, 0, 0, "lost", end_offset=10)).violations() == []


def test_at_most_once_a_second_call_for_an_offset_is_found_i7() -> None:
    history = at_most_once(outcome(1, 0, 0, "lost", end_offset=10))
    history.calls.append((3, 1))
    assert history.violations() == [
        "I7 orders[0] offset 3: has more than one handler call, but was planned at most once"
    ]
    history.plans[0].update(settings=None)
    assert history.violations() == []
