"""`ackline init` and `ackline adopt` write three new files, or none; what they print holds no value of a record."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ackline.answers.survey import GroupSurvey, TopicSurvey
from ackline.cli import init
from ackline.cli.app import app
from ackline.errors import ConfigError
from ackline.forms.scaffold import RecordShape, ValueKind, shape_of
from ackline.ledger.commit_rule import CommitMetadata, Committed
from ackline.ledger.offsets import LogBounds, TopicPartition
from ackline.pipeline.pipeline import load

RECORDS = [b'{"id": "hunter2", "items": []}'] * 3
Run = Callable[..., str]
ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, and a broker with the topics `orders` and `orders.dead` that is not real."""
    monkeypatch.setenv("ACKLINE_PIPELINES", str(tmp_path / "include" / "pipelines"))
    monkeypatch.setattr(init, "topic_names", lambda _: ["orders", "orders.dead", "payments"])
    logs = {TopicPartition("orders", number): LogBounds(0, 10) for number in range(2)}
    monkeypatch.setattr(init, "survey_topic", lambda _, topic: TopicSurvey(topic, logs, shape_of(RECORDS)))
    return tmp_path


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments, "--bootstrap-servers", "127.0.0.1:9092"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def files(project: Path) -> list[str]:
    return sorted(str(path.relative_to(project)) for path in project.rglob("*") if path.is_file())


FILES = [
    "include/handlers/__init__.py",
    "include/handlers/orders.py",
    "include/pipelines/orders.yaml",
    "tests/test_orders.py",
]


def test_init_writes_a_pipeline_file_a_handler_and_its_test(project: Path) -> None:
    printed = run("init", "--topic", "orders")
    assert files(project) == FILES
    pipeline = load(project / FILES[2])
    assert (pipeline.name, pipeline.kafka.group_id, pipeline.dead_letter_topic) == (
        "orders", "orders-replay", "orders.dead",
    )  # fmt: skip
    assert "2 partitions, 20 offsets" in printed
    assert "JSON objects with 2 fields in common" in printed
    for text in (printed, *((project / file).read_text() for file in FILES)):
        assert "hunter2" not in text


def test_init_gives_json_to_a_program(project: Path) -> None:
    body = json.loads(run("init", "--topic", "orders", "--name", "shop", "--group", "g", "--json"))
    assert (body["pipeline"], body["partitions"], body["shape"]["kind"]) == ("shop", 2, "JSON objects")
    assert load(project / "include/pipelines/shop.yaml").kafka.group_id == "g"


def test_a_connection_keeps_its_keys_and_its_registry_from_kafka_s_client(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_ours = {"ackline.token_keys": ["k"], "ackline.key_hash_secret": "s", "schema.registry.url": "http://registry"}
    extra = {"bootstrap.servers": "127.0.0.1:9092", "client.id": "shop", **of_ours}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
    given = list[object]()

    def topic_names(connection: object) -> list[str]:
        given.append(connection)
        return ["orders"]

    monkeypatch.setattr(init, "topic_names", topic_names)
    done = CliRunner().invoke(app, ["init", "--topic", "orders"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert files(project) == FILES
    assert given == [{"bootstrap.servers": "127.0.0.1:9092", "client.id": "shop"}] * len(given) != []


@pytest.mark.parametrize("existing", FILES[1:])
def test_nothing_is_written_where_a_file_exists(project: Path, existing: str) -> None:
    path = project / existing
    path.parent.mkdir(parents=True)
    path.write_text("# mine\n")
    with pytest.raises(ConfigError, match="is not overwritten"):
        run("init", "--topic", "orders")
    assert files(project) == [existing]
    assert path.read_text() == "# mine\n"


def test_nothing_is_written_if_the_last_file_cannot_be(project: Path) -> None:
    (project / "include").mkdir()
    (project / "include" / "pipelines").symlink_to(project / "nowhere" / "at" / "all")
    with pytest.raises(ConfigError):
        run("init", "--topic", "orders")
    assert files(project) == []


def test_a_pipeline_that_conflicts_with_another_is_refused_before_anything_is_written(project: Path) -> None:
    run("init", "--topic", "orders")
    with pytest.raises(ConfigError, match="the same group orders-replay and a common topic"):
        run("init", "--topic", "orders", "--name", "again", "--group", "orders-replay")
    assert files(project) == FILES


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [([], "--topic is missing: name the topic to read. The broker has: orders, orders.dead, payments"),
     (["--topic", "a b"], "--topic: 'a b' is not a topic name"),
     (["--topic", "orders", "--name", "../x"], "the new pipeline file:3: name: "),
     (["--topic", "orders", "--group", " "], "kafka.group_id")],
)  # fmt: skip
def test_what_can_make_no_pipeline_is_refused_by_name(project: Path, arguments: list[str], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run("init", *arguments)
    assert reason in str(caught.value)
    assert files(project) == []


def group(members: tuple[str, ...] = (), metadata: str = "") -> GroupSurvey:
    logs = {TopicPartition("orders", number): LogBounds(100, 500) for number in range(3)}
    committed = {ORDERS: Committed(450, metadata), TopicPartition("orders", 1): Committed(70, "")}
    return GroupSurvey("shop-app", members, committed, logs)


def test_adopt_shows_what_taking_a_group_over_means_and_goes_on_from_its_commits(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init, "survey_group", lambda *_: group(("app-1 (10.0.0.5)",)))
    printed = run("adopt", "shop-app")
    for text in (
        "Stop its 1 live member first: app-1 (10.0.0.5)", "has 850 offsets to read",
        "1 of 3 partitions have no commit", "Retention has taken 30 offsets",
        "Nothing was changed in Kafka", "a client without metadata",
    ):  # fmt: skip
        assert text in printed
    pipeline = load(project / "include/pipelines/shop-app.yaml")
    assert (pipeline.kafka.group_id, pipeline.kafka.topics, pipeline.start) == (
        "shop-app", ["orders"], "uncommitted_earliest",
    )  # fmt: skip


def test_adopt_names_the_ledger_that_the_group_belongs_to(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = CommitMetadata("ledger-7", "shop", 0, 5).encode()
    monkeypatch.setattr(init, "survey_group", lambda *_: group(metadata=ours))
    printed = run("adopt", "shop-app", "--dry-run")
    assert "the pipeline shop of Ackline (ledger ledger-7)" in printed
    assert files(project) == []


def test_i13_adopt_shows_no_metadata_of_another_client(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init, "survey_group", lambda *_: group(metadata="hunter2"))
    body = run("adopt", "shop-app", "--json")
    assert "hunter2" not in body
    partitions = json.loads(body)["partitions"]
    assert [p["start"] for p in partitions] == [450, 100, 100]
    assert [p["lag"] for p in partitions] == [50, 400, 400]
    assert [p["expired"] for p in partitions] == [0, 30, 0]


def test_an_empty_topic_gives_a_handler_without_checks(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = TopicSurvey("orders", {ORDERS: LogBounds(0, 0)}, RecordShape(ValueKind.NONE, 0))
    monkeypatch.setattr(init, "survey_topic", lambda *_: empty)
    assert "no record" in run("init", "--topic", "orders")
    assert files(project) == FILES
