"""The state machine for thousands of steps, and the proof that it finds broken rules. `make chaos` takes more steps."""

import pytest

from tests.chaos.account import Violation
from tests.chaos.answered_machine import AnsweredMachine
from tests.chaos.machine import ChaosMachine
from tests.chaos.mutants import ANSWER_MUTANTS, MUTANTS, ORDER_MUTANTS, OTHERS
from tests.chaos.ordered_machine import OrderedMachine
from tests.chaos.run import explore

SEED = 20_260_301
DEEP = pytest.mark.deep
STEPS = [1_000, pytest.param(4_000, marks=DEEP)]
ANSWERED_STEPS = [300, pytest.param(1_000, marks=DEEP)]
CAUGHT_WITHIN = 20_000
"""Steps within which the machine must find a broken rule, with any seed."""
QUICK = {"M3": 19, "follow_leaves_no_rows": 2, "reset_forgets_pending": 2, "reset_leaves_no_rows": 2,
         "adoption_leaves_no_rows": 14, "operator_loss_not_marked": 3, "stale_answers_count": 5}  # fmt: skip
"""The seed that finds each of these mutants soon; 1 for the others. Of M1 to M3, `make chaos` and `make test-release`
take two seeds more."""


@pytest.mark.parametrize("steps", STEPS)
def test_i1_to_i12_hold_whatever_stops_dies_comes_late_or_refuses(steps: int) -> None:
    assert explore(steps, SEED, shrink=False) >= steps


@pytest.mark.parametrize("steps", ANSWERED_STEPS)
def test_i1_to_i12_hold_while_answers_come_from_outside_early_late_doubled_and_forged(steps: int) -> None:
    assert explore(steps, SEED, shrink=False, machines=[AnsweredMachine]) >= steps


@pytest.mark.parametrize("steps", ANSWERED_STEPS)
def test_i19_holds_while_files_with_another_order_are_deployed_and_runs_overtake_each_other(steps: int) -> None:
    assert explore(steps, SEED, shrink=False, machines=[OrderedMachine]) >= steps


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
