"""Isolation where records are decoded and filtered first: what that does to a process is its record's outcome."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ackline.spark.isolated import Isolated
from ackline.translation import Stream, Translation
from tests.unit.killers import FOLDER
from tests.unit.test_isolated import NOW, asked, calls, rows_of, work_of

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
