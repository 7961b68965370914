"""A listener gets durable events only, and nothing that it does changes a run."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ackline.errors import ConfigError
from ackline.lane.listeners import ListenerThread, load_listener
from ackline.listener import Listener
from tests.support.memory import BEFORE
from tests.support.memory_lane import DEAD, FAILS_ONCE, GROUP, OK, TP, MemoryLane

EVENTS = [name.removeprefix("on_") for name in vars(Listener) if name.startswith("on_")]
OnEvent = Callable[[str, tuple[Any, ...]], object]


def listener_that(on_event: OnEvent) -> Listener:
    """Returns a listener that calls `on_event` with the name and the arguments of each event."""
    listener = Listener()
    for event in EVENTS:
        setattr(listener, f"on_{event}", lambda *details, event=event: on_event(event, details))
    return listener


def thread_of(on_event: OnEvent) -> ListenerThread:
    return ListenerThread(lambda: listener_that(on_event))


def run_twice(lane: MemoryLane, thread: ListenerThread | None) -> object:
    """Makes two runs in which each event of a turn occurs, and returns everything that they leave."""
    lane.produce(OK, FAILS_ONCE, DEAD, FAILS_ONCE)
    first = lane.run(lane.adapters(listener=thread))
    lane.produce(OK)
    lane.log().expire(2)
    second = lane.run(lane.adapters(listener=thread))
    tables = lane.world.tables
    commits = [result.commit.committed for result in (first, second) if result.commit]
    return tables.plans, tables.settlements, tables.outcomes, lane.letters(), lane.world.committed, commits, second


@pytest.fixture
def lane() -> MemoryLane:
    """An empty lane."""
    return MemoryLane()


def test_a_listener_gets_each_event_in_order(lane: MemoryLane) -> None:
    events: list[str] = []
    run_twice(lane, thread_of(lambda event, _: events.append(event)))
    assert events == [
        *("partitions_changed", "planned", "handled", "acked", "retry", "dead", "committed"),
        *("planned", "handled", "acked", "expired", "committed"),
    ]


def test_what_an_event_reports_is_durable(lane: MemoryLane) -> None:
    events: set[str] = set()
    errors: list[BaseException] = []

    def check(event: str, details: tuple[Any, ...]) -> None:
        store, newest = lane.adapters().store, lane.newest()
        events.add(event)
        match event:
            case "planned":
                assert store.open_plan(newest) == details[0]
            case "handled":
                assert store.has_outcomes(details[0])
            case "partitions_changed":
                assert newest.partitions == details[0]
            case "committed":
                assert lane.world.committed[GROUP, TP] == details[0][TP]
            case _:
                assert newest.turn == details[0]
                assert event != "dead" or lane.letters()

    def on_event(event: str, details: tuple[Any, ...]) -> None:
        try:
            check(event, details)
        except BaseException as error:
            errors.append(error)

    run_twice(lane, thread_of(on_event))
    assert not errors
    assert events == set(EVENTS) - {"open", "close"}


def raises(error: BaseException) -> OnEvent:
    def on_event(_event: str, _details: tuple[Any, ...]) -> None:
        raise error

    return on_event


def clears_its_arguments(_event: str, details: tuple[Any, ...]) -> None:
    for detail in details:
        inner = [detail]
        if hasattr(detail, "settings"):
            inner = [detail.partitions, detail.settings, *detail.partitions.values()]
        for value in [*inner, *(detail.values() if isinstance(detail, dict) else ())]:
            for target in (value, getattr(value, "counts", None), getattr(value, "metrics", None)):
                if isinstance(target, dict | list):
                    target.clear()


ERRORS = (ValueError("no"), SystemExit(0), KeyboardInterrupt(), asyncio.CancelledError(), TimeoutError())


@pytest.mark.parametrize("on_event", [clears_its_arguments, *map(raises, ERRORS)])
def test_a_run_is_the_same_whatever_its_listener_does(lane: MemoryLane, on_event: OnEvent) -> None:
    assert run_twice(lane, thread_of(on_event)) == run_twice(MemoryLane(), None)


def test_i13_an_exception_is_logged_by_its_class_alone(lane: MemoryLane, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run_twice(lane, thread_of(raises(ValueError("token=abc"))))
    assert "the listener's on_dead raised ValueError; the run continues" in caplog.messages
    assert "abc" not in caplog.text


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """An event that a listener waits for; set when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def test_a_listener_that_hangs_delays_a_run_once_and_is_called_no_more(
    lane: MemoryLane, stuck: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[str] = []
    began = threading.Event()

    def hangs(event: str, _details: tuple[Any, ...]) -> None:
        events.append(event)
        if event == "planned":
            thread.timeout = 0.05  # not earlier, so that a slow machine causes no timeout before
        if event == "handled":
            began.set()
            stuck.wait(60)

    thread = thread_of(hangs)
    assert run_twice(lane, thread) == run_twice(MemoryLane(), None)
    assert began.wait(30)
    assert events == ["partitions_changed", "planned", "handled"]
    assert [text for text in caplog.messages if "has not returned" in text] == [
        "the listener's on_handled has not returned for 0.05 s; the run continues and calls the listener no more"
    ]


def test_a_listener_is_created_and_called_in_one_thread() -> None:
    """A connection to SQLite, for example, may be used only in the thread that opened it."""
    created: list[int] = []
    called: list[int] = []

    def make() -> Listener:
        created.append(threading.get_ident())
        return listener_that(lambda *_: called.append(threading.get_ident()))

    thread = ListenerThread(make)
    for event in ("open", "close"):
        thread.notify(event)
    assert called == created * 2


def test_a_method_with_other_parameters_breaks_nothing(lane: MemoryLane, caplog: pytest.LogCaptureFixture) -> None:
    class Old(Listener):
        def on_planned(self) -> None:  # type: ignore[override]
            raise AssertionError("never called")

    run_twice(lane, ListenerThread(Old))
    assert "the listener's on_planned raised TypeError; the run continues" in caplog.messages


def test_a_record_whose_dead_letter_is_not_acknowledged_is_not_a_retry_and_not_dead_yet(lane: MemoryLane) -> None:
    events: list[tuple[str, Any]] = []
    thread = thread_of(lambda event, details: events.append((event, details[-1])))
    lane.produce(OK, DEAD, FAILS_ONCE)
    lane.world.faults.letters.append("unanswered")
    for expected in [("retry", {TP: [2]})], [("dead", {TP: [1]})]:
        lane.run(lane.adapters(listener=thread))
        assert [event for event in events if event[0] in ("retry", "dead")] == expected
        events.clear()


def test_a_lane_without_a_topic_has_no_event(lane: MemoryLane) -> None:
    events: list[str] = []
    lane.settings["missing_topics"] = "wait"
    lane.world.delete_topic("orders")
    lane.run(lane.adapters(listener=thread_of(lambda event, _: events.append(event))))
    assert events == []


def test_a_process_that_loses_a_settlement_to_another_passes_no_event_of_it() -> None:
    lane = MemoryLane(OK)
    events: list[str] = []
    lane.plan_and_replay()
    lane.strike("settlement", lane.settle, BEFORE)
    lane.settle(lane.adapters(listener=thread_of(lambda event, _: events.append(event))))
    assert (events, lane.committed()) == (["committed"], 1)


class Exits(Listener):
    def __init__(self) -> None:
        raise SystemExit(0)


class NotAListener: ...


class Later(Listener):
    async def on_acked(self, turn: object, counts: object) -> None:  # type: ignore[override]
        """Is never awaited."""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Exits", "can't be created: SystemExit"),
        ("Absent", "AttributeError"),
        ("NotAListener", "not a subclass"),
        ("Later", "has an asynchronous on_acked"),
    ],
)
def test_a_class_that_cannot_be_a_listener_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"listener {__name__}:{name} .*{reason}") as caught:
        load_listener(f"{__name__}:{name}")
    assert caught.value.key == "listener"


def test_no_thread_is_started_without_a_listener_and_a_closed_listener_ends_its_thread() -> None:
    before = threading.active_count()
    assert load_listener(None) is None
    thread = ListenerThread(Listener)
    assert threading.active_count() == before + 1
    thread.close()
    thread.thread.join(10)
    assert not thread.thread.is_alive()
