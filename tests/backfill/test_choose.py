"""Which offsets a backfill chooses, by range, time, outcome and error class (S72). In memory."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.answers.tried import Wanted, failing
from ackline.backfill.choose import (
    BEYOND_END,
    BY_RETENTION,
    IN_OLDER_TOPIC,
    GoneRange,
    asked_ranges,
    choose_offsets,
    narrowed_by_time,
    newest_outcomes,
)
from ackline.errors import ConfigError
from ackline.forms.arguments import BackfillArguments, RangeArgument, parse_range
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition, arrays_of, intersect, joined, ranges_of
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnKind
from tests.ledger.test_offsets import RANGES, offsets_of
from tests.pipeline import filters
from tests.support.memory_lane import DEAD, FAILS, OK, PAYMENTS, TP, TP1, MemoryBackfill, MemoryLane, settled_lane
from tests.support.memory_store import MemoryStore
from tests.worker.disk_lane import lane_of

A, B, C = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("payments", 0)
LOGS = {A: LogBounds(5, 20), B: LogBounds(0, 10), C: LogBounds(3, 3)}


def asked(*texts: str) -> dict[TopicPartition, tuple[OffsetRange, ...]]:
    return asked_ranges(map(parse_range, texts), LOGS)


def test_without_a_range_every_partition_is_chosen_from_its_log_start_to_its_end() -> None:
    assert asked() == {A: (OffsetRange(5, 20),), B: (OffsetRange(0, 10),)}


def test_ranges_of_a_partition_are_joined_and_a_topic_means_all_its_partitions() -> None:
    assert asked("orders:0:6-8", "orders:0:7-9", "orders:0:12-13") == {A: (OffsetRange(6, 9), OffsetRange(12, 13))}
    assert asked("orders") == {A: (OffsetRange(5, 20),), B: (OffsetRange(0, 10),)}
    assert asked("orders:1", "orders:1:2-3") == {B: (OffsetRange(0, 10),)}


def test_explicit_offsets_stay_below_the_log_start_and_are_refused_beyond_the_end() -> None:
    assert asked("orders:0:0-6") == {A: (OffsetRange(0, 6),)}
    with pytest.raises(ConfigError, match=r"orders:0:6-21: the log of orders\[0\] ends at 20"):
        asked("orders:0:6-21")


@pytest.mark.parametrize("text", ["other", "orders:2", "payments:1:0-1"])
def test_a_partition_that_the_pipeline_does_not_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="the pipeline reads no such partition"):
        asked(text)


def test_a_time_narrows_explicit_offsets_and_leaves_out_what_retention_took() -> None:
    ranges = asked_ranges([RangeArgument("orders", 0, OffsetRange(0, 8))], LOGS)
    assert narrowed_by_time(ranges, LOGS, LOGS, {A: [OffsetRange(5, 20)]}) == {A: (OffsetRange(5, 8),)}
    unbound = {A: LogBounds(0, 30)}
    assert narrowed_by_time(ranges, LOGS, unbound, {A: [OffsetRange(7, 9)]}) == {
        A: (OffsetRange(0, 5), OffsetRange(7, 8))
    }


@given(RANGES, RANGES)
def test_an_intersection_holds_what_is_in_both(ranges: list[OffsetRange], others: list[OffsetRange]) -> None:
    both = ranges_of(intersect(arrays_of(joined(ranges)), arrays_of(joined(others)))[:2])
    assert offsets_of(both) == offsets_of(ranges) & offsets_of(others)


@given(st.lists(st.tuples(RANGES, RANGES), max_size=4))
def test_the_newest_epoch_with_an_outcome_decides_for_each_offset(
    epochs: list[tuple[list[OffsetRange], list[OffsetRange]]],
) -> None:
    """A wanted outcome is an outcome too, so each epoch holds at least what matches in it."""
    wanted = [offsets_of(matching) for matching, _ in epochs]
    every = [offsets_of(matching) | offsets_of(others) for matching, others in epochs]
    expected = set()
    for offset in set().union(*every) if every else ():
        newest = next(number for number, offsets in enumerate(every) if offset in offsets)
        expected |= {offset} if offset in wanted[newest] else set()
    arrays = [(arrays_of(joined(matching)), arrays_of(joined([*matching, *others]))) for matching, others in epochs]
    of_epochs = [offsets_of(ranges_of(ranges)) for ranges in newest_outcomes(arrays)]
    assert set().union(*of_epochs) == expected
    assert sum(map(len, of_epochs)) == len(expected), "an offset counts in one epoch"


def test_s72_exactly_the_dead_ones_of_an_error_class_are_read() -> None:
    live = settled_lane(OK, FAILS, DEAD, FAILS, OK)
    assert live.ranges(Outcome.DEAD) == [(1, 2), (2, 3), (3, 4)]
    lane = MemoryBackfill(live, "b", outcome="dead", error_class="ValueError")
    live.world.handle = lambda record: None
    assert (lane.run().outcomes, sorted(lane.ended()), live.calls()[5:]) == ({"acked": 2}, [1, 3], [(1, 1), (3, 1)])


def test_an_empty_error_class_chooses_what_has_failed_without_one_wherever_it_is_given() -> None:
    """A handler that answers "failed" gives none."""
    with lane_of({"handler": "tests.support.tried_handlers:batch", "retry": {"max_retries": 1}}) as lane:
        del lane.settings["ack_topic"], lane.settings["in_flight"]
        lane.produce(b"good", b"bad", b"bad")
        lane.run()
        assert offsets_of_wanted(failing(lane.adapters(), 9, "")) == [1, 2]
        lane.world.now += timedelta(days=1)
        lane.run()
        assert lane.floor() == 3, "both are dead"
        adapters = lane.adapters()
        for error_class, offsets in (("", [1, 2]), ("ValueError", [])):
            choice = choose_offsets(adapters, BackfillArguments((), outcome="dead", error_class=error_class))
            assert sorted(offsets_of([run for of in choice.partitions.values() for run in of.every])) == offsets
            assert offsets_of_wanted(failing(adapters, 9, error_class)) == offsets


def offsets_of_wanted(wanted: Wanted) -> list[int]:
    return sorted(offset for offsets in wanted.values() for offset in offsets)


def test_s72_what_turns_of_a_code_have_settled_is_chosen_in_each_epoch() -> None:
    live = MemoryLane(OK, OK, DEAD)
    for code in ("v1", "v2"):
        live.world.code = code
        live.run()
        live.produce(OK)
    live.perform(TurnKind.RESET, {TP: 3})
    live.world.code = "v1"
    live.run()
    assert MemoryBackfill(live, "b", outcome="acked", code="v1").choose().of_epochs == {1: 2, 0: 2}
    assert MemoryBackfill(live, "b", code="v1").choose().partitions[TP].offsets == (OffsetRange(0, 5),)
    with pytest.raises(ConfigError, match="--code v3: no turn of live ran it"):
        MemoryBackfill(live, "b", code="v3").choose()


def test_s72_what_retention_or_compaction_took_is_expired_or_compacted() -> None:
    live = settled_lane(*[DEAD] * 5)
    live.log().expire(2)
    live.log().compacted.add(3)
    live.world.handle = lambda record: None
    lane = MemoryBackfill(live, "b", outcome="dead")
    assert list(lane.choose().gone) == [GoneRange(TP, OffsetRange(0, 2), BY_RETENTION)]
    lane.run()
    assert lane.ended() == {0: "expired", 1: "expired", 2: "acked", 3: "compacted", 4: "acked"}


def test_s72_ranges_narrow_what_an_outcome_chooses() -> None:
    live = settled_lane(*[DEAD] * 6)
    lane = MemoryBackfill(live, "b", "orders:0:1-3", "orders:0:4-5", outcome="dead")
    assert lane.choose().partitions[TP].offsets == (OffsetRange(1, 3), OffsetRange(4, 5))


def test_s72_the_outcome_in_the_newest_epoch_counts() -> None:
    live = settled_lane(DEAD, DEAD, DEAD)
    live.perform(TurnKind.RESET, {TP: 1})
    live.world.handle = lambda record: None
    live.run()
    assert MemoryBackfill(live, "b", outcome="dead").choose().partitions[TP].offsets == (OffsetRange(0, 1),)
    assert MemoryBackfill(live, "b", outcome="acked").choose().partitions[TP].offsets == (OffsetRange(1, 3),)


def test_s72_an_outcome_of_a_topic_that_was_created_again_is_gone() -> None:
    live = settled_lane(DEAD, DEAD)
    live.create("orders", records=5)
    choice = MemoryBackfill(live, "b", outcome="dead").choose()
    assert not choice.partitions
    assert list(choice.gone) == [GoneRange(TP, OffsetRange(0, 2), IN_OLDER_TOPIC)]
    asked = MemoryBackfill(live, "c", "orders:0:1-9", outcome="dead").choose()
    assert list(asked.gone) == [GoneRange(TP, OffsetRange(1, 2), IN_OLDER_TOPIC)]


@pytest.mark.parametrize(("first", "second"), [(1, 3), (3, 1)])
def test_s72_what_is_gone_of_several_epochs_is_named_together(first: int, second: int) -> None:
    live = settled_lane(*[OK] * first)
    live.create("orders", records=second)
    live.perform(TurnKind.RESET, {TP: 0})
    live.run()
    live.create("orders", records=1)
    choice = MemoryBackfill(live, "b", outcome="acked").choose()
    assert list(choice.gone) == [GoneRange(TP, OffsetRange(0, 3), IN_OLDER_TOPIC)]


def test_s72_an_outcome_beyond_the_log_end_is_gone() -> None:
    live = settled_lane(DEAD, DEAD, DEAD)
    live.truncate(1)
    choice = MemoryBackfill(live, "b", outcome="dead").choose()
    assert choice.partitions[TP].offsets == (OffsetRange(0, 1),)
    assert list(choice.gone) == [GoneRange(TP, OffsetRange(1, 3), BEYOND_END)]


def test_what_earlier_backfills_have_acked_is_read_for_a_preview_alone_and_only_where_they_have_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A backfill a day for years: each late one would read the rows of all of them."""
    live = settled_lane(OK, OK, OK)
    MemoryBackfill(live, "a", "orders:0:0-1").run()
    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, "terminal_offsets", None)
        choice = MemoryBackfill(live, "b", "orders:0:0-2").choose()
        assert MemoryBackfill(live, "b", "orders:0:1-3").choose().acked_before() == 0
    assert choice.acked_before() == 1


def test_outcomes_of_another_backfill_are_chosen_with_of() -> None:
    live = settled_lane(OK, DEAD, OK)
    live.world.handle = lambda record: None
    assert MemoryBackfill(live, "a", "orders").run().outcomes == {"acked": 3}
    choice = MemoryBackfill(live, "b", outcome="acked", of="backfill-a").choose()
    assert (choice.offsets, choice.acked_before()) == (3, 3)
    with pytest.raises(ConfigError, match="--of backfill-x: lane has no such lane yet"):
        MemoryBackfill(live, "c", outcome="acked", of="backfill-x").choose()


def test_a_time_chooses_offsets_and_an_open_end_is_named() -> None:
    live = MemoryLane()
    start = live.world.now
    for minute in range(5):
        live.produce(OK, time=start + timedelta(minutes=minute))
    live.world.now += timedelta(hours=2)
    two = MemoryBackfill(live, "b", since="2026-03-01T12:01:00Z", until="2026-03-01T12:03:00Z").choose()
    assert (two.partitions[TP].ranges, two.open_ends) == ((OffsetRange(1, 3),), {})
    rest = MemoryBackfill(live, "b", since="2026-03-01T12:03:30Z", until="1h ago").choose()
    assert (rest.partitions[TP].ranges, rest.open_ends) == ((OffsetRange(4, 5),), {TP: 5})


def test_ranges_that_retention_has_eaten_are_named_and_become_expired() -> None:
    live = settled_lane(*[OK] * 6)
    live.log().expire(3)
    lane = MemoryBackfill(live, "b", "orders:0:1-2", "orders:0:2-5")
    choice = lane.choose()
    assert (choice.offsets, list(choice.gone)) == (4, [GoneRange(TP, OffsetRange(1, 3), BY_RETENTION)])
    assert lane.run().outcomes == {"expired": 2, "acked": 2}


def test_retention_that_takes_the_rest_of_a_lane_settles_it() -> None:
    live = settled_lane(*[OK] * 6, on_expired="fail")
    lane = MemoryBackfill(live, "b", "orders:0:0-1", "orders:0:2-4")
    lane.begin()
    live.log().expire(5)
    assert (lane.run().outcomes, lane.ended()) == ({"expired": 3}, dict.fromkeys([0, 2, 3], "expired"))


def test_only_partitions_of_the_subscription_can_be_chosen() -> None:
    live = settled_lane(OK, partitions=2)
    live.create("payments", records=1)
    assert set(MemoryBackfill(live, "b", everything=True).choose().partitions) == {TP}
    with pytest.raises(ConfigError, match="range payments: the pipeline reads no such partition"):
        MemoryBackfill(live, "b", PAYMENTS.topic).choose()
    live.produce(OK, tp=TP1)
    assert set(MemoryBackfill(live, "b", everything=True).choose().partitions) == {TP, TP1}


def test_a_partition_that_the_pipeline_s_filter_excludes_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "included", {0})
    live = settled_lane(OK, partitions=2, kafka={"partition_filter": "tests.pipeline.filters:chosen"})
    live.produce(OK, tp=TP1)
    assert set(MemoryBackfill(live, "b", everything=True).choose().partitions) == {TP}
    with pytest.raises(ConfigError, match="the pipeline reads no such partition"):
        MemoryBackfill(live, "b", "orders:1").choose()
