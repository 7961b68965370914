"""The figures of steps: sums over turns, means in milliseconds, and what the tables hold."""

import json
from typing import Any

import pytest

from ackline.ledger.metrics import StepFigures, figures_over, steps_json
from ackline.tuples import Durations, StepCounts


def figures(**steps: tuple[int, int, int, int, int]) -> StepFigures:
    """Figures of one turn. A step has executed, emitted, acked, failed and the milliseconds of its only call."""
    done = {
        name: StepCounts(executed, emitted, acked, failed, ms(time))
        for name, (executed, emitted, acked, failed, time) in steps.items()
    }
    return StepFigures(done, Durations(2, 30_000_000, 20_000_000))


def ms(time: int) -> Durations:
    return Durations(1, time * 1_000_000, time * 1_000_000)


def test_a_duration_keeps_number_sum_and_maximum() -> None:
    spans = Durations()
    for nanoseconds in (5, 1, 9, 3):
        spans.measure(nanoseconds)
    assert spans == Durations(4, 18, 9)
    spans.add(Durations(2, 20, 12))
    assert spans == Durations(6, 38, 12)


def test_the_figures_of_turns_are_added_up_for_the_steps_of_the_file() -> None:
    first = figures(source=(3, 9, 2, 1, 4), price=(9, 0, 8, 1, 6), gone=(1, 1, 1, 1, 1))
    second = figures(source=(1, 3, 1, 0, 2), price=(3, 0, 3, 0, 8))
    total = figures_over([first.encode(), None, second.encode()], ["price", "new"])
    assert list(total.steps) == ["source", "price", "new"]
    assert total.turns == 2
    assert steps_json(total) == {
        "steps": [
            {"step": "source", "executed": 4, "emitted": 12, "acked": 3, "failed": 1, "execute_ms": times(3.0, 4.0)},
            {"step": "price", "executed": 12, "emitted": 0, "acked": 11, "failed": 1, "execute_ms": times(7.0, 8.0)},
            {"step": "new", "executed": 0, "emitted": 0, "acked": 0, "failed": 0, "execute_ms": times(None, None)},
        ],
        "complete_latency_ms": times(15.0, 20.0),
    }


def times(mean: float | None, longest: float | None) -> dict[str, float | None]:
    return {"mean": mean, "max": longest}


def test_without_the_file_the_steps_are_those_of_the_newest_turn() -> None:
    stored = [figures(source=(1, 0, 1, 0, 1), gone=(1, 1, 1, 1, 1)), figures(source=(1, 0, 1, 0, 1))]
    assert list(figures_over([turn.encode() for turn in stored]).steps) == ["source"]
    assert figures_over([]) == StepFigures({}, turns=0)


def test_the_tables_hold_the_figures_to_a_nanosecond() -> None:
    stored = figures(source=(3, 9, 2, 1, 4))
    stored.steps["source"].execute = Durations(7, 1_000_000_001, 900_000_003)
    assert StepFigures.decode(stored.encode()) == stored
    assert json.loads(stored.encode())["steps"]["source"]["execute_ms_max"] == 900.000003


@pytest.mark.parametrize("text", [None, "", "{}", "[]", "no json", '{"steps": {"a": 1}}', '{"steps": []}'])
def test_what_holds_no_figures_is_none(text: Any) -> None:
    assert StepFigures.decode(text) is None
