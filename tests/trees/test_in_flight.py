"""Records in flight in a pipeline with steps: the worst of a record's own tree and of its answer counts."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from ackline.handler import Dead, Durations, Emit, Hold, InFlight, Record, Skip, Tuple
from ackline.ledger.answers import TokenSigner
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnId
from ackline.pipeline.topology import SOURCE_STEP, Topology
from ackline.trees.answers import Emissions
from ackline.trees.isolated import IsolatedTreeCalls, Returned
from ackline.worker.call import use_in_flight_settings
from ackline.worker.outcomes import InvalidOutcome, Outcomes, RowOutcome
from ackline.worker.settings import ReplaySettings
from tests.trees.stages import JOIN, LOCAL, NOW, ONE, SEEDS, TP, Lab, each_item, nothing, pass_on, ran, shown, task_of
from tests.worker.batches import records_of

SIGNER = TokenSigner(b"key", "ledger", TurnId("shop", "live", 0, 1), {})


def settings(tokens: TokenSigner | None) -> ReplaySettings:
    return ReplaySettings(None, False, Outcome.FAILED, None, tokens=tokens, in_flight_timeout=timedelta(seconds=10))


@pytest.fixture
def in_flight() -> Iterator[None]:
    """Handlers may answer InFlight, with a timeout of ten seconds."""
    use_in_flight_settings(settings(SIGNER))
    yield
    use_in_flight_settings(settings(None))


def waiting(record: Record) -> Iterator[Any]:
    """Emits each item of the value, with the InFlight in the middle."""
    yield from list(each_item(record))[:1]
    yield InFlight()
    yield from list(each_item(record))[1:]


@pytest.mark.parametrize("of", [ONE, LOCAL])
@pytest.mark.usefixtures("in_flight")
def test_a_record_in_flight_takes_the_worst_of_its_tree_and_its_answer(of: Topology) -> None:
    def handle(given: Tuple) -> None:
        if given.value in ("skip", "fail", "dead"):
            raise {"skip": Skip("unwanted"), "fail": ValueError("broken"), "dead": Dead("never")}[given.value]

    last = [handle] if of is ONE else [pass_on, handle]
    found = Lab(of, waiting, last).run({0: ["a"], 1: ["a", "skip"], 2: ["skip", "fail"], 3: ["fail", "dead"]})
    name = of.names[-1]
    assert [shown(found[offset])[:2] for offset in range(4)] == [
        ("in_flight", None), ("in_flight", "Skip"), ("failed", "ValueError"), ("failed", "Dead"),
    ]  # fmt: skip
    kept = found[1]
    assert kept is not None
    assert (kept.error_message, kept.due, kept.handled_at) == (f"step {name}: unwanted", NOW + 10_000_000, NOW)


@pytest.mark.usefixtures("in_flight")
def test_a_record_in_flight_with_a_held_tuple_fails_as_unacked() -> None:
    lab = Lab(JOIN, waiting, [lambda given: [Hold(each) for each in given if each.value == "hold"]])
    found = lab.run({0: ["a"], 1: ["hold"]})
    assert [shown(found[offset])[:2] for offset in (0, 1)] == [("in_flight", None), ("failed", "Unacked")]


@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.usefixtures("in_flight")
def test_without_an_event_the_call_returns_the_answer_and_no_latency_is_measured(tracked: bool) -> None:
    lab = Lab(ONE, waiting, [nothing], tracked=tracked)
    calls, seeds = lab._calls(), SEEDS if tracked else None
    never, soon = InFlight(), InFlight(timedelta(seconds=1))
    assert calls.call_source(lambda _: never, record_of(), seeds) is never
    assert calls.call_source(lambda _: [Emit("x"), soon], record_of(), seeds) is (None if tracked else soon)
    assert calls.end().events.dues == ({0: NOW + 1_000_000} if tracked else {})
    assert calls.figures.latency.count == 0


def record_of() -> Record:
    return Record("orders", 0, 0, None, None, ["a"], (), 1)


@pytest.mark.parametrize(("answers", "reason"), [
    ([InFlight(), Emit("x"), InFlight()], "yielded InFlight twice"),
    ([Emit("x"), InFlight(timedelta(0))], "no timedelta above zero"),
    ([Emit("x"), InFlight("soon")], "no text such as 30s"),
    ([Emit("x"), InFlight], r"yielded InFlight; yield InFlight\(\)"),
])  # fmt: skip
@pytest.mark.usefixtures("in_flight")
def test_an_in_flight_that_can_not_be_one_delivers_nothing(answers: list[Any], reason: str) -> None:
    calls = Lab(ONE, each_item, [nothing])._calls()
    with pytest.raises(InvalidOutcome, match=reason):
        calls.call_source(lambda _: answers, record_of(), SEEDS)
    ended = calls.end()
    assert (len(ended.events), ended.rows) == (0, [])


def test_without_an_ack_topic_an_in_flight_is_refused() -> None:
    with pytest.raises(InvalidOutcome, match="InFlight needs `ack_topic`"):
        Lab(ONE, each_item, [nothing])._calls().call_source(lambda _: [Emit("x"), InFlight()], record_of(), SEEDS)


@pytest.mark.usefixtures("in_flight")
def test_a_step_that_answers_in_flight_fails_its_tuple() -> None:
    [(outcome, error_class, message)] = ran(ONE, lambda _: InFlight(), r0=["a"]).values()
    assert (outcome, error_class) == (Outcome.FAILED, "InvalidOutcome")
    assert "step end yielded InFlight; only the handler of the records may" in str(message)


class Process:
    """The handler's process: it has returned what the handler answered for the record at offset 0."""

    def __init__(self, emitted: Emissions, due: int) -> None:
        self.lost = Durations()
        self._returned = Returned(0, 1, emitted, [InFlight()], due)

    def take_returned(self) -> list[tuple[int, Returned]]:
        return [(0, self._returned)]


@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize("emits", [True, False])
def test_an_isolated_record_is_in_flight_by_its_event_or_without_one_by_its_outcome(tracked: bool, emits: bool) -> None:
    task = task_of(ONE, isolated=True, tokens=SIGNER, in_flight_timeout=timedelta(seconds=10))
    calls = IsolatedTreeCalls(task, lambda: NOW, None, SOURCE_STEP)
    emitted = Emissions([0], ["k"], ["v"]) if emits else Emissions()
    calls.process = Process(emitted, NOW + 5)  # type: ignore[assignment]
    outcomes = Outcomes(np.array([NOW]))
    one = replace(records_of([b"a"]), tp=TP, offsets=np.array([0]), attempts=np.array([1], np.int32))
    calls.deliver_records(one, outcomes, SEEDS if tracked else None)
    events = calls.end().events
    if tracked and emits:
        assert (dict(events.dues), outcomes.not_acked) == ({0: NOW + 5}, [])
    else:
        assert outcomes.not_acked == [RowOutcome(0, Outcome.IN_FLIGHT, None, None, NOW, NOW + 5)]
        assert len(events) == 0
    assert calls.figures.latency.count == 0
