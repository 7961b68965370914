"""A lane whose turns are not replayed: Kafka is in memory, and outcomes are written as Spark's tasks write them."""

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from ackline.ledger.metrics import FetchTimes
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import UNIX_EPOCH, Outcome
from ackline.ledger.turns import LIVE, Plan
from ackline.spark.job import ReplayResult
from ackline.steps.replay import add_actions, task_report
from ackline.tables.schemas import plan_date
from ackline.tables.store import LedgerStore
from ackline.worker.files import Chunk, OutcomeFiles, OutcomeTarget, WrittenFile
from tests.support.memory_adapters import MemoryAdapters
from tests.support.memory_lane import MemoryLane

NAME = "bench"
EVERY = timedelta(minutes=10)
"""The time between two turns, and before a retry."""


class InjectedLane(MemoryLane):
    """A lane with real tables below `folder`. Its clock starts so that the last of `turns` turns is now."""

    def __init__(self, folder: Path, partitions: int, turns: int = 1) -> None:
        retry = {"initial_delay": f"{EVERY.total_seconds():g}s"}
        super().__init__(partitions=partitions, name=NAME, dead_letter="none", retry=retry)
        self.world.now = datetime.now(UTC) - turns * EVERY
        self.root = str(folder / "audit")
        """The root of the tables."""

    def adapters(self, *arguments: Any, **changes: Any) -> MemoryAdapters:
        """Returns the adapters of a process with a ledger store on the real tables, opened anew as in a task."""
        return replace(super().adapters(*arguments, **changes), store=LedgerStore(self.root, NAME, LIVE))

    def grow(self, records: int) -> None:
        """Advances the clock to the next turn, and adds `records` offsets to each partition."""
        self.world.now += EVERY
        for log in self.world.topics["orders"].logs.values():
            log.add_gap(records)  # no record is read, so none needs a value

    def inject(self, turn: Plan, failed: int) -> None:
        """Stores the outcomes of a turn: the last `failed` fresh records of each partition fail, the others not."""
        store = self.adapters().store
        store.outcomes.create()
        files: list[WrittenFile] = []
        counts: dict[TopicPartition, dict[Outcome, int]] = {}
        for task in (self._fresh(store, turn, failed), self._retries(store, turn)):
            files += task.close()
            for (tp, outcome), rows in task.counts.items():
                by_outcome = counts.setdefault(tp, {})
                by_outcome[outcome] = by_outcome.get(outcome, 0) + rows
        result = ReplayResult(tuple(files), counts, 0, 0, dict.fromkeys(counts, FetchTimes(10, 1.0, 0.5)))
        assert store.store_outcomes(turn.turn, add_actions(turn, result), task_report(self.adapters(), turn, result))

    def _fresh(self, store: LedgerStore, turn: Plan, failed: int) -> OutcomeFiles:
        files = _files(store, turn)
        for tp, planned in turn.partitions.items():
            middle = planned.fresh.end - failed
            self._add(files, tp, Outcome.ACKED, range(planned.fresh.start, middle), 1)
            self._add(files, tp, Outcome.FAILED, range(middle, planned.fresh.end), 1)
        return files

    def _retries(self, store: LedgerStore, turn: Plan) -> OutcomeFiles:
        files = _files(store, turn)
        for tp, planned in turn.partitions.items():
            for run in planned.retries:
                self._add(files, tp, Outcome.ACKED, range(run.start, run.end), run.value)
        return files

    def _add(self, files: OutcomeFiles, tp: TopicPartition, outcome: Outcome, offsets: range, attempt: int) -> None:
        now = (self.world.now - UNIX_EPOCH) // timedelta(milliseconds=1)
        # A millisecond for each record, so that no two are due at the same time.
        times = (now - np.arange(len(offsets), dtype=np.int64)[::-1]) * 1000
        attempts = np.full(len(offsets), attempt, dtype=np.int32)
        texts = [(["ValueError"] * len(offsets)), ["no such customer"] * len(offsets)]
        errors = texts if outcome is Outcome.FAILED else [None, None]
        files.add(tp, outcome, Chunk(np.array(offsets, dtype=np.int64), times, attempts, times, *errors))


def age_entries(root: Path, since: float, now: datetime) -> None:
    """Makes log entries written after `since` as old as their turn, because Delta uses their modification times."""
    for folder in (*root.glob("*/*/_delta_log"), *root.glob("*/outputs/*/_delta_log")):
        for entry in os.scandir(folder):
            if entry.stat().st_mtime >= since:
                os.utime(entry.path, (now.timestamp(),) * 2)


def _files(store: LedgerStore, turn: Plan) -> OutcomeFiles:
    """Returns the writer of the files of one task."""
    return OutcomeFiles(OutcomeTarget(store.outcomes.uri, turn.turn, plan_date(turn.planned_at), turn.run_id))
