"""Thousands of steps in worlds that misbehave (the whole of them: `make chaos`), and that the judge can tell."""

import pytest

from tests.chaos.account import Violation
from tests.chaos.machine import Turmoil
from tests.chaos.mutants import MUTANTS, OTHERS
from tests.chaos.run import explore

SEED = 20_260_301
STEPS = 5_000
CAUGHT_WITHIN = 20_000
"""Steps within which a broken rule must be noticed, whatever the seed."""


def test_i1_to_i12_hold_whatever_stops_dies_comes_late_or_refuses() -> None:
    assert explore(STEPS, SEED, shrink=False) >= STEPS


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_that_is_broken_on_purpose_is_noticed(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(Violation):
        explore(CAUGHT_WITHIN, seed, shrink=False)


@pytest.mark.parametrize("name", OTHERS)
def test_a_rule_of_acts_claims_or_parked_partitions_that_is_broken_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    OTHERS[name](monkeypatch)
    with pytest.raises(Violation):
        explore(CAUGHT_WITHIN, SEED, shrink=False)


def test_the_same_seed_does_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    teardown = Turmoil.teardown

    def tells(machine: Turmoil) -> None:
        teardown(machine)
        told.append(repr(machine.world.history))

    monkeypatch.setattr(Turmoil, "teardown", tells)
    explore(300, SEED, shrink=False)
    first = told.copy()
    told.clear()
    explore(300, SEED, shrink=False)
    assert told == first
