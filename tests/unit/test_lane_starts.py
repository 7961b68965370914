"""Where partitions start that the ledger does not know: what the lane knew before decides, and who committed (S30)."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from ackline.commit_rule import CommitMetadata, Committed
from ackline.errors import FatalError, TopicChanged
from ackline.offsets import TopicPartition
from ackline.pipeline import Pipeline
from ackline.steps import operator_actions, run
from ackline.testing.memory import HandlerCall, MemoryLog, World
from ackline.testing.memory_parts import MemoryParts, memory_parts, no_session
from ackline.turns import SettledPartition, TurnKind
from tests.unit.strategies import NOON

OLD, NEW = TopicPartition("orders", 0), TopicPartition("payments", 0)


@dataclass
class Lane:
    """A pipeline that starts at the end, on `topics` of a world; its topics hold four records each."""

    settings: dict[str, Any] = field(default_factory=lambda: {"start": "latest"})
    topics: list[str] = field(default_factory=lambda: [OLD.topic])
    world: World = field(default_factory=lambda: World(NOON))
    isolation: str = "read_committed"

    def __post_init__(self) -> None:
        self.create(OLD.topic)

    def create(self, topic: str, partitions: int = 1) -> None:
        for log in self.world.create_topic(topic, partitions).logs.values():
            for _ in range(4):
                log.append(b"{}", NOON)

    def parts(self) -> MemoryParts:
        kafka = {"bootstrap_servers": "memory:1", "group_id": "g", "topics": self.topics, "isolation": self.isolation}
        file = {"name": "lane", "handler": "a:b", "dead_letter": "none", "kafka": kafka, **self.settings}
        return memory_parts(self.world, Pipeline.model_validate(file), "run")

    def run(self) -> None:
        run.run(self.parts(), no_session)

    def act(self, kind: TurnKind) -> None:
        operator_actions.perform_action(
            self.parts(), kind, lambda newest: {tp: one.state.floor for tp, one in newest.partitions.items()}, ""
        )

    def calls(self, tp: TopicPartition) -> list[int]:
        return [one.offset for one in self.world.history if isinstance(one, HandlerCall) and one.tp == tp]

    def settled(self, tp: TopicPartition) -> SettledPartition:
        newest = self.parts().store.newest()
        assert newest is not None
        return newest.partitions[tp]


def test_s30_a_topic_that_the_file_names_for_the_first_time_uses_the_start() -> None:
    lane = Lane()
    lane.run()
    lane.create(NEW.topic)
    lane.topics.append(NEW.topic)
    lane.run()
    assert (lane.calls(NEW), lane.settled(NEW).state.floor) == ([], 4)


@pytest.mark.parametrize("kinds", [[TurnKind.PAUSE, TurnKind.RESUME], [TurnKind.RESET], [TurnKind.RESET] * 2])
@pytest.mark.parametrize("edited", ["before the act", "after it"])
def test_s30_an_operator_s_act_makes_no_topic_one_that_was_missing(kinds: list[TurnKind], edited: str) -> None:
    """An act looks for no topics: one that the file names since is as new to the lane as without the act."""
    lane = Lane()
    lane.run()
    lane.create(NEW.topic)
    if edited == "before the act":
        lane.topics.append(NEW.topic)
    for kind in kinds:
        lane.act(kind)
    if edited == "after it":
        lane.topics.append(NEW.topic)
    lane.run()
    assert (lane.calls(NEW), lane.settled(NEW).state.floor) == ([], 4)


@pytest.mark.parametrize("kinds", [[], [TurnKind.RESET], [TurnKind.PAUSE, TurnKind.RESET, TurnKind.RESUME]])
def test_s32_a_topic_that_was_missing_is_read_from_its_log_start_whatever_was_done_since(kinds: list[TurnKind]) -> None:
    lane = Lane(topics=[OLD.topic, NEW.topic])
    lane.run()
    for kind in kinds:
        lane.act(kind)
    lane.create(NEW.topic)
    lane.run()
    assert lane.calls(NEW) == [0, 1, 2, 3]


def test_s30_a_name_that_was_mended_uses_the_start_although_the_first_run_found_nothing() -> None:
    lane = Lane(topics=["ordres"])
    lane.run()
    lane.run()
    lane.topics = [OLD.topic]
    lane.run()
    assert (lane.calls(OLD), lane.settled(OLD).state.floor) == ([], 4)


def test_s32_a_first_genesis_whose_subscription_is_not_known_any_more_passes_nothing_over() -> None:
    lane = Lane(topics=["ordres"])
    lane.run()
    lane.world.tables.notes.clear()
    lane.topics = [OLD.topic]
    lane.run()
    assert lane.calls(OLD) == [0, 1, 2, 3]


@pytest.mark.parametrize(("start", "first"), [("earliest", 0), ("latest", 0), ("uncommitted_latest", 3)])
def test_s54_a_topic_that_was_missing_is_read_from_its_log_start_although_others_have_committed(
    start: str, first: int
) -> None:
    """All of it came after the first run; only `uncommitted_*` take what others have committed."""
    lane = Lane({"start": start}, [OLD.topic, NEW.topic])
    lane.run()
    lane.create(NEW.topic)
    lane.world.committed["g", NEW] = Committed(3, "somebody's")
    lane.run()
    assert lane.calls(NEW) == list(range(first, 4))
    assert lane.world.committed["g", NEW].offset == 4


OURS = CommitMetadata("lost", "lane", 0, 9).encode()


@pytest.mark.parametrize(
    ("start", "metadata", "first"),
    [("earliest", OURS, 3), ("uncommitted_latest", "a spout's", 3), ("latest", "a spout's", 0), ("latest", None, 0)],
)
def test_s30_a_partition_without_leader_starts_at_the_commit_that_counts_or_at_its_log_start_later(
    start: str, metadata: str | None, first: int
) -> None:
    """Where its log ends nobody says; what came into it after the first run must not be passed over (S54)."""
    lane = Lane({"start": start})
    lane.create(OLD.topic, 2)
    two = TopicPartition(OLD.topic, 1)
    log = lane.world.log(two)
    assert log is not None
    log.has_leader = False
    if metadata is not None:
        lane.world.committed["g", two] = Committed(3, metadata)
    lane.run()
    log.has_leader = True
    lane.run()
    assert lane.calls(two) == list(range(first, 4))
    assert lane.world.committed["g", two].offset == 4


@pytest.mark.parametrize("metadata", [OURS, "a spout's"])
def test_s32_a_new_partition_of_a_known_topic_is_read_from_its_log_start_whoever_has_committed(metadata: str) -> None:
    """Also where it was another ledger of this pipeline: what that one has handled, this one has not."""
    lane = Lane({"start": "uncommitted_latest"})
    lane.run()
    log = lane.world.topics[OLD.topic].logs[1] = MemoryLog()
    for _ in range(4):
        log.append(b"{}", NOON)
    two = TopicPartition(OLD.topic, 1)
    lane.world.committed["g", two] = Committed(3, metadata)
    lane.run()
    assert lane.calls(two) == [0, 1, 2, 3]


def open_transaction(lane: Lane) -> MemoryLog:
    """Two records of a transaction that is not over, at offsets 4 and 5."""
    log = lane.world.log(OLD)
    assert log is not None
    for _ in range(2):
        log.append(b"{}", NOON, open_=True)
    return log


def test_s43_a_commit_in_an_open_transaction_is_no_truncated_log() -> None:
    """The group's former owner has read uncommitted records, as Storm's spout does."""
    lane = Lane({"start": "uncommitted_earliest"})
    log = open_transaction(lane)
    lane.world.committed["g", OLD] = Committed(6, "a spout's")
    lane.run()
    lane.run()
    assert (lane.calls(OLD), lane.world.committed["g", OLD].offset) == ([], 6)
    log.decide(commit=True)
    log.append(b"{}", NOON)
    lane.run()
    assert lane.calls(OLD) == [7]


def test_s43_a_lane_that_is_read_committed_from_now_on_waits_for_the_transaction_it_has_read_into() -> None:
    lane = Lane({"start": "earliest"}, isolation="read_uncommitted")
    log = open_transaction(lane)
    lane.run()
    lane.isolation = "read_committed"
    lane.run()
    assert lane.calls(OLD) == [0, 1, 2, 3, 4, 5]
    log.decide(commit=True)
    log.append(b"{}", NOON)
    lane.run()
    assert lane.calls(OLD)[6:] == [7]


def test_s42_beyond_the_end_of_all_that_is_written_the_run_stops_also_beside_an_open_transaction() -> None:
    lane = Lane({"start": "uncommitted_earliest"})
    open_transaction(lane)
    lane.world.committed["g", OLD] = Committed(7, "a spout's")
    with pytest.raises(FatalError, match="beyond the log end"):
        lane.run()
    lane.world.committed["g", OLD] = Committed(6, "a spout's")
    lane.run()
    log = lane.world.log(OLD)
    assert log is not None
    log.end -= 1
    with pytest.raises(TopicChanged, match="truncated or recreated"):
        lane.run()
