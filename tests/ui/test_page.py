"""The routes of the page, served by a real Airflow: each needs a login and the right to read the pipeline's DAG, shows
the numbers of the tables, and changes nothing."""

import html
import re
import time
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path

import pytest

from ackline.audit.queries import AuditFilter, audit_rows
from ackline.handler import Durations, StepCounts
from ackline.lane.adapters import open_adapters
from ackline.ledger.metrics import StepFigures
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import LIVE
from ackline.local.airflow_servers import LocalAirflow
from ackline.pipeline.pipeline import load
from ackline.steps.run import run
from ackline.tables.store import LedgerStore
from ackline.ui import failing, pages, readings
from ackline.ui.links import Addresses
from tests.airflow.project import Project
from tests.conftest import MakeTopic
from tests.e2e import wire
from tests.e2e.lab import Spark, encoded
from tests.ui.stored_lanes import DEADLINE, StoredPartition, write_lane

VIEWS = {
    "/": "/",
    "/failures": "/failures",
    "/pipelines/{name}": "/pipelines/{name}",
    "/pipelines/{name}/partition": "/pipelines/{name}/partition?topic={name}&partition=1",
    "/pipelines/{name}/failures": "/pipelines/{name}/failures?kind=retry&error_class=requests.HTTPError",
    "/pipelines/{name}/record": "/pipelines/{name}/record?topic={name}&partition=1&offset=141",
    "/pipelines/{name}/turns/{epoch}/{n}": "/pipelines/{name}/turns/0/3",
    "/pipelines/{name}/run": "/pipelines/{name}/run?run_id=manual",
    "/dags/{dag_id}": "/dags/replay__{name}",
    "/dags/{dag_id}/runs/{run_id}": "/dags/replay__{name}/runs/manual",
}
"""Each route, with an address of it."""


def get(
    airflow: LocalAirflow, path: str, token: str | None = None, method: str = "GET"
) -> tuple[int, str, "Message[str, str]"]:
    """Returns status, body and headers of one request."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(airflow.url + path, headers=headers, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


def view(airflow: LocalAirflow, path: str, token: str | None = None) -> str:
    """Returns a view of the page, which must be there."""
    status, body, _ = get(airflow, f"/ackline{path}", token or airflow.token())
    assert status == 200, (path, status, body[:500])
    return body


def text_of(page: str) -> str:
    """Returns the text of a page, with single spaces."""
    body = page.partition("<main")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def test_the_views_of_these_tests_are_all_routes() -> None:
    source = Path(pages.__file__).with_name("app.py").read_text()
    routes = re.findall(r'^@app\.(?!middleware|exception)(\w+)\("([^"]*)', source, re.MULTILINE)
    assert ({path for _, path in routes}, {method for method, _ in routes}) == (set(VIEWS), {"get"})


def test_no_page_is_served_without_a_login(airflow: LocalAirflow) -> None:
    """Airflow serves a plugin's routes without a login, unless the routes themselves require one."""
    for path in VIEWS.values():
        assert get(airflow, f"/ackline{path.format(name='orders')}")[0] in (401, 403), path
        assert get(airflow, f"/ackline{path.format(name='orders')}", "not-a-token")[0] in (401, 403), path
    for path in ("/ackline/docs", "/ackline/redoc", "/ackline/openapi.json"):
        assert get(airflow, path)[0] in (401, 403, 404), path


def test_a_user_who_may_not_read_the_dag_gets_the_same_404_as_for_a_pipeline_that_does_not_exist(
    airflow: LocalAirflow,
) -> None:
    admin, viewer = airflow.token(), airflow.viewer.token()
    for route, path in VIEWS.items():
        hidden = f"/ackline{path.format(name='payments')}"
        assert get(airflow, f"/ackline{path.format(name='orders')}", viewer)[0] == 200, path
        assert get(airflow, hidden, admin)[0] in (200, 404), path
        status, body, _ = get(airflow, hidden, viewer)
        if route in ("/", "/failures"):
            assert "orders" in body
            assert "payments" not in body
            continue
        nowhere = get(airflow, f"/ackline{path.format(name='nowhere')}", viewer)
        assert (status, body) == nowhere[:2], path
        assert status == 404, path
    assert "payments" in view(airflow, "/")


def test_the_page_answers_to_nothing_but_get(airflow: LocalAirflow) -> None:
    for path in VIEWS.values():
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert get(airflow, f"/ackline{path.format(name='orders')}", airflow.token(), method)[0] == 405, path


def test_a_page_may_load_nothing_and_run_its_own_script_alone(airflow: LocalAirflow) -> None:
    for path in (*VIEWS.values(), "/nothing"):
        _, body, headers = get(airflow, f"/ackline{path.format(name='orders')}", airflow.token())
        policy = headers["Content-Security-Policy"]
        assert policy == pages.POLICY
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert not re.findall(r"\s(?:src|style|on\w+)=", body), path
        assert not re.findall(r'(?:href|action)="(?!/)', body), path


@pytest.mark.parametrize("path", [
    "/pipelines/orders?lane=..%2Fpayments", "/pipelines/orders?lane=backfill-none", "/pipelines/..%2Fpayments",
    "/pipelines/orders/partition?topic=orders&partition=99", "/pipelines/orders/turns/0/9999",
    "/pipelines/orders/turns/7/1", "/dags/another_dag",
])  # fmt: skip
def test_what_does_not_exist_is_a_404(airflow: LocalAirflow, path: str) -> None:
    assert get(airflow, f"/ackline{path}", airflow.token())[0] == 404


def test_an_address_that_is_not_valid_is_named_without_a_traceback(airflow: LocalAirflow) -> None:
    path = "/ackline/pipelines/orders/record?topic=orders&partition=one&offset=-4"
    status, body, _ = get(airflow, path, airflow.token())
    assert status == 422
    assert "Correct offset, partition in the address." in text_of(body)


def test_a_group_of_failures_leads_to_its_records_and_each_to_its_attempts(
    airflow: LocalAirflow, project: Project
) -> None:
    group = view(airflow, "/pipelines/orders/failures?kind=retry&error_class=requests.HTTPError")
    [link] = [link for link in re.findall(r'href="/ackline(/pipelines/orders/record[^"]*)', group) if "=141" in link]
    story = text_of(view(airflow, html.unescape(link)))
    rows = [
        row
        for row in audit_rows(project.audit, "orders", AuditFilter("orders", 1))
        if (row["offset"], row["outcome"]) == (141, "failed")
    ]
    assert len(rows) > 10
    assert f"Offset 141 of orders[1] failed {len(rows)} times with requests.HTTPError" in story
    for row in rows:
        assert f"attempt {row['attempt']} {row['handled_at']:%Y-%m-%d %H:%M:%S} UTC" in story
        assert row["run_id"] in story
    assert story.count("requests.HTTPError : status 503 from the tax service at order 141") == len(rows)


def test_an_act_names_confirm_without_which_a_run_of_its_dag_is_a_dry_run(airflow: LocalAirflow) -> None:
    """Retention has taken the record 141, so a backfill of it is not offered."""
    for dag_id, where in (("backfill__orders", "partition=0&offset=7"), ("operate__orders", "partition=1&offset=141")):
        airflow.wait_for_dag(dag_id)
        shown = text_of(view(airflow, f"/pipelines/orders/record?topic=orders&{where}"))
        action = shown.partition(f"Copy, and open the DAG {dag_id} ")[2].partition("Copy")[0]
        assert "Confirm , without which the run is a dry run: it changes nothing" in action
        assert '"confirm": false' in action


def test_a_turn_leads_to_its_dag_run_and_names_its_delta_versions(airflow: LocalAirflow, project: Project) -> None:
    store = LedgerStore(project.audit, "orders", LIVE)
    newest = store.newest()
    assert newest is not None
    page = view(airflow, f"/pipelines/orders/turns/0/{newest.turn.n}")
    run_id = newest.run_id.replace(":", "%3A").replace("+", "%2B")
    assert page.count(f'href="/dags/replay__orders/runs/{run_id}" target="_top"') == 2
    version = store.settlements.open()
    assert version is not None
    assert f"Delta version of settlements {version.version()}" in text_of(page)
    runs = text_of(view(airflow, f"/dags/replay__orders/runs/{run_id}"))
    assert f"Turns that this run settled Turn Kind Settled Outcomes Lag {newest.turn.n} run" in runs


def test_a_thousand_partitions_take_less_than_a_second_of_computing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12 turns of 1,000 partitions, some with failures. The page shows the worst twenty, and the others on request.
    Time on the processor, because other tests may use the machine."""
    monkeypatch.setenv("ACKLINE_AUDIT", str(tmp_path))
    many = {
        TopicPartition("clicks", n): StoredPartition(arrive=10, read=10 - n % 3 // 2, fail_every=50 * (n % 9 == 0))
        for n in range(1000)
    }
    write_lane(str(tmp_path), "clicks", many, turns=12, whole=False)
    addresses = Addresses("/ackline/", "")

    def show(start: int) -> str:
        reading = readings.read_lane("clicks")
        return pages.pipeline(reading, [LIVE], failing.failures(reading), [], addresses, start)

    for start in (0, 980):
        show(start)  # the first request loads what all others need
        begun = time.process_time()
        page = show(start)
        seconds = time.process_time() - begun
        assert seconds < 1.0, (start, seconds)
        assert len(page) < 150_000
    assert "20 of 1,000, the worst first" in text_of(show(0))


def test_the_view_of_a_pipeline_with_steps_or_outputs_has_a_table_of_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACKLINE_AUDIT", str(tmp_path))
    steps = {
        "source": StepCounts(1200, 3600, 1190, 10, Durations(1200, 3_000_000_000, 9_000_000)),
        "idle": StepCounts(),
    }
    partitions = {TopicPartition("clicks", 0): StoredPartition()}
    write_lane(str(tmp_path), "clicks", partitions, 3, steps=StepFigures(steps, Durations(1190, 11_900_000_000, 10**9)))
    write_lane(str(tmp_path), "plain", {TopicPartition("plain", 0): StoredPartition()}, 3)
    alone = StepFigures({"source": StepCounts(4, 6, 3, 1)})
    write_lane(str(tmp_path), "outputs", {TopicPartition("outputs", 0): StoredPartition()}, 1, steps=alone)

    def shown(name: str) -> str:
        reading = readings.read_lane(name)
        addresses = Addresses("/ackline/", "")
        return text_of(pages.pipeline(reading, [LIVE], [], [], addresses, 0, readings.read_steps(reading)))

    assert "Steps 3 newest turns with records; complete latency 10.0 ms, at most 1000.0 ms" in shown("clicks")
    assert "3.6k records 2.5 ms a call 30 failed" in shown("clicks")
    assert "Step Executed Emitted Acked Failed Mean ms Max ms source 3,600 10,800 3,570 30 2.5 9.0" in shown("clicks")
    assert "idle 0 0 0 0 – –" in shown("clicks")
    assert "source 4 6 3 1 – –" in shown("outputs")
    assert "Steps" not in shown("plain")


def test_records_in_flight_are_counted_and_listed_with_their_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACKLINE_AUDIT", str(tmp_path))
    tp, other = TopicPartition("calls", 0), TopicPartition("calls", 1)
    partitions = {tp: StoredPartition(in_flight=(10, 13)), other: StoredPartition(hold=7, fail_every=100)}
    write_lane(str(tmp_path), "calls", partitions, 1)
    reading, addresses = readings.read_lane("calls"), Addresses("/ackline/", "")
    shown = text_of(pages.pipeline(reading, [LIVE], failing.failures(reading), [], addresses, 0))
    assert "Pending: retry 1 Pending: dead letter 0 Pending: in flight 3" in shown
    in_minutes = int(DEADLINE.total_seconds() // 60) - 1
    assert re.search(
        rf"in flight, waiting for an answer in flight 3 1 1 \d+ seconds ago \d+ seconds ago in {in_minutes} minutes",
        shown,
    )
    part = next(part for part in reading.partitions if part.tp == tp)
    view = text_of(pages.partition(reading, part, [], addresses))
    assert "offset 10 is in flight and waits for its answer until" in view
    assert f"Next attempt or deadline Error class [10, 13) in flight 1 in {in_minutes} minutes" in view
    [record] = failing.failing_records(reading, "in_flight", "")[:1]
    assert (record.tp, record.offset) == (tp, 10)


def test_the_page_shows_what_a_real_run_has_stored(
    airflow: LocalAirflow, project: Project, topic: MakeTopic, spark: Spark
) -> None:
    """Partition 0: retention deletes records 0 to 2 before they are read, and 4 waits an hour for its retry. Partition
    1: record 0 is dead. The page changes nothing."""
    source = topic(partitions=2)
    file = project.write("real", source, retry={"initial_delay": "1h"})
    here = {"bootstrap.servers": project.bootstrap}

    def turn() -> None:
        with open_adapters(load(file), here, run_id="manual__1", actor="test", audit=project.audit) as adapters:
            run(adapters, spark)

    turn()
    wire.produce(project.bootstrap, source, map(encoded, [{}, {}, {}, {}, {"fail": -1}, {}]))
    wire.produce(project.bootstrap, source, map(encoded, [{"dead": True}, {}]), partition=1)
    wire.delete_records(project.bootstrap, (source, 0), 3)
    turn()
    floors = [project.committed("real", source, partition) for partition in (0, 1)]
    assert floors == [4, 2]
    airflow.wait_for_dag("replay__real")
    for token in (airflow.token(), airflow.viewer.token()):
        assert "real losing" in text_of(view(airflow, "/pipelines/real", token))
        for partition, (lag, end) in enumerate([(2, 6), (0, 2)]):
            shown = text_of(view(airflow, f"/pipelines/real/partition?topic={source}&partition={partition}", token))
            expected = f"Floor {floors[partition]} Complete to {end} Log end {end}"
            assert f"Lag {lag} " in shown
            assert expected in shown
        for partition, offset, state in ((0, 1, "expired"), (0, 4, "pending"), (0, 5, "acked"), (1, 0, "dead")):
            where = f"topic={source}&partition={partition}&offset={offset}"
            story = text_of(view(airflow, f"/pipelines/real/record?{where}", token))
            assert f"{source}[{partition}] offset {offset} {state} What happened" in story
    assert [project.committed("real", source, partition) for partition in (0, 1)] == floors
