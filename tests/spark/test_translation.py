"""Decoders and streams in a Spark job: fresh records and retries are translated by the same code."""

import pytest

from ackline.errors import ConfigError, TransientError
from ackline.kafka.registry import registry_config
from ackline.ledger.offsets import TopicPartition
from ackline.pipeline.streams import Stream, Translation
from ackline.spark.job import run_replay
from tests.kafka.kafka_log import put
from tests.spark.lab import Lab
from tests.support.schema_registry import stub_registry

PATH = "tests.spark.stream_handlers:{}".format


FIELDS = [{"name": "id", "type": "long"}, {"name": "customer", "type": "string"}]
ALICE = {"type": "record", "name": "a", "fields": FIELDS}
DOCUMENT = {"title": "d", "type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


def test_avro_and_json_schema_are_decoded_with_the_schemas_of_the_registry(lab: Lab) -> None:
    avro, documents = lab.topic(), lab.topic()
    tp, other = TopicPartition(avro, 0), TopicPartition(documents, 0)
    with stub_registry() as stub:
        keys = [stub.avro("string", str(n), avro, "key") for n in range(4)]
        good = [(key, stub.avro(ALICE, {"id": n, "customer": "Alice"}, avro)) for n, key in enumerate(keys)]
        put(lab.broker, avro, [*good, (good[0][0], good[0][1][:8]), (b"plain", good[0][1])])
        values = [stub.json_schema(DOCUMENT, {"id": n}, documents) for n in range(2)]
        put(lab.broker, documents, [*((None, value) for value in values), (None, values[0][:5] + b'{"id": "Alice"}')])
        stub.login = "me:hunter2"
        of_avro = Stream("avro", PATH("avro"), None, (avro,), None, "avro", "avro")
        streams = (of_avro, Stream("", PATH("document"), value="json_schema"))
        login = {"schema.registry.basic.auth.user.info": "me:hunter2", "schema.registry.max.retries": "0"}
        translation = Translation(streams, registry_config(stub.url, login))
        job = lab.ran("", {tp: (0, 6), other: (0, 3)}, translation=translation)
        rows = [(row["topic"], row["offset"], row["outcome"], row["error_class"]) for row in lab.rows(job)]
        assert sorted(rows) == sorted([
            *((avro, n, "acked", None) for n in range(4)), *((avro, n, "failed", "Undecodable") for n in (4, 5)),
            *((documents, n, "acked", None) for n in range(2)), (documents, 2, "failed", "Undecodable"),
        ])  # fmt: skip
        assert "Alice" not in str(lab.rows(job))
        refused = Translation(streams, registry_config(stub.url, {}))
        with pytest.raises(ConfigError, match="refuses the login"):
            run_replay(lab.spark, lab.job("", {tp: (0, 6)}, translation=refused))
        stub.broken = 503
        again = Translation(streams, registry_config(stub.url, {**login, "schema.registry.timeout": 5}))
        with pytest.raises(TransientError, match="not ready"):
            run_replay(lab.spark, lab.job("", {tp: (0, 6)}, translation=again))
