"""The arguments that commands and trigger forms share: offsets, times and partitions."""

from datetime import UTC, datetime, timedelta

import pytest

from ackline.errors import ConfigError
from ackline.ledger.offsets import OffsetRange, TopicPartition
from ackline.pipeline.arguments import LAST, PartitionChoice, parse_moment, parse_offset, parse_offsets

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.mark.parametrize(
    ("text", "start", "end"), [("3:7", 3, 7), ("3:3", 3, 3), ("3", 3, 4), ("3:", 3, LAST), (":7", 0, 7)]
)
def test_offsets_are_a_range_whose_end_is_exclusive_or_a_single_offset(text: str, start: int, end: int) -> None:
    assert parse_offsets(text) == OffsetRange(start, end)


@pytest.mark.parametrize("text", ["", ":", "7:3", "-1", "a", "1.5", "٣", "1_0", " 1", "+1", str(LAST), "9" * 5000])
def test_any_other_text_is_no_range_of_offsets(text: str) -> None:
    with pytest.raises(ValueError, match=r"offset|empty"):
        parse_offsets(text)


def test_an_offset_is_what_kafka_can_have() -> None:
    assert parse_offset(str(LAST - 1)) == LAST - 1
    with pytest.raises(ValueError, match="is not an offset"):
        parse_offset(str(LAST))


@pytest.mark.parametrize(
    ("text", "moment"),
    [("2026-01-31T12:00:00+01:00", datetime(2026, 1, 31, 11, tzinfo=UTC)), ("2h ago", NOON - timedelta(hours=2)),
     ("1h30m ago", NOON - timedelta(minutes=90)), (" 1d 2h ago ", NOON - timedelta(hours=26)), ("0s ago", NOON)],
)  # fmt: skip
def test_a_time_is_iso_8601_with_a_zone_or_a_duration_ago(text: str, moment: datetime) -> None:
    assert parse_moment(text, NOON) == moment


@pytest.mark.parametrize(
    "text",
    ["", "ago", "2 ago", "2h", "-2h ago", "2026-01-31T12:00:00", "yesterday", "999999d ago", "9" * 400 + "d ago"],
)
def test_any_other_text_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_moment(text, NOON)


def test_topics_and_partitions_narrow_each_other_and_may_be_several() -> None:
    lane = (B0, A1, A0)
    assert PartitionChoice().chosen(lane, "p") == [A0, A1, B0]
    assert PartitionChoice(("a",)).chosen(lane, "p") == [A0, A1]
    assert PartitionChoice(("a", "b"), (0,)).chosen(lane, "p") == [A0, B0]
    assert PartitionChoice(("a",), (0, 1)).chosen(lane, "p") == [A0, A1]


@pytest.mark.parametrize(
    ("choice", "named"),
    [(PartitionChoice(("c",)), "--topic c"), (PartitionChoice(("a", "c")), "--topic c"),
     (PartitionChoice((), (7,)), "--partition 7"), (PartitionChoice(("b",), (0, 1)), "--partition 1")],
)  # fmt: skip
def test_an_option_that_names_nothing_of_the_lane_is_refused_by_name(choice: PartitionChoice, named: str) -> None:
    with pytest.raises(ConfigError, match=f"p has no partition with {named}"):
        choice.chosen((A0, A1, B0), "p")


def test_a_lane_without_partitions_is_named() -> None:
    with pytest.raises(ConfigError, match="p has no partition yet"):
        PartitionChoice().chosen((), "p")


def test_what_is_no_topic_name_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a topic name"):
        PartitionChoice(("a/b",))
