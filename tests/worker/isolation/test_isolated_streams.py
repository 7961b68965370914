"""Isolation of handlers behind decoders and filters: what these do to the process is their record's outcome, too."""

from dataclasses import replace
from pathlib import Path

import pytest

from ackline.pipeline.streams import Stream, Translation
from tests.support.schema_registry import stub_registry
from tests.worker.isolation.conftest import MakeIsolated
from tests.worker.isolation.lab import KILLERS, batch_of, call, calls, classes

STREAM = Stream("orders", f"{KILLERS}:handle_text", f"{KILLERS}:wants", topics=("orders",), value="json")


def test_a_record_that_kills_its_handler_or_its_filter_fails_alone(isolated: MakeIsolated, folder: Path) -> None:
    handler = isolated(limit=1.0, translation=Translation((STREAM,)))
    values: dict[bytes | None, str] = {
        b'{"do": ""}': "acked",
        b'{"do": "kill"}': "WorkerLost",
        b"{not json": "Undecodable",
        b'{"do": "", "filter": "segfault"}': "WorkerLost",
        b'{"do": "unwanted"}': "Unmatched",
        b'{"do": "spin"}': "Timeout",
        b'{"do": "fail"}': "ValueError",
        None: "Tombstone",
        b'{"do": "print"}': "acked",
    }
    assert call(handler, list(values)) == list(values.values())
    assert calls(folder) == [100, 102, 110, 112, 116], "the handler gets each record once"


@pytest.mark.parametrize("once", [False, True])
def test_a_decoded_batch_is_halved_until_the_culprit_is_alone(isolated: MakeIsolated, once: bool) -> None:
    """A stream of its own topics may have an Arrow handler, beside streams of records."""
    batches = Stream("text", f"{KILLERS}:arrow", topics=("orders",), value="utf8")
    records = replace(STREAM, topics=("others",))
    handler = isolated(once=once, translation=Translation((batches, records)))
    neighbour = "WorkerLost" if once else "acked"
    assert call(handler, [b"a", b"\xff", b"b", None, b"segfault", b"c"]) == (
        [neighbour, "Undecodable", neighbour, "Tombstone", "WorkerLost", neighbour]
    )
    others = batch_of([b'{"do": ""}', b'{"do": "kill"}', b'{"do": "fail"}'], topic="others")
    assert classes(handler(others), 3) == ["acked", "WorkerLost", "ValueError"]


def test_a_message_class_decodes_in_the_process_of_the_handler(isolated: MakeIsolated) -> None:
    decoder = "protobuf:tests.support.shop_messages:Label"
    handler = isolated(translation=Translation((replace(STREAM, value=decoder, filter=None),)))
    assert call(handler, [b"\xff", b"Alice"]) == ["Undecodable", "Undecodable"]


SCHEMA = {"type": "record", "name": "deed", "fields": [{"name": "do", "type": "string"}]}


def test_the_time_that_a_slow_registry_takes_does_not_count_against_a_record(
    isolated: MakeIsolated, folder: Path
) -> None:
    """The limit is for the handler: a slow registry must not fail all records, one by one."""
    with stub_registry() as stub:
        values = [stub.avro(SCHEMA, {"do": deed}) for deed in ("", "spin", "fail")]
        stub.delay = 0.7
        stream = replace(STREAM, value="avro", filter=None)
        handler = isolated(limit=0.4, translation=Translation((stream,), (("url", stub.url),)))
        assert call(handler, values) == ["acked", "Timeout", "ValueError"]
    assert calls(folder) == [100, 102, 104]
