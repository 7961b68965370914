"""A pipeline file that does not hold is refused by file, line, key and reason, and no refusal repeats a secret."""

from pathlib import Path

import pytest

from ackline.errors import ConfigError
from ackline.pipeline import load
from tests.unit.pipeline_files import NOT_YAML, Write, writer


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a pipeline file."""
    return writer(tmp_path)


def refusal(path: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert caught.value.file == path
    assert caught.value.exit_status == 2
    return caught.value


REFUSED = [
    ("unknown key", [], "max_retrys: 3\n", 8, "max_retrys", "unknown key"),
    ("unknown key inside", [("  group_id", "  group: 5\n  group_id")], "", 4, "kafka.group", "unknown key"),
    ("capitals", [("name: orders", "name: orders\nHandler: x")], "", 2, "Handler", "unknown key"),
    ("number as key", [], "5: 1\n", 8, "5", "Keys should be strings"),
    ("missing", [("handler: handlers.orders:handle\n", "")], "", 1, "handler", "missing"),
    ("missing inside", [("  group_id: orders-replay\n", "")], "", 2, "kafka.group_id", "missing"),
    ("no dead letters", [("dead_letter: {topic: orders.dead}\n", "")], "", 1, "dead_letter", "dead_letter: none"),
    ("text for number", [], "max_uncommitted: 1e6\n", 8, "max_uncommitted", "valid integer"),
    ("fraction", [], "max_records_per_run: 1.5\n", 8, "max_records_per_run", "valid integer"),
    ("boolean for number", [], "retry: {max_retries: true}\n", 8, "retry.max_retries", "valid integer"),
    ("number for text", [("name: orders", "name: 5")], "", 1, "name", "valid string"),
    ("boolean for text", [("name: orders", "name: yes")], "", 1, "name", "valid string"),
    ("block for list", [("[orders]", "{orders: 1}")], "", 5, "kafka.topics", "valid list"),
    ("text for block", [], "retry: often\n", 8, "retry", "valid dictionary"),
    ("number in list", [("[orders]", "[orders, 5]")], "", 5, "kafka.topics.1", "valid string"),
    ("zero", [], "max_uncommitted: 0\n", 8, "max_uncommitted", "greater than or equal to 1"),
    ("negative", [], "retry: {max_retries: -1}\n", 8, "retry.max_retries", "greater than or equal to 0"),
    ("too many", [], "retry: {max_retries: 2147483647}\n", 8, "retry.max_retries", "less than or equal"),
    ("shrinking backoff", [], "retry: {multiplier: 0.5}\n", 8, "retry.multiplier", "greater than or equal to 1"),
    ("no number", [], "retry: {multiplier: .nan}\n", 8, "retry.multiplier", "less than or equal"),
    ("text for fraction", [], "retry: {multiplier: '2'}\n", 8, "retry.multiplier", "valid number"),
    ("boolean for fraction", [], "retry: {multiplier: true}\n", 8, "retry.multiplier", "valid number"),
    ("no class of errors", [], "retry: {by_error: {'': never}}\n", 8, "retry.by_error.", "at least 1 character"),
    ("bare duration", [], "retry:\n  period: 5\n", 9, "retry.period", "duration with its unit"),
    ("negative duration", [], "retry: {period: -5s}\n", 8, "retry.period", "duration with its unit"),
    ("a word", [], "start: Earliest\n", 8, "start", "not 'Earliest'"),
    ("not yet", [], "guarantee: exactly_once\n", 8, "guarantee", "not 'exactly_once'"),
    ("no rows", [], "record_outcomes: false\n", 8, "record_outcomes", "only at_most_once and no_guarantee"),
    ("rows as text", [], "record_outcomes: 'no'\n", 8, "record_outcomes", "valid boolean"),
    ("isolation", [("  topics:", "  isolation: dirty\n  topics:")], "", 5, "kafka.isolation", "not 'dirty'"),
    ("handler's isolation", [], "isolation: thread\n", 8, "isolation", "not 'thread'"),
    ("no time at all", [], "record_timeout: 0s\n", 8, "record_timeout", "between 1ms and 1d"),
    ("a week", [], "record_timeout: 7d\n", 8, "record_timeout", "between 1ms and 1d"),
    ("bare timeout", [], "record_timeout: 30\n", 8, "record_timeout", "duration with its unit"),
    ("pipeline name", [("name: orders", "name: a/b")], "", 1, "name", "pattern"),
    ("pipeline name with a quote", [("name: orders", 'name: "o\'rders"')], "", 1, "name", "pattern"),
    ("pipeline name with a line", [("name: orders", 'name: "orders\\n"')], "", 1, "name", "pattern"),
    ("topic name", [("[orders]", "[orders, 'a b']")], "", 5, "kafka.topics.1", "'a b' is no topic name"),
    ("topic name ..", [("[orders]", "['..']")], "", 5, "kafka.topics.0", "is no topic name"),
    ("long topic name", [("[orders]", f"[{'x' * 250}]")], "", 5, "kafka.topics.0", "1 to 249"),
    ("dead-letter name", [("orders.dead", "a/b")], "", 7, "dead_letter.topic", "is no topic name"),
    ("group name", [("orders-replay", "''")], "", 4, "kafka.group_id", "at least 1 character"),
    ("long group name", [("orders-replay", "x" * 256)], "", 4, "kafka.group_id", "at most 255"),
    ("handler", [("orders:handle", "orders.handle")], "", 6, "handler", "pattern"),
    ("topic twice", [("[orders]", "[orders, orders]")], "", 5, "kafka.topics", "named twice"),
    ("no topics", [("[orders]", "[]")], "", 5, "kafka.topics", "at least 1"),
    ("negative partition", [("topics: [orders]", "partitions: {orders: [-1]}")], "", 5,
     "kafka.partitions.orders.0", "greater than or equal to 0"),
    ("no partitions", [("topics: [orders]", "partitions: {orders: []}")], "", 5,
     "kafka.partitions.orders", "at least 1"),
    ("pattern", [("topics: [orders]", "pattern: 'orders('")], "", 5, "kafka.pattern", "not a regular expression"),
    ("empty pattern", [("topics: [orders]", "pattern: ''")], "", 5, "kafka.pattern", "at least 1 character"),
    ("topics and pattern", [("  topics", "  pattern: x\n  topics")], "", 2, "kafka", "exactly one of `topics`"),
    ("nothing to read", [("  topics: [orders]\n", "")], "", 2, "kafka", "exactly one of `topics`"),
    ("two brokers", [("  topics", "  connection: kafka_default\n  topics")], "", 2, "kafka",
     "name either `connection`"),
    ("no broker", [("  bootstrap_servers: 127.0.0.1:9092\n", "")], "", 2, "kafka", "name either `connection`"),
    ("broker with a login", [("127.0.0.1:9092", "me:canary@a:1")], "", 3, "kafka.bootstrap_servers", "a login belongs"),
    ("auto commit by its other name", [("  topics", "  properties: {topic.enable.auto.commit: true}\n  topics")], "", 5,
     "kafka.properties", "`topic.enable.auto.commit` is refused"),
    ("auto commit", [("  topics", "  properties: {enable.auto.commit: true}\n  topics")], "", 5, "kafka.properties",
     "`enable.auto.commit` is refused"),
    ("another group", [("  topics", "  properties: {group.id: x}\n  topics")], "", 5, "kafka.properties", "`group.id`"),
    ("each of several", [("  topics", "  properties: {group.id: x, interceptor.classes: y}\n  topics")], "", 5,
     "kafka.properties", "run code or hide records between Kafka and Ackline"),
    ("property of a list", [("  topics", "  properties: {a.b: [1]}\n  topics")], "", 5,
     "kafka.properties.a.b", "valid"),
    ("dead letters read again", [("orders.dead", "orders")], "", 7, "dead_letter", "topics read"),
    ("dead letters by pattern", [("topics: [orders]", "pattern: 'orders.*'")], "", 7, "dead_letter", "topics read"),
    ("dead letters half said", [("{topic: orders.dead}", "orders.dead")], "", 7, "dead_letter", "{topic: NAME}"),
    ("dead letters with more", [("orders.dead}", "orders.dead, acks: 1}")], "", 7, "dead_letter.acks", "unknown key"),
    ("three fields", [], 'schedule: "* * *"\n', 8, "schedule", "five fields"),
    ("no cron", [], 'schedule: "a b c d e"\n', 8, "schedule", "cron"),
    ("no such minute", [], 'schedule: "61 * * * *"\n', 8, "schedule", "cron"),
    ("a key twice", [], "name: again\n", 8, "name", "twice"),
    ("a key twice inside", [], "retry:\n  period: 1s\n  period: 2s\n", 10, "period", "twice"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "more", "line", "key", "reason"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED]
)
def test_a_refusal_names_file_line_key_and_reason(
    write: Write, changes: list[tuple[str, str]], more: str, line: int, key: str, reason: str
) -> None:
    path = write(*changes, more=more)
    error = refusal(path)
    said = str(error).splitlines()

    assert said[0].startswith(f"{path}:{line}: {key}: ")
    assert reason in said[0]
    assert error.key == key
    assert len(said) == 1, "one problem is one line"


def test_all_problems_are_named_at_once_each_on_its_line(write: Write) -> None:
    path = write(("name: orders", "name: a/b"), more="x: 1\nretry: {period: soon}\n")
    lines = [line.split(": ")[:2] for line in str(refusal(path)).splitlines()]
    assert sorted(lines) == sorted([[f"{path}:1", "name"], [f"{path}:8", "x"], [f"{path}:9", "retry.period"]])


@pytest.mark.parametrize("more", NOT_YAML.values(), ids=NOT_YAML.keys())
def test_rubbish_is_a_configuration_error_that_names_the_file(write: Write, more: str) -> None:
    path = write(more=more)
    assert str(refusal(path)).startswith(f"{path}")


@pytest.mark.parametrize("more", [NOT_YAML["tab"], NOT_YAML["code"], NOT_YAML["two documents"]])
def test_what_is_not_yaml_is_refused_with_its_line(write: Write, more: str) -> None:
    path = write(more=more)
    assert str(refusal(path)).startswith(f"{path}:8: not YAML: ")


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n", "5\n", "null\n"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    assert "is a mapping of keys to values" in str(refusal(tmp_path / "x.yaml"))


def test_a_file_that_can_not_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"name: \xff\xfe")
    assert "can't be read" in str(refusal(tmp_path / "x.yaml"))
    assert "can't be read" in str(refusal(tmp_path / "missing.yaml"))


@pytest.mark.parametrize(
    "properties",
    ['{sasl.password: "hunter2}', "{sasl.password: [hunter2]}", "{sasl.password: hunter2, group.id: x}",
     "{sasl.password: hunter2", "{sasl.password: *hunter2}", "{sasl.password: !hunter2}",
     "{sasl.password: &hunter2 &x}", "{sasl.password: !!int hunter2}"],
    ids=["quote", "list", "refused beside it", "brace", "alias", "tag", "anchor", "number"],
)  # fmt: skip
def test_i13_no_refusal_repeats_a_secret(write: Write, properties: str) -> None:
    assert "hunter2" not in str(refusal(write(("  topics", f"  properties: {properties}\n  topics"))))
