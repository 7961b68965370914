"""The arguments that commands and trigger forms share: offsets, times, partitions, and what is asked of a backfill."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ackline.errors import ConfigError
from ackline.forms.arguments import (
    LAST,
    OPTIONS,
    BackfillArguments,
    PartitionChoice,
    RangeArgument,
    check_same,
    id_of,
    lane_of,
    parse_moment,
    parse_offset,
    parse_offsets,
    parse_range,
)
from ackline.ledger.offsets import OffsetRange, TopicPartition
from tests.ledger.strategies import NOON

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.mark.parametrize(
    ("text", "start", "end"), [("3:7", 3, 7), ("3:3", 3, 3), ("3", 3, 4), ("3:", 3, LAST), (":7", 0, 7), ("3-7", 3, 7)]
)
def test_offsets_are_a_range_whose_end_is_exclusive_or_a_single_offset(text: str, start: int, end: int) -> None:
    assert parse_offsets(text) == OffsetRange(start, end)


@pytest.mark.parametrize(
    "text",
    ["", ":", "7:3", "7-3", "3-", "3-7-9", "3-7:9", "-1", "a", "1.5", "٣", "1_0", " 1", "+1", str(LAST), "9" * 5000],
)
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


@pytest.mark.parametrize(("text", "words"), [
    ("5", "5 is a number, and not a time; write a time with its zone, such as 2026-01-31T12:00:00Z"),
    ("yesterday", "'yesterday' is not a time; write a time with its zone, such as 2026-01-31T12:00:00Z or"),
    ("2026-01-31", "has no time zone; write a time with its zone"),
    ("5 ago", "or a time ago such as `2h ago`"),
])  # fmt: skip
def test_a_wrong_time_is_answered_with_the_forms_that_are_understood(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BackfillArguments(since=text).times(NOON)
    assert words in str(refused.value)
    assert "`2h ago`" in str(refused.value)
    assert "isoformat" not in str(refused.value)
    assert str(refused.value).startswith("--from: ")


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


@pytest.mark.parametrize(("text", "expected"), [
    ("orders", RangeArgument("orders")),
    ("or-de.r_s:0", RangeArgument("or-de.r_s", 0)),
    ("orders:3:10-20", RangeArgument("orders", 3, OffsetRange(10, 20))),
    ("or-ders:3:10:20", RangeArgument("or-ders", 3, OffsetRange(10, 20))),
])  # fmt: skip
def test_a_range_is_a_topic_a_partition_or_offsets(text: str, expected: RangeArgument) -> None:
    assert parse_range(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", ":0", "orders:", "orders:-1", "orders:x", "orders:0:5", "orders:0:5-5", "orders:0:6-5", "orders:0:1-2:3",
     "orders:0:2:1", "orders:0:1:", "orders:0::2", "a b", "orders:0:-5", "orders:0:5-",
     "orders:99999999999", "orders:0:0-9223372036854775808",
     "⅕:0"],
)  # fmt: skip
def test_any_other_range_is_refused_with_its_grammar(text: str) -> None:
    with pytest.raises(ConfigError, match=r"TOPIC:PARTITION:A-B"):
        parse_range(text)


@pytest.mark.parametrize("text", ["", "-a", "A", "a_b", "a/b", "..", "a" * 101, "a\n"])
def test_an_id_is_the_name_of_a_folder_and_nothing_else(text: str) -> None:
    with pytest.raises(ConfigError, match="--id"):
        lane_of(text)


def test_the_lane_of_an_id_and_back() -> None:
    assert (lane_of("2026-01-31t12"), id_of("backfill-a-b")) == ("backfill-2026-01-31t12", "a-b")


@pytest.mark.parametrize(("arguments", "message"), [
    (BackfillArguments(), "nothing was chosen"),
    (BackfillArguments(("orders",), everything=True), "contradict"),
    (BackfillArguments(everything=True, of="backfill-a"), "--of names the lane"),
    (BackfillArguments(code="v1", of="other"), "write `live` or `backfill-ID`"),
    (BackfillArguments(outcome="failed"), "one of acked, skipped, dropped, dead, expired, compacted, lost"),
    (BackfillArguments(outcome="dead", of="other"), "write `live` or `backfill-ID`"),
    (BackfillArguments(outcome="dead", of="backfill-../x"), "--id"),
    (BackfillArguments(everything=True, handler="module"), "module:name"),
    (BackfillArguments(everything=True, dead_letter="a b"), "--dead-letter"),
])  # fmt: skip
def test_arguments_that_choose_nothing_or_contradict_each_other_are_refused(
    arguments: BackfillArguments, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        arguments.check()


def test_times_are_iso_with_a_zone_or_ago_and_the_span_is_not_empty() -> None:
    arguments = BackfillArguments(since="2h ago", until="2026-03-01T11:30:00Z")
    assert arguments.times(NOON.replace(year=2026, month=3, day=1, hour=12)) == (
        NOON.replace(year=2026, month=3, day=1, hour=10),
        NOON.replace(year=2026, month=3, day=1, hour=11, minute=30),
    )
    with pytest.raises(ConfigError, match="is not after --from"):
        BackfillArguments(since="1h ago", until="2h ago").times(NOON)
    with pytest.raises(ConfigError, match=r"--to: .* is not a time"):
        BackfillArguments(until="soon").times(NOON)
    assert BackfillArguments(since="30m ago").times(NOON)[0] == NOON - timedelta(minutes=30)


EVERY = BackfillArguments(
    ("orders:0:1-2",), False, "2h ago", "1h ago", "dead", "HTTPError", "r1", "v1", "backfill-a", "handlers.a:b", "none",
    where="value.n = 1", with_related=True, shadow=True, promotes="p",
)  # fmt: skip


def test_s71_another_set_of_arguments_is_refused_by_the_option_that_differs() -> None:
    check_same("a", EVERY, EVERY)
    with pytest.raises(ConfigError, match=r"--from: backfill a began with 2h ago, not nothing"):
        check_same("a", EVERY, BackfillArguments.decode(EVERY.encode().replace('"since":"2h ago",', "")))
    with pytest.raises(ConfigError, match=r"RANGE: backfill a began with orders, not orders:0"):
        check_same("a", BackfillArguments(("orders",)), BackfillArguments(("orders:0",)))


@pytest.mark.parametrize("name", OPTIONS)
def test_s71_each_argument_is_compared(name: str) -> None:
    changed: dict[str, Any] = {
        name: not EVERY.everything if name == "everything" else getattr(BackfillArguments(), name)
    }
    other = replace(EVERY, **changed)
    for stored, asked in ((EVERY, other), (other, EVERY)):
        with pytest.raises(ConfigError, match=f"{OPTIONS[name]}: backfill a began with") as caught:
            check_same("a", stored, asked)
        assert caught.value.key == OPTIONS[name]


def test_arguments_are_shown_as_on_a_command_line() -> None:
    assert BackfillArguments(("orders",), outcome="dead").shown() == "orders --outcome dead"
    assert BackfillArguments(everything=True).shown() == "--all"
    where = BackfillArguments(everything=True, where="value.currency = 'XTS'")
    assert where.shown() == """--all --where "value.currency = 'XTS'\""""
    assert BackfillArguments(everything=True, where="value.n = 1").shown() == "--all --where 'value.n = 1'"
