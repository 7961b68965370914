"""`retry.class`, a retry class of the user: it alone decides, and no invalid answer of it is stored. And retries
without end."""

from collections.abc import Iterator
from datetime import UTC, timedelta

import pytest

from ackline.errors import ConfigError
from ackline.ledger.fold import PartitionState, PendingKind
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnKind
from ackline.pipeline.blocks import load_backoff
from tests.pipeline import retry_classes
from tests.support.memory_lane import DEAD, FAILS, FAILS_ONCE, NOON, OK, TP, MemoryLane

MODULE = "tests.pipeline.retry_classes"


def lane_of(name: str, *records: bytes) -> MemoryLane:
    """A lane whose retries the class `name` decides."""
    return MemoryLane(*records, retry={"class": f"{MODULE}:{name}"})


@pytest.fixture(autouse=True)
def _default_answer() -> Iterator[None]:
    retry_classes.answer = "an error"
    retry_classes.calls.clear()
    yield
    retry_classes.answer = "an error"


def test_a_retry_class_decides_when_and_how_often_a_record_is_retried() -> None:
    lane = lane_of("Patient", FAILS, OK).after_run()
    assert set(retry_classes.calls) == {(1, NOON, "ValueError", "live/0/orders/0/0/1")}
    (pending,) = lane.state().pending
    assert (pending.value.due, pending.value.attempts) == (NOON + timedelta(hours=1), 1)
    assert pending.value.due is not None
    assert pending.value.due.tzinfo is UTC
    lane.run()
    assert lane.calls() == [(0, 1), (1, 1)], "not before its time"
    lane.world.now += timedelta(hours=1)
    lane.run()
    assert (lane.calls()[2:], lane.state()) == ([(0, 2)], PartitionState(2))
    assert [letter.headers["ackline.attempts"] for letter in lane.letters()] == ["2"]


def test_a_due_time_in_the_past_means_the_next_run() -> None:
    lane = lane_of("Hasty", b'{"fail": 2}')
    for _ in range(3):
        lane.run()
    assert (lane.calls(), lane.state()) == ([(0, 1), (0, 2), (0, 3)], PartitionState(1))


@pytest.mark.parametrize("answer", sorted(retry_classes.invalid))
def test_an_invalid_answer_settles_nothing_and_the_turn_goes_on_once_the_class_is_corrected(answer: str) -> None:
    lane = lane_of("Odd", FAILS_ONCE, OK)
    retry_classes.answer = answer
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf"retry class {MODULE}:Odd .*ValueError.*was settled") as caught:
            lane.run()
        assert (caught.value.key, lane.state()) == ("retry.class", PartitionState(0))
        assert not lane.letters()
    retry_classes.answer = "never"
    lane.run()
    assert lane.calls() == [(0, 1), (1, 1)], "the stored outcomes count, and nothing is handled again"
    assert lane.state() == PartitionState(2)


def test_an_open_turn_keeps_to_its_retry_class_and_the_error_names_both_if_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lane = lane_of("Odd", FAILS_ONCE)
    lane.run_fails(ConfigError)
    lane.settings["retry"] = {"class": f"{MODULE}:Patient"}
    with monkeypatch.context() as gone:
        gone.delattr(retry_classes, "Odd")
        lane.run_fails(ConfigError, r"turn 1 .*retry class .*:Odd can't be used")
    retry_classes.answer = "never"
    lane.run()
    assert lane.state() == PartitionState(1)


@pytest.mark.parametrize(("name", "why"), [
    ("Absent", "AttributeError"), ("WithoutMethod", "AttributeError"), ("NotCallable", "TypeError"),
    ("OfTwoArguments", "TypeError: too many"), ("Asynchronous", "asynchronous"), ("MadeWithArguments", "TypeError"),
    ("Exits", "SystemExit"),
])  # fmt: skip
def test_a_class_that_can_not_be_called_is_refused_before_anything_is_planned(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"retry class {MODULE}:{name} can't be used: .*{why}") as caught:
        load_backoff(f"{MODULE}:{name}")
    assert caught.value.key == "retry.class"


def test_i5_with_retries_forever_no_record_becomes_dead_by_its_failures_but_a_handlers_dead_is() -> None:
    lane = MemoryLane(FAILS, OK, DEAD, retry={"max_retries": "forever", "period": "0s"})
    for _ in range(30):
        lane.run()
    (pending,) = lane.state().pending
    assert (pending.start, pending.value.kind, pending.value.attempts) == (0, PendingKind.RETRY, 30)
    assert lane.ranges(Outcome.DEAD) == [(2, 3)]
    assert ([letter.headers["ackline.offset"] for letter in lane.letters()], lane.committed()) == (["2"], 0)


def test_a_record_that_is_retried_forever_is_skipped_by_an_operator() -> None:
    lane = MemoryLane(FAILS, OK, retry={"max_retries": "forever", "period": "0s"}).after_run()
    lane.perform(TurnKind.SKIP, {TP: 1})
    assert (lane.committed(), lane.pending()) == (2, [])
