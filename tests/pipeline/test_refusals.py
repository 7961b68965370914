"""A pipeline file that is not valid is refused by file, line, key and reason, and no refusal repeats a secret.

No text of pydantic's own reaches a user: each kind of its errors has a sentence of ours, at every key.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_core._pydantic_core import list_all_errors

from ackline.errors import ConfigError
from ackline.pipeline import refusals
from ackline.pipeline.keys import RULES, PipelineKeys, Rule
from ackline.pipeline.pipeline import Pipeline, load
from ackline.pipeline.refusals import OUR_KINDS, known_keys, nearest_key
from tests.support.pipeline_files import GOOD, NO_HANDLER, NOT_YAML, STREAMS, TWO_TOPICS, Write


def refusal(path: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert (caught.value.file, caught.value.exit_status) == (path, 2)
    return caught.value


OUTPUTS = [{"from": "source", "table": "totals"}, {"from": "source", "topic": "totals"}]
CONNECTION = ("bootstrap_servers: 127.0.0.1:9092", "connection: shop")

# What is wrong, the changes to the valid file and the text at its end, then line, key and reason of the refusal.
REFUSED = [
    ("unknown key", [], "max_retrys: 3\n", 8, "max_retrys",
     "unknown key; did you mean `retry.max_retries`?"),
    ("unknown key inside", [("  group_id", "  group: 5\n  group_id")], "", 4, "kafka.group",
     "did you mean `group_id`?"),
    ("capitals", [("name: orders", "name: orders\nHandler: x")], "", 2, "Handler",
     "did you mean `handler`?"),
    ("number as key", [], "5: 1\n", 8, "5", "put a number"),
    ("key in the wrong block", [], "topics: [orders]\n", 8, "topics", "did you mean `kafka.topics`?"),
    ("key like no other", [], "wibble: 1\n", 8, "wibble", "unknown key; check its spelling"),
    ("word as key", [], "yes: 1\n", 8, "1", "a key is text"),
    ("topic of a strange name", [("topics: [orders]", "partitions:\n    mapping: [-1]")], "", 6,
     "kafka.partitions.mapping.0", "write 0 or more"),
    ("merged mapping", [], "retry:\n  <<:\n    period: 5\n", 10, "retry.period", "duration with its unit"),
    ("missing", [("handler: handlers.orders:handle\n", "")], "", 1, "handler", "missing"),
    ("missing inside", [("  group_id: orders-replay\n", "")], "", 2, "kafka.group_id", "missing"),
    ("no dead letters", [("dead_letter: {topic: orders.dead}\n", "")], "", 1, "dead_letter", "dead_letter: none"),
    ("text for number", [], "max_uncommitted: 1e6\n", 8, "max_uncommitted", "write a whole number"),
    ("fraction", [], "max_records_per_run: 1.5\n", 8, "max_records_per_run", "write a whole number"),
    ("boolean for number", [], "retry: {max_retries: true}\n", 8, "retry.max_retries", "write a whole number"),
    ("word for number", [], "retry: {max_retries: always}\n", 8, "retry.max_retries", "a whole number, or forever"),
    ("number for text", [("name: orders", "name: 5")], "", 1, "name", "write a name, e.g. orders; put a number"),
    ("boolean for text", [("name: orders", "name: yes")], "", 1, "name", "write a name, e.g. orders; put a number"),
    ("block for list", [("[orders]", "{orders: 1}")], "", 5, "kafka.topics", "write a list of names, e.g. [orders]"),
    ("text for block", [], "retry: often\n", 8, "retry", "write a mapping"),
    ("number in list", [("[orders]", "[orders, 5]")], "", 5, "kafka.topics.1", "write text; put a number"),
    ("zero", [], "max_uncommitted: 0\n", 8, "max_uncommitted", "write 1 or more"),
    ("negative", [], "retry: {max_retries: -1}\n", 8, "retry.max_retries", "write 0 or more"),
    ("too high", [], "retry: {max_retries: 2147483647}\n", 8, "retry.max_retries", "write 2,147,483,646 or less"),
    ("shrinking backoff", [], "retry: {multiplier: 0.5}\n", 8, "retry.multiplier", "write 1 or more"),
    ("not a number", [], "retry: {multiplier: .nan}\n", 8, "retry.multiplier", "write 1,000 or less"),
    ("text for fraction", [], "retry: {multiplier: '2'}\n", 8, "retry.multiplier", "write a number"),
    ("empty class of errors", [], "retry: {by_error: {'': never}}\n", 8, "retry.by_error.", "at least 1 character"),
    ("bare duration", [], "retry:\n  period: 5\n", 9, "retry.period", "duration with its unit"),
    ("capital in a word", [], "start: Earliest\n", 8, "start", "not 'Earliest'"),
    ("unknown guarantee", [], "guarantee: exactly_once\n", 8, "guarantee", "not 'exactly_once'"),
    ("start without its time", [], "start: timestamp\n", 8, "start", "needs a time; add `start_timestamp`"),
    ("time without its start", [], "start_timestamp: 2026-01-31T12:00:00Z\n", 8, "start_timestamp",
     "it has no effect with"),
    ("no rows", [], "record_outcomes: false\n", 8, "record_outcomes", "at_least_once needs the rows"),
    ("rows as text", [], "record_outcomes: 'no'\n", 8, "record_outcomes", "write true or false"),
    ("isolation", [("  topics:", "  isolation: dirty\n  topics:")], "", 5, "kafka.isolation", "not 'dirty'"),
    ("handler isolation", [], "handler_isolation: thread\n", 8, "handler_isolation", "not 'thread'"),
    ("the former key of handler isolation", [], "isolation: process\n", 8, "isolation", "rename it"),
    ("no time at all", [], "record_timeout: 0s\n", 8, "record_timeout", "between 1ms and 1d"),
    ("a week", [], "record_timeout: 7d\n", 8, "record_timeout", "between 1ms and 1d"),
    ("pipeline name", [("name: orders", "name: a/b")], "", 1, "name", "1 to 200 of"),
    ("pipeline name with a line", [("name: orders", 'name: "orders\\n"')], "", 1, "name", "1 to 200 of"),
    ("topic name", [("[orders]", "[orders, 'a b']")], "", 5, "kafka.topics.1", "'a b' is not a topic name"),
    ("topic name ..", [("[orders]", "['..']")], "", 5, "kafka.topics.0", "is not a topic name"),
    ("long topic name", [("[orders]", f"[{'x' * 250}]")], "", 5, "kafka.topics.0", "1 to 249"),
    ("dead-letter name", [("orders.dead", "a/b")], "", 7, "dead_letter.topic", "is not a topic name"),
    ("group name", [("orders-replay", "''")], "", 4, "kafka.group_id", "at least 1 character"),
    ("long group name", [("orders-replay", "x" * 256)], "", 4, "kafka.group_id", "at most 255"),
    ("handler", [("orders:handle", "orders.handle")], "", 6, "handler", "write module:name"),
    ("topic twice", [("[orders]", "[orders, orders]")], "", 5, "kafka.topics", "named twice"),
    ("no topics", [("[orders]", "[]")], "", 5, "kafka.topics", "at least 1"),
    ("negative partition", [("topics: [orders]", "partitions: {orders: [-1]}")], "", 5,
     "kafka.partitions.orders.0", "write 0 or more"),
    ("no partitions", [("topics: [orders]", "partitions: {orders: []}")], "", 5,
     "kafka.partitions.orders", "at least 1"),
    ("pattern", [("topics: [orders]", "pattern: 'orders('")], "", 5, "kafka.pattern", "not a regular expression"),
    ("empty pattern", [("topics: [orders]", "pattern: ''")], "", 5, "kafka.pattern", "at least 1 character"),
    ("topics and pattern", [("  topics", "  pattern: x\n  topics")], "", 2, "kafka", "exactly one of `topics`"),
    ("nothing to read", [("  topics: [orders]\n", "")], "", 2, "kafka", "exactly one of `topics`"),
    ("filter beside partitions", [("topics: [orders]", "partition_filter: a:b\n  partitions: {orders: [0]}")], "", 2,
     "kafka", "`partition_filter` cannot be combined with `partitions`"),
    ("two brokers", [("  topics", "  connection: kafka_default\n  topics")], "", 2, "kafka",
     "exactly one of `connection`"),
    ("no broker", [("  bootstrap_servers: 127.0.0.1:9092\n", "")], "", 2, "kafka", "exactly one of `connection`"),
    ("broker with a login", [("127.0.0.1:9092", "me:canary@a:1")], "", 3, "kafka.bootstrap_servers", "put the login"),
    ("auto commit by its other name", [("  topics", "  properties: {topic.enable.auto.commit: true}\n  topics")], "", 5,
     "kafka.properties", "`topic.enable.auto.commit` is refused"),
    ("auto commit", [("  topics", "  properties: {enable.auto.commit: true}\n  topics")], "", 5, "kafka.properties",
     "`enable.auto.commit` is refused"),
    ("another group", [("  topics", "  properties: {group.id: x}\n  topics")], "", 5, "kafka.properties", "`group.id`"),
    ("each of several", [("  topics", "  properties: {group.id: x, interceptor.classes: y}\n  topics")], "", 5,
     "kafka.properties", "run code, or hide records, between Kafka and Ackline"),
    ("property of a list", [("  topics", "  properties: {a.b: [1]}\n  topics")], "", 5,
     "kafka.properties.a.b", "valid"),
    ("dead letters read again", [("orders.dead", "orders")], "", 7, "dead_letter", "its dead letters again"),
    ("dead letters by pattern", [("topics: [orders]", "pattern: 'orders.*'")], "", 7, "dead_letter", "letters again"),
    ("dead letters without a block", [("{topic: orders.dead}", "orders.dead")], "", 7, "dead_letter", "{topic: NAME}"),
    ("dead letters with more", [("orders.dead}", "orders.dead, acks: 1}")], "", 7, "dead_letter.acks", "unknown key"),
    ("a tag with a space", [], "tags: [eu west]\n", 8, "tags.0", "write 1 to 100 of the characters a-z 0-9 _ -"),
    ("an owner with a comma", [], 'owner: "a, b"\n', 8, "owner", "write 1 to 100 of the characters A-Z a-z 0-9"),
    ("one tag", [], "tags: shop\n", 8, "tags", "a list of words, e.g. [shop, eu]"),
    ("three fields", [], 'schedule: "* * *"\n', 8, "schedule", "five fields"),
    ("not cron", [], 'schedule: "a b c d e"\n', 8, "schedule", "cron"),
    ("no such minute", [], 'schedule: "61 * * * *"\n', 8, "schedule", "cron"),
    ("a key twice", [], "name: again\n", 8, "name", "twice"),
    ("a key twice inside", [], "retry:\n  period: 1s\n  period: 2s\n", 10, "period", "twice"),
    # Streams and decoders.
    ("no handler, no streams", [NO_HANDLER], "", 1, "handler", "missing"),
    ("unknown decoder", [], "decode: {value: xml}\n", 8, "decode.value", "not 'xml'"),
    ("unknown part of a record", [], "decode: {headers: utf8}\n", 8, "decode.headers", "unknown key"),
    ("avro without registry", [], "decode:\n  key: utf8\n  value: avro\n", 10, "decode.value", "avro needs"),
    ("protobuf without registry", [], "decode: {value: protobuf}\n", 8, "decode.value",
     "protobuf needs a schema registry"),
    ("a message class without a colon", [], "decode:\n  value:\n    protobuf: orders_pb2.Order\n", 10,
     "decode.value.protobuf", "write module:name"),
    ("a message class with more", [], "decode: {key: {protobuf: 'a:B', protobuff: 1}}\n", 8, "decode.key.protobuff",
     "did you mean `protobuf`?"),
    ("a message class of a stream", [TWO_TOPICS], STREAMS.replace("value: json", "value: {protobuf: 1}"), 12,
     "streams.0.decode.value.protobuf", "text"),
    ("a list of decoders", [], "decode: {value: [json]}\n", 8, "decode.value", "json"),
    ("json_schema key", [], "decode: {key: json_schema}\n", 8, "decode.key", "json_schema needs a schema registry"),
    ("avro in a stream", [TWO_TOPICS], STREAMS.replace("value: json", "value: avro"), 12, "streams.0.decode.value",
     "avro needs a schema registry"),
    ("registry without a block", [], "schema_registry: http://registry\n", 8, "schema_registry", "{url: URL}"),
    ("registry without url", [], "schema_registry: {}\n", 8, "schema_registry.url", "missing"),
    ("registry without http", [], "schema_registry: {url: 'ftp://x'}\n", 8, "schema_registry.url", "such as https:"),
    ("login in the file", [], "schema_registry: {url: 'http://me:hunter2@x'}\n", 8, "schema_registry.url",
     "schema.registry.basic.auth.user.info"),
    ("password in the file", [], "schema_registry: {url: 'http://x', password: hunter2}\n", 8,
     "schema_registry.password", "unknown key"),
    ("login among Kafka's", [("  topics", "  properties: {schema.registry.basic.auth.user.info: x}\n  topics")], "", 5,
     "kafka.properties", "belongs in the extra of the Kafka connection"),
    ("hash of keys without a connection", [], "audit: {key_hash: true}\n", 8, "audit.key_hash",
     "`ackline.key_hash_secret` in the extra"),
    ("hash of keys without rows", [("  bootstrap_servers: 127.0.0.1:9092\n", "  connection: shop\n")],
     "guarantee: no_guarantee\nrecord_outcomes: false\naudit: {key_hash: true}\n", 10, "audit.key_hash",
     "record_outcomes"),
    ("registry of no connection", [], "schema_registry: connection\n", 8, "schema_registry", "`kafka.connection`"),
    ("empty list of steps", [], "steps: []\n", 8, "steps", "at least 1"),
    ("a cycle of steps", [],
     "steps:\n  - {name: a, handler: 'x:x', input: b}\n  - {name: b, handler: 'x:x', input: a}\n", 9,
     "steps.0.input", "a cycle: a, b"),
    ("calls of a join at once", [],
     "steps:\n  - {name: a, handler: 'x:x', input: source, group_by: key, join: true, concurrency: 2}\n", 9,
     "steps.0.concurrency", "one key after the other"),
    ("no calls of a step", [], "steps:\n  - {name: a, handler: 'x:x', input: source, concurrency: 0}\n", 9,
     "steps.0.concurrency", ""),
    ("a join without a key", [], "steps:\n  - {name: a, handler: 'x:x', input: source, join: true}\n", 9, "steps.0",
     "group_by: key"),
    ("an output with two targets", [], "outputs:\n  - {from: source, table: a, topic: b}\n", 9, "outputs.0",
     "one table or one topic"),
    ("an output of no step", [], "outputs:\n  - {from: a, table: a}\n", 9, "outputs.0.from.0", "no step is named a"),
    ("two outputs to one table", [], "outputs:\n  - {from: source, table: a}\n  - {from: source.b, table: a}\n", 10,
     "outputs.1.table", "outputs.0 writes to a, too; give one of them both streams: `from: [A, B]`"),
    ("two outputs to one table in two spellings", [], "outputs:\n  - {from: source, table: 's3a://b/t'}\n"
     "  - {from: source.b, table: 's3://b/t/'}\n", 10, "outputs.1.table", "outputs.0 writes to s3://b/t"),
    ("an output with the name of the ledger's table", [], "outputs:\n  - {from: source, table: plans}\n", 9,
     "outputs.0.table", "no name of an output table"),
    ("an output with a login in its URI", [], "outputs:\n  - {from: source, table: 's3://u:pw@b/t'}\n", 9,
     "outputs.0.table", "the URI holds a login"),
    ("an output column of an unknown type", [], "outputs:\n  - {from: source, table: a, columns: {x: int}}\n", 9,
     "outputs.0.columns.x", "no type of a column"),
    ("an output column of ours", [], "outputs:\n  - {from: source, table: a, columns: {_turn: long}}\n", 9,
     "outputs.0.columns", "Ackline writes itself"),
    ("an output column of ours in another case", [],
     "outputs:\n  - {from: source, table: a, columns: {_Topic: string}}\n", 9, "outputs.0.columns", "without case"),
    ("an output column with a control character", [],
     'outputs:\n  - {from: source, table: a, columns: {"a\\0b": string}}\n', 9, "outputs.0.columns", "control char"),
    ("partitions without columns", [], "outputs:\n  - {from: source, table: a, partition_by: [x]}\n", 9,
     "outputs.0", "needs `columns`"),
    ("an output to a topic that is read", [], "outputs:\n  - {from: source, topic: orders}\n", 9, "outputs.0.topic",
     "read its own output"),
    ("outputs without rows of outcomes", [],
     "guarantee: at_most_once\nrecord_outcomes: false\noutputs:\n  - {from: source, table: a}\n", 9,
     "record_outcomes", "rows of acked records"),
    ("an output table without tracking", [],
     "tracking: false\nsteps:\n  - {name: a, handler: 'x:x', input: source}\noutputs:\n  - {from: a, table: a}\n", 8,
     "tracking", "rows of acked records"),
    ("tracking without steps", [], "tracking: false\n", 8, "tracking", "no effect without `steps`"),
    ("debug without steps", [], "debug: {sample: 0.5}\n", 8, "debug", "need `steps`"),
    ("debug of no record", [], "debug: {sample: 0}\n", 8, "debug.sample", "0"),
    ("debug of more than all records", [], "debug: {sample: 1.5}\n", 8, "debug.sample", "1"),
    ("empty list of streams", [], "streams: []\n", 8, "streams", "at least 1"),
    ("stream without handler", [], "streams:\n  - {name: a, filter: 'x:x'}\n", 9, "streams.0.handler", "missing"),
    ("stream without name", [], "streams:\n  - {handler: 'x:x'}\n", 9, "streams.0.name", "missing"),
    ("stream of the empty name", [], "streams:\n  - {name: '', handler: 'x:x'}\n", 9, "streams.0.name", "1 to 100"),
    ("handler without a colon", [], "streams:\n  - {name: a, handler: x.x}\n", 9, "streams.0.handler", "module:name"),
    ("filter without a colon", [], "filter: x\n", 8, "filter", "write module:name"),
    ("topics and pattern of a stream", [], "streams:\n  - {name: a, topics: [orders], pattern: o, handler: 'x:x'}\n", 9,
     "streams.0", "either `topics` or `pattern`"),
    ("pattern of a stream", [], "streams:\n  - {name: a, pattern: '(', handler: 'x:x'}\n", 9, "streams.0.pattern",
     "expression"),
    ("a topic not read", [], STREAMS, 10, "streams.0.topics", "payments is not a topic that the pipeline reads"),
    ("a pattern of nothing", [], "streams:\n  - {name: a, pattern: 'pay.*', handler: 'x:x'}\n", 9, "streams.0.pattern",
     "matches none"),
    ("a name twice", [TWO_TOPICS], STREAMS.replace("large\n    filter", "paid\n    filter"), 13, "streams.1.name",
     "two streams are named paid"),
    ("topic in two streams", [TWO_TOPICS], STREAMS + "  - {name: b, topics: [orders, payments], handler: 'x:x'}\n", 16,
     "streams.2.topics", "the stream paid comes first"),
    ("after a stream of all topics", [],
     "streams:\n  - {name: a, handler: 'x:x'}\n  - {name: b, filter: 'x:y', handler: 'x:x'}\n", 10,
     "streams.1.name", "the stream a comes first"),
    ("filter without handler", [TWO_TOPICS, NO_HANDLER], STREAMS + "filter: x:x\n", 15, "filter",
     "which the file does not have"),
    ("ack topic without a connection", [], "ack_topic: orders.acks\n", 8, "ack_topic",
     "`ackline.token_keys` in the extra"),
    ("ack topic that is read", [CONNECTION], "ack_topic: orders\n", 8, "ack_topic", "reads the topic orders"),
    ("ack topic of dead letters", [CONNECTION], "ack_topic: orders.dead\n", 8, "ack_topic", "dead-letter topic too"),
    ("ack topic without retries", [CONNECTION], "guarantee: at_most_once\nack_topic: acks\n", 9, "ack_topic",
     "only `guarantee: at_least_once` does"),
    ("ack topic of a strange name", [CONNECTION], "ack_topic: a b\n", 8, "ack_topic", "not a topic name"),
    ("rescue without a topic", [], "rescue: {before: 1h}\n", 8, "rescue.topic", "missing"),
    ("rescue of an unknown key", [], "rescue: {topic: r, befor: 1h}\n", 8, "rescue.befor", "did you mean `before`?"),
    ("rescue too late", [], "rescue: {topic: r, before: 0s}\n", 8, "rescue.before", "write at least 1m"),
    ("release that is no switch", [], "rescue: {topic: r, release: later}\n", 8, "rescue.release", "true or false"),
    ("release at most once", [], "guarantee: at_most_once\nrescue: {topic: r, release: true}\n", 9, "rescue",
     "only `guarantee: at_least_once` leaves records pending"),
    ("rescue to a topic that is read", [], "rescue: {topic: orders}\n", 8, "rescue.topic", "reads the topic orders"),
    ("rescue among dead letters", [], "rescue: {topic: orders.dead}\n", 8, "rescue.topic", "the dead-letter topic too"),
    ("rescue among answers", [CONNECTION], "ack_topic: acks\nrescue: {topic: acks}\n", 9, "rescue.topic",
     "the ack topic too"),
    ("rescue among outputs", [], "outputs: [{from: source, topic: rows}]\nrescue: {topic: rows}\n", 9, "rescue.topic",
     "the topic of an output too"),
    ("rescue at most once", [], "guarantee: at_most_once\nrescue: {topic: r}\n", 9, "rescue",
     "only `guarantee: at_least_once` leaves records pending"),
    ("rescue without a guarantee", [], "guarantee: no_guarantee\nrescue: {topic: r}\n", 9, "rescue",
     "only `guarantee: at_least_once` leaves records pending"),
    ("in flight without a topic", [], "in_flight: {timeout: 5s}\n", 8, "in_flight", "add that key"),
    ("in flight without an end in words", [CONNECTION], "ack_topic: acks\nin_flight: {timeout: never}\n", 9,
     "in_flight.timeout", "or `none`"),
    ("in flight for no time", [CONNECTION], "ack_topic: acks\nin_flight: {timeout: 0s}\n", 9, "in_flight.timeout",
     "above 0s"),
    ("none in flight", [CONNECTION], "ack_topic: acks\nin_flight: {max: 0}\n", 9, "in_flight.max", "write 1 or more"),
    ("in flight of a wrong key", [CONNECTION], "ack_topic: acks\nin_flight: {most: 5}\n", 9, "in_flight.most",
     "unknown key"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "more", "line", "key", "reason"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED]
)
def test_a_refusal_names_file_line_key_and_reason(
    write_file: Write, changes: list[tuple[str, str]], more: str, line: int, key: str, reason: str
) -> None:
    path = write_file(*changes, more=more)
    error = refusal(path)
    [message] = str(error).splitlines()
    assert message.startswith(f"{path}:{line}: {key}: ")
    assert reason in message
    assert "hunter2" not in message
    assert error.key == key


def test_all_problems_are_named_at_once_each_on_its_line(write_file: Write) -> None:
    path = write_file(("name: orders", "name: a/b"), more="x: 1\nretry: {period: soon}\n")
    lines = [line.split(": ")[:2] for line in str(refusal(path)).splitlines()]
    assert sorted(lines) == sorted([[f"{path}:1", "name"], [f"{path}:8", "x"], [f"{path}:9", "retry.period"]])


@pytest.mark.parametrize(
    ("right", "wrong"), [("dead_letter:", "dead_leter:"), ("group_id:", "groupid:"), ("name:", "nmae:")]
)
def test_the_hint_for_a_misspelt_key_comes_before_the_key_that_is_missing_for_it(
    write_file: Write, right: str, wrong: str
) -> None:
    hint, missing = str(refusal(write_file((right, wrong)))).splitlines()
    assert hint.endswith(f"{wrong} unknown key; did you mean `{right[:-1]}`?")
    assert f"{right} missing" in missing


def test_a_rule_between_valid_keys_is_named_beside_a_key_that_is_not_valid(write_file: Write) -> None:
    """A rule about the refused key itself adds nothing: `kafka` is refused, so nothing compares the topics with it."""
    path = write_file(("[orders]", "5"), ("orders.dead", "orders"), more="start: timestamp\ntracking: false\n")
    lines = [line.split(": ")[:2] for line in str(refusal(path)).splitlines()]
    assert lines == [[f"{path}:5", "kafka.topics"], [f"{path}:9", "tracking"], [f"{path}:8", "start"]]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.check.__name__}{rule.keys}")
def test_a_rule_reads_the_keys_that_it_names_and_no_other(rule: Rule) -> None:
    kafka = {"bootstrap_servers": "127.0.0.1:9092", "group_id": "orders-replay", "topics": ["orders"]}
    for more in ({"handler": "a:b"}, {"streams": [{"name": "a", "handler": "a:b"}], "outputs": OUTPUTS}):
        file = Pipeline.model_validate({"name": "orders", "kafka": kafka, "dead_letter": "none"} | more)
        rule.check(file)
        for key in PipelineKeys.model_fields.keys() - set(rule.keys):
            del file.__dict__[key]
        rule.check(file)


@pytest.mark.parametrize("more", NOT_YAML.values(), ids=NOT_YAML.keys())
def test_a_text_that_is_not_yaml_is_a_configuration_error_that_names_the_file(write_file: Write, more: str) -> None:
    path = write_file(more=more)
    message = str(refusal(path))
    assert message.startswith(f"{path}")
    if more in (NOT_YAML["tab"], NOT_YAML["code"], NOT_YAML["two documents"]):
        assert message.startswith(f"{path}:8: not YAML: ")


@pytest.mark.parametrize(
    ("content", "reason"),
    [(text, "is a mapping of keys to values") for text in (b"", b"# nothing\n", b"- a\n", b"5\n", b"null\n")]
    + [(b"name: \xff\xfe", "can't be read"), (None, "can't be read")],
)
def test_a_file_without_a_readable_mapping_is_refused(tmp_path: Path, content: bytes | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "x.yaml").write_bytes(content)
    assert reason in str(refusal(tmp_path / "x.yaml"))


@pytest.mark.parametrize(
    "properties",
    ['{sasl.password: "hunter2}', "{sasl.password: [hunter2]}", "{sasl.password: hunter2, group.id: x}",
     "{sasl.password: hunter2", "{sasl.password: *hunter2}", "{sasl.password: !hunter2}",
     "{sasl.password: &hunter2 &x}", "{sasl.password: !!int hunter2}"],
    ids=["quote", "list", "refused beside it", "brace", "alias", "tag", "anchor", "number"],
)  # fmt: skip
def test_i13_no_refusal_repeats_a_secret(write_file: Write, properties: str) -> None:
    assert "hunter2" not in str(refusal(write_file(("  topics", f"  properties: {properties}\n  topics"))))


KEYS = sorted(known_keys(Pipeline))
WRONG_VALUES: list[Any] = [
    None, True, 0, -1, 5, 2**70, 1.5, float("nan"), float("inf"), "", "hunter2", "x" * 300, "\0", [], [1], [[]], [None],
    {}, {"hunter2": 1}, {"hunter2": []}, {5: 1}, {"": {}}, {"hunter2": {"x": {}}}, b"x",
    datetime(2026, 1, 1, tzinfo=UTC),
]  # fmt: skip
WORDS_OF_PYDANTIC = ("Input should", "should be", "should have", "valid dict", "instance of", "pydantic",
                     "Extra inputs", "Field required", "Value error", "Keys should", "Unable to")  # fmt: skip


def kinds_of_errors() -> list[Any]:
    return [error for error in list_all_errors() if error["type"] not in OUR_KINDS]


def message(tmp_path: Path, error: ValidationError) -> str:
    path = tmp_path / "x.yaml"
    path.write_text(GOOD)
    return str(refusals.refusal(path, refusals.read_yaml(path)[0], error.errors(include_url=False), Pipeline))


def value_at(key: tuple[str, ...], value: object) -> dict[str, Any]:
    for part in reversed(key):
        value = [{part: value}] if key[:1] == ("streams",) and key[1:2] == (part,) else {part: value}
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize("key", KEYS, ids=".".join)
def test_no_wrong_value_of_any_key_shows_a_text_of_pydantic(tmp_path: Path, key: tuple[str, ...]) -> None:
    content = yaml.safe_load(GOOD)
    for wrong in WRONG_VALUES:
        changed = value_at(key, wrong)
        top = {**content.get(key[0], {}), **changed[key[0]]} if key[0] == "kafka" and len(key) > 1 else changed[key[0]]
        try:
            Pipeline.model_validate({**content, key[0]: top})
        except ValidationError as error:
            shown = message(tmp_path, error)
            for problem in error.errors():
                if problem["type"] not in OUR_KINDS:
                    assert problem["msg"] not in shown
            assert not [words for words in WORDS_OF_PYDANTIC if words in shown], shown


@pytest.mark.parametrize("kind", kinds_of_errors(), ids=lambda kind: str(kind["type"]))
def test_every_kind_of_error_has_a_sentence_at_every_key(tmp_path: Path, kind: dict[str, Any]) -> None:
    context = kind.get("example_context") or {}
    for key in KEYS:
        details = InitErrorDetails(type=kind["type"], loc=key, input="hunter2", ctx=context)
        error = ValidationError.from_exception_data("Pipeline", [details])
        shown = message(tmp_path, error)
        assert error.errors()[0]["msg"] not in shown
        assert "write" in shown or "settings.md" in shown or "key" in shown
        assert kind["type"] in ("literal_error", "enum") or "hunter2" not in shown


def test_the_kinds_of_our_own_errors_are_not_those_of_pydantic_except_for_value_error(tmp_path: Path) -> None:
    assert OUR_KINDS & {error["type"] for error in list_all_errors()} == {"value_error"}
    for kind in OUR_KINDS - {"value_error"}:
        details = InitErrorDetails(type=PydanticCustomError(kind, "write this"), loc=("name",), input=5)
        assert message(tmp_path, ValidationError.from_exception_data("x", [details])).endswith("name: write this")


@pytest.mark.parametrize(
    ("key_path", "nearest"),
    [(("retrys",), "retry"), (("retry", "max_retrys"), "max_retries"), (("kafka", "group"), "group_id"),
     (("max-rate",), "max_rate"), (("bootstrap_servers",), "kafka.bootstrap_servers"),
     (("max_retries",), "retry.max_retries"), (("streams", 0, "handlr"), "handler"), (("retry", "klass"), "class"),
     (("zzz",), None), (("kafka", "properties", "x"), None)],
)  # fmt: skip
def test_an_unknown_key_gets_the_nearest_known_one(key_path: tuple[str | int, ...], nearest: str | None) -> None:
    assert nearest_key(Pipeline, key_path) == nearest
