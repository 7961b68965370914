"""A lane whose turns are not replayed: Kafka is in memory, and outcomes are injected as Spark's tasks write them."""

import os
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from ackline.audit.rows import plan_date
from ackline.audit.store import LedgerStore
from ackline.metrics import Fetches
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.pipeline import Pipeline
from ackline.spark.job import ReplayResult
from ackline.spark.output.file_stats import WrittenFile
from ackline.spark.output.outcome_files import Chunk, OutcomeFiles, Turn
from ackline.steps.parts import Parts
from ackline.steps.plan import plan
from ackline.steps.replay import add_actions, report
from ackline.steps.settle import settle
from ackline.testing.memory import EPOCH, World
from ackline.testing.memory_parts import memory_parts
from ackline.turns import LIVE, Plan

NAME, TOPIC = "bench", "orders"
EVERY = timedelta(minutes=10)
"""Between two turns, and before a retry."""


def _pipeline() -> Pipeline:
    return Pipeline.model_validate(
        {
            "name": NAME,
            "kafka": {"bootstrap_servers": "memory:1", "group_id": NAME, "topics": [TOPIC]},
            "handler": f"{__name__}:nothing",
            "start": "earliest",
            "dead_letter": "none",
            "retry": {"initial_delay": f"{EVERY.total_seconds():g}s"},
        }
    )


@dataclass(slots=True)
class Lane:
    """A pipeline over a topic of some partitions, with its tables below `folder`; the last of `turns` turns is now."""

    folder: Path
    partitions: int
    turns: int = 1
    world: World = field(init=False)

    def __post_init__(self) -> None:
        self.world = World(datetime.now(UTC) - self.turns * EVERY)
        self.world.create_topic(TOPIC, self.partitions)

    @property
    def root(self) -> str:
        """The audit root."""
        return str(self.folder / "audit")

    def parts(self) -> Parts:
        """The pipeline's parts, opened anew as a task does, with the ledger store on its real tables."""
        parts = memory_parts(self.world, _pipeline(), "bench")
        return replace(parts, store=LedgerStore(self.root, NAME, LIVE))

    def grow(self, records: int) -> None:
        """Time for the next turn: so many new records in each partition."""
        self.world.now += EVERY
        for log in self.world.topics[TOPIC].logs.values():
            log.gap(records)  # nobody reads them

    def plan(self) -> Plan:
        """The step."""
        found = plan(self.parts()).plan
        assert found is not None
        return found

    def inject(self, turn: Plan, failed: int) -> None:
        """The turn's outcomes: of each partition the last `failed` new records failed, all else is acked."""
        store = self.parts().store
        store.outcomes.create()
        files = self._fresh(store, turn, failed) + self._retries(store, turn)
        counts: dict[TopicPartition, dict[Outcome, int]] = {}
        for file in files:
            of_place = counts.setdefault(TopicPartition(file.topic, file.partition), {})
            of_place[file.outcome] = of_place.get(file.outcome, 0) + file.rows
        result = ReplayResult(tuple(files), counts, 0, 0, dict.fromkeys(counts, Fetches(10, 1.0, 0.5)))
        assert store.store_outcomes(turn.turn, add_actions(turn, result), report(self.parts(), turn, result))

    def settle(self) -> None:
        """The step."""
        settle(self.parts())

    def age(self, since: float) -> None:
        """Let the entries of the log that were made `since` be as old as their turn: Delta goes by the files' times."""
        time = self.world.now.timestamp()
        for entry in Path(self.root).glob("*/_delta_log/*"):
            if entry.stat().st_mtime >= since:
                os.utime(entry, (time, time))

    def _fresh(self, store: LedgerStore, turn: Plan, failed: int) -> list[WrittenFile]:
        files = _files(store, turn)
        for tp, one in turn.partitions.items():
            middle = one.fresh.end - failed
            self._add(files, tp, Outcome.ACKED, range(one.fresh.start, middle), 1)
            self._add(files, tp, Outcome.FAILED, range(middle, one.fresh.end), 1)
        return files.close()

    def _retries(self, store: LedgerStore, turn: Plan) -> list[WrittenFile]:
        files = _files(store, turn)
        for tp, one in turn.partitions.items():
            for run in one.retries:
                self._add(files, tp, Outcome.ACKED, range(run.start, run.end), run.value)
        return files.close()

    def _add(self, files: OutcomeFiles, tp: TopicPartition, outcome: Outcome, offsets: range, attempt: int) -> None:
        now = (self.world.now - EPOCH) // timedelta(microseconds=1)
        times = np.full(len(offsets), now, dtype=np.int64)
        attempts = np.full(len(offsets), attempt, dtype=np.int32)
        texts = [(["ValueError"] * len(offsets)), ["no such customer"] * len(offsets)]
        errors = texts if outcome is Outcome.FAILED else [None, None]
        files.add(tp, outcome, Chunk(np.array(offsets, dtype=np.int64), times, attempts, times, *errors))


def _files(store: LedgerStore, turn: Plan) -> OutcomeFiles:
    """The files of one task."""
    same = (turn.turn.pipeline, plan_date(turn.planned_at), turn.turn.lane, turn.turn.epoch, turn.turn.n, turn.run_id)
    return OutcomeFiles(Turn(store.outcomes.uri, *same))


def nothing(_record: object) -> None:
    """The handler, which nobody calls."""
