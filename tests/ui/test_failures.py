"""The failures of all pipelines by error class and place, and the place in the views of one pipeline."""

from datetime import timedelta
from pathlib import Path

import pytest

from ackline.airflow.dags import DAG_PREFIX
from ackline.audit import history
from ackline.ledger.fold import PartitionState
from ackline.ledger.offsets import ValuedRange
from ackline.ledger.pending import Pending, PendingKind
from ackline.ledger.turns import SettledPartition, Settlement, TurnKind
from ackline.tables.store import LedgerStore
from ackline.ui import app, failing, readings
from ackline.ui.filters import Filters
from tests.tables.lane_rows import NOON, TP, plan, settlement, store_turn, turn, written
from tests.tables.lanes import PRICE, TAX, begin_dead_lane, pipeline_file

READABLE = {f"{DAG_PREFIX}{name}" for name in ("shop", "mail")}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pipelines `shop` and `mail` with records that died at the same place, and `secret` with one more."""
    monkeypatch.setenv("ACKLINE_PIPELINES", str(tmp_path))
    monkeypatch.setenv("ACKLINE_AUDIT", str(tmp_path / "audit"))
    begin_dead_lane(tmp_path, "shop", {2: PRICE, 3: PRICE})
    begin_dead_lane(tmp_path, "mail", {7: PRICE})
    begin_dead_lane(tmp_path, "secret", {7: TAX})
    return tmp_path


def test_failures_of_the_same_class_and_place_are_one_row_over_the_pipelines_that_the_user_may_read() -> None:
    page = app.all_failures(READABLE, Filters())
    assert page.count(PRICE) == 1
    assert ["2 dead" in page, "1 dead" in page, "secret" in page, TAX in page] == [True, True, False, False]
    assert page.index("/pipelines/shop/failures") < page.index("/pipelines/mail/failures"), "the most records first"
    assert "3 records" in page
    assert "No record is pending" in app.all_failures(set(), Filters())
    assert "/ackline/failures" in app.index(READABLE, Filters())


def test_a_pipeline_that_cannot_be_read_hides_no_other(folder: Path) -> None:
    for log in (folder / "audit" / "mail").rglob("_delta_log/*.json"):
        log.write_text("{torn")
    page = app.all_failures(READABLE, Filters())
    assert ("Not read" in page, PRICE in page) == (True, True)


def test_the_page_of_a_pipeline_and_that_of_a_group_have_the_place(folder: Path) -> None:
    reading = readings.read_lane("shop")
    view = app.pipeline(reading, READABLE)
    assert (PRICE in view, "ackline dead shop --redrive" in view) == (True, True)
    page = app.failures(reading, READABLE, "dead", "KeyError")
    assert page.count(PRICE) == 3, "above the list, and at each of the two records"


def test_a_place_is_text(folder: Path) -> None:
    store = LedgerStore(str(folder / "audit"), "shop", "live")
    hostile = written(store, turn(1, pipeline="shop"), [(3, 3, "failed")], place="<b>x</b>:1 in f")
    assert store.outcomes.append([hostile], "tests/attempt", 1)
    page = app.failures(readings.read_lane("shop"), READABLE, "dead", "KeyError")
    assert ("<b>x</b>" in page, "&lt;b&gt;x&lt;/b&gt;:1 in f" in page) == (False, True)


def test_records_of_one_class_that_failed_at_two_places_are_two_groups(folder: Path) -> None:
    """Each record counts at the place of its last attempt, and each place has a message of its own."""
    begin_dead_lane(folder, "twice", {2: PRICE, 3: TAX, 4: PRICE})
    reading = readings.read_lane("twice")
    assert [(each.error_class, each.place, each.records) for each in failing.failures(reading)] == [
        ("KeyError", PRICE, 2), ("KeyError", TAX, 1),
    ]  # fmt: skip
    [group] = failing.failures(reading, by_place=False)
    assert (group.records, group.place) == (3, PRICE)


@pytest.fixture
def pending(folder: Path) -> LedgerStore:
    """A lane whose first turn has failed at TAX for each of four records, and whose second turn at PRICE for two."""
    pipeline_file(folder, "pending")
    store = LedgerStore(str(folder / "audit"), "pending", "live")
    store.store_settlement(settlement(0, pipeline="pending"))
    for n, offsets, place in ((1, (2, 3, 5, 6), TAX), (2, (3, 5), PRICE)):
        of = turn(n, pipeline="pending")
        rows = [(offset, n, "failed") for offset in offsets]
        file = written(store, of, rows, error_class="KeyError", place=place, message=f"no price in turn {n}")
        waits = {2: 1, 3: n, 5: n, 6: 1}
        runs = [
            ValuedRange(
                offset, offset + 1, Pending(PendingKind.RETRY, made, NOON + timedelta(hours=offset), "KeyError")
            )
            for offset, made in waits.items()
        ]
        state = SettledPartition("id", 0, PartitionState(10, tuple(runs)), {"failed": len(rows)})
        settled = Settlement(of, TurnKind.RUN, "run", NOON, {TP: state})
        store_turn(store, plan(n, pipeline="pending"), file, settled=settled)
    return store


def test_pending_records_are_grouped_by_the_place_of_their_last_attempt(pending: LedgerStore) -> None:
    assert [
        (each.place, each.records, each.partitions, each.attempts, each.message, each.due)
        for each in failing.failures(readings.read_lane("pending"))
    ] == [
        (PRICE, 2, 1, 2, "no price in turn 2", NOON + timedelta(hours=3)),
        (TAX, 2, 1, 1, "no price in turn 1", NOON + timedelta(hours=2)),
    ]


def test_a_class_of_more_failed_rows_than_are_read_stays_one_group(
    pending: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_FAILED_ROWS", 5)
    [group] = failing.failures(readings.read_lane("pending"))
    assert (group.records, group.place, group.message) == (4, TAX, "no price in turn 1")
