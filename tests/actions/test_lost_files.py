"""Which files of a table are of given turns alone, by the statistics of its log.

A file of outcomes is lost from real tables. `ackline void` closes its turn, and every later read works again. The kills
of a void are in test_operator_loss.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from ackline.actions.maintain import maintain
from ackline.actions.void import ClosedTurn, Consequence, open_turn, void_open_turn
from ackline.audit.queries import AuditFilter, audit_rows
from ackline.delta.files import write_rows
from ackline.errors import FatalError
from ackline.ledger.fold import OutcomeRow
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import LIVE, TurnKind
from ackline.spark.job import ReplayResult
from ackline.tables.audit_table import files_of
from ackline.tables.layout import void_turns
from ackline.tables.schemas import PARTITION_BY, decision_rows, plan_date
from ackline.tables.store import LedgerStore
from ackline.worker.files import WrittenFile
from ackline.worker.settings import ReplayJob
from tests.support.memory_adapters import MemoryAdapters
from tests.support.memory_lane import AT_MOST_ONCE, FAILS_ONCE, OK, TP, TP1, MemoryLane
from tests.tables.roots import ON_BOTH


class Version:
    """A version of a table whose log has these bounds of epoch and turn: (path, first, last)."""

    def __init__(self, *files: tuple[str, tuple[int, int] | None, tuple[int, int] | None]) -> None:
        self._files = files

    def get_add_actions(self, flatten: bool) -> pa.Table:
        rows: list[dict[str, Any]] = []
        for path, first, last in self._files:
            (e0, t0), (e1, t1) = first or (None, None), last or (None, None)
            rows.append({"path": path, "min.epoch": e0, "min.turn": t0, "max.epoch": e1, "max.turn": t1})
        return pa.Table.from_pylist(rows)


def test_a_file_that_a_compaction_has_mixed_and_one_without_statistics_are_of_no_turn() -> None:
    """Rows of a turn that counts would go with the file of a void turn."""
    version: Any = Version(
        ("own", (0, 3), (0, 3)),
        ("mixed", (0, 3), (0, 4)),
        ("of two epochs", (0, 3), (1, 3)),
        ("without statistics", None, None),
        ("of another turn", (0, 4), (0, 4)),
    )
    assert [file["path"] for file in files_of(version, {(0, 3)})] == ["own"]


ALL = AuditFilter(everything=True)
DAMAGES = [*(("disk", damage) for damage in ("missing", "empty", "cut", "garbled")), ("s3", "cut")]
"""Where a file is, and what has become of it."""


class RealTables(MemoryLane):
    """A lane with Kafka in memory and real tables. Its job writes one file an outcome, as a task does for small
    partitions; settle opens such a file, because several partitions share it."""

    def __init__(self, root: str, **settings: Any) -> None:
        super().__init__(OK, FAILS_ONCE, OK, partitions=2, **settings)
        self.produce(OK, FAILS_ONCE, tp=TP1)
        self.root = root

    def adapters(self, *arguments: Any, **changes: Any) -> MemoryAdapters:
        adapters = super().adapters(*arguments, **changes)
        in_memory = adapters.run_job
        adapters = replace(adapters, store=LedgerStore(self.root, "lane", LIVE))

        def run_job(spark: Any, job: ReplayJob, on_progress: Any) -> ReplayResult:
            result = in_memory(spark, job, on_progress)
            by_outcome: dict[Outcome, dict[TopicPartition, list[OutcomeRow]]] = {}
            for file in result.files:
                for tp, rows in self.world.tables.files[file.path].rows.items():
                    by_outcome.setdefault(file.outcome, {}).setdefault(tp, []).extend(rows)
            files = (self._write(adapters.store, job, outcome, rows) for outcome, rows in by_outcome.items())
            return replace(result, files=tuple(files))

        return replace(adapters, **{"run_job": run_job, **changes})

    def _write(
        self, store: LedgerStore, job: ReplayJob, outcome: Outcome, rows: Mapping[TopicPartition, list[OutcomeRow]]
    ) -> WrittenFile:
        table = decision_rows(job.target.turn, plan_date(self.world.now), "run", rows)
        ((file, _),) = write_rows(store.outcomes.storage, table, PARTITION_BY)
        return WrittenFile(file.path, file.size, table.num_rows, outcome, file.stats, file.modification_time)

    def files(self) -> set[str]:
        """Returns the files of outcomes that the log names."""
        version = self.adapters().store.outcomes.open()
        assert version is not None
        return {path.split("/outcomes/", 1)[1] for path in version.file_uris()}

    def lose(self, path: str, damage: str = "missing") -> None:
        """Delete a file that the log names, cut it, or change bytes in its middle."""
        filesystem = self.adapters().store.outcomes.storage.filesystem
        content = filesystem.open_input_file(path).read()
        filesystem.delete_file(path)
        half = len(content) // 2
        left = {"missing": None, "empty": b"", "cut": content[:half], "garbled": bytes(half) + content[half:]}[damage]
        if left is not None:
            with filesystem.open_output_stream(path) as file:
                file.write(left)

    def lose_one_of_the_open_turn(self, damage: str = "missing") -> set[str]:
        """Plan and replay a turn, and damage the first of its files; returns all of them."""
        before = self.files() if self.adapters().store.outcomes.open() else set()
        self.plan_and_replay()
        files = self.files() - before
        assert len(files) == 2
        self.lose(min(files), damage)
        return files

    def void(self, pause: bool = False) -> ClosedTurn:
        adapters = self.adapters("operator")
        return void_open_turn(adapters, open_turn(adapters).plan.turn, "a disk has lost a file", pause)

    def audit(self, criteria: AuditFilter = AuditFilter()) -> list[tuple[int, int, int, str]]:
        """(turn, partition, offset, outcome) of the rows of outcomes."""
        rows = audit_rows(self.root, "lane", criteria)
        return [(row["turn"], row["partition"], row["offset"], row["outcome"]) for row in rows]

    def settled_kinds(self) -> list[TurnKind]:
        store, newest = self.adapters().store, self.newest()
        return [store.settlement(newest.turn._replace(n=n)).kind for n in range(newest.turn.n + 1)]

    def judge_reads(self) -> None:
        """Every reader of all files works: the audit with all rows, maintenance, and the audit after it."""
        rows = self.audit(ALL)
        maintain(self.root)
        assert self.audit(ALL) == rows
        paths = sorted(self.files())
        infos = self.adapters().store.outcomes.storage.filesystem.get_file_info(paths)
        assert {info.type for info in infos} == {pafs.FileType.File}


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_i2_a_lost_file_is_noticed_although_settle_would_count_it_by_its_statistics(damage: str, root: str) -> None:
    lane = RealTables(root, retry={"initial_delay": "1h"})
    lane.run()
    named = lane.files()
    lane.produce(OK, OK)  # of one partition, all of them acked: settle opens no file of this turn
    lane.plan_and_replay()
    (file,) = lane.files() - named
    lane.lose(file, damage)
    with pytest.raises(FatalError, match=r"does not exist, or does not have the size .* `ackline void lane"):
        lane.settle()
    lane.void()
    lane.world.now += timedelta(hours=2)
    lane.run()
    assert (lane.committed(TP), lane.offsets(TP).count(4)) == (5, 2)
    lane.judge_reads()


@pytest.fixture
def lane(root: str) -> RealTables:
    return RealTables(root)


@pytest.mark.parametrize(("root", "damage"), DAMAGES, indirect=["root"])
def test_i2_after_the_void_of_a_turn_with_a_lost_file_its_records_are_read_again_and_every_read_works(
    damage: str, root: str
) -> None:
    lane = RealTables(root)
    lane.lose_one_of_the_open_turn(damage)
    with pytest.raises(FatalError, match="ackline void lane"):
        lane.settle()
    with pytest.raises(FatalError):
        lane.audit(ALL)

    assert lane.void().consequence is Consequence.VOID
    lane.run()
    lane.world.now += timedelta(hours=1)
    lane.produce(OK)
    lane.run()
    assert lane.settled_kinds()[:3] == [TurnKind.GENESIS, TurnKind.VOID, TurnKind.RUN]
    assert (lane.committed(TP), lane.committed(TP1)) == (4, 2)
    lane.judge_reads()
    ends = [(p, offset) for _, p, offset, outcome in lane.audit() if outcome in ("acked", "dropped")]
    assert sorted(ends) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)], "each record once"


@ON_BOTH
def test_i2_a_cut_file_is_an_error_although_memory_still_holds_the_bytes_of_the_whole_one(root: str) -> None:
    """Arrow fills a buffer with what an object has and does not say how much that was. Given the size that the Delta
    log states, it read the missing end from memory that an earlier read had used."""
    lane = RealTables(root)
    lane.run()
    files = lane.files()
    assert len(lane.audit(ALL)) == 5
    lane.lose(min(files), "cut")
    for _ in range(20):
        with pytest.raises(FatalError):
            lane.audit(ALL)


def test_maintenance_drops_the_lost_files_of_void_turns_whose_operator_died_before_it_did(
    lane: RealTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = min(lane.lose_one_of_the_open_turn())
    with monkeypatch.context() as patch:
        patch.setattr(LedgerStore, "drop_lost_files", lambda *_: None)
        lane.void()
    lane.run()
    assert lost in lane.files()
    maintain(lane.root)
    assert lost not in lane.files()
    store = lane.adapters().store
    assert store.outcomes.drop_lost_files(void_turns(store.folder)) == 0
    lane.judge_reads()


def test_a_lost_file_of_a_turn_that_counts_stays_named_and_is_an_error(lane: RealTables) -> None:
    """Its rows are the only proof of these outcomes: no step may pass over them silently."""
    lane.lose_one_of_the_open_turn()
    lane.void()
    lane.plan()
    named = lane.files()
    lane.replay()
    counts = min(lane.files() - named)
    lane.settle()
    lane.lose(counts)
    with pytest.raises(FatalError):
        maintain(lane.root)
    assert counts in lane.files()
    with pytest.raises(FatalError):
        lane.audit(ALL)


def test_i7_at_most_once_a_reported_turn_with_a_lost_file_is_lost_whole_and_no_record_is_handled_again(
    root: str,
) -> None:
    lane = RealTables(root, guarantee=AT_MOST_ONCE, dead_letter="none")
    files = lane.lose_one_of_the_open_turn()
    lane.run_fails(FatalError, "ackline void lane")
    with pytest.raises(FatalError, match="ackline void lane"):
        lane.perform(TurnKind.SKIP, {TP: 3})

    assert lane.void(pause=True).consequence is Consequence.LOST
    assert not files & lane.files(), "no offset has two terminal outcomes"
    assert lane.audit(ALL) == [(1, 0, 0, "lost"), (1, 1, 0, "lost")]
    assert (lane.committed(TP), lane.committed(TP1)) == (3, 2)
    store = lane.adapters().store
    turn = store.settlement(lane.newest().turn._replace(n=1))
    assert {tp: (settled.counts, settled.gaps) for tp, settled in turn.partitions.items()} == {
        TP: ({"lost": 3}, 0), TP1: ({"lost": 2}, 0),
    }  # fmt: skip
    assert lane.settled().paused
    lane.perform(TurnKind.RESUME)
    lane.produce(OK)
    lane.run()
    assert (lane.offsets(TP), lane.offsets(TP1)) == ([0, 1, 2, 3], [0, 1]), "each record once"
    lane.judge_reads()
