"""The state machine for thousands of steps, and the proof that it finds broken rules. `make chaos` takes more steps."""

import pytest

from tests.chaos.account import Violation
from tests.chaos.answered_machine import AnsweredMachine
from tests.chaos.machine import ChaosMachine
from tests.chaos.mutants import ANSWER_MUTANTS, MUTANTS, ORDER_MUTANTS, OTHERS
from tests.chaos.newest_machine import explore_newest
from tests.chaos.newest_mutants import NEWEST_MUTANTS
from tests.chaos.ordered_machine import OrderedMachine
from tests.chaos.run import explore

SEED = 20_260_301
DEEP = pytest.mark.deep
STEPS = [1_000, pytest.param(4_000, marks=DEEP)]
ANSWERED_STEPS = [300, pytest.param(1_000, marks=DEEP)]
NEWEST_STEPS = [5_000, pytest.param(50_000, marks=DEEP)]
CAUGHT_WITHIN = 20_000
"""Steps within which the machine must find a broken rule, with any seed."""
QUICK = {"M3": 19, "follow_leaves_no_rows": 2, "reset_forgets_pending": 2, "reset_leaves_no_rows": 2,
         "adoption_leaves_no_rows": 14, "operator_loss_not_marked": 3, "stale_answers_count": 5}  # fmt: skip
"""The seed that finds each of these mutants soon; 1 for the others. Of M1 to M3, `make chaos` and `make test-release`
take two seeds more."""
NEWEST_QUICK = {"a_new_epoch_replaces_nothing": 3, "rivals_are_ignored": 8, "lanes_of_two_ledgers_are_one": 19,
                "older_copies_are_not_found": 4, "a_turn_that_was_given_up_is_expected": 2,
                "a_reset_expects_what_the_lane_expected": 8}  # fmt: skip
"""The same for the mutants of tables with `rows: newest`. With other seeds a few of them need 100,000 steps."""


@pytest.mark.parametrize("steps", STEPS)
def test_i1_to_i12_hold_whatever_stops_dies_comes_late_or_refuses(steps: int) -> None:
    assert explore(steps, SEED, shrink=False) >= steps


@pytest.mark.parametrize("steps", ANSWERED_STEPS)
def test_i1_to_i12_hold_while_answers_come_from_outside_early_late_doubled_and_forged(steps: int) -> None:
    assert explore(steps, SEED, shrink=False, machines=[AnsweredMachine]) >= steps


@pytest.mark.parametrize("steps", ANSWERED_STEPS)
def test_i19_holds_while_files_with_another_order_are_deployed_and_runs_overtake_each_other(steps: int) -> None:
    assert explore(steps, SEED, shrink=False, machines=[OrderedMachine]) >= steps


@pytest.mark.parametrize("steps", NEWEST_STEPS)
def test_i16_each_record_has_the_rows_of_its_newest_handling_whatever_dies_or_is_set_back(steps: int) -> None:
    drawn = explore_newest(steps, SEED)
    assert min(drawn[what] for what in ("entries that replace rows", "stopped: partly handled", "restore")) > 0


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(name, marks=[DEEP] * (name == "lanes_of_two_ledgers_are_one")) for name in NEWEST_MUTANTS],
)
def test_a_broken_rule_of_newest_rows_is_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    NEWEST_MUTANTS[mutant](monkeypatch)
    with pytest.raises(Violation):
        explore_newest(CAUGHT_WITHIN, NEWEST_QUICK.get(mutant, 1))


@pytest.mark.parametrize(
    ("mutant", "seed"),
    [
        *((name, QUICK.get(name, 1)) for name in MUTANTS | OTHERS | ANSWER_MUTANTS | ORDER_MUTANTS),
        *(pytest.param(name, seed, marks=pytest.mark.release) for name in MUTANTS for seed in (2, 3)),
    ],
)
def test_a_rule_that_is_broken_on_purpose_is_noticed(mutant: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (MUTANTS | OTHERS | ANSWER_MUTANTS | ORDER_MUTANTS)[mutant](monkeypatch)
    machine = AnsweredMachine if mutant in ANSWER_MUTANTS else ChaosMachine
    machine = OrderedMachine if mutant in ORDER_MUTANTS else machine
    with pytest.raises(Violation):
        explore(CAUGHT_WITHIN, seed, shrink=False, machines=[machine])


def test_the_same_seed_does_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    histories: list[str] = []
    teardown = ChaosMachine.teardown

    def keep_history(machine: ChaosMachine) -> None:
        teardown(machine)
        histories.append(repr(machine.world.history))

    monkeypatch.setattr(ChaosMachine, "teardown", keep_history)
    explore(300, SEED, shrink=False)
    first = histories.copy()
    histories.clear()
    explore(300, SEED, shrink=False)
    assert histories == first
