"""The pipeline file: what holds is loaded; everything else is refused by file, line, key and reason."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ackline.backoff import RetryPolicy
from ackline.errors import ConfigError
from ackline.pipeline import Pipeline, find, load, load_folder, parse_duration, parse_time
from tests.unit.strategies import REPEATABLE

EXAMPLES = Path(__file__).parents[2] / "include" / "pipelines"
GOOD = """\
name: orders
kafka:
  bootstrap_servers: 127.0.0.1:9092
  group_id: orders-replay
  topics: [orders]
handler: handlers.orders:handle
dead_letter: {topic: orders.dead}
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a pipeline file: the good one, with pairs of texts replaced one by the other."""

    def write(*changes: tuple[str, str], name: str = "orders.yaml", more: str = "") -> Path:
        text = GOOD + more
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


def refusal(path: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert caught.value.file == path
    assert caught.value.exit_status == 2
    return caught.value


# ---- what holds ---------------------------------------------------------------------------------------------------


def test_a_short_file_gets_the_defaults_of_the_design(write: Write) -> None:
    pipeline = load(write())

    assert pipeline.kafka.isolation == "read_committed"
    assert (pipeline.guarantee, pipeline.start) == ("at_least_once", "uncommitted_earliest")
    assert (pipeline.max_uncommitted, pipeline.max_records_per_run) == (10_000_000, 5_000_000)
    assert pipeline.tombstones == "skip"
    assert pipeline.dead_letter_topic == "orders.dead"
    assert pipeline.retry.policy() == RetryPolicy(
        timedelta(0), timedelta(minutes=1), 2.0, timedelta(hours=1), max_retries=5
    )


def test_each_example_of_the_project_loads() -> None:
    loaded = load_folder(EXAMPLES)
    assert loaded.pipelines
    assert not loaded.broken


def test_the_retry_block_is_the_policy_of_the_backoff(write: Write) -> None:
    block = "retry: {initial_delay: 100ms, period: 2s, multiplier: 3, max_delay: 1h30m, max_retries: 0}\n"
    assert load(write(more=block)).retry.policy() == RetryPolicy(
        timedelta(milliseconds=100), timedelta(seconds=2), 3.0, timedelta(minutes=90), 0
    )


def test_dead_letters_may_be_given_up_in_writing(write: Write) -> None:
    assert load(write(("{topic: orders.dead}", "none"))).dead_letter_topic is None


def test_s33_explicit_partitions_want_only_those(write: Write) -> None:
    kafka = load(write(("topics: [orders]", "partitions: {orders: [0, 2]}"))).kafka
    assert [kafka.wants("orders", n) for n in range(4)] == [True, False, True, False]
    assert not kafka.wants("payments", 0)
    assert kafka.named_topics == ("orders",)


def test_s32_a_pattern_takes_whole_names_only(write: Write) -> None:
    kafka = load(write(("topics: [orders]", 'pattern: "shop-.*"'))).kafka
    assert [kafka.wants_topic(name) for name in ("shop-orders", "my-shop-orders", "shop-")] == [True, False, True]
    assert kafka.named_topics is None


def test_i13_settings_for_tables_and_logs_hold_no_value_of_a_kafka_property(write: Write) -> None:
    settings = load(write(("  topics:", "  properties: {sasl.password: hunter2}\n  topics:"))).settings()
    assert "hunter2" not in str(settings)
    assert settings["kafka"]["properties"] == ["sasl.password"]
    assert settings["retry"]["period"] == "60s"


# ---- what is refused ----------------------------------------------------------------------------------------------


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
    ("bare duration", [], "retry:\n  period: 5\n", 9, "retry.period", "duration with its unit"),
    ("negative duration", [], "retry: {period: -5s}\n", 8, "retry.period", "duration with its unit"),
    ("a word", [], "start: Earliest\n", 8, "start", "not 'Earliest'"),
    ("not yet", [], "guarantee: exactly_once\n", 8, "guarantee", "not 'exactly_once'"),
    ("isolation", [("  topics:", "  isolation: dirty\n  topics:")], "", 5, "kafka.isolation", "not 'dirty'"),
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
    ("no partitions", [("topics: [orders]", "partitions: {orders: []}")], "", 5, "kafka.partitions.orders", "at least 1"),
    ("pattern", [("topics: [orders]", "pattern: 'orders('")], "", 5, "kafka.pattern", "not a regular expression"),
    ("empty pattern", [("topics: [orders]", "pattern: ''")], "", 5, "kafka.pattern", "at least 1 character"),
    ("topics and pattern", [("  topics", "  pattern: x\n  topics")], "", 2, "kafka", "exactly one of `topics`"),
    ("nothing to read", [("  topics: [orders]\n", "")], "", 2, "kafka", "exactly one of `topics`"),
    ("two brokers", [("  topics", "  connection: kafka_default\n  topics")], "", 2, "kafka", "name either `connection`"),
    ("no broker", [("  bootstrap_servers: 127.0.0.1:9092\n", "")], "", 2, "kafka", "name either `connection`"),
    ("auto commit", [("  topics", "  properties: {enable.auto.commit: true}\n  topics")], "", 5, "kafka.properties",
     "`enable.auto.commit` is refused"),
    ("another group", [("  topics", "  properties: {group.id: x}\n  topics")], "", 5, "kafka.properties", "`group.id`"),
    ("property of a list", [("  topics", "  properties: {a.b: [1]}\n  topics")], "", 5, "kafka.properties.a.b", "valid"),
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


NOT_YAML = {
    "tab": "\tname: x\n",
    "unclosed quote": 'schedule: "*\n',
    "unclosed list": "x: [1, 2\n",
    "NUL": "x: \0\n",
    "two documents": "---\nname: b\n",
    "code": "x: !!python/object/apply:os.system [id]\n",
    "list as key": "? [a, b]\n: 1\n",
    "block as key": "? {a: b}\n: 1\n",
    "date that is none": "x: 2026-13-45\n",
    "number that is none": "x: !!int abc\n",
    "number without end": "x: " + "9" * 5_000 + "\n",
    "block in itself": "x: &a {b: *a}\n",
    "list in itself": "x: &a [*a]\n",
    "laughs": "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
    "deep": "x: " + "[" * 2_000 + "]" * 2_000 + "\n",
}


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
    ['{sasl.password: "hunter2}', "{sasl.password: [hunter2]}", "{sasl.password: hunter2, group.id: x}", "{sasl.password: hunter2",
     "{sasl.password: *hunter2}", "{sasl.password: !hunter2}", "{sasl.password: &hunter2 &x}", "{sasl.password: !!int hunter2}"],
    ids=["quote", "list", "refused beside it", "brace", "alias", "tag", "anchor", "number"],
)  # fmt: skip
def test_i13_no_refusal_repeats_a_secret(write: Write, properties: str) -> None:
    assert "hunter2" not in str(refusal(write(("  topics", f"  properties: {properties}\n  topics"))))


# ---- a folder -----------------------------------------------------------------------------------------------------


OTHER = [("name: orders", "name: payments"), ("orders-replay", "payments-replay"), ("[orders]", "[payments]")]


def test_a_broken_file_leaves_the_others_as_they_are(write: Write, tmp_path: Path) -> None:
    good = write()
    bad = write(("name", "nmae"), name="bad.yml")
    write(name="notes.txt")
    (tmp_path / "folder.yaml").mkdir()

    loaded = load_folder(tmp_path)
    assert loaded.pipelines == {"orders": load(good)}
    assert list(loaded.broken) == [bad]


@pytest.mark.parametrize("more", NOT_YAML.values(), ids=NOT_YAML.keys())
def test_no_rubbish_breaks_anothers_file(write: Write, tmp_path: Path, more: str) -> None:
    bad = write(*OTHER, name="a.yaml", more=more)
    write()

    loaded = load_folder(tmp_path)
    assert (set(loaded.pipelines), set(loaded.broken)) == ({"orders"}, {bad})


def test_a_link_that_leads_nowhere_is_said_not_passed_over(write: Write, tmp_path: Path) -> None:
    write()
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere.yaml")
    loaded = load_folder(tmp_path)
    assert (set(loaded.pipelines), set(loaded.broken)) == ({"orders"}, {tmp_path / "gone.yaml"})


SAME = [
    ("name", [("orders-replay", "other")], "name", "the same name orders"),
    ("group and topic", [("name: orders", "name: b")], "kafka.group_id", "the same group orders-replay and a common topic"),
    ("group and one of the topics", [("name: orders", "name: b"), ("[orders]", "[payments, orders]")], "kafka.group_id", "same group"),
    ("group and a pattern", [("name: orders", "name: b"), ("topics: [orders]", "pattern: 'o[a-z]*'")], "kafka.group_id", "same group"),
    ("group and partitions", [("name: orders", "name: b"), ("topics: [orders]", "partitions: {orders: [3]}")], "kafka.group_id", "same group"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "key", "reason"), [case[1:] for case in SAME], ids=[case[0] for case in SAME])
def test_two_files_that_would_share_a_groups_offsets_are_both_refused(
    write: Write, tmp_path: Path, changes: list[tuple[str, str]], key: str, reason: str
) -> None:
    one, two, third = write(), write(*changes, name="b.yaml"), write(*OTHER, name="c.yaml")

    loaded = load_folder(tmp_path)
    assert set(loaded.broken) == {one, two}
    assert loaded.pipelines == {"payments": load(third)}
    for path, other in ((one, two), (two, one)):
        error = loaded.broken[path]
        assert str(error).startswith(f"{path}:")
        assert (error.key, error.file) == (key, path)
        assert f"{reason}" in str(error)
        assert other.name in str(error)


@pytest.mark.parametrize(
    "changes",
    [
        [("name: orders", "name: b"), ("orders-replay", "other")],
        [("name: orders", "name: b"), ("[orders]", "[payments]")],
        [("name: orders", "name: b"), ("topics: [orders]", "pattern: 'p.*'")],
    ],
    ids=["another group", "another topic", "a pattern of others"],
)
def test_files_that_share_nothing_are_neighbours(write: Write, tmp_path: Path, changes: list[tuple[str, str]]) -> None:
    write()
    write(*changes, name="b.yaml")
    assert set(load_folder(tmp_path).pipelines) == {"orders", "b"}


def test_a_pipeline_is_found_by_its_name(write: Write, tmp_path: Path) -> None:
    path = write(name="any-file.yaml")
    assert find(tmp_path, "orders") == load(path)


def test_a_pipeline_that_is_not_there_is_refused_with_the_names_that_are(write: Write, tmp_path: Path) -> None:
    write()
    write(*OTHER, name="b.yaml")
    with pytest.raises(ConfigError, match="no pipeline named nothing .*there: orders, payments"):
        find(tmp_path, "nothing")
    with pytest.raises(ConfigError, match="no folder of pipeline files"):
        find(tmp_path / "nowhere", "orders")


@pytest.mark.parametrize("name", ["name: orders", 'name: "orders"', "name:   orders  # ours"])
def test_asking_for_a_pipeline_whose_file_is_broken_says_what_is_wrong_with_it(
    write: Write, tmp_path: Path, name: str
) -> None:
    write(("name: orders", name), name="x.yaml", more="y: 1\n")
    with pytest.raises(ConfigError, match="y: unknown key"):
        find(tmp_path, "orders")


def test_another_file_that_is_broken_is_not_taken_for_it(write: Write, tmp_path: Path) -> None:
    write(("name: orders", "name: orders2"), name="x.yaml", more="y: 1\n")
    with pytest.raises(ConfigError, match="no pipeline named orders in"):
        find(tmp_path, "orders")


# ---- durations and times ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("250ms", 0.25), ("90s", 90), ("1.5h", 5_400), ("1h30m", 5_400), ("2d", 172_800), ("1m500ms", 60.5)],
)
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "5", 5, 0, 1.5, None, True, "s", "-5s", "+5s", "5 s", " 5s", "5s ", "5S", "1e3s", "5y", "1h 30m", "infs", ["5s"]]
)  # fmt: skip
def test_anything_else_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="write a duration with its unit"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["9" * 400 + "s", "1000000000d"])
def test_a_duration_longer_than_a_calendar_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="longer than a calendar"):
        parse_duration(text)


@REPEATABLE
@given(st.integers(0, 10**9), st.sampled_from(["ms", "s"]))
def test_a_duration_in_the_settings_reads_back_as_itself(number: int, unit: str) -> None:
    pipeline = Pipeline.model_validate({
        "name": "a", "kafka": {"connection": "k", "group_id": "g", "topics": ["t"]}, "handler": "h:h", "dead_letter": "none",
        "retry": {"max_delay": f"{number}{unit}"},
    })  # fmt: skip
    assert parse_duration(pipeline.settings()["retry"]["max_delay"]) == pipeline.retry.max_delay


def test_a_time_has_a_zone() -> None:
    assert parse_time("2026-01-31T12:00:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert parse_time("2026-01-31T13:00:00+01:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    for text in ("2026-01-31T12:00:00", "2026-01-31"):
        with pytest.raises(ValueError, match="has no time zone"):
            parse_time(text)
    with pytest.raises(ValueError, match="tomorrow"):
        parse_time("tomorrow")
