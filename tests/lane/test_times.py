"""What a time means in a log whose records are not in the order of their timestamps. In memory."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME
from hypothesis import given
from hypothesis import strategies as st

from ackline.actions.form import ActionRequest
from ackline.actions.perform import _OnLane
from ackline.backfill.perform import choice_text
from ackline.errors import ConfigError, FatalError
from ackline.lane import times
from ackline.lane.times import of_times
from ackline.ledger.offsets import OffsetRange, joined
from ackline.ledger.turns import TurnKind
from tests.support.memory_lane import NOON, OK, TP, MemoryBackfill, MemoryLane

HOUR = timedelta(hours=1)


def stamped(*hours: float, **settings: Any) -> MemoryLane:
    """A lane whose records are stamped so many hours after noon."""
    lane = MemoryLane(**settings)
    for hour in hours:
        lane.produce(OK, time=NOON + hour * HOUR)
    return lane


def offsets(ranges: Sequence[OffsetRange]) -> list[int]:
    return [offset for part in ranges for offset in range(part.start, part.end)]


def at(hour: float | None) -> datetime | None:
    return None if hour is None else NOON + hour * HOUR


AHEAD = (10, *range(-48, 0))
"""One record ten hours ahead of its time, and then 48 hourly ones."""


@given(
    st.lists(st.integers(-9, 9), max_size=12),
    st.sets(st.integers(0, 11)),
    st.none() | st.integers(-10, 10),
    st.none() | st.integers(-10, 10),
    st.sets(st.integers(0, 11)),
)
def test_exactly_the_asked_records_of_the_times_are_chosen_in_any_order_of_timestamps(
    hours: list[int], gone: set[int], since: int | None, until: int | None, left_out: set[int]
) -> None:
    if since is None and until is None:
        return
    lane = stamped(*hours)
    lane.log().compacted.update(gone)
    adapters = lane.adapters()
    asked = set(range(len(hours))) - left_out
    ranges = joined(OffsetRange(offset, offset + 1) for offset in asked)
    found = of_times(adapters, {TP: ranges}, at(since), at(until))[TP]
    wanted = [
        offset
        for offset, hour in enumerate(hours)
        if (since is None or hour >= since) and (until is None or hour < until) and offset in asked - gone
    ]
    assert [offset for offset in offsets(found.chosen) if offset in asked - gone] == wanted
    assert lane.operations.count("fetch") <= len(asked)
    assert (found.not_looked_at, found.open_end) == ((), until is not None and all(hour < until for hour in hours))


def test_one_record_ahead_of_its_time_hides_none_from_a_backfill_by_time() -> None:
    lane = stamped(*AHEAD)
    chosen = MemoryBackfill(lane, since="30h ago", until="20h ago").choose()
    assert offsets(chosen.partitions[TP].ranges) == list(range(19, 29))
    assert "not in the order of their timestamps in orders[0]: 10 out of place" in choice_text("lane", "b", chosen, 99)
    late = MemoryBackfill(lane, since="2h ago").choose()
    assert offsets(late.partitions[TP].ranges) == [0, 47, 48]


@pytest.mark.parametrize("given", [{"since": "60h ago"}, {"until": "1h ago"}, {"since": "60h ago", "until": "1h ago"}])
def test_only_asked_offsets_are_looked_at_and_not_what_lies_between_ranges(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = stamped(*[-70, 10, *range(-48, 0)])
    ranges = ["orders:0:0-3", "orders:0:40-42"]
    chosen = MemoryBackfill(lane, "b", *ranges, **given).choose()
    wanted = {1, 2, 40, 41} - ({1} if "until" in given else set()) | ({0} if "since" not in given else set())
    assert (offsets(chosen.partitions[TP].ranges), lane.operations.count("fetch")) == (sorted(wanted), 4)
    monkeypatch.setattr(times, "MOST_LOOKED_AT", 2)
    notes = " ".join(MemoryBackfill(lane, "b", *ranges, **given).choose().notes)
    assert "orders[0] [40, 42)" in notes
    assert "[3, 40)" not in notes


def test_a_choice_in_a_log_in_order_says_nothing() -> None:
    chosen = MemoryBackfill(stamped(*range(-48, 0)), since="30h ago", until="20h ago").choose()
    assert (offsets(chosen.partitions[TP].ranges), chosen.notes) == (list(range(18, 28)), ())


def test_by_outcome_and_time_a_record_out_of_order_is_chosen_by_its_own_timestamp() -> None:
    lane = stamped(*AHEAD).after_run()
    chosen = MemoryBackfill(lane, outcome="acked", since="30h ago", until="20h ago").choose()
    assert offsets(chosen.partitions[TP].offsets) == list(range(19, 29))


def test_what_is_not_looked_at_is_named_and_taken_as_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "MOST_LOOKED_AT", 20)
    chosen = MemoryBackfill(stamped(*AHEAD), since="30h ago", until="20h ago").choose()
    assert offsets(chosen.partitions[TP].ranges) == [19]
    assert "Timestamps were not looked at in orders[0] [20, 49)" in chosen.notes[-1]
    nothing = MemoryBackfill(stamped(*AHEAD), since="9h ago", until="8h ago").choose()
    assert not nothing.partitions
    assert "Timestamps were not looked at" in choice_text("lane", "b", nothing, 99), "an empty choice is not silent"


def test_after_a_minute_the_rest_is_taken_as_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "MOST_SECONDS", 0.0)
    chosen = MemoryBackfill(stamped(*range(-48, 0)), since="30h ago", until="20h ago").choose()
    assert offsets(chosen.partitions[TP].ranges) == list(range(18, 28))
    assert "Timestamps were not looked at in orders[0] [19, 28), orders[0] [29, 48)" in chosen.notes[0]


def test_records_that_the_broker_has_stamped_are_looked_at_for_a_minute_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next leader's clock may be behind that of the one before."""
    lane = stamped(*range(-48, 0))
    lane.world.timestamp_type = TIMESTAMP_LOG_APPEND_TIME
    monkeypatch.setattr(times, "MOST_LOOKED_AT", 2)
    chosen = MemoryBackfill(lane, since="30h ago", until="20h ago").choose()
    assert (offsets(chosen.partitions[TP].ranges), chosen.notes) == (list(range(18, 28)), ())
    assert lane.operations.count("fetch") == 4


def test_a_start_by_time_leaves_out_no_later_record_and_names_the_earlier_ones_behind_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lane = stamped(*AHEAD, start="timestamp", start_timestamp=(NOON - 2 * HOUR).isoformat()).after_run()
    assert lane.offsets() == list(range(49))
    genesis = next(iter(lane.world.tables.settlements.values()))
    assert "46 records of the 49 offsets from 0 on are stamped before" in (genesis.partitions[TP].evidence or "")
    assert "46 records of the 49 offsets" in caplog.text


def test_a_start_by_time_looks_at_no_log_before_the_outputs_are_checked() -> None:
    outputs = [{"from": "source", "topic": "mistyped"}]
    lane = stamped(*AHEAD, start="timestamp", start_timestamp=(NOON - 2 * HOUR).isoformat(), outputs=outputs)
    lane.run_fails(ConfigError, "output topic mistyped .* does not exist")
    assert lane.operations.count("fetch") == 0


@pytest.mark.parametrize("previewed", [True, False])
def test_a_reset_to_a_time_says_how_many_earlier_records_it_reads_and_from_where_on_none_is(previewed: bool) -> None:
    lane = stamped(*AHEAD).after_run()
    requested = _OnLane("", "", ActionRequest(TurnKind.RESET, to=NOON - 2 * HOUR))
    if previewed:
        said = "46 records of the 49 offsets from 0 on are stamped before 2026-03-01T10:00:00+00:00, and are read too"
        report = requested.preview(lane.adapters())
        assert said in report.text
        assert "From 47 on each is stamped then or later" in report.text
    report = requested.perform(lane.adapters())
    assert [note[:40] for note in report.body.dump()["notes"]] == ["orders[0]: 46 records of the 49 offsets "]


def test_a_reset_to_a_time_is_no_victim_of_a_log_that_can_not_be_read() -> None:
    lane = stamped(*AHEAD).after_run()
    lane.strike("fetch", fail)
    report = _OnLane("", "", ActionRequest(TurnKind.RESET, to=NOON)).preview(lane.adapters())
    assert "timestamps were not looked at in [0, 49)" in report.text


def fail() -> None:
    raise FatalError("damaged")


def test_a_choice_in_many_places_is_read_offset_by_offset_and_not_by_a_turn_each() -> None:
    lane = stamped(*[-1, -9] * 20)
    backfill = MemoryBackfill(lane, since="2h ago")
    assert backfill.run().outcomes == {"acked": 20}
    assert (sorted(backfill.ended()), backfill.newest().turn.n) == (list(range(0, 40, 2)), 1)
