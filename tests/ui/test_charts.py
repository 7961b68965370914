"""The pictures: to scale, escaped, and of a bounded size."""

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta

import numpy as np

from ackline.ledger.fold import PartitionState
from ackline.ledger.offsets import TopicPartition, ValuedRange
from ackline.ledger.pending import Pending, PendingKind, PendingRuns
from ackline.ledger.turns import SettledPartition
from ackline.ui import charts
from ackline.ui.health import PartitionReading

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
RETRY = Pending(PendingKind.RETRY, 1, NOON, "HTTPError")


def part(state: PartitionState, topic: str = "orders", **figures: float) -> PartitionReading:
    settled = SettledPartition("id", 0, state, metrics=figures)
    return PartitionReading(TopicPartition(topic, 0), settled, None, None, timedelta(), 0, NOON, NOON)


def areas(picture: str) -> dict[str, tuple[float, float]]:
    """Returns x and width of each area of a picture."""
    root = ET.fromstring(picture)
    return {
        rect.attrib["class"]: (float(rect.attrib["x"]), float(rect.attrib["width"]))
        for rect in root.iter("rect")
        if not rect.attrib["class"].startswith("mark")
    }


def test_each_part_of_the_log_is_as_wide_as_its_share_of_the_offsets() -> None:
    state = PartitionState(800, (ValuedRange(400, 401, RETRY),))
    shown = areas(charts.partition_picture(part(state, log_start=200.0, log_end=1200.0, committed=400.0)))
    unit = (charts.WIDTH - 16) / 1000
    expected = {"log": 1000, "settled": 200, "read": 400, "unread": 400}
    for name, offsets in expected.items():
        assert abs(shown[name][1] - offsets * unit) < 0.2, name
    assert abs(shown["pending retry"][0] - (8 + 200 * unit)) < 1.5


def test_what_retention_took_before_it_was_settled_is_an_area_of_its_own() -> None:
    """Records 300 to 500 were read above the floor: only the pending one is lost, and what was not read."""
    state = PartitionState(500, (ValuedRange(300, 301, RETRY),))
    shown = areas(charts.partition_picture(part(state, log_start=600.0, log_end=1300.0, committed=300.0)))
    unit = (charts.WIDTH - 16) / 1000
    assert abs(shown["lost"][0] - (8 + 200 * unit)) < 0.2
    assert abs(shown["lost"][1] - 100 * unit) < 0.2
    assert abs(shown["gone"][1] - 300 * unit) < 0.2
    assert "pending retry lost" in shown
    assert "pending retry" not in shown


def test_a_million_failures_are_at_most_a_mark_for_each_column() -> None:
    starts = np.arange(0, 2_000_000, 2, dtype=np.int64)
    runs = PendingRuns.of([ValuedRange(0, 1, RETRY)])
    every = PendingRuns(
        starts, starts + 1, np.zeros(len(starts), dtype=np.int32), np.zeros(len(starts), dtype=np.int64), runs.states
    )
    picture = charts.partition_picture(part(PartitionState(2_000_000, every), log_start=0.0, log_end=2e6))
    assert 1 <= picture.count("pending retry") <= charts.WIDTH // 2


def test_a_name_from_outside_is_escaped() -> None:
    hostile = '"><script>alert(1)</script>'
    assert "<script>" not in charts.partition_picture(part(PartitionState(1), topic=hostile), labels=True)
    assert "<script>" not in charts.bar_chart([(hostile, NOON, {"acked": 1})])


def test_labels_stay_in_the_picture_and_apart() -> None:
    state = PartitionState(1_000_000_000, (ValuedRange(999_999_998, 999_999_999, RETRY),))
    picture = charts.partition_picture(
        part(state, log_start=999_999_990.0, log_end=1_000_000_001.0, committed=999_999_995.0), labels=True
    )
    for x in re.findall(r'<text class="[a-z]+" x="([0-9.]+)"', picture):
        assert 0 <= float(x) <= charts.WIDTH
    assert all(text in picture for text in ("floor 999,999,998", "committed 999,999,995", "end 1,000,000,001"))


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
    marks = re.findall(r'<(\w+) class="(mark \w+|committed)"', picture)
    assert marks == [("path", "mark complete"), ("rect", "mark floor"), ("path", "committed")]
    assert len(set(re.findall(r' d="M[0-9.]+ ([^"]*)"', picture))) == 2, "each mark has a shape of its own"


def test_small_turns_are_seen_beside_a_large_one_and_the_axis_says_its_scale() -> None:
    turns = [("1", NOON, {"acked": 20_000}), ("2", NOON, {"acked": 50}), ("3", NOON, {})]
    chart = ET.fromstring(charts.bar_chart(turns))
    texts = [text.text for text in chart.iter("text")]
    assert "square-root scale" in texts
    assert texts[:3] == ["0", "5k", "20k"]
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
