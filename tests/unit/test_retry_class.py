"""A retry policy of the user's own: it decides alone, and what it does wrong is stored nowhere."""

import json
from collections.abc import Iterator
from datetime import UTC, timedelta
from typing import Any

import pytest

from ackline.errors import ConfigError
from ackline.ledger import PartitionState
from ackline.offsets import TopicPartition
from ackline.pipeline import Pipeline
from ackline.retry import load_backoff
from ackline.steps import run
from ackline.testing.memory import HandlerCall, Posted, World
from ackline.testing.memory_parts import MemoryParts, memory_parts, no_session
from tests.unit import backoffs
from tests.unit.strategies import NOON

AT = TopicPartition("orders", 0)
MODULE = "tests.unit.backoffs"


class Place:
    """A world with one partition, and a pipeline on it whose retries a class decides."""

    def __init__(self, name: str, *scripts: dict[str, Any]) -> None:
        self.world, self.class_ = World(NOON), f"{MODULE}:{name}"
        for topic in ("orders", "orders.dead"):
            self.world.create_topic(topic)
        for script in scripts:
            self.world.topics["orders"].logs[0].append(json.dumps(script).encode(), NOON)

    def parts(self) -> MemoryParts:
        file = {
            "name": "lane",
            "kafka": {"bootstrap_servers": "memory:1", "group_id": "g", "topics": ["orders"]},
            "handler": "handlers:any",
            "dead_letter": {"topic": "orders.dead"},
            "retry": {"class": self.class_},
        }
        return memory_parts(self.world, Pipeline.model_validate(file), "run")

    def run(self) -> None:
        run.run(self.parts(), no_session)

    def state(self) -> PartitionState:
        newest = self.parts().store.newest()
        assert newest is not None
        return newest.partitions[AT].state

    def calls(self) -> list[tuple[int, int]]:
        return [(one.offset, one.attempt) for one in self.world.history if isinstance(one, HandlerCall)]


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    backoffs.answer = "an error"
    backoffs.asked.clear()
    yield
    backoffs.answer = "an error"


def test_it_says_when_and_how_often_and_no_number_of_the_file_does() -> None:
    place = Place("Patient", {"fail": -1}, {})
    place.run()
    assert set(backoffs.asked) == {(1, NOON, "ValueError", "live/0/orders/0/0/1")}
    (pending,) = place.state().pending
    assert (pending.value.due, pending.value.attempts) == (NOON + timedelta(hours=1), 1)
    assert pending.value.due is not None
    assert pending.value.due.tzinfo is UTC

    place.run()
    assert place.calls() == [(0, 1), (1, 1)], "not before its time"
    place.world.now += timedelta(hours=1)
    place.run()
    assert place.calls()[2:] == [(0, 2)]
    assert place.state() == PartitionState(2)
    assert [letter.said["ackline.attempts"] for letter in place.world.history if isinstance(letter, Posted)] == ["2"]


def test_a_time_that_is_past_is_due_at_the_next_run() -> None:
    place = Place("Hasty", {"fail": 2})
    for _ in range(3):
        place.run()
    assert place.calls() == [(0, 1), (0, 2), (0, 3)]
    assert place.state() == PartitionState(1)


@pytest.mark.parametrize("answer", sorted(backoffs.answers))
def test_an_answer_that_is_no_time_settles_nothing_and_the_turn_goes_on_once_it_is_mended(answer: str) -> None:
    place = Place("Odd", {"fail": 1}, {})
    backoffs.answer = answer
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf"retry class {MODULE}:Odd .*ValueError.*was settled") as caught:
            place.run()
        assert caught.value.key == "retry.class"
        assert place.state() == PartitionState(0)
        assert not [one for one in place.world.history if isinstance(one, Posted)]
    backoffs.answer = "never"
    place.run()
    assert place.calls() == [(0, 1), (1, 1)], "the outcomes were stored"
    assert place.state() == PartitionState(2)


def test_of_an_open_turn_whose_class_is_gone_it_says_which_and_that_it_is_the_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = Place("Odd", {"fail": 1})
    with pytest.raises(ConfigError):
        place.run()
    place.class_ = f"{MODULE}:Patient"
    with monkeypatch.context() as gone:
        gone.delattr(backoffs, "Odd")
        with pytest.raises(ConfigError, match=r"turn 1 .* was planned with it, .*retry class .*:Odd can't be used"):
            place.run()
    backoffs.answer = "never"
    place.run()
    assert place.state() == PartitionState(1)


@pytest.mark.parametrize(("name", "why"), [
    ("Absent", "AttributeError"), ("WithoutMethod", "AttributeError"), ("NotCallable", "TypeError"),
    ("OfTwo", "TypeError: too many"), ("Deferred", "asynchronous"), ("WithArguments", "TypeError"),
    ("Leaves", "SystemExit"),
])  # fmt: skip
def test_what_can_not_be_asked_is_refused_before_anything_is_planned(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"retry class {MODULE}:{name} can't be used: .*{why}") as caught:
        load_backoff(f"{MODULE}:{name}")
    assert caught.value.key == "retry.class"
