"""The handler of the tests writes down each call and does what the record orders; the checker reads its journal."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from ackline.handler import Dead, Record, Skip
from ackline.verify.read_kafka import read_calls
from tests.support import journal


@pytest.fixture
def journal_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(journal.JOURNAL, str(tmp_path / "journal"))
    return tmp_path / "journal"


def handle(value: bytes | None, attempt: int = 1, offset: int = 0) -> None:
    journal.handle(Record("orders", 0, offset, datetime(2026, 3, 2, tzinfo=UTC), b"key", value, (), attempt))


def test_the_journal_keeps_each_call_and_the_handler_obeys_the_record(journal_file: Path) -> None:
    assert journal.read(journal_file) == []
    handle(b'{"fail": 1}', attempt=2, offset=4)
    handle(b"[1]", offset=5)
    handle(None, offset=6)
    for value, raised in ((b'{"fail": 1}', ValueError), (b'{"fail": -1}', ValueError), (b"{", ValueError),
                          (b'{"skip": true}', Skip), (b'{"dead": true}', Dead),
                          (b'{"exit": true}', SystemExit)):  # fmt: skip
        with pytest.raises(raised):
            handle(value, offset=7)
    calls = journal.read(journal_file)
    assert [(call.offset, call.attempt) for call in calls] == [(4, 2), (5, 1), (6, 1), *[(7, 1)] * 6]
    assert {(call.topic, call.partition) for call in calls} == {("orders", 0)}


def test_the_checker_reads_the_journal(journal_file: Path) -> None:
    assert len(read_calls(str(journal_file))) == 0
    handle(b"{}", offset=3)
    assert read_calls(str(journal_file)).select(["topic", "partition", "offset", "attempt"]).to_pylist() == [
        {"topic": "orders", "partition": 0, "offset": 3, "attempt": 1}
    ]
