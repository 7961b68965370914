"""Where partitions start that are not in the ledger yet: by the lane, by the group's commit, or by the log (S30)."""

from typing import Any

import pytest

from ackline.errors import ConfigError, FatalError, TopicChanged
from ackline.ledger.commit_rule import CommitMetadata
from ackline.ledger.turns import TurnKind
from ackline.steps.plan import preview
from tests.support.memory import MemoryLog
from tests.support.memory_lane import NOON, OK, PAYMENTS, TP, TP1, MemoryLane

OURS = CommitMetadata("a lost ledger", "lane", 0, 9).encode()
OF_ANOTHER_PIPELINE = CommitMetadata("a ledger", "another pipeline", 0, 9).encode()
FOREIGN = "of a consumer"


def lane_of_four(start: str = "latest", topics: tuple[str, ...] = (TP.topic,), **settings: Any) -> MemoryLane:
    """A lane with four records in its topic."""
    return MemoryLane(*[OK] * 4, topics=topics, start=start, missing_topics="wait", **settings)


@pytest.mark.parametrize(
    ("start", "without_commit", "with_foreign"),
    [("earliest", 1, 1), ("latest", 6, 6), ("uncommitted_earliest", 1, 3), ("uncommitted_latest", 6, 3)],
)
def test_s30_where_a_lane_starts_to_the_offset(start: str, without_commit: int, with_foreign: int) -> None:
    for commit, first in ((None, without_commit), ((3, OF_ANOTHER_PIPELINE), with_foreign), ((3, ""), with_foreign)):
        lane = MemoryLane(*[OK] * 6, start=start)
        lane.log().expire(1)
        if commit is not None:
            lane.move_group(TP, *commit)
        lane.run()
        assert lane.offsets() == list(range(first, 6)), commit
        assert lane.committed() == 6


@pytest.mark.parametrize("kinds", [[], [TurnKind.PAUSE, TurnKind.RESUME], [TurnKind.RESET], [TurnKind.RESET] * 2])
@pytest.mark.parametrize("added", ["before the actions", "after them"])
def test_s30_a_topic_that_is_new_in_the_file_uses_the_start_also_after_operator_actions(
    kinds: list[TurnKind], added: str
) -> None:
    """An action looks for no topics, so a new topic of the file does not count as missing at the action's turn."""
    lane = lane_of_four().after_run()
    lane.create(PAYMENTS.topic, records=4)
    if added == "before the actions":
        lane.topics.append(PAYMENTS.topic)
    for kind in kinds:
        lane.perform(kind)
    if added == "after them":
        lane.topics.append(PAYMENTS.topic)
    lane.run()
    assert (lane.offsets(PAYMENTS), lane.floor(PAYMENTS)) == ([], 4)


@pytest.mark.parametrize("kinds", [[], [TurnKind.RESET], [TurnKind.PAUSE, TurnKind.RESET, TurnKind.RESUME]])
def test_s32_a_topic_that_was_missing_is_read_from_its_log_start_also_after_operator_actions(
    kinds: list[TurnKind],
) -> None:
    lane = lane_of_four(topics=(TP.topic, PAYMENTS.topic)).after_run()
    for kind in kinds:
        lane.perform(kind)
    lane.create(PAYMENTS.topic, records=4)
    lane.run()
    assert lane.offsets(PAYMENTS) == [0, 1, 2, 3]


def test_s32_a_topic_that_is_missing_stops_a_run_before_it_plans_unless_the_file_has_wait() -> None:
    """The lane has not begun, so a name that is corrected later uses `start`."""
    lane = MemoryLane(*[OK] * 4, topics=("ordres",), start="latest")
    for _ in range(2):
        error = lane.run_fails(ConfigError, "ordres: no such topic or partition at memory")
        assert "`missing_topics: wait`" in str(error)
        with pytest.raises(ConfigError):
            preview(lane.adapters())
    assert lane.world.history == []
    lane.topics = [TP.topic]
    lane.run()
    assert (lane.offsets(), lane.floor()) == ([], 4)
    lane.topics = [TP.topic, PAYMENTS.topic]
    lane.run_fails(ConfigError, "payments: no such topic")
    lane.settings["missing_topics"] = "wait"
    lane.produce(OK)
    assert (lane.run().missing, lane.offsets()) == (("payments",), [4])


@pytest.mark.parametrize(("expired", "offsets"), [(False, []), (True, [0, 1, 2, 3])])
def test_s30_s32_a_name_that_was_mended_uses_the_start_although_the_first_run_found_nothing(
    expired: bool, offsets: list[int]
) -> None:
    """Where the Delta log has expired the first genesis's subscription, no record is passed over."""
    lane = lane_of_four(topics=("ordres",)).after_run()
    lane.run()
    if expired:
        lane.world.tables.notes.clear()
    lane.topics = [TP.topic]
    lane.run()
    assert (lane.offsets(), lane.floor()) == (offsets, 4)


@pytest.mark.parametrize(("start", "first"), [("earliest", 0), ("latest", 0), ("uncommitted_latest", 3)])
def test_s54_a_topic_that_was_missing_is_read_from_its_log_start_although_others_have_committed(
    start: str, first: int
) -> None:
    """All of it came after the first run; only `uncommitted_*` take a foreign commit."""
    lane = lane_of_four(start, (TP.topic, PAYMENTS.topic)).after_run()
    lane.create(PAYMENTS.topic, records=4)
    lane.move_group(PAYMENTS, 3, FOREIGN)
    lane.run()
    assert (lane.offsets(PAYMENTS), lane.committed(PAYMENTS)) == (list(range(first, 4)), 4)


@pytest.mark.parametrize(
    ("start", "metadata", "first"), [("uncommitted_latest", FOREIGN, 3), ("latest", FOREIGN, 0), ("latest", None, 0)]
)
def test_s30_a_partition_without_leader_starts_at_the_commit_that_counts_or_at_its_log_start_later(
    start: str, metadata: str | None, first: int
) -> None:
    """Without a leader its log end is unknown; what came into it after the first run must not be passed over (S54)."""
    lane = MemoryLane(start=start, partitions=2)
    lane.produce(*[OK] * 4, tp=TP1)
    lane.log(TP1).has_leader = False
    if metadata is not None:
        lane.move_group(TP1, 3, metadata)
    lane.run()
    lane.log(TP1).has_leader = True
    lane.run()
    assert (lane.offsets(TP1), lane.committed(TP1)) == (list(range(first, 4)), 4)


@pytest.mark.parametrize("metadata", [OURS, FOREIGN])
def test_s32_a_new_partition_of_a_known_topic_is_read_from_its_log_start_whatever_was_committed(metadata: str) -> None:
    """Also with a commit of another ledger of this pipeline: what that ledger has handled, this one has not."""
    lane = lane_of_four("uncommitted_latest").after_run()
    lane.world.topics[TP.topic].logs[1] = MemoryLog()
    lane.produce(*[OK] * 4, tp=TP1)
    lane.move_group(TP1, 3, metadata)
    lane.run()
    assert lane.offsets(TP1) == [0, 1, 2, 3]


def lane_with_open_transaction(start: str, **settings: Any) -> MemoryLane:
    """A lane of four records, and two of a transaction that has not ended, at offsets 4 and 5."""
    lane = lane_of_four(start, **settings)
    for _ in range(2):
        lane.log().append(OK, NOON, open_=True)
    return lane


def test_s43_a_commit_in_an_open_transaction_does_not_mean_that_the_log_was_truncated() -> None:
    """The group's former owner has read uncommitted records, as Storm's spout does."""
    lane = lane_with_open_transaction("uncommitted_earliest")
    lane.move_group(TP, 6, FOREIGN)
    lane.run()
    lane.run()
    assert (lane.offsets(), lane.committed()) == ([], 6)
    lane.log().end_transaction(commit=True)
    lane.produce(OK)
    lane.run()
    assert lane.offsets() == [7]


def test_s43_a_lane_that_becomes_read_committed_waits_for_the_transaction_that_it_has_read_into() -> None:
    lane = lane_with_open_transaction("earliest", kafka={"isolation": "read_uncommitted"}).after_run()
    lane.settings["kafka"] = {"isolation": "read_committed"}
    lane.run()
    assert lane.offsets() == [0, 1, 2, 3, 4, 5]
    lane.log().end_transaction(commit=True)
    lane.produce(OK)
    lane.run()
    assert lane.offsets()[6:] == [7]


def test_s42_beyond_all_that_is_written_the_run_stops_also_beside_an_open_transaction() -> None:
    lane = lane_with_open_transaction("uncommitted_earliest")
    lane.move_group(TP, 7, FOREIGN)
    lane.run_fails(FatalError, "beyond the log end")
    lane.move_group(TP, 6, FOREIGN)
    lane.run()
    lane.log().end -= 1
    lane.run_fails(TopicChanged, "truncated or recreated")
