"""The audit page, served by a real Airflow: it needs a login, shows the numbers of the tables, and runs
nothing that records or errors hold."""

import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ackline.audit.queries import AuditFilter, audit_rows, displayed_values
from ackline.local.airflow_servers import LocalAirflow
from ackline.local.broker import Broker
from ackline.pipeline import load
from ackline.steps.parts import open_parts
from ackline.steps.run import run
from ackline.ui import pages
from ackline.ui.lanes import Lane
from tests.conftest import MakeTopic
from tests.dags.project import Project, served_airflow
from tests.e2e import wire
from tests.e2e.lab import Spark, encoded


@pytest.fixture(scope="module")
def project(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project whose page is served."""
    project = Project(tmp_path_factory.mktemp("project"), broker.bootstrap)
    project.pipelines.mkdir(parents=True)
    return project


@pytest.fixture(scope="module")
def airflow(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAirflow]:
    with served_airflow(tmp_path_factory.mktemp("airflow-page"), project) as airflow:
        yield airflow


def get(airflow: LocalAirflow, path: str, token: str | None = None, method: str = "GET") -> tuple[int, str]:
    """Returns status and body of one request."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(airflow.url + path, headers=headers, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_no_page_is_served_without_a_login(airflow: LocalAirflow) -> None:
    """Airflow serves a plugin's routes without a login, unless the routes themselves require one."""
    source = Path(pages.__file__).with_name("app.py").read_text()
    paths = re.findall(r'^@app\.(?!middleware|exception)\w+\("([^"]*)', source, re.MULTILINE)
    assert set(paths) >= {"/", "/pipelines/{name}"}
    for page in paths:
        for path in (page.format(name="orders"), f"{page.format(name='orders')}?topic=orders&partition=0&offset=1"):
            assert get(airflow, f"/ackline{path}")[0] in (401, 403), path
    for path in ("/ackline/docs", "/ackline/redoc", "/ackline/openapi.json"):
        assert get(airflow, path)[0] in (401, 403, 404), path


class Tables(HTMLParser):
    """The tables of a page: a list of rows each, and a row is the texts of its cells; the first row is the head."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self._in_cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.tables[-1][-1][-1] += data


def tables_of(page: str) -> list[list[dict[str, str]]]:
    """Returns the rows of each table of a page; a row is its cells by column."""
    return [[dict(zip(head, row, strict=True)) for row in rows] for head, *rows in Tables(page).tables]


def text(value: object) -> str:
    """Returns a value of the audit table as the page shows it."""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return "" if value is None else str(value)


def test_the_page_shows_the_numbers_of_the_tables_and_of_the_broker(
    airflow: LocalAirflow, project: Project, topic: MakeTopic, spark: Spark
) -> None:
    """Partition 0: retention deletes records 0 to 2 before they are read, and 4 waits an hour for its retry. Partition
    1: record 0 is dead. The page changes nothing."""
    source = topic(partitions=2)
    file = project.write("orders", source, retry={"initial_delay": "1h"})
    here = {"bootstrap.servers": project.bootstrap}

    def turn() -> None:
        with open_parts(load(file), here, run_id="manual__1", actor="test", audit=project.audit) as parts:
            run(parts, spark)

    turn()
    wire.produce(project.bootstrap, source, map(encoded, [{}, {}, {}, {}, {"fail": -1}, {}]))
    wire.produce(project.bootstrap, source, map(encoded, [{"dead": True}, {}]), partition=1)
    wire.delete_records(project.bootstrap, (source, 0), 3)
    turn()
    rows = list(audit_rows(project.audit, "orders", AuditFilter()))
    assert len(rows) == 7  # 0 to 2 are one row, and the dead record has two
    ends = [wire.log_end(project.bootstrap, source, partition) for partition in (0, 1)]
    floors = [project.committed("orders", source, partition) for partition in (0, 1)]
    assert (ends, floors) == ([6, 2], [4, 2])

    airflow.wait_for_dag("replay__orders")
    columns = pages.AUDIT_COLUMNS
    for token in (airflow.token(), airflow.viewer.token()):
        status, index = get(airflow, "/ackline/", token)
        assert (status, "orders" in index) == (200, True)
        status, page = get(airflow, f"/ackline/pipelines/orders?topic={source}&partition=0&offset=1", token)
        assert status == 200
        [partitions], [same, turns, _] = tables_of(index), tables_of(page)
        assert same == partitions == partition_rows(source, floors, ends, rows)
        check_turns(turns, rows)
        for partition, offset, outcomes in ((0, 1, ["expired"]), (0, 4, ["failed"]), (1, 0, ["dead", "failed"])):
            where = f"topic={source}&partition={partition}&offset={offset}"
            *_, shown = tables_of(get(airflow, f"/ackline/pipelines/orders?{where}", token)[1])
            assert sorted(row["outcome"] for row in shown) == outcomes
            assert sorted(row.items() for row in shown) == sorted(
                dict(zip(columns, map(text, displayed_values(row, columns)), strict=True)).items()
                for row in rows
                if row["partition"] == partition and row["offset"] <= offset < (row["end_offset"] or row["offset"] + 1)
            )
        assert get(airflow, "/ackline/pipelines/nothing", token)[0] == 404
        assert get(airflow, "/ackline/pipelines/orders", token, "POST")[0] == 405


def partition_rows(
    source: str, floors: list[int | None], ends: list[int], rows: list[dict[str, Any]]
) -> list[dict[str, str]]:
    """The rows of the page's table of partitions: everything was read, and one record waits an hour for its retry."""
    [due] = [row["handled_at"] + timedelta(hours=1) for row in rows if row["offset"] == 4]
    return [
        {
            "topic": source, "partition": text(partition), "floor": text(floors[partition]),
            "complete to": text(ends[partition]), "pending: retry": text(int(partition == 0)),
            "pending: dead_letter": "0", "pending: in_flight": "0", "next due": text(due) if partition == 0 else "",
        }
        for partition in (0, 1)
    ]  # fmt: skip


def check_turns(turns: list[dict[str, str]], rows: list[dict[str, Any]]) -> None:
    """The page has the genesis and the turns that have rows or read nothing; each has its offsets by outcome."""
    assert [(turn["turn"], turn["kind"]) for turn in turns] == [("2", "run"), ("1", "run"), ("0", "genesis")]
    for turn in turns:
        outcomes: Counter[str] = Counter()
        for row in rows:
            if text(row["turn"]) == turn["turn"]:
                outcomes[row["outcome"]] += (row["end_offset"] or row["offset"] + 1) - row["offset"]
        shown = {word: int(turn[word]) for word in ("acked", "failed", "dead", "expired")}
        assert shown == {word: outcomes[word] for word in shown}


def test_text_from_outside_is_escaped() -> None:
    """An exception's class or a run's id may be anything."""
    hostile = "<script>alert(1)</script>\"'"
    row = dict.fromkeys(pages.AUDIT_COLUMNS, hostile)
    page = pages.pipeline(Lane(hostile, None), [], AuditFilter(topic=hostile, partition=0), [row])
    assert "<script>" not in page
    assert 'value="&lt;script&gt;' in page


def test_a_decision_is_shown_without_the_number_of_an_attempt() -> None:
    row = dict.fromkeys(pages.AUDIT_COLUMNS) | {"offset": 7, "outcome": "dead", "error_message": "after 4 attempts"}
    rows = [row | {"attempt": 4, "outcome": "failed"}, row | {"attempt": 0}]
    page = pages.pipeline(Lane("orders", None), [], AuditFilter(partition=0), rows)
    assert "<td class=number>4</td><td>failed</td>" in page
    assert "<td></td><td>dead</td><td></td><td>after 4 attempts</td>" in page
