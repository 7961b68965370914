"""The failures of all pipelines by error class and place, and the place in the views of one pipeline."""

from pathlib import Path

import pytest

from ackline.airflow.dags import DAG_PREFIX
from ackline.tables.store import LedgerStore
from ackline.ui import app, readings
from tests.tables.lane_rows import turn, written
from tests.tables.lanes import PRICE, TAX, begin_dead_lane

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
    page = app.all_failures(READABLE)
    assert page.count(PRICE) == 1
    assert ["2 dead" in page, "1 dead" in page, "secret" in page, TAX in page] == [True, True, False, False]
    assert page.index("/pipelines/shop/failures") < page.index("/pipelines/mail/failures"), "the most records first"
    assert "3 records" in page
    assert "No record is pending" in app.all_failures(set())
    assert "/ackline/failures" in app.index(READABLE)


def test_a_pipeline_that_cannot_be_read_hides_no_other(folder: Path) -> None:
    for log in (folder / "audit" / "mail").rglob("_delta_log/*.json"):
        log.write_text("{torn")
    page = app.all_failures(READABLE)
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
