"""When the listener gets its events: after the write that each of them is about, and from one process only."""

from collections.abc import Callable

from ackline.listener import Listener, ListenerThread
from tests.memory_lane import DEAD, FAILS_ONCE, OK, MemoryLane
from tests.support.memory import BEFORE, GroupCommit, TableCommit
from tests.support.memory_parts import MemoryParts

EVENTS = ["planned", "handled", "acked", "retry", "dead", "expired", "partitions_changed", "committed"]


def parts_with_listener(lane: MemoryLane, heard: Callable[[str], object]) -> MemoryParts:
    """Parts whose listener calls `heard` with the name of each event."""
    listener = Listener()
    for event in EVENTS:
        setattr(listener, f"on_{event}", lambda *_, event=event: heard(event))
    return lane.parts(listener=ListenerThread(lambda: listener))


def test_an_event_follows_the_write_that_it_is_about() -> None:
    lane = MemoryLane(OK, FAILS_ONCE, DEAD)
    events: list[tuple[str, str]] = []

    def heard(event: str) -> None:
        last = next(write for write in reversed(lane.world.history) if isinstance(write, TableCommit | GroupCommit))
        written = last.application.rsplit("/", 1)[-1] if isinstance(last, TableCommit) else "commit"
        events.append((event, written))

    lane.run(parts_with_listener(lane, heard))
    assert events == [
        ("partitions_changed", "settlement"), ("planned", "plan"), ("handled", "outcomes"),
        *((event, "settlement") for event in ("acked", "retry", "dead")), ("committed", "commit"),
    ]  # fmt: skip


def test_a_process_that_loses_a_settlement_to_another_passes_no_event_of_it() -> None:
    lane = MemoryLane(OK)
    events: list[str] = []
    lane.plan_and_replay()
    lane.strike("settlement", lane.settle, BEFORE)
    lane.settle(parts_with_listener(lane, events.append))
    assert (events, lane.committed()) == (["committed"], 1)
