"""Each commit is on the disk before any process acts on it. The disk of the tests has written what the writer synced,
whichever library wrote it, and may have lost or torn anything else."""

import os
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from deltalake import DeltaTable, Transaction
from deltalake.transaction import CommitProperties

from ackline.actions.maintain import repair
from ackline.delta import table as audit_table
from ackline.errors import FatalError
from ackline.ledger.fold import OutcomeRow
from ackline.ledger.outcomes import UNIX_EPOCH, Outcome
from ackline.spark.job import ReplayResult
from ackline.steps.replay import add_actions
from ackline.tables.audit_table import AuditTable
from ackline.tables.maintenance import LAYOUTS, RETENTION, LedgerCompactor
from ackline.tables.schemas import PARTITION_BY
from ackline.tables.store import LedgerStore
from ackline.worker.files import Chunk, OutcomeFiles, OutcomeTarget
from tests.delta.power_cuts import Disk
from tests.tables.lane_rows import DAY, NOON, TP, plan, settlement, turn


def test_a_reader_syncs_the_entry_of_a_writer_that_died_before_it_did(
    store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.store_settlement(settlement(0))
    table = DeltaTable(store.settlements.uri)
    died = CommitProperties(app_transactions=[Transaction("ackline/orders/live/0/settlement", 1)])
    table.create_write_transaction([], "append", table.schema(), PARTITION_BY, commit_properties=died)
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    for reader in (AuditTable(store.folder, "settlements"), store.settlements):
        synced.clear()
        reader.open()
        log = Path(store.settlements.uri, "_delta_log")
        assert synced == [str(log / f"{2:020}.json"), str(log)]
        synced.clear()
        reader.open()
        assert synced == [], "an entry is synced once by each handle"


State = tuple[object, ...]
Commit = Callable[[LedgerStore], bool]


def state_of(root: Path) -> State:
    """Returns what a run would find, rows included."""
    store = LedgerStore(str(root), "orders", "live")
    newest = store.newest()
    last = store.plans.version_of("ackline/orders/live/0/plan")
    return (
        newest,
        store.plan(turn(last)) if last else None,
        store.has_outcomes(turn(last)) if last else False,
        store.has_decisions(turn(last)) if last else False,
        store.outcomes_of(turn(last)).counts if last else None,
    )


def store_outcomes(store: LedgerStore, n: int) -> bool:
    """Write and store outcomes as a Spark task and its driver do."""
    files = OutcomeFiles(OutcomeTarget(store.outcomes.uri, turn(n), DAY, "run"))
    at = np.full(10, (NOON - UNIX_EPOCH) // timedelta(microseconds=1), dtype=np.int64)
    attempts = np.ones(10, dtype=np.int32)
    files.add(TP, Outcome.ACKED, Chunk(np.arange(10, dtype=np.int64), at, attempts, at))
    written = ReplayResult(tuple(files.close()), {}, 0, 0, {})
    return store.store_outcomes(turn(n), add_actions(plan(n), written))


def commits() -> dict[str, Commit]:
    """Returns the commits of a genesis and of a turn in their order, and a compaction."""
    decided = {TP: [OutcomeRow(5, 0, Outcome.DEAD, NOON)]}
    return {
        "genesis": lambda store: store.store_settlement(settlement(0)),
        "plan": partial(LedgerStore.store_plan, plan=plan(1)),
        "outcomes": partial(store_outcomes, n=1),
        "decisions": partial(LedgerStore.store_decisions, plan=plan(1), run_id="run", decisions=decided),
        "settlement": partial(LedgerStore.store_settlement, settlement=settlement(1), plan=plan(1)),
        "compaction": compact,
    }


def compact(store: LedgerStore) -> bool:
    """Merges the files of the settlements and checkpoints their log."""
    compactor = LedgerCompactor(store.settlements, LAYOUTS["settlements"], RETENTION, store.folder)
    return compactor.maintain("orders", "live", "settlements") is not None


def test_fault_32_after_a_power_cut_at_any_moment_a_commit_is_whole_or_can_be_made_again(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at the first commit, which creates its table, in a compaction, and in a checkpoint after two commits."""
    monkeypatch.setattr(audit_table, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # the disk notes what is synced
    copies, trial = tmp_path / "copies", tmp_path / "trial"
    copies.mkdir()
    Path(root).mkdir()
    disk, store = Disk(Path(root), copies), LedgerStore(root, "orders", "live")
    before, tried = state_of(Path(root)), Counter[str]()
    for name, commit in commits().items():
        *cuts, acknowledged = disk.watch(partial(commit, store), monkeypatch)
        after = state_of(Path(root))
        unsynced = {path.name for path in acknowledged.names | acknowledged.contents}
        assert unsynced <= {"_last_checkpoint"}, f"{name} is acknowledged and not on the disk"
        for cut in cuts:
            for fates, found in cut.outcomes(trial):
                state = _state_or_refusal(found)
                tried[type(state).__name__] += 1
                if isinstance(state, FatalError):
                    _check_repair(found, state)
                    assert state_of(found) == before, f"{name}: {fates}"
                else:
                    assert state in (before, after), f"{name}: {fates}"
                commit(LedgerStore(str(found), "orders", "live"))
                assert state_of(found) == after, f"{name} again: {fates}"
        before = after
    assert tried["tuple"] > 100
    # Only the first entry of each table can be torn: an append syncs its entry before it gives it its name.
    assert tried["FatalError"] >= 3


def _state_or_refusal(root: Path) -> State | FatalError:
    try:
        return state_of(root)
    except FatalError as error:
        return error


def _check_repair(root: Path, refusal: FatalError) -> None:
    """Repairs the one table that was refused by the name of its torn entry."""
    [torn] = repair(str(root))
    assert f"its log entry {torn.file} is empty or cut short" in str(refusal)


@pytest.mark.parametrize("left_out", ["sync_file", "sync_folder"])
def test_a_disk_that_is_not_synced_is_detected(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: str
) -> None:
    for module in ("folder", "log"):
        monkeypatch.setattr(f"ackline.delta.{module}.{left_out}", lambda path: None)
    Path(root).mkdir()
    (tmp_path / "copies").mkdir()
    store = LedgerStore(root, "orders", "live")
    *_, acknowledged = Disk(Path(root), tmp_path / "copies").watch(
        lambda: store.store_settlement(settlement(0)), monkeypatch
    )
    assert acknowledged.names | acknowledged.contents
