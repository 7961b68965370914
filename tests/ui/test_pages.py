"""The views as HTML: texts from outside are escaped, cut and can't turn the direction of writing."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ackline.audit.history import TurnTotals
from ackline.ledger.explain import Event, OffsetExplanation
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import LIVE
from ackline.tables.lease import Holder, Lease, StoppedRun
from ackline.ui import pages
from ackline.ui.failing import FailingRecord
from ackline.ui.links import ActionMaker, Addresses
from ackline.ui.readings import LaneReading
from tests.support.memory_lane import OK, MemoryLane

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TP = TopicPartition("orders", 0)
ADDRESSES = Addresses("/ackline/", "")
READING = LaneReading("orders", LIVE, None, None, (), (), NOON)
MARKUP = "<script>alert(1)</script>\"'"
TURNED = "\u202egnitsixe ton\u202c \u2067\u200f"
LONG = "y" * 200_000


def views(text: str) -> list[str]:
    """Returns every view that shows texts of records and runs, each with this text wherever it may be."""
    event = Event(0, 1, 1, Outcome.FAILED, text, text, NOON, text)
    record = OffsetExplanation(7, "failed", [event], f"Offset 7 failed with {text[:900]}", 1)
    actions = ActionMaker("orders", LIVE, (), ADDRESSES).of_failures("retry", text[:900])
    return [
        pages.record(READING, TP, 7, record, actions, ADDRESSES),
        pages.failing(READING, "retry", text, [FailingRecord(TP, 7, 1, NOON, None, text)], actions, ADDRESSES),
        pages.run(READING, text, [], ADDRESSES),
        pages.index([("orders", text)], ADDRESSES, NOON),
        pages.problem("The tables can't be read", text),
    ]


def test_text_from_outside_is_escaped() -> None:
    """An exception's class or a run's id may be anything."""
    for view in views(MARKUP):
        assert "<script>alert" not in view
        assert "&lt;script&gt;alert(1)" in view
        assert 'alert(1)</script>"' not in view


def test_a_text_of_200_kb_is_cut() -> None:
    for view in views(LONG):
        assert len(view) < 40_000
        assert "y" * pages.SHOWN_TEXT in view


def test_a_text_can_not_turn_the_direction_of_writing() -> None:
    for view in views(TURNED):
        assert not set(view) & set("\u202e\u202c\u2067\u200f")
        assert "\\u202egnitsixe ton" in view


@pytest.mark.parametrize("text", [MARKUP, TURNED])
def test_the_policy_allows_the_script_and_the_style_of_the_page_alone(text: str) -> None:
    for view in views(text):
        assert view.count("<script>") == view.count("<style>") == 1
    assert "unsafe" not in pages.POLICY


def test_a_decision_is_shown_without_the_number_of_an_attempt() -> None:
    event = Event(0, 1, 0, Outcome.DEAD, None, "after 4 attempts", NOON, "run")
    page = pages.record(READING, TP, 7, OffsetExplanation(7, "dead", [event], "Dead.", 4), [], ADDRESSES)
    assert "a decision of settle" in page
    assert "attempt 0" not in page


def test_the_process_that_holds_the_open_turn_is_named_and_its_texts_are_escaped() -> None:
    lane = MemoryLane(OK)
    plan = lane.plan()
    lease = replace(Lease.of_this_process(plan.turn, "run-7", NOON), host="<b>host</b>", machine="another")
    holder = Holder.of(lease, NOON, NOON + timedelta(seconds=90))
    reading = LaneReading("lane", LIVE, lane.newest(), plan, (), (), NOON, holder)
    page = pages.pipeline(reading, [LIVE], [], [], ADDRESSES)
    assert "lapsed: run run-7 on host &lt;b&gt;host&lt;/b&gt; (process" in page
    assert "lapsed" not in pages.pipeline(replace(reading, holder=None), [LIVE], [], [], ADDRESSES)


@pytest.mark.parametrize(("letter", "topic", "shown"), [
    ("orders.dead[0] 57", "orders.dead", "<b><bdi>orders.dead[0] offset 57</bdi></b>"),
    (None, "orders.dead", "It is in the topic <b>orders.dead</b>. The table does not hold where"),
    (None, None, "It has none: its turn was planned under <code>dead_letter: none</code>"),
], ids=["stored", "of an earlier version", "none"])  # fmt: skip
def test_a_dead_record_has_its_letter_and_the_command_that_prints_it(
    letter: str | None, topic: str | None, shown: str
) -> None:
    event = Event(0, 1, 0, Outcome.DEAD, None, "after 4 attempts", NOON, "run", letter=letter)
    explained = OffsetExplanation(7, "dead", [event], "…", 4)
    page = pages.record(READING, TP, 7, explained, [], ADDRESSES, topic)
    assert shown in page
    assert "<pre>ackline dead orders orders 0 7</pre>" in page
    acked = pages.record(READING, TP, 7, OffsetExplanation(7, "acked", [], "…", 1), [], ADDRESSES, topic)
    assert "ackline dead" not in acked


def test_the_table_of_turns_has_the_share_of_the_new_records_that_failed() -> None:
    lane = MemoryLane(OK).after_run()
    newest = lane.newest()
    of_turns: list[dict[str, float]] = [{"new_records": 1200.0, "new_failed": 24.0}, {}]
    turns = [
        TurnTotals(newest.turn._replace(n=n), "run", "r", "a", "", NOON, 1, {}, metrics)
        for n, metrics in enumerate(of_turns, 1)
    ]
    page = pages.pipeline(LaneReading("lane", LIVE, newest, None, turns, (), NOON), [LIVE], [], [], ADDRESSES)
    assert page.count('data-label="New records failed"') == 2
    assert ">2.0% of 1,200<" in page


def test_what_a_run_has_stopped_with_is_text() -> None:
    stopped = StoppedRun(
        NOON, "run", "GroupMoved", f"It moved. {MARKUP} {TURNED}", "ackline doctor orders", True, (0, 1, 1)
    )
    for page in (
        pages.pipeline(replace(READING, stopped=stopped), [LIVE], [], [], ADDRESSES),
        pages.index([replace(READING, stopped=stopped)], ADDRESSES, NOON),
    ):
        assert "GroupMoved" in page
        assert "<script>alert" not in page
        assert not set(page) & set("\u202e\u202c\u2067\u200f")


def test_failing_records_show_the_last_error_once_and_the_attempts_as_bars() -> None:
    records = [FailingRecord(TP, n, n, NOON - timedelta(minutes=n), None, "status 503") for n in (1, 2, 4)]
    page = pages.failing(READING, "retry", "HTTPError", records, [], ADDRESSES)
    assert page.count("status 503") == 2, "above the list, and at the record itself"
    assert page.count(">the same<") == 2
    assert [f'width="{width}" height="8"' in page for width in (10.0, 20.0, 40.0)] == [True] * 3
    assert 'title="2026-03-01 11:59:00 UTC"' in page
    assert "1 minute ago" in page or "60 seconds ago" in page
