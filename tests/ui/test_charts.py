"""The pictures: to scale, escaped, and of a bounded size."""

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from ackline.ledger.fold import PartitionState
from ackline.ledger.offsets import TopicPartition, ValuedRange
from ackline.ledger.pending import Pending, PendingKind, PendingRuns
from ackline.ledger.turns import SettledPartition
from ackline.ui import charts
from ackline.ui.partition import PartitionReading

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
RETRY = Pending(PendingKind.RETRY, 1, NOON, "HTTPError")


def part(state: PartitionState, topic: str = "orders", **figures: float) -> PartitionReading:
    settled = SettledPartition("id", 0, state, metrics=figures)
    return PartitionReading(TopicPartition(topic, 0), settled, None, None, timedelta(), 0, NOON, NOON)


def areas(picture: str) -> dict[str, tuple[float, float]]:
    """Returns start and width of each area of a picture, in percent of its width."""
    root = ET.fromstring(picture)
    return {
        rect.attrib["class"]: (float(rect.attrib["x"].rstrip("%")), float(rect.attrib["width"].rstrip("%")))
        for rect in root.iter("rect")
    }


def marks(picture: str) -> dict[str, tuple[str, str]]:
    """Returns where each mark of a picture is, in percent of its width, and its shape."""
    svgs = [svg for svg in ET.fromstring(picture).iter("svg") if "mark" in svg.attrib["class"]]
    return {svg.attrib["class"].removeprefix("mark "): (svg.attrib["x"], svg[0].attrib["d"]) for svg in svgs}


def test_each_part_of_the_log_is_as_wide_as_its_share_of_the_offsets() -> None:
    state = PartitionState(800, (ValuedRange(400, 401, RETRY),))
    shown = areas(charts.partition_picture(part(state, log_start=200.0, log_end=1200.0, committed=400.0)))
    expected = {"log": 1000, "settled": 200, "read": 400, "unread": 400}
    for name, offsets in expected.items():
        assert abs(shown[name][1] - offsets / 10) < 0.1, name
    assert abs(shown["pending retry"][0] - 20) < 0.2


def test_what_retention_took_before_it_was_settled_is_an_area_of_its_own() -> None:
    """Records 300 to 500 were read above the floor: only the pending one is lost, and what was not read."""
    state = PartitionState(500, (ValuedRange(300, 301, RETRY),))
    shown = areas(charts.partition_picture(part(state, log_start=600.0, log_end=1300.0, committed=300.0)))
    assert shown["lost"] == (20.0, 10.0)
    assert shown["gone"] == (0.0, 30.0)
    assert "pending retry lost" in shown
    assert "pending retry" not in shown


def test_a_million_failures_are_at_most_a_mark_for_each_column() -> None:
    starts = np.arange(0, 2_000_000, 2, dtype=np.int64)
    runs = PendingRuns.of([ValuedRange(0, 1, RETRY)])
    every = PendingRuns(
        starts, starts + 1, np.zeros(len(starts), dtype=np.int32), np.zeros(len(starts), dtype=np.int64), runs.states
    )
    picture = charts.partition_picture(part(PartitionState(2_000_000, every), log_start=0.0, log_end=2e6))
    assert 1 <= picture.count("pending retry") <= 500


def bars(picture: str) -> list[tuple[str, float, float]]:
    """Returns the kind, the height and the foot of each bar of pending offsets, from left to right."""
    rects = [rect for rect in ET.fromstring(picture).iter("rect") if rect.attrib["class"].startswith("pending")]
    return [
        (rect.attrib["class"].removeprefix("pending "), height, 18 - float(rect.attrib["y"]) - height)
        for rect in rects
        if (height := float(rect.attrib["height"]))
    ]


def pending_at(*offsets: int) -> tuple[ValuedRange[Pending], ...]:
    return tuple(ValuedRange(offset, offset + 1, RETRY) for offset in offsets)


@pytest.mark.parametrize(("every", "low", "high"), [(20, 3, 3), (4, 4, 5), (2, 9, 9), (1, 18, 18)])
def test_a_bar_of_pending_offsets_is_as_high_as_their_share(every: int, low: int, high: int) -> None:
    """267 failures among 5,337 records are no red log: each twentieth offset is a twentieth of it, and seen."""
    state = PartitionState(4_000, pending_at(*range(0, 4_000, every)))
    found = bars(charts.partition_picture(part(state, log_start=0.0, log_end=4_000.0)))
    assert all(low <= height <= high for _, height, _ in found)
    share = sum(height * width for (_, height, _), width in zip(found, widths_of(state), strict=True)) / 18
    assert abs(share - 1 / every) < 0.12


def widths_of(state: PartitionState) -> list[float]:
    picture = charts.partition_picture(part(state, log_start=0.0, log_end=float(state.complete_to)))
    rects = [rect for rect in ET.fromstring(picture).iter("rect") if rect.attrib["class"].startswith("pending")]
    return [float(rect.attrib["width"].rstrip("%")) / 100 for rect in rects]


def test_a_bar_says_how_many_offsets_are_pending_of_how_many() -> None:
    state = PartitionState(2_000_000, pending_at(5, 7, 1_000_000))
    titles = [title.text for title in ET.fromstring(
        charts.partition_picture(part(state, log_start=0.0, log_end=2e6))
    ).iter("title")]  # fmt: skip
    assert titles == ["2 of 10,000 offsets", "1 of 10,000 offsets"]


def test_pending_offsets_of_several_kinds_stand_on_each_other() -> None:
    flight = Pending(PendingKind.IN_FLIGHT, 1, None, None)
    runs = [ValuedRange(n, n + 1, RETRY if n % 2 else flight) for n in range(2_000)]
    found = bars(charts.partition_picture(part(PartitionState(2_000, tuple(runs)), log_start=0.0, log_end=2_000.0)))
    assert sorted(found) == [("in_flight", 9, 9), ("retry", 9, 0)]


def test_i20_no_kind_of_pending_offsets_has_no_height_in_a_column_full_of_others() -> None:
    """Of 10,000 offsets a column, all but three before the log start and three behind it are to be retried."""
    others = [Pending(kind, 1, None, None) for kind in PendingKind if kind is not PendingKind.RETRY]
    places = (10, 11, 12, 5_000, 5_001, 5_002)
    single = [ValuedRange(n, n + 1, other) for n, other in zip(places, others * 2, strict=True)]
    retries = [ValuedRange(0, 10, RETRY), ValuedRange(13, 5_000, RETRY), ValuedRange(5_003, 2_000_000, RETRY)]
    state = PartitionState(2_000_000, tuple(sorted([*single, *retries], key=lambda run: run.start)))
    found = bars(charts.partition_picture(part(state, log_start=20.0, log_end=2e6)))
    first = sorted((foot, kind, height) for kind, height, foot in found)
    assert {kind for _, kind, _ in first} == {f"{kind}{lost}" for kind in PendingKind for lost in ("", " lost")}
    assert all(height >= 2 and foot + height <= 18 for foot, _, height in first)


def test_a_short_log_has_a_column_for_each_offset() -> None:
    state = PartitionState(5, pending_at(1, 3))
    picture = charts.partition_picture(part(state, log_start=0.0, log_end=10.0))
    assert [(round(height), foot) for _, height, foot in bars(picture)] == [(18, 0), (18, 0)]
    assert widths_of(state) == [0.2, 0.2]


def test_a_name_from_outside_is_escaped() -> None:
    hostile = '"><script>alert(1)</script>'
    assert "<script>" not in charts.partition_picture(part(PartitionState(1), topic=hostile), labels=True)
    assert "<script>" not in charts.bar_chart([(hostile, NOON, {"acked": 1})])


@pytest.mark.parametrize("width", [charts.NARROWEST, 420, 800, 1400])
@pytest.mark.parametrize(
    ("start", "floor", "committed", "complete_to", "end"),
    [(0, 500, 400, 500, 500), (0, 990, 985, 995, 1000), (0, 3, 0, 5, 1000), (480, 510, 505, 520, 1000),
     (999_999_990, 999_999_998, 999_999_995, 1_000_000_000, 1_000_000_001)],
)  # fmt: skip
def test_no_label_covers_another_at_any_width(
    width: int, start: int, floor: int, committed: int, complete_to: int, end: int
) -> None:
    state = PartitionState(complete_to, (ValuedRange(floor, floor + 1, RETRY),) if floor < complete_to else ())
    shown = part(state, log_start=float(start), log_end=float(end), committed=float(committed))
    spans: dict[str, list[tuple[float, float]]] = {}
    for text in ET.fromstring(charts.partition_picture(shown, labels=True)).iter("text"):
        long, x = len(text.text or "") * 7.6, float(text.attrib["x"].rstrip("%")) / 100 * width
        left = x - {"start": 0.0, "middle": long / 2, "end": long}[text.attrib["class"]]
        assert all(left >= stop or left + long <= begin for begin, stop in spans.get(text.attrib["y"], ())), text.text
        spans.setdefault(text.attrib["y"], []).append((left, left + long))
    assert sum(map(len, spans.values())) == len({floor, committed}) + len({start, complete_to, end})


def test_marks_that_meet_have_bands_of_their_own_and_look_different() -> None:
    """Above the bar, in it and below it: their places on the paper never overlap."""
    for floor, committed in ((100, 100), (100, 99), (100, 40)):
        picture = charts.partition_picture(
            part(PartitionState(100), log_start=0.0, log_end=100.0, committed=committed), labels=True
        )
        found = marks(picture)
        assert [found[name][0] for name in ("complete", "floor", "committed")] == ["100%", f"{floor}%", f"{committed}%"]
        bands = {name: _band(path) for name, (_, path) in found.items()}
        assert bands["complete"][1] < bands["floor"][0] <= 0 < bands["floor"][1] < bands["committed"][0]
        assert len({path for _, path in found.values()}) == 3


def _band(path: str) -> tuple[float, float]:
    """Returns the highest and the lowest point of a mark whose path moves by `M`, `l`, `h` and `v`."""
    numbers = re.fullmatch(r"M\S+ (\S+) (?:l\S+ (\S+) h\S+|h\S+ v(\S+) h\S+) z", path)
    assert numbers is not None, path
    first, by = float(numbers[1]), float(numbers[2] or numbers[3])
    return min(first, first + by), max(first, first + by)


def test_the_bars_of_a_turn_stack_to_its_offsets() -> None:
    chart = ET.fromstring(charts.bar_chart([("turn 1", NOON, {"acked": 75, "failed": 25})]))
    heights = {
        rect.attrib["class"]: float(rect.attrib["height"]) for rect in chart.iter("rect") if "class" in rect.attrib
    }
    assert heights == {"outcome acked": 84.0, "outcome failed": 28.0}


def test_one_point_makes_no_line() -> None:
    assert charts.line_chart([(NOON, 1.0)], "offsets") == ""
    assert "polyline" in charts.line_chart([(NOON, 1.0), (NOON + timedelta(hours=1), 4.0)], "offsets")


def test_large_numbers_are_short() -> None:
    assert [charts.short(number) for number in (0, 950, 1_250_000, 2.5e9)] == ["0", "950", "1.25M", "2.5G"]


def test_positions_that_are_equal_share_one_label() -> None:
    picture = charts.partition_picture(
        part(PartitionState(100), log_start=0.0, log_end=100.0, committed=100.0), labels=True
    )
    assert re.findall(r">([a-z =]+ [0-9,]+)<", picture) == [
        "floor = committed 100", "log start 0", "complete to = end 100",
    ]  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 3, 12, 60])
def test_the_times_of_the_axis_stand_at_the_bars_of_their_turns(count: int) -> None:
    turns = [(f"turn {n}", NOON + timedelta(minutes=10 * n), {"acked": 90}) for n in range(count)]
    chart = ET.fromstring(charts.bar_chart(turns))
    bars = [(percent(bar, "x"), percent(bar, "x") + percent(bar, "width")) for bar in chart.iter("rect")]
    times = [text for text in chart.iter("text") if "time" in text.attrib["class"]]
    if count == 1:
        assert (times[0].text, percent(times[0], "x")) == ("12:00 UTC", sum(bars[0]) / 2)
        return
    first, last = times
    assert (first.text, last.text) == ("12:00 UTC", f"{turns[-1][1]:%H:%M} UTC")
    assert (first.attrib["class"], last.attrib["class"]) == ("time start", "time end")
    assert abs(percent(first, "x") - bars[0][0]) < 0.01
    assert abs(percent(last, "x") - bars[-1][1]) < 0.01
    assert all(0 <= start < stop <= 100 for start, stop in bars)
    # The times are 75 pixels wide: side by side only where both have room in the narrowest picture.
    apart = (percent(last, "x") - percent(first, "x")) / 100 * (charts.NARROWEST - 58) > 150
    assert (first.attrib["y"] != last.attrib["y"]) or apart


def percent(element: ET.Element, name: str) -> float:
    return float(element.attrib[name].rstrip("%"))


def test_an_axis_has_no_half_offset() -> None:
    chart = charts.line_chart([(NOON, 0.0), (NOON + timedelta(hours=1), 1.0)], "offsets")
    numbers = [text.text for text in ET.fromstring(chart).iter("text") if text.attrib["class"] == "axis"]
    assert numbers == ["0", "1"]


def test_small_turns_are_seen_beside_a_large_one_and_the_axis_says_its_scale() -> None:
    turns = [("1", NOON, {"acked": 20_000}), ("2", NOON, {"acked": 50}), ("3", NOON, {})]
    chart = ET.fromstring(charts.bar_chart(turns))
    texts = [text.text for text in chart.iter("text")]
    assert "square-root scale" in texts
    assert texts[:3] == ["0", "5k", "20k"]
    [plot] = [svg for svg in chart.iter("svg") if svg.attrib.get("role") == "img"]
    assert plot.attrib["aria-label"] == "outcomes of 3 turns, at most 20,000 in one, on a square-root scale"
    heights = [float(rect.attrib["height"]) for rect in chart.iter("rect")]
    assert heights == [112.0, 5.6]
    assert "square-root scale" not in charts.bar_chart([("1", NOON, {"acked": 90}), ("2", NOON, {"acked": 50})])


def test_one_dead_record_among_a_million_is_seen_and_the_bar_ends_at_its_axis() -> None:
    outcomes = {"acked": 999_999, "dead": 1}
    bars = ET.fromstring(charts.bar_chart([("1", NOON, outcomes)])).iter("rect")
    heights = {bar.attrib["class"]: float(bar.attrib["height"]) for bar in bars}
    assert heights == {"outcome acked": 110.0, "outcome dead": 2.0}
    spark = {
        bar.attrib["class"]: bar.attrib["height"] for bar in ET.fromstring(charts.sparkline([outcomes])).iter("rect")
    }
    assert spark == {"outcome acked": "20.0", "outcome dead": "2.0"}
