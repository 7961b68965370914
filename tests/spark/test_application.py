"""What a Spark Connect server can't prove is refused by name, and before anything is read."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from ackline.errors import ConfigError, TransientError
from ackline.local.processes import free_ports
from ackline.pipeline.blocks import SparkBlock
from ackline.spark import application, connect
from ackline.spark.application import EVERYTHING, HIDDEN_TEXT, ServerApplication
from ackline.spark.connect import open_server_session
from ackline.spark.lineage import source_options
from ackline.worker.settings import ReplayJob
from tests.spark.clients import server_of
from tests.spark.tree_jobs import TWO


class Session:
    def __init__(self, **settings: str) -> None:
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.conf: Any = self
        self.client: Any = self
        self.copies: list[Session] = []
        self.explained, self.is_open = 0, True

    def cloneSession(self) -> "Session":  # noqa: N802 - pyspark's name
        self.copies.append(Session(**{name.replace(".", "_"): value for name, value in self.settings.items()}))
        return self.copies[-1]

    def get_retry_policies(self) -> list[object]:
        return []

    def set_retry_policies(self, policies: list[object]) -> None:
        assert policies == []

    def explain_string(self, plan: str, mode: str) -> str:
        assert (mode, self.is_open, HIDDEN_TEXT in self.settings) == ("extended", True, False)
        self.explained += 1
        if not plan:
            return ""
        head = "== Parsed Logical Plan ==\n'Project\n\n== Analyzed Logical Plan ==\na: int, b: int\n"
        return f"{head}{plan}\n\n== Optimized Logical Plan ==\nProject\n+- Other"

    def release_session(self) -> None:
        raise RuntimeError("the server is gone")

    def close(self) -> None:
        self.is_open = False

    def get(self, name: str, default: str | None) -> str | None:
        return self.settings.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    def unset(self, name: str) -> None:
        self.settings.pop(name, None)


def rows(plan: str) -> Any:
    """A DataFrame of a client whose analysed plan is this text."""
    return SimpleNamespace(_plan=SimpleNamespace(to_proto=lambda _: plan))


def server_application(session: Session) -> ServerApplication:
    return ServerApplication(cast(SparkSession, session))


def job(**settings: Any) -> Any:
    defaults = {"once": False, "topology": None, "handler": "m:f"}
    return cast(ReplayJob, SimpleNamespace(settings=SimpleNamespace(**(defaults | settings))))


def handler(record: Any) -> None: ...


@pytest.mark.parametrize(
    ("settings", "wanted", "refusal"),
    [
        ({"spark_speculation": "true"}, {}, "`spark.speculation` on.*start the server without it"),
        ({"spark_dynamicAllocation_enabled": "True"}, {"once": True}, "`spark.dynamicAllocation.enabled` is on"),
        ({}, {"topology": TWO}, "start the server with `--conf spark.stage.maxAttempts=1`"),
        ({"spark_stage_maxAttempts": "1"}, {"topology": TWO}, "`--conf spark.stage.maxConsecutiveAttempts=1`"),
    ],
)
def test_a_setting_of_the_server_that_breaks_a_promise_is_refused(
    settings: dict[str, str], wanted: dict[str, Any], refusal: str
) -> None:
    with pytest.raises(ConfigError, match=refusal):
        server_application(Session(**settings)).check(job(**wanted), handler)
    server_application(Session()).check(job(), handler)


SOURCE = "Project [a#1]\n+- RelationV2[a#1] kafka"


@pytest.mark.parametrize(
    ("plan", "only_columns"),
    [
        ("Project [a#1, b#2]\n+- Project [a#1]\n   +- RelationV2[a#1] kafka", True),
        ("Project [a#1, b#2]\n+- Window [b#2]\n   +- Project [a#1]\n      +- RelationV2[a#1] kafka", False),
        ("Project [a#1, b#2]\n+- Generate explode(a#1)\n   +- Project [a#1]\n      +- RelationV2[a#1] kafka", False),
        ("Project [a#1, b\n+- Project AS b#2]\n+- Project [a#1]\n   +- RelationV2[a#1] kafka", False),
        ("*********(redacted)", False),
    ],
)
def test_the_nodes_of_the_plan_prove_that_a_column_was_added_and_nothing_else(plan: str, only_columns: bool) -> None:
    session = Session(**{HIDDEN_TEXT.replace(".", "_"): EVERYTHING})
    assert server_application(session).adds_only_columns(rows(plan), rows(SOURCE)) is only_columns
    assert session.settings == {HIDDEN_TEXT: EVERYTHING}  # others use it
    [copy] = session.copies
    assert (copy.explained, copy.is_open, session.is_open) == (2, False, True)


def test_two_plans_that_can_not_be_read_prove_nothing() -> None:
    session = Session(**{HIDDEN_TEXT.replace(".", "_"): EVERYTHING})
    assert not server_application(session).adds_only_columns(rows(""), rows(""))


def test_what_only_the_start_of_a_server_sets_is_refused() -> None:
    block = SparkBlock.model_validate(
        {"executor_memory": "2g", "driver_memory": "2g", "conf": {"spark.sql.shuffle.partitions": 4}}
    )
    with pytest.raises(ConfigError, match=r"sets spark\.driver\.memory, spark\.executor\.memory, which a session"):
        open_server_session(server_of("sc://localhost"), block)


@pytest.mark.parametrize("master", ["sc://spark.example", "sc://spark.example:15002/;user_id=me"])
def test_no_password_travels_unencrypted_to_another_host(master: str) -> None:
    with pytest.raises(ConfigError, match=r"not encrypted, and the Kafka password travels.*use_ssl=true"):
        open_server_session(server_of(master), SparkBlock())
    assert server_of(f"{master}/;use_ssl=true").encrypted
    assert server_of(f"{master}/;token=abc").encrypted


def test_a_server_that_is_down_is_a_transient_error_at_once() -> None:
    [port] = free_ports(1)
    with pytest.raises(TransientError, match=f"no Spark Connect server answers at sc://localhost:{port}"):
        open_server_session(server_of(f"sc://localhost:{port}"), SparkBlock())


def test_a_session_of_a_master_is_no_client() -> None:
    assert isinstance(application.application_of(cast(SparkSession, Session())), application.OwnApplication)


def test_each_client_ships_a_file_of_its_own_name_and_marks_the_session_ready_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one name, the server refuses one of two clients that prepare a session at the same moment."""
    done: list[str] = []
    session = SimpleNamespace(
        conf=SimpleNamespace(set=lambda name, _: done.append(name)),
        addArtifacts=lambda path, pyfile: done.append(Path(path).name if Path(path).read_bytes() == b"code" else ""),
    )
    monkeypatch.setattr(connect, "_check_kafka_source", lambda *_: None)
    (tmp_path / "code.zip").write_bytes(b"code")
    for _ in range(2):
        connect._prepare(cast(Any, session), server_of("sc://localhost"), {"a": "1"}, tmp_path / "code.zip")
    set_first, shipped, ready = done[:3]
    assert (set_first, ready) == ("a", connect._READY)
    assert done[3:] == ["a", done[4], connect._READY]
    assert {shipped[-8:], done[4][-8:]} == {"code.zip"}
    assert shipped != done[4]


@pytest.mark.parametrize(("socket", "api"), [(None, "120000"), ("60000", "120000"), ("180000", "180000")])
def test_the_source_waits_for_an_answer_no_shorter_than_for_a_request(socket: str | None, api: str) -> None:
    """Java's clients refuse that, and Spark makes its client only once the job runs."""
    kafka = {"bootstrap.servers": "127.0.0.1:9", **({"socket.timeout.ms": socket} if socket else {})}
    assert source_options(kafka, "read_committed")["kafka.default.api.timeout.ms"] == api
