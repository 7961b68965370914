"""What `ackline init` and `ackline adopt` see of a topic and a group, over the doubles of the adapters."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ackline.answers import survey
from ackline.errors import ConfigError, GroupTaken
from ackline.forms.scaffold import ValueKind
from ackline.ledger.commit_rule import Committed
from ackline.ledger.offsets import LogBounds, TopicPartition
from tests.support.memory import no_hook
from tests.support.memory_kafka import MemoryCluster, MemoryGroup, MemoryReader
from tests.support.memory_lane import GROUP, TP, TP1, MemoryLane

CONNECTION = {"bootstrap.servers": "memory:1"}
VALUE = b'{"id": "hunter2"}'


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> MemoryLane:
    """A world with the topic `orders` of two partitions; every adapter of `look` reads it."""
    lane = MemoryLane(*[VALUE] * 80, partitions=2)

    def read(config: Any, isolation: str, wanted: Mapping[TopicPartition, Sequence[int]]) -> Any:
        return MemoryReader(lane.world, isolation, no_hook).read(wanted)

    monkeypatch.setattr(survey, "Cluster", lambda _, isolation: MemoryCluster(lane.world, isolation, no_hook))
    monkeypatch.setattr(survey, "Group", lambda _, group: MemoryGroup(lane.world, group, "look", no_hook))
    monkeypatch.setattr(survey, "read_exactly", read)
    return lane


def test_a_topic_is_described_by_its_logs_and_the_shape_of_its_first_records(lane: MemoryLane) -> None:
    lane.log().expire(10)
    found = survey.survey_topic(CONNECTION, "orders")
    assert (found.logs, found.offsets) == ({TP: LogBounds(10, 80, 0), TP1: LogBounds(0, 0, 0)}, 70)
    assert (found.shape.kind, found.shape.records, found.shape.fields) == (
        ValueKind.JSON_OBJECT, survey.MOST_RECORDS // 2, {"id": "text"},
    )  # fmt: skip


def test_a_topic_that_does_not_exist_is_refused_with_those_that_do(lane: MemoryLane) -> None:
    with pytest.raises(ConfigError, match="--topic zzz: it does not exist; the broker has: dead, orders"):
        survey.survey_topic(CONNECTION, "zzz")


def test_a_group_is_described_by_its_commits_its_lag_and_what_retention_took(lane: MemoryLane) -> None:
    lane.move_group(TP, 30)
    lane.log().expire(50)
    found = survey.survey_group(CONNECTION, GROUP)
    assert (found.topics, found.committed) == (("orders",), {TP: Committed(30, "")})
    assert [(found.start(tp), found.lag(tp), found.expired(tp)) for tp in (TP, TP1)] == [(50, 30, 20), (0, 0, 0)]


def test_a_group_without_a_commit_is_refused(lane: MemoryLane) -> None:
    with pytest.raises(ConfigError, match="has committed no offset of a topic that exists; it has no live members"):
        survey.survey_group(CONNECTION, GROUP)


def test_an_id_of_another_type_of_group_is_refused_as_such(lane: MemoryLane) -> None:
    lane.world.taken = "a share group"
    with pytest.raises(GroupTaken, match=f"the id {GROUP} at .* is that of a share group"):
        survey.survey_group(CONNECTION, GROUP)
