"""A listener gets what is durable, in batches."""

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


@pytest.fixture(autouse=True)
def _no_events() -> Iterator[None]:
    events.clear()
    yield
    events.clear()


def test_a_listener_gets_what_is_durable_in_its_order(lab: MakeLab) -> None:
    """One record waits for a retry, and one is dead at once by the policy of its error class."""
    lane = lab(listener="tests.e2e.test_listener:Keeps", retry={"by_error": {"JSONDecodeError": "never"}})
    lane.produce_records(4, {1: {"fail": 1}, 2: b"{not json"})
    lane.run()
    assert [event for event, _ in events] == [
        *["open", "partitions_changed", "planned", "handled", "acked", "retry", "dead", "committed", "close"]
    ]
    counts = {
        event: [list(detail.values()) for detail in details if isinstance(detail, dict)] for event, details in events
    }
    assert counts["acked"] == [[2]]
    assert counts["retry"] == [[[1]]]
    assert counts["dead"] == [[[2]]]
