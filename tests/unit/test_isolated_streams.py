"""Isolation where records are decoded and filtered first: what that does to a process is its record's outcome."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ackline.handler import Tier
from ackline.offsets import TopicPartition
from ackline.spark.isolation.isolated import Isolated
from ackline.translation import Stream, Translation
from tests.schema_registry import stub_registry
from tests.unit.killers import FOLDER
from tests.unit.test_isolated import NOW, asked, calls, outcomes, rows_of, work_of

STREAM = Stream(
    "orders", "tests.unit.killers:handle_text", "tests.unit.killers:wants", topics=("orders",), value="json"
)


@pytest.fixture
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Isolated]:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    work = replace(work_of("handle", limit=1.0), handler=None, translation=Translation((STREAM,)))
    one = Isolated(work, lambda: NOW)
    yield one
    one.close()


def test_a_record_that_kills_its_handler_or_its_filter_fails_alone(isolated: Isolated, tmp_path: Path) -> None:
    values: list[bytes | None] = [
        b'{"do": ""}',
        b'{"do": "kill"}',
        b"{not json",
        b'{"do": "", "filter": "segfault"}',
        b'{"do": "nobody"}',
        b'{"do": "spin"}',
        b'{"do": "fail"}',
        None,
        b'{"do": ""}',
    ]
    became = ["acked", "WorkerLost", "Undecodable", "WorkerLost", "Unmatched", "Timeout", "ValueError", "Tombstone"]
    assert asked(isolated, values) == [*became, "acked"]
    assert calls(tmp_path) == [100, 102, 110, 112, 116], "each handler call is made once"


def test_what_was_said_of_records_before_a_death_stays_said(isolated: Isolated) -> None:
    answers = isolated(rows_of([b'{"do": "fail"}', b"\xff", b'{"do": "kill"}']))
    assert [one.error_class for one in answers.unacked] == ["ValueError", "Undecodable", "WorkerLost"]


@pytest.mark.parametrize("once", [False, True])
def test_a_decoded_batch_is_halved_until_the_culprit_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, once: bool
) -> None:
    """A stream of its own topics may have an Arrow handler, beside streams of records."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    batches = Stream("text", "tests.unit.killers:arrow", topics=("orders",), value="utf8")
    others = replace(STREAM, topics=("others",))
    work = replace(work_of("arrow", once=once), handler=None, tier=Tier.RECORD)
    one = Isolated(replace(work, translation=Translation((batches, others))), lambda: NOW)
    values: list[bytes | None] = [b"a", b"\xff", b"b", None, b"segfault", b"c"]
    records: list[bytes | None] = [b'{"do": ""}', b'{"do": "kill"}', b'{"do": "fail"}']
    try:
        a, b, c = ["WorkerLost"] * 3 if once else ["acked"] * 3
        assert asked(one, values) == [a, "Undecodable", b, "Tombstone", "WorkerLost", c]
        rows = replace(rows_of(records), tp=TopicPartition("others", 0))
        assert outcomes(one(rows), 3) == ["acked", "WorkerLost", "ValueError"]
    finally:
        one.close()


SCHEMA = {"type": "record", "name": "deed", "fields": [{"name": "do", "type": "string"}]}


def test_what_a_slow_registry_takes_is_not_counted_against_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is for the handler: a registry that takes its time must not fail the records, one by one."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with stub_registry() as stub:
        values: list[bytes | None] = [stub.avro(SCHEMA, {"do": word}) for word in ("", "spin", "fail")]
        stub.delay = 0.7
        stream = replace(STREAM, value="avro", filter=None)
        translation = Translation((stream,), (("url", stub.url),))
        one = Isolated(replace(work_of("handle", limit=0.4), handler=None, translation=translation), lambda: NOW)
        try:
            assert asked(one, values) == ["acked", "Timeout", "ValueError"]
        finally:
            one.close()
    assert calls(tmp_path) == [100, 102, 104]
