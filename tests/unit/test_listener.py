"""A listener is told what is durable, and nothing that it does changes a run."""

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from ackline.errors import ConfigError
from ackline.ledger import PartitionState
from ackline.listener import Listener, ListenerThread, load_listener
from ackline.offsets import TopicPartition
from ackline.pipeline import Pipeline
from ackline.steps import plan, replay, run, settle
from ackline.steps.parts import Parts
from ackline.testing.memory import Posted, World
from ackline.testing.memory_parts import memory_parts, no_session
from tests.unit.strategies import NOON

AT = TopicPartition("orders", 0)
EVENTS = [name.removeprefix("on_") for name in vars(Listener) if name.startswith("on_")]
DEAD, FAILS = {"dead": True}, {"fail": 1}
Do = Callable[[str, tuple[Any, ...]], None]


def doing(do: Do) -> Listener:
    """A listener that does the same at each event."""

    class Does(Listener):
        pass

    for event in EVENTS:
        setattr(Does, f"on_{event}", lambda _, *said, event=event: do(event, said))
    return Does()


class Place:
    """A world with a topic, and a pipeline whose every event goes to a listener."""

    def __init__(self, do: Do) -> None:
        self.world = World(NOON)
        for topic in ("orders", "orders.dead"):
            self.world.create_topic(topic)
        self.teller = ListenerThread(lambda: doing(do))

    def produce(self, *scripts: dict[str, Any]) -> None:
        for script in scripts:
            self.world.topics["orders"].logs[0].append(json.dumps(script).encode(), NOON)

    def parts(self) -> Parts:
        file = {
            "name": "lane",
            "kafka": {"bootstrap_servers": "memory:1", "group_id": "g", "topics": ["orders"]},
            "handler": "handlers:any",
            "dead_letter": {"topic": "orders.dead"},
        }
        return replace(memory_parts(self.world, Pipeline.model_validate(file), "run"), listener=self.teller)

    def run(self) -> run.Ran:
        return run.run(self.parts(), no_session)

    def state(self) -> PartitionState:
        newest = self.parts().store.newest()
        assert newest is not None
        return newest.partitions[AT].state


def story(place: Place) -> object:
    """Two runs in which something of everything happens, and all that is left of them."""
    place.produce({}, FAILS, DEAD, FAILS)
    first = place.run()
    place.produce({})
    place.world.topics["orders"].logs[0].expire(2)
    second = place.run()
    tables, letters = place.world.tables, [one for one in place.world.history if isinstance(one, Posted)]
    settled = [one.settled.committed for one in (first, second) if one.settled]
    return tables.plans, tables.settlements, tables.outcomes, letters, place.world.committed, settled, second.outcomes


def test_every_event_is_told() -> None:
    heard: list[str] = []
    story(Place(lambda event, _: heard.append(event)))
    assert heard == [
        *("partitions_changed", "planned", "handled", "acked", "retry", "dead", "committed"),
        *("planned", "handled", "acked", "expired", "committed"),
    ]


def test_what_it_is_told_is_durable() -> None:
    """Looked up by another process at that moment."""
    told: set[str] = set()

    def look(event: str, said: tuple[Any, ...]) -> None:
        store, newest = place.parts().store, place.parts().store.newest()
        assert newest is not None
        told.add(event)
        match event:
            case "planned":
                assert store.open_plan(newest) == said[0]
            case "handled":
                assert store.has_outcomes(said[0])
            case "partitions_changed":
                assert newest.partitions == said[0]
            case "committed":
                assert place.world.committed["g", AT] == said[0][AT]
            case _:
                assert newest.turn == said[0]
                assert (event != "dead") or any(isinstance(one, Posted) for one in place.world.history)

    wrong: list[BaseException] = []

    def noted(event: str, said: tuple[Any, ...]) -> None:
        try:
            look(event, said)
        except BaseException as error:
            wrong.append(error)

    place = Place(noted)
    story(place)
    assert not wrong
    assert told == set(EVENTS) - {"open", "close"}


def _raises(error: BaseException) -> Do:
    def do(_event: str, _said: tuple[Any, ...]) -> None:
        raise error

    return do


def _spoils(_event: str, said: tuple[Any, ...]) -> None:
    """Changes all that can be changed of what it is given."""
    for one in said:
        inner = [one.partitions, one.settings, *one.partitions.values()] if hasattr(one, "settings") else [one]
        for value in [*inner, *(one.values() if isinstance(one, dict) else ())]:
            for target in (value, getattr(value, "counts", None), getattr(value, "figures", None)):
                if isinstance(target, dict | list):
                    target.clear()


@pytest.mark.parametrize(
    "do",
    [_spoils]
    + [
        _raises(error)
        for error in (ValueError("no"), SystemExit(0), KeyboardInterrupt(), asyncio.CancelledError(), TimeoutError())
    ],
)
def test_whatever_it_does_a_run_is_what_it_is_without(do: Do) -> None:
    assert story(Place(do)) == story(Place(lambda _event, _said: None))


def test_what_it_raises_is_logged_by_its_class_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        story(Place(_raises(ValueError("token=abc"))))
    assert "the listener's on_dead raised ValueError; the run goes on" in caplog.messages
    assert "abc" not in caplog.text


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """What a listener waits for; set when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def test_one_that_hangs_holds_a_run_up_once_and_is_told_nothing_more(
    stuck: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    def hangs(event: str, _said: tuple[Any, ...]) -> None:
        heard.append(event)
        if event == "planned":
            place.teller.patience = 0.05  # not before, so that no slow machine makes it hang earlier
        if event == "handled":
            began.set()
            stuck.wait(60)

    began = threading.Event()
    place = Place(hangs)
    assert story(place) == story(Place(lambda _event, _said: None))
    assert began.wait(30)
    assert heard == ["partitions_changed", "planned", "handled"]
    assert [text for text in caplog.messages if "has not come back" in text] == [
        "the listener's on_handled has not come back for 0.05 s; the run goes on, and it is told nothing more"
    ]


def test_each_call_is_made_in_the_thread_in_which_it_was_made() -> None:
    """What it opens when it is made (SQLite, say) is often good for one thread only."""
    made: list[int] = []
    heard: list[int] = []

    def make() -> Listener:
        made.append(threading.get_ident())
        return doing(lambda *_: heard.append(threading.get_ident()))

    teller = ListenerThread(make)
    for event in ("open", "close"):
        teller.notify(event)
    assert heard == made * 2


def test_a_method_that_takes_something_else_is_not_heard_and_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Old(Listener):
        def on_planned(self) -> None:  # type: ignore[override]
            raise AssertionError("never called")

    place = Place(lambda *_: None)
    place.teller = ListenerThread(Old)
    story(place)
    assert "the listener's on_planned raised TypeError; the run goes on" in caplog.messages


def test_a_record_whose_letter_is_not_acknowledged_is_no_retry_and_dead_only_once_it_is() -> None:
    heard: list[tuple[str, Any]] = []
    place = Place(lambda event, said: heard.append((event, said[-1])))
    place.produce({}, DEAD, FAILS)
    place.world.faults.letters.append("unanswered")
    place.run()
    assert [said for said in heard if said[0] in ("retry", "dead")] == [("retry", {AT: [2]})]
    heard.clear()
    place.run()
    assert [said for said in heard if said[0] in ("retry", "dead")] == [("dead", {AT: [1]})]


def test_a_lane_that_finds_no_topic_has_no_partitions_changed() -> None:
    heard: list[str] = []
    place = Place(lambda event, _: heard.append(event))
    place.world.delete_topic("orders")
    place.run()
    assert heard == []


def test_who_loses_a_number_tells_nothing_of_it() -> None:
    heard: list[str] = []
    place = Place(lambda event, _: heard.append(event))
    place.produce({}, {})
    parts, rival = place.parts(), replace(place.parts(), listener=None)
    plan.plan(rival)
    replay.replay(rival, no_session)
    newest = rival.store.newest()
    open_plan = rival.store.open_plan(newest) if newest else None
    assert newest is not None
    assert open_plan is not None
    settle.settle(rival)
    assert settle.settle_turn(parts, open_plan, newest) is None
    assert heard == []


class Leaves(Listener):
    """Exits when it is made."""

    def __init__(self) -> None:
        raise SystemExit(0)


class NoListener:
    """Has none of the methods."""


@pytest.mark.parametrize(
    ("name", "why"), [("Leaves", "can't be made: SystemExit"), ("Absent", "AttributeError"), ("NoListener", "is no")]
)
def test_what_is_no_listener_is_refused(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"listener {__name__}:{name} .*{why}") as caught:
        load_listener(f"{__name__}:{name}")
    assert caught.value.key == "listener"


def test_without_a_listener_no_thread_is_started_and_one_ends_with_its_run() -> None:
    before = threading.active_count()
    assert load_listener(None) is None
    teller = ListenerThread(Listener)
    assert threading.active_count() == before + 1
    teller.close()
    teller.thread.join(10)
    assert not teller.thread.is_alive()
