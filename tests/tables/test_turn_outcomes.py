"""The store reads a turn's outcomes, and ledgers that are old or large: statistics, checkpoints, compaction."""

import os
import shutil
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from ackline.actions.maintain import maintain
from ackline.delta import table as commit_notes
from ackline.delta.handle import LogState
from ackline.errors import FatalError
from ackline.ledger.fold import OutcomeRow, PartitionState, Pending, PendingKind
from ackline.ledger.metrics import TurnReport
from ackline.ledger.offsets import TopicPartition, ValuedRange
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import SettledPartition, Settlement, TurnKind
from ackline.tables.audit_table import AuditTable
from ackline.tables.schemas import plan_date
from ackline.tables.store import LedgerStore
from ackline.worker.files import Chunk, OutcomeFiles, OutcomeTarget
from tests.tables.lane_rows import NOON, TP, TP1, plan, settlement, turn, written
from tests.tables.roots import ON_BOTH


def test_the_last_failures_are_those_of_the_given_attempts_by_their_newest_turn(store: LedgerStore) -> None:
    """A void turn has made attempt 1 of offset 3 before. The records at 5 and 6 have failed in an earlier turn."""
    store.store_outcomes(turn(1), [written(store, turn(1), [(3, 1, "failed"), (4, 1, "failed")], message="of turn 1")])
    store.store_outcomes(turn(2), [written(store, turn(2), [(5, 1, "failed"), (6, 2, "failed")], message="of turn 2")])
    now = [
        written(store, turn(3), [(3, 1, "failed"), (4, 2, "failed"), (8, 1, "failed")], message="of turn 3"),
        written(store, turn(3), [(9, 1, "failed")]),
        written(store, turn(3), [(3, 1, "acked"), (4, 1, "failed")], TP1, message="of another partition"),
    ]
    store.store_outcomes(turn(3), now)
    failures = store.last_failures(turn(3), {TP: {3: 1, 4: 2, 5: 1, 6: 1, 7: 1, 9: 1}, TP1: {3: 1}})
    assert {key: failure.message for key, failure in failures.items()} == {
        (TP, 3): "of turn 3", (TP, 4): "of turn 3", (TP, 5): "of turn 2", (TP, 9): None,
    }  # fmt: skip
    assert {failure.failed_at for failure in failures.values()} == {NOON}
    assert store.last_failures(turn(3), {}) == store.last_failures(turn(3, epoch=1), {TP: {3: 1}}) == {}


def test_failures_of_the_turn_open_no_file_of_another_one_and_earlier_ones_only_what_may_hold_them(
    store: LedgerStore,
) -> None:
    for n in range(1, 4):
        store.store_outcomes(turn(n), [written(store, turn(n), [(100 * n, 1, "failed"), (100 * n + 9, 1, "failed")])])
    (damaged,) = (Path(path) for path in DeltaTable(store.outcomes.uri).file_uris() if "part-1-" in path)
    damaged.write_bytes(b"not parquet")
    assert list(store.last_failures(turn(3), {TP: {300: 1}})) == [(TP, 300)]
    assert list(store.last_failures(turn(3), {TP: {200: 1, 309: 1}})) == [(TP, 309), (TP, 200)]
    with pytest.raises(FatalError, match=r"the table outcomes at .* can't be used"):
        store.last_failures(turn(3), {TP: {100: 1}})


def test_files_where_all_succeeded_at_once_are_counted_without_being_opened(store: LedgerStore) -> None:
    acked = written(store, turn(1), [(offset, 1, "acked") for offset in range(1_000)])
    store.store_outcomes(turn(1), [acked, written(store, turn(1), [(1_000, 1, "failed")])])
    path = Path(store.outcomes.uri) / acked.path
    path.write_bytes(b"x" * acked.size)
    outcomes = store.outcomes_of(turn(1))
    assert outcomes.counts == {TP: {"acked": 1_000, "failed": 1}}
    assert outcomes.attempted == {TP: 1_001}
    path.unlink()
    with pytest.raises(FatalError, match=f"{acked.path} does not exist"):
        store.outcomes_of(turn(1))


@pytest.mark.parametrize(
    "rows",
    [[(0, 1, "acked"), (1, 1, "skipped")], [(0, 1, "acked"), (1, 2, "acked")], [(0, 2, "acked"), (1, 2, "acked")]],
    ids=["two outcomes", "two attempts", "second attempts"],
)
def test_every_other_file_is_opened(store: LedgerStore, rows: list[tuple[int, int, str]]) -> None:
    store.store_outcomes(turn(1), [written(store, turn(1), rows)])
    outcomes = store.outcomes_of(turn(1))
    assert outcomes.counts[TP] == Counter(outcome for _, _, outcome in rows)
    assert outcomes.attempted[TP] == sum(attempt == 1 for _, attempt, _ in rows)
    assert len(outcomes.rows.get(TP, ())) == sum(attempt > 1 for _, attempt, _ in rows)


def test_first_attempts_are_counted_without_opening_the_files_of_those_that_failed(store: LedgerStore) -> None:
    files = [
        written(store, turn(1), [(offset, 1, "acked") for offset in range(90)]),
        written(store, turn(1), [(offset, 1, "failed") for offset in range(90, 100)]),
    ]
    retries = written(store, turn(1), [(0, 2, "failed"), (1, 2, "acked")], TP1)
    store.store_outcomes(turn(1), [*files, retries])
    store.store_decisions(plan(1), "run", {TP: [OutcomeRow(200, 0, Outcome.EXPIRED, NOON, None, 9)]})
    kept = {file.path: (Path(store.outcomes.uri) / file.path).read_bytes() for file in files}
    for path in kept:
        (Path(store.outcomes.uri) / path).write_bytes(b"not parquet")
    assert store.first_attempts_of(turn(1)) == {"acked": 90, "failed": 10}
    for path, content in kept.items():
        (Path(store.outcomes.uri) / path).write_bytes(content)
    DeltaTable(store.outcomes.uri).optimize.compact()
    assert store.first_attempts_of(turn(1)) == {"acked": 90, "failed": 10}


def test_first_attempts_that_are_unacked_are_counted_whatever_their_outcome_also_after_a_compaction(
    store: LedgerStore,
) -> None:
    acked = written(store, turn(1), [(offset, 1, "acked") for offset in range(9)])
    files = [
        acked,
        written(store, turn(1), [(10, 1, "failed"), (11, 2, "failed")], error_class="Unacked"),
        written(store, turn(1), [(12, 1, "dropped")], error_class="Unacked"),
        written(store, turn(1), [(13, 1, "failed")], error_class="ValueError"),
    ]
    store.store_outcomes(turn(1), files)
    store.store_outcomes(turn(2), [written(store, turn(2), [(20, 1, "failed")], error_class="Unacked")])
    content = (path := Path(store.outcomes.uri) / acked.path).read_bytes()
    path.write_bytes(b"not parquet")
    assert store.unacked_of(turn(1)) == 2
    path.write_bytes(content)
    DeltaTable(store.outcomes.uri).optimize.compact()
    assert store.unacked_of(turn(1)) == 2


def test_partitions_that_share_files_are_counted_each_for_itself_also_after_a_compaction(store: LedgerStore) -> None:
    """A task writes a file of each outcome for its small partitions, and one for each large outcome of a partition."""
    store.outcomes.create()
    task = OutcomeFiles(OutcomeTarget(store.outcomes.uri, turn(1), plan_date(NOON), "run"))
    tps = [TopicPartition(topic, number) for topic in ("a", "b") for number in range(50)]
    sizes = dict.fromkeys(tps, 100) | {tps[0]: 20_000}
    for tp in reversed(tps):
        for number, outcome in enumerate((Outcome.FAILED, Outcome.ACKED, Outcome.SKIPPED)):
            count = sizes[tp] if outcome is Outcome.ACKED else 2
            offsets = np.arange(number * 100_000, number * 100_000 + count)
            now = np.full(count, 1_000_000)
            task.add(tp, outcome, Chunk(offsets, now, np.ones(count, dtype=np.int32), now))
    files = task.close()
    assert len(files) == 4, "three shared files, and one of the partition with many records"
    actions = [
        AddAction(f.path, f.size, {"plan_date": "2026-03-01"}, f.modification_time, True, f.stats) for f in files
    ]
    store.store_outcomes(turn(1), actions)
    for _ in range(2):
        outcomes = store.outcomes_of(turn(1))
        assert outcomes.counts == {tp: {"acked": sizes[tp], "skipped": 2, "failed": 2} for tp in tps}
        assert outcomes.attempted == {tp: sizes[tp] + 4 for tp in tps}
        assert {tp: [row.offset for row in rows] for tp, rows in outcomes.rows.items()} == {tp: [0, 1] for tp in tps}
        DeltaTable(store.outcomes.uri).optimize.compact()


class CompactedBetween(AuditTable):
    """A table that is compacted after each read."""

    def state(self) -> LogState | None:
        """Returns the newest version, which the compaction then replaces."""
        state = super().state()
        if state is not None:
            DeltaTable(self.uri).optimize.compact()
        return state


def test_fault_33_compaction_while_outcomes_are_read_counts_nothing_twice(root: str, store: LedgerStore) -> None:
    store.store_outcomes(turn(1), [written(store, turn(1), [(offset, 1, "acked")]) for offset in range(5)])
    store.outcomes = CompactedBetween(store.folder, "outcomes")
    outcomes = store.outcomes_of(turn(1))
    assert (outcomes.counts, outcomes.attempted) == ({TP: {"acked": 5}}, {TP: 5})


def test_a_hundred_thousand_pending_offsets_and_failures_are_stored_and_read_in_seconds(store: LedgerStore) -> None:
    values = (Pending(PendingKind.RETRY, 1, NOON + timedelta(seconds=n), "ValueError") for n in range(100_000))
    pending = tuple(ValuedRange(n * 2, n * 2 + 1, value) for n, value in enumerate(values))
    state = SettledPartition("id", 0, PartitionState(200_000, pending))
    whole = Settlement(turn(0), TurnKind.GENESIS, "r", NOON, {TP: state})
    store.store_outcomes(turn(1), [written(store, turn(1), [(offset, 1, "failed") for offset in range(100_000)])])
    began = time.process_time()
    store.store_settlement(whole)
    assert LedgerStore(store.root, "orders", "live").newest() == whole
    assert len(store.outcomes_of(turn(1)).rows[TP]) == 100_000
    assert time.process_time() - began < 20


def test_the_tables_are_append_only_and_no_other_writer_checkpoints_their_logs(store: LedgerStore) -> None:
    store.store_settlement(settlement(0))
    table = DeltaTable(store.settlements.uri)
    assert table.metadata().configuration["delta.enableExpiredLogCleanup"] == "false"
    assert int(table.metadata().configuration["delta.checkpointInterval"]) > 10**9
    with pytest.raises(Exception, match=r"(?i)append.?only"):
        table.delete("turn = 0")
    assert store.newest() == settlement(0)


def test_the_ledger_id_is_a_property_of_the_settlements_and_stays(
    root: str, store: LedgerStore, tmp_path: Path
) -> None:
    assert store.ledger_id() == ""
    assert not Path(root).exists(), "reading the id creates no table"
    store.store_settlement(settlement(0))
    ledger = store.ledger_id()
    store.store_settlement(settlement(1), plan(1))
    assert ledger == store.ledger_id() == LedgerStore(root, "orders", "live").ledger_id() != ""
    assert DeltaTable(store.settlements.uri).metadata().configuration["ackline.ledger"] == ledger
    shutil.copytree(store.folder, tmp_path / "copy" / "orders")
    assert LedgerStore(str(tmp_path / "copy"), "orders", "live").ledger_id() == ledger
    for other in (LedgerStore(str(tmp_path / "other"), "orders", "live"), LedgerStore(root, "payments", "live")):
        other.store_settlement(settlement(0, pipeline=other.pipeline))
        assert other.ledger_id() not in ("", ledger)


@ON_BOTH
def test_s36_the_id_of_a_ledger_is_replaced_once_and_nothing_else_changes(root: str, store: LedgerStore) -> None:
    store.store_settlement(settlement(0))
    other_process = LedgerStore(root, "orders", "live")
    ledger = other_process.ledger_id()
    store.replace_ledger_id(ledger, "new")
    store.replace_ledger_id(ledger, "newer")
    assert store.ledger_id() == other_process.ledger_id() == LedgerStore(root, "orders", "live").ledger_id() == "new"
    assert not other_process.store_settlement(settlement(0)), "its number is taken as before"
    assert other_process.store_settlement(settlement(1), plan(1))
    assert (store.newest(), store.ledger_id()) == (settlement(1), "new")
    configuration = DeltaTable(store.settlements.uri, storage_options=store.storage_options()).metadata().configuration
    assert configuration["delta.appendOnly"] == "true"
    maintain(root)
    assert LedgerStore(root, "orders", "live").ledger_id() == "new"


def test_a_new_id_is_on_the_disk_before_any_process_acts_on_it(
    store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.store_settlement(settlement(0))
    ledger, secured = store.ledger_id(), list[int | None]()
    monkeypatch.setattr(store.settlements.log, "secure", lambda version=None: secured.append(version))
    store.replace_ledger_id(ledger, "new")
    assert secured[-1] == DeltaTable(store.settlements.uri).version()


def test_a_report_too_far_behind_or_expired_from_the_log_is_none_and_no_error(
    store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in (1, 2, 3):
        store.store_outcomes(turn(n), [], TurnReport({TP: {"acked": n}}))
    with monkeypatch.context() as patched:
        patched.setattr(commit_notes, "_SEARCHED_ENTRIES", 2)
        assert store.report_of(turn(1)) is None
        assert store.report_of(turn(2)) is not None
    log = Path(store.outcomes.uri) / "_delta_log"
    old = time.time() - timedelta(days=3).total_seconds()
    for entry in log.glob("*.json"):
        os.utime(entry, (old, old))
    maintain(store.root)
    assert list(log.glob("*01.json")), "the only checkpoint may be lost"
    store.store_outcomes(turn(4), [])
    maintain(store.root)
    assert not list(log.glob("*01.json"))
    assert LedgerStore(store.root, "orders", "live").report_of(turn(1)) is None
    assert store.has_outcomes(turn(3))
