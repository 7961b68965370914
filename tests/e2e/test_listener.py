"""A listener is told, in batches, what is durable, and can't break a run."""

from collections.abc import Iterator
from typing import Any

import pytest

from ackline.listener import Listener
from tests.e2e.fixtures import MakeLab

EVENTS = ["open", "planned", "handled", "acked", "retry", "dead", "expired", "partitions_changed", "committed", "close"]
heard: list[tuple[str, tuple[Any, ...]]] = []


def _hears(event: str) -> Any:
    return lambda self, *said: heard.append((event, said))


class Hears(Listener):
    """Writes everything down."""


for _event in EVENTS:
    setattr(Hears, f"on_{_event}", _hears(_event))


class Raises(Listener):
    """Breaks at everything."""

    def on_planned(self, *_: object) -> None:
        raise RuntimeError("a listener's own trouble")

    def on_committed(self, *_: object) -> None:
        raise SystemExit(3)


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    heard.clear()
    yield
    heard.clear()


def test_a_listener_hears_what_is_durable_in_its_order(lab: MakeLab) -> None:
    one = lab(
        listener="tests.e2e.test_listener:Hears",
        retry={"max_retries": 0, "by_error": {"ValueError": {"max_retries": 1}}},
    )
    one.records(4, {1: {"fail": 1}, 2: b"{not json"})
    one.run()
    assert [event for event, _ in heard] == [
        *["open", "partitions_changed", "planned", "handled", "acked", "retry", "dead", "committed", "close"]
    ]
    said = {event: [list(one.values()) for one in values if isinstance(one, dict)] for event, values in heard}
    assert said["acked"] == [[2]]
    assert said["retry"] == [[[1]]]
    assert said["dead"] == [[[2]]]


def test_a_listener_that_raises_does_not_break_the_run(lab: MakeLab) -> None:
    one = lab(listener="tests.e2e.test_listener:Raises")
    one.records(3)
    one.run()
    assert one.committed() == 3
