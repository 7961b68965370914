"""A listener gets what is durable, in batches, and cannot break a run."""

from collections.abc import Iterator
from typing import Any

import pytest

from ackline.listener import Listener
from tests.e2e.fixtures import MakeLab

EVENTS = ["open", "planned", "handled", "acked", "retry", "dead", "expired", "partitions_changed", "committed", "close"]
events: list[tuple[str, tuple[Any, ...]]] = []


def _keeps(event: str) -> Any:
    return lambda self, *details: events.append((event, details))


class Keeps(Listener):
    """Keeps each event."""


for _event in EVENTS:
    setattr(Keeps, f"on_{_event}", _keeps(_event))


class Raises(Listener):
    """Raises an exception at one event, and exits at another."""

    def on_planned(self, *_: object) -> None:
        raise RuntimeError("a listener's own trouble")

    def on_committed(self, *_: object) -> None:
        raise SystemExit(3)


@pytest.fixture(autouse=True)
def _no_events() -> Iterator[None]:
    events.clear()
    yield
    events.clear()


def test_a_listener_gets_what_is_durable_in_its_order(lab: MakeLab) -> None:
    one = lab(
        listener="tests.e2e.test_listener:Keeps",
        retry={"max_retries": 0, "by_error": {"ValueError": {"max_retries": 1}}},
    )
    one.records(4, {1: {"fail": 1}, 2: b"{not json"})
    one.run()
    assert [event for event, _ in events] == [
        *["open", "partitions_changed", "planned", "handled", "acked", "retry", "dead", "committed", "close"]
    ]
    counts = {
        event: [list(detail.values()) for detail in details if isinstance(detail, dict)] for event, details in events
    }
    assert counts["acked"] == [[2]]
    assert counts["retry"] == [[[1]]]
    assert counts["dead"] == [[[2]]]


def test_a_listener_that_raises_does_not_break_the_run(lab: MakeLab) -> None:
    one = lab(listener="tests.e2e.test_listener:Raises")
    one.records(3)
    one.run()
    assert one.committed() == 3
