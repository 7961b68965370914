"""A fabricated history of a lane, whose rows a test changes to see what the checker finds; no broker is needed."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ackline.tables.schemas import TABLES
from ackline.verify.check import Report, judge
from ackline.verify.evidence import DeadLetter, Evidence, Log, OutputTable, TopicPartition

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
AT_MOST_ONCE = json.dumps({"guarantee": "at_most_once"})

Row = dict[str, Any]


def after_noon(seconds: int) -> datetime:
    return NOON + timedelta(seconds=seconds)


def row(turn: int, **columns: Any) -> Row:
    return {"pipeline": "orders", "plan_date": date(2026, 3, 1), "lane": "live", "epoch": 0, "turn": turn,
            "run_id": f"run-{turn}", "topic": "orders", "partition": 0, **columns}  # fmt: skip


def outcome(turn: int, offset: int, attempt: int, word: str, **columns: Any) -> Row:
    return row(turn, offset=offset, attempt=attempt, outcome=word, handled_at=after_noon(turn * 60), **columns)


def plan(turn: int, start: int, end: int, **columns: Any) -> Row:
    return row(turn, **{"kind": "run", "start_offset": start, "end_offset": end, **columns})


def settlement(turn: int, old: int, new: int, complete_to: int, *pending: Row, **columns: Any) -> Row:
    return row(turn, **{"kind": "run", "old_floor": old, "new_floor": new, "complete_to": complete_to,
                        "pending": list(pending), "counts": [], **columns})  # fmt: skip


def marker(turn: int, kind: str) -> Row:
    """A mark on a turn: a row of `plans` without a topic."""
    return {**plan(turn, 0, 0, kind=kind), "topic": None, "partition": None, "start_offset": None, "end_offset": None}


def genesis() -> Row:
    return settlement(0, 0, 0, 0, kind="genesis")


def retry(start: int, end: int, attempts: int, due: datetime) -> Row:
    return {"start_offset": start, "end_offset": end, "kind": "retry", "attempts": attempts, "due": due}


@dataclass
class History:
    """A correct history of ten offsets, with max_retries 1: 3 fails twice and is dead, 5 fails once, 7 is a tombstone.

    Offset 6 is a gap. `letters`, `calls` and the rows of the three tables are there to be changed.
    """

    records: list[int] = field(default_factory=lambda: [0, 1, 2, 3, 4, 5, 7, 8, 9])
    log_start: int = 0
    log_end: int = 10
    committed: int | None = 10
    epoch: int = 0
    turn: int = 2
    ledger: str = "ledger-1"
    aborted: list[int] | None = None
    letters: list[DeadLetter] = field(default_factory=lambda: [DeadLetter("live", 0, "orders", 0, 3, "digest")])
    outcomes: list[Row] = field(default_factory=lambda: [
        *(outcome(1, offset, 1, "acked") for offset in (0, 1, 2, 4, 8, 9)),
        outcome(1, 3, 1, "failed", error_class="ValueError"),
        outcome(1, 5, 1, "failed", error_class="ValueError"),
        outcome(1, 7, 1, "skipped", error_class="Tombstone"),
        outcome(2, 3, 2, "failed", error_class="ValueError"), outcome(2, 5, 2, "acked"),
        outcome(2, 3, 0, "dead"),
    ])  # fmt: skip
    plans: list[Row] = field(default_factory=lambda: [plan(1, 0, 10), plan(2, 10, 10)])
    settlements: list[Row] = field(default_factory=lambda: [
        genesis(),
        settlement(1, 0, 3, 10, retry(3, 4, 1, after_noon(100)), retry(5, 6, 1, after_noon(100))),
        settlement(2, 3, 10, 10),
    ])  # fmt: skip
    calls: list[tuple[int, int]] = field(
        default_factory=lambda: [(offset, 1) for offset in (0, 1, 2, 3, 4, 5, 8, 9)] + [(3, 2), (5, 2)]
    )
    outputs: list[OutputTable] = field(default_factory=list)

    def evidence(self) -> Evidence:
        metadata = {"ledger": self.ledger, "pipeline": "orders", "epoch": self.epoch, "n": self.turn}
        aborted = None if self.aborted is None else np.array(self.aborted, np.int64)
        log = Log(self.log_start, self.log_end, np.array(self.records, np.int64), self.committed,
                  json.dumps(metadata), aborted, {3: "digest"})  # fmt: skip
        tables = {
            name: pa.Table.from_pylist(getattr(self, name), schema).drop_columns(["pipeline", "plan_date", "run_id"])
            for name, schema in TABLES.items()
        }
        calls = pa.table({
            "topic": pa.array(["orders"] * len(self.calls), pa.string()),
            "partition": pa.array([0] * len(self.calls), pa.int64()),
            "offset": pa.array([offset for offset, _ in self.calls], pa.int64()),
            "attempt": pa.array([attempt for _, attempt in self.calls], pa.int64()),
        })  # fmt: skip
        logs = {TopicPartition("orders", 0): log}
        return Evidence(
            "orders", "live", logs, **tables, ledger="ledger-1", letters=self.letters, calls=calls, outputs=self.outputs
        )

    def judged(self, settled: bool = True, max_retries: int | None = 1) -> Report:
        return judge(self.evidence(), max_retries=max_retries, settled=settled)

    def violations(self, settled: bool = True) -> list[str]:
        return self.judged(settled).violations

    def find(self, turn: int, offset: int, attempt: int = 1) -> Row:
        return next(r for r in self.outcomes if (r["turn"], r["offset"], r["attempt"]) == (turn, offset, attempt))


Change = Callable[[History], object]


def violation(change: Change, *sentences: str) -> Any:
    """Return a case for `assert_found`: after `change`, each of `sentences` must begin a violation."""
    return pytest.param(change, sentences, id=sentences[0][:60])


def assert_found(change: Change, sentences: tuple[str, ...], history: History | None = None) -> None:
    history = history or History()
    change(history)
    found = history.violations()
    for sentence in sentences:
        assert any(line.startswith(sentence) for line in found), found


def without_rows(acked: int = 8, gaps: int | None = 1) -> History:
    """Return a history whose turn 1 read everything and kept no rows; one record was dropped."""
    history = History(turn=1, letters=[], outcomes=[])
    history.plans = [plan(1, 0, 10, settings=json.dumps({"record_outcomes": False}))]
    counts = [("acked", acked), ("dropped", 1)]
    history.settlements = [genesis(), settlement(1, 0, 10, 10, counts=counts, gaps=gaps)]
    history.calls = [(offset, 1) for offset in history.records]
    return history


def at_most_once(*outcomes: Row, settled: bool = True) -> History:
    """Return a history of one turn that reads all offsets at most once, and whose claim is committed."""
    history = History(turn=1, letters=[], outcomes=list(outcomes), plans=[plan(1, 0, 10, settings=AT_MOST_ONCE)])
    history.settlements = [genesis(), settlement(1, 0, 10, 10)][: 1 + settled]
    history.calls = [(offset, 1) for offset in history.records if offset < 5]
    return history
