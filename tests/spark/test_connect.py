"""A Spark Connect server runs the same jobs with the same outcomes as a master: every tier, trees, isolation, cancel.

The server is that of `ackline dev spark`, with an event log. All tests share it, as the clients of a server do.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any, cast

import pytest
from airflow.sdk.exceptions import AirflowException
from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as ServerSession

from ackline.errors import ConfigError, RangeGone
from ackline.lane.adapters import open_adapters
from ackline.local.broker import Broker
from ackline.local.processes import wait_until
from ackline.local.spark_server import SparkServer
from ackline.pipeline.blocks import SparkBlock
from ackline.pipeline.pipeline import load
from ackline.spark.application import HIDDEN_TEXT, application_of
from ackline.spark.connect import _shared_session, session_id
from ackline.spark.job import check_replay, run_replay
from ackline.spark.master import MASTER
from ackline.spark.session import open_session
from ackline.spark.settings import ARCHIVE, build_archive, import_paths
from ackline.steps.plan import plan
from tests.conftest import MakeTopic
from tests.kafka.kafka_log import delete_before
from tests.spark.clients import RUNS_A_JOB, Client, calls_of, daemons, ended_calls, server_of
from tests.spark.lab import Lab, run_script
from tests.spark.tiers import EXPECTED, OUTCOME_WORDS
from tests.spark.tree_jobs import ITEMS, TWO, ran
from tests.support import journal

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PIPELINE = """
name: client
kafka: {{connection: kafka_default, group_id: "{topic}-group", topics: [{topic}]}}
handler: tests.support.journal:handle
dead_letter: none
start: earliest
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkServer]:
    folder = tmp_path_factory.mktemp("connect")
    events = folder / "events"
    events.mkdir()
    settings = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri(),
                "spark.eventLog.compress": "false"}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # its workers import the handlers of these tests
        patch.setenv(journal.JOURNAL, str(folder / "journal"))
        with SparkServer(folder, settings=settings, master="local[2]") as started:
            yield started


@pytest.fixture(scope="module")
def session(server: SparkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of this process. Other test files of the process have a Spark of their own."""
    pipelines = tmp_path_factory.mktemp("project") / "pipelines"
    pipelines.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MASTER, server.url)
        patch.setenv("ACKLINE_PIPELINES", str(pipelines))
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        PATHS[:] = import_paths()
        opened = open_session()
        yield opened
        opened.stop()


@pytest.fixture
def lab(session: SparkSession, server: SparkServer, broker: Broker, topic: MakeTopic, tmp_path: Path) -> Lab:
    return Lab(session, broker, tmp_path / "audit", server.directory / "journal", topic)


@pytest.mark.parametrize("handler", ["arrow_words", "column_words"])
def test_arrow_and_column_tier_store_the_outcomes_that_they_store_on_a_master(lab: Lab, handler: str) -> None:
    tp = lab.put(*OUTCOME_WORDS[:5])
    job = lab.job(handler, {tp: (0, 4)}, {tp: {4: 2}})
    result = lab.run(job)
    assert [row[:2] for row in lab.outcomes(job)] == [row[:2] for row in EXPECTED]
    assert [row["attempt"] for row in lab.rows(job)] == [1, 1, 1, 1, 2]
    assert result.fetched_for_retries >= 1


def test_the_record_tier_stores_the_outcomes_that_it_stores_on_a_master(lab: Lab) -> None:
    tp = lab.put(b"", b"fail", None, b"skip", b"fail")
    job = lab.job("by_word", {tp: (0, 4)}, {tp: {4: 2}})
    assert lab.run(job).calls == 4
    assert [outcome for _, outcome, _ in lab.outcomes(job)] == ["acked", "failed", "skipped", "skipped", "failed"]
    assert {row["error_class"] for row in lab.rows(job) if row["outcome"] == "failed"} == {"ValueError"}


def test_a_tree_runs_as_one_job_whose_steps_meet_on_the_server(lab: Lab) -> None:
    job = ran(lab, [ITEMS, ITEMS, []], TWO)
    assert [outcome for _, outcome, _ in lab.outcomes(job)] == ["acked"] * 3
    assert application_of(lab.spark).setting("spark.sql.adaptive.enabled") == "false"  # else: a job for each exchange


@pytest.mark.parametrize("handler", ["column_explodes", "column_not_a_column"])
def test_a_column_handler_can_only_add_a_column(lab: Lab, handler: str) -> None:
    tp = lab.put(b"a")
    with pytest.raises(ConfigError, match=handler):
        lab.run(lab.job(handler, {tp: (0, 1)}))


def test_at_most_once_claims_only_what_the_server_can_prove(lab: Lab) -> None:
    tp = lab.put(b"", b"fail")
    job = lab.job("by_word", {tp: (0, 2)}, once=True)
    check_replay(lab.spark, job)
    lab.run(job)
    assert [outcome for _, outcome, _ in lab.outcomes(job)] == ["acked", "failed"]
    with pytest.raises(ConfigError, match="column handler: under at_most_once a Spark Connect server"):
        check_replay(lab.spark, lab.job("column_words", {tp: (0, 2)}, once=True))


def test_an_isolated_handler_may_take_its_process_down(lab: Lab) -> None:
    tp = lab.put(b"", b"exit", b"")
    job = lab.ran("by_word", {tp: (0, 3)}, isolated=True)
    assert [outcome for _, outcome, _ in lab.outcomes(job)] == ["acked", "failed", "acked"]


def test_an_error_of_the_source_keeps_its_class_and_quotes_nothing(lab: Lab) -> None:
    tp = lab.put(b"payload-4711", b"b")
    delete_before(lab.broker, tp.topic, 1)
    with pytest.raises(RangeGone, match="the log no longer holds the planned range"):
        lab.run(lab.job("by_word", {tp: (0, 2)}))


def test_progress_is_reported_and_ctrl_c_ends_the_job_on_the_server(lab: Lab) -> None:
    values = [b'{"sleep": 0.25}'] * 200
    tp = lab.put(*values)
    job = lab.job("tests.support.journal:handle", {tp: (0, 200)})
    progress: list[int] = []

    def interrupt() -> None:
        while calls_of(lab, tp) < 8 or not any(progress):
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_replay(lab.spark, job, lambda handled: progress.append(handled.done))
    finally:
        signal.signal(signal.SIGINT, before)
    assert 0 < progress[-1] <= ended_calls(lab, tp) < 150  # the first 64 calls are counted when all of them have ended


CHANGING = """
import changing_too

def handle(record):
    if changing_too.ANSWER:
        raise changing_too.ANSWER
"""


def test_a_changed_handler_never_meets_the_modules_of_the_one_before(
    lab: Lab, server: SparkServer, tmp_path: Path
) -> None:
    """The server keeps Python workers, which keep modules. The code of a session comes to its own workers alone."""
    tp = lab.put(b"a")
    for number, (outcome, wanted) in enumerate((("None", "acked"), ("Skip('now')", "skipped"))):
        (tmp_path / "pipelines").mkdir(exist_ok=True)
        (tmp_path / "changing.py").write_text(CHANGING)
        (tmp_path / "changing_too.py").write_text(f"from ackline import Skip\nANSWER = {outcome}\n")
        done = run_script(RUNS_A_JOB, lab.broker.bootstrap, str(tmp_path / f"audit{number}"), tp.topic,
                          ACKLINE_SPARK_MASTER=server.url, ACKLINE_PIPELINES=str(tmp_path / "pipelines"))  # fmt: skip
        assert f"outcomes ['{wanted}']" in done.stdout, done.stderr


def test_clients_with_the_same_code_share_the_python_workers_of_a_session(
    lab: Lab, server: SparkServer, tmp_path: Path
) -> None:
    """One daemon for each version of the code: Spark never ends one, so one for each run would fill the memory."""
    client = Client(lab, server, tmp_path / "code")
    workers = {client.worker()}
    before = daemons(server)
    workers |= {client.worker(), client.worker()}
    assert len(workers) <= 2  # the server has two cores
    assert daemons(server) == before


def test_clients_that_prepare_the_same_session_at_the_same_time_both_get_it(
    lab: Lab, server: SparkServer, tmp_path: Path
) -> None:
    clients = [Client(lab, server, tmp_path / name) for name in ("code", "copy")]
    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(Client.worker, clients))) == 2
        for number in range(5):  # at the same moment, which two processes hardly meet
            settings = {"spark.sql.shuffle.partitions": str(number + 1)}

            def prepared(name: str, settings: dict[str, str] = settings) -> str:
                (tmp_path / name).mkdir(exist_ok=True)
                code = build_archive(tmp_path / name / ARCHIVE, tmp_path)
                spark: Any = _shared_session(server_of(server.url), SparkBlock(), settings, code)
                spark.stop()
                return str(spark.session_id)

            assert len(set(pool.map(prepared, "abcd"))) == 1


def test_a_session_that_the_server_has_closed_is_followed_by_another(
    lab: Lab, server: SparkServer, tmp_path: Path
) -> None:
    """By default after an hour without a client. The server then refuses its id. `backfill --wait` may wait longer."""
    client = Client(lab, server, tmp_path / "code")
    for _ in range(2):
        closed = run_script(CLOSES_ITS_SESSION, **client.environment)
        assert "closed" in closed.stdout, closed.stderr
    assert client.worker()


CLOSES_ITS_SESSION = """
from ackline.spark.session import open_session
for _ in range(2):
    session = open_session()
    assert session is open_session()
    assert session.range(3).count() == 3
    session.client.release_session()
print("closed")
"""


class Reads(Client):
    """A client whose handler has read a file beside it when it was imported."""

    HANDLER = """
import os
from pathlib import Path
from ackline import Skip
PRICE = Path(__file__).with_name("price.txt").read_text()
def handle(record):
    raise Skip(f"{PRICE} {os.getcwd()}")
"""


def test_handlers_find_the_file_beside_them_as_it_is_now_and_the_working_folder_of_the_run(
    lab: Lab, server: SparkServer, tmp_path: Path
) -> None:
    """As in a Spark of the run's own. The server has begun in another folder."""
    client = Reads(lab, server, tmp_path / "project")
    for price in ("300", "400"):
        (client.folder / "price.txt").write_text(price)
        assert client.worker() == f"{price} {os.getcwd()}"


def test_a_client_that_gets_sigterm_ends_its_job(lab: Lab, server: SparkServer, tmp_path: Path) -> None:
    """systemd, a container and a shell end a process so."""
    (tmp_path / "pipelines").mkdir()
    tp = lab.put(*[b'{"sleep": 0.25}'] * 200)
    script = RUNS_A_JOB.replace("changing:handle", "tests.support.journal:handle").replace("(0, 1)", "(0, 200)")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "ACKLINE_SPARK_MASTER": server.url,
           "ACKLINE_PIPELINES": str(tmp_path / "pipelines")}  # fmt: skip
    client = subprocess.Popen(
        [sys.executable, "-c", script, lab.broker.bootstrap, str(tmp_path / "root"), tp.topic], env=env
    )
    assert wait_until(lambda: calls_of(lab, tp) >= 8, 120)
    client.terminate()
    assert client.wait(60) == 128 + signal.SIGTERM
    assert ended_calls(lab, tp) < 60


def test_a_session_has_another_id_for_other_content_for_another_day_and_after_it_was_closed() -> None:
    ids = [
        session_id(content, date(2026, 1, day), number)
        for content in (b"a", b"b")
        for day in (1, 2)
        for number in (0, 1)
    ]
    assert len(set(ids)) == 8
    assert session_id(b"a", date(2026, 1, 1), 0) == ids[0]


def test_a_client_that_ends_leaves_the_job_of_another_in_the_same_session(lab: Lab, server: SparkServer) -> None:
    tp = lab.put(*[b'{"sleep": 0.25}'] * 40)
    job = lab.job("tests.support.journal:handle", {tp: (0, 40)})
    ended: list[str] = []

    def end_another() -> None:
        assert wait_until(lambda: calls_of(lab, tp) >= 2, 120)
        ended.append(run_script(OPENS, *PATHS, ACKLINE_PIPELINES=os.environ["ACKLINE_PIPELINES"],
                                ACKLINE_SPARK_MASTER=server.url).stdout)  # fmt: skip

    other = threading.Thread(target=end_another)
    other.start()
    result = lab.run(job)
    other.join()
    session: Any = lab.spark
    assert ended == [f"{session.session_id}\n"]
    assert result.calls == calls_of(lab, tp) == 40


OPENS = """
import sys
from ackline.spark import connect
from ackline.spark.session import open_session
connect.import_paths = lambda: sys.argv[1:]
print(open_session().session_id)
"""
"""Opens a session as another process that imports from the folders of its arguments."""
PATHS: list[str] = []
"""The folders from which this process imported when it opened its session."""


def wrote(file: Path, content: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    return file


@pytest.mark.parametrize("killed", [False, True])
def test_the_driver_of_an_airflow_task_is_a_client_that_ends_its_job_when_it_is_killed(
    lab: Lab, server: SparkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """Airflow's `on_kill` ends the driver, and the driver the job: a server would go on with it."""
    from ackline.airflow.driver import Secrets
    from ackline.airflow.driver_hook import DriverHook

    count = 200 if killed else 2
    tp = lab.put(*[b'{"sleep": 0.25}'] * count)
    file = wrote(tmp_path / "pipelines" / "client.yaml", PIPELINE.format(topic=tp.topic))
    connection = {"bootstrap.servers": lab.broker.bootstrap}
    monkeypatch.setenv("ACKLINE_PIPELINES", str(file.parent))
    monkeypatch.setenv("ACKLINE_AUDIT", str(tmp_path / "root"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": server.url}))
    monkeypatch.delenv(MASTER)
    with open_adapters(load(file), connection, run_id="r", actor="test", audit=str(tmp_path / "root")) as adapters:
        planned = plan(adapters).plan
        assert planned is not None
        hook = DriverHook(Secrets(connection), conn_id="spark_default", application_args=["client", "--run-id=r"])
        if not killed:
            hook.submit(str(ROOT / "spark_jobs" / "replay.py"))
            assert adapters.store.has_outcomes(planned.turn)
            return

        def kill() -> None:
            if wait_until(lambda: calls_of(lab, tp) >= 8, 120):
                hook.on_kill()

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(AirflowException):
            hook.submit(str(ROOT / "spark_jobs" / "replay.py"))
        killer.join()
        assert not adapters.store.has_outcomes(planned.turn)
    assert ended_calls(lab, tp) < 60


def test_no_password_gets_into_the_event_log_and_no_setting_into_another_session(lab: Lab, server: SparkServer) -> None:
    """I13. The log has the text of each request, in which the Kafka source has its options. The id of the client stands
    for a password: it travels without TLS, too."""
    tp = lab.put(b"a")
    lab.ran("ack", {tp: (0, 1)}, kafka={"client.id": "hunter-4711"})
    lab.ran("column_words", {tp: (0, 1)}, kafka={"client.id": "hunter-4711"})
    written = b"".join(file.read_bytes() for file in server.directory.rglob("*") if file.is_file())
    assert b"OperationStarted" in written
    assert b"hunter-4711" not in written
    other = ServerSession.builder.remote(server.url).create()
    try:
        application = application_of(cast(SparkSession, other))
        assert [application.setting(name) for name in ("spark.sql.ansi.enabled", HIDDEN_TEXT)] == [None, None]
    finally:
        other.stop()  # else this process calls the server for ten minutes when it ends


LEFT_ALONE = """
import sys
from pathlib import Path
from ackline.local.spark_server import SparkServer
from ackline.spark.session import open_session
import os
with SparkServer(Path(sys.argv[1]), master="local[1]") as server:
    os.environ["ACKLINE_SPARK_MASTER"] = server.url
    open_session()
print("the server is gone", flush=True)
"""


@pytest.mark.deep
def test_a_client_gives_up_a_server_after_some_seventy_seconds(lab: Lab) -> None:
    """By default after ten minutes, for each request."""
    session: Any = lab.spark
    [policy] = session.client.get_retry_policies()
    waits = [policy.initial_backoff * policy.backoff_multiplier**number for number in range(policy.max_retries)]
    assert 60_000 < sum(min(wait, policy.max_backoff) for wait in waits) < 80_000


def test_a_client_whose_server_is_gone_ends_at_once(tmp_path: Path) -> None:
    """pyspark would call the server, and try again for ten minutes, when the process ends."""
    begun = time.monotonic()
    done = run_script(LEFT_ALONE, str(tmp_path / "server"), PYTHONPATH=str(ROOT))
    assert "the server is gone" in done.stdout, done.stderr
    assert time.monotonic() - begun < 120  # it starts a server first


def test_a_client_without_the_token_is_refused(server: SparkServer) -> None:
    done = run_script("from ackline.spark.session import open_session\nopen_session()",
                      ACKLINE_SPARK_MASTER=f"sc://localhost:{server.port}")  # fmt: skip
    assert "check user and token" in done.stderr
