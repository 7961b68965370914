"""What the steps of a pipeline did in one turn, or in several: counts, execute times and the latency of trees. Pure.

The tasks of a turn report it, replay stores it with the report of the turn, and settle copies it into the settlement.
A turn has one settlement, so a turn that is settled twice counts once.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ackline.tuples import SOURCE, Durations, StepCounts

_MILLISECOND = 1_000_000


@dataclass(slots=True)
class StepFigures:
    """The figures of all steps, by name: `source` first, the others in the order of the pipeline file."""

    steps: dict[str, StepCounts] = field(default_factory=dict)
    latency: Durations = field(default_factory=Durations)
    """From the call of a record's own handler to the end of its tree, of the records that were acked."""
    turns: int = 1
    """Of how many turns the figures are the sum."""

    @classmethod
    def of_steps(cls, names: Iterable[str]) -> "StepFigures":
        """Returns the figures of no turn, with these steps after `source`."""
        return cls({name: StepCounts() for name in (SOURCE, *names)}, turns=0)

    def add(self, other: "StepFigures") -> None:
        """Adds the figures of other turns. A step that is not among these steps is left out: the file has changed."""
        for name, counts in self.steps.items():
            if name in other.steps:
                counts.add(other.steps[name])
        self.latency.add(other.latency)
        self.turns += other.turns

    def encode(self) -> str:
        """Returns the figures as the text that the tables hold: JSON of about 150 bytes a step. Times are in ms."""
        steps = {name: done.numbers() | _encoded(done.execute, "execute_ms") for name, done in self.steps.items()}
        stored = {"steps": steps, "complete": _encoded(self.latency, "latency_ms")}
        return json.dumps(stored, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str | None) -> "StepFigures | None":
        """Returns the figures of one turn in a text of the tables; None if it holds none: another version of Ackline
        may have written it."""
        try:
            stored = json.loads(text or "null")
            steps = {
                str(name): StepCounts(
                    **{count: int(done[count]) for count in StepCounts().numbers()},
                    execute=_decoded(done, "execute_ms"),
                )
                for name, done in stored["steps"].items()
            }
            return cls(steps, _decoded(stored["complete"], "latency_ms"))
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


def figures_over(stored: Iterable[str | None], names: Sequence[str] | None = None) -> StepFigures:
    """Returns the sum of the figures of several turns, oldest first, as the tables hold them.

    It has the steps `names` after `source`; without them, the steps of the newest turn, none if there is no turn.
    """
    decoded = [figures for text in stored if (figures := StepFigures.decode(text)) is not None]
    total = StepFigures({}, turns=0) if names is None else StepFigures.of_steps(names)
    if names is None and decoded:
        total.steps = {name: StepCounts() for name in decoded[-1].steps}
    for figures in decoded:
        total.add(figures)
    return total


def steps_json(figures: StepFigures) -> dict[str, Any]:
    """Returns the figures as `ackline status --json` prints them. Times are in milliseconds; null without a call."""
    steps = [
        {"step": name, **done.numbers(), "execute_ms": mean_and_max(done.execute)}
        for name, done in figures.steps.items()
    ]
    return {"steps": steps, "complete_latency_ms": mean_and_max(figures.latency)}


def mean_and_max(durations: Durations) -> dict[str, float | None]:
    """Returns mean and maximum in milliseconds, to a microsecond; both None if nothing was measured."""
    if not durations.count:
        return {"mean": None, "max": None}
    mean = durations.total / durations.count
    return {"mean": round(mean / _MILLISECOND, 3), "max": round(durations.longest / _MILLISECOND, 3)}


def _encoded(durations: Durations, name: str) -> dict[str, float]:
    total, longest = (round(ns / _MILLISECOND, 6) for ns in (durations.total, durations.longest))
    return {"count": durations.count, name: total, f"{name}_max": longest}


def _decoded(stored: Mapping[str, Any], name: str) -> Durations:
    total, longest = (round(float(stored[key]) * _MILLISECOND) for key in (name, f"{name}_max"))
    return Durations(int(stored["count"]), total, longest)
