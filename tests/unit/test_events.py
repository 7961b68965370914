"""The demo's events are the same for the same seed, and are to the example handler what their kind says."""

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean

import pytest
import yaml

from ackline.handler import Dead, Record, Skip, load_handler
from ackline.local.order_events import Counts, Kind, OrderEvent, orders
from ackline.testing import journal

HANDLE = load_handler("handlers.orders:handle")
PIPELINE = Path(__file__).parents[2] / "include" / "pipelines" / "orders.yaml"


def record(value: bytes | None, attempt: int = 1, offset: int = 0) -> Record:
    return Record("orders", 0, offset, datetime(2026, 3, 2, tzinfo=UTC), b"key", value, (), attempt)


def failures(event: OrderEvent, attempts: int = 4) -> list[str | None]:
    """The exception of each attempt, or None, up to the first success."""
    ends: list[str | None] = []
    for attempt in range(1, attempts + 1):
        try:
            HANDLE(record(event.value, attempt))
        except Exception as error:
            ends.append(type(error).__name__)
        else:
            return [*ends, None]
    return ends


def test_the_same_seed_gives_the_same_events() -> None:
    assert list(orders(500, 7)) == list(orders(500, 7))
    assert list(orders(500, 7)) != list(orders(500, 8))


def test_each_kind_has_its_share() -> None:
    assert Counter(event.kind for event in orders(20_000, 1)) == {
        Kind.PLAIN: 19_400, Kind.FLAKY: 200, Kind.TOMBSTONE: 200, Kind.REFUSED: 100, Kind.MALFORMED: 100,
    }  # fmt: skip


def test_the_handler_makes_of_each_event_what_its_kind_says() -> None:
    found: dict[Kind, set[tuple[str | None, ...]]] = {}
    for event in orders(4_000, 3):
        if event.value is not None:
            found.setdefault(event.kind, set()).add(tuple(failures(event)))
    assert found == {
        Kind.PLAIN: {(None,)},
        Kind.FLAKY: {("TimeoutError", "TimeoutError", None)},
        Kind.REFUSED: {("ValueError",) * 4},
        Kind.MALFORMED: {("JSONDecodeError",) * 4},
    }


def test_an_order_that_does_not_add_up_fails() -> None:
    order = json.loads(next(iter(orders(1))).value or b"")
    with pytest.raises(ValueError, match="items and amount differ"):
        HANDLE(record(json.dumps({**order, "amount": order["amount"] + 1}).encode()))


def test_events_look_like_orders_of_about_190_bytes_and_tombstones_erase_earlier_ones() -> None:
    events = list(orders(2_000, 5))
    values = [event.value for event in events if event.value is not None and event.kind is not Kind.MALFORMED]
    assert 170 <= mean(len(value) for value in values) <= 210
    seen: set[bytes] = set()
    for event in events:
        assert (event.key in seen) == (event.kind is Kind.TOMBSTONE)
        seen.add(event.key)
        if event.kind is Kind.PLAIN:
            assert json.loads(event.value or b"")["order_id"].encode() == event.key


def test_counts_say_how_the_records_will_end() -> None:
    counts = Counts({Kind.PLAIN: 10, Kind.FLAKY: 2, Kind.REFUSED: 1, Kind.MALFORMED: 3, Kind.TOMBSTONE: 4})
    assert (counts.records, counts.acked, counts.dead, counts.skipped) == (20, 12, 4, 4)


def test_the_demos_pipeline_retries_long_enough_for_the_flaky_and_briefly_enough_for_a_demo() -> None:
    pipeline = yaml.safe_load(PIPELINE.read_text())
    assert (pipeline["name"], pipeline["kafka"]["topics"]) == ("orders", ["orders"])
    assert load_handler(pipeline["handler"]) is HANDLE
    assert pipeline["dead_letter"] == {"topic": "orders.dead"}
    assert pipeline["retry"]["max_retries"] == 3


@pytest.fixture
def journal_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(journal.JOURNAL, str(tmp_path / "journal"))
    return tmp_path / "journal"


def test_the_journal_keeps_each_call_and_the_handler_obeys_the_record(journal_file: Path) -> None:
    assert journal.read(journal_file) == []
    journal.handle(record(b'{"fail": 1}', attempt=2, offset=4))
    journal.handle(record(b"[1]", offset=5))
    journal.handle(record(None, offset=6))
    for value, raised in ((b'{"fail": 1}', ValueError), (b'{"fail": -1}', ValueError), (b"{", ValueError),
                          (b'{"skip": true}', Skip), (b'{"dead": true}', Dead),
                          (b'{"exit": true}', SystemExit)):  # fmt: skip
        with pytest.raises(raised):
            journal.handle(record(value, offset=7))
    calls = journal.read(journal_file)
    assert [(call.offset, call.attempt) for call in calls] == [(4, 2), (5, 1), (6, 1), *[(7, 1)] * 6]
    assert {(call.topic, call.partition) for call in calls} == {("orders", 0)}


def test_the_checker_reads_the_journal(journal_file: Path) -> None:
    from ackline.testing import checker

    assert len(checker.read_calls(str(journal_file))) == 0
    journal.handle(record(b"{}", offset=3))
    assert checker.read_calls(str(journal_file)).select(["topic", "partition", "offset", "attempt"]).to_pylist() == [
        {"topic": "orders", "partition": 0, "offset": 3, "attempt": 1}
    ]
