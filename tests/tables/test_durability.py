"""Each commit is on the disk before any process acts on it: the order of writes and syncs, as the kernel sees it."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from deltalake import DeltaTable, Transaction
from deltalake.transaction import CommitProperties

from ackline.errors import FatalError
from ackline.ledger.fold import OutcomeRow
from ackline.ledger.outcomes import UNIX_EPOCH, Outcome
from ackline.spark.job import ReplayResult
from ackline.steps.replay import add_actions
from ackline.tables import table as audit_table
from ackline.tables.maintenance import repair
from ackline.tables.schemas import PARTITION_BY
from ackline.tables.store import LedgerStore
from ackline.tables.table import AuditTable
from ackline.worker.files import Chunk, OutcomeFiles, OutcomeTarget
from tests.e2e.lab import ROOT
from tests.tables.lane_rows import DAY, NOON, TP, plan, settlement, turn
from tests.tables.power_cuts import Disk
from tests.tables.traced_turn import MARK, MUTANTS

CALLS = "fsync,fdatasync,openat,rename,renameat,renameat2,link,linkat,write,pwrite64,mkdir,mkdirat"
_CALL = re.compile(r"^\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed>)(.*)")
_OF_DESCRIPTOR = re.compile(r"^\d+<([^>]*)>")
_QUOTED = re.compile(r'"([^"]*)"')
_ENTRY = re.compile(r"(?<!/\.checkpoint)/_delta_log/\d{20}\.json$")  # a checkpoint is made in a copy of the log
_CHECKPOINT = re.compile(r"(?<!/\.checkpoint)/_delta_log/\d{20}\.checkpoint\.parquet$")


class Event(NamedTuple):
    """A write, a sync or a new name, in the order in which the kernel saw them."""

    kind: str
    path: str


def traced(folder: Path, mutant: str) -> list[Event]:
    """Runs two turns under strace. Returns what they did to files below `folder`, and their commits of the group."""
    log = folder / "trace"
    subprocess.run(
        ["strace", "-f", "-y", "-qq", "-e", f"trace={CALLS}", "-o", str(log), sys.executable, "-m",
         "tests.tables.traced_turn", str(folder / "lane"), mutant],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=280,
    )  # fmt: skip
    parsed = (_event(line) for line in log.read_text(errors="replace").splitlines())
    return [event for event in parsed if event and (event.kind == "group" or str(folder) in event.path)]


def _event(line: str) -> Event | None:
    call = _CALL.match(line)
    if call is None or (" = -1" in line and MARK not in line):
        return None
    name, arguments = call.groups()
    if name in ("fsync", "fdatasync", "write", "pwrite64"):
        of = _OF_DESCRIPTOR.match(arguments)
        return Event("sync" if "sync" in name else "write", of[1]) if of else None
    paths = _QUOTED.findall(arguments)
    if MARK in paths:
        return Event("group", MARK)
    if name == "openat":
        return Event("create", paths[0]) if paths and "O_CREAT" in arguments else None
    return Event("name" if "link" in name or "rename" in name else "create", paths[-1]) if paths else None


def violations(events: Sequence[Event]) -> list[str]:
    """Returns where a power cut could leave a log entry without its data, or undo what was acted on."""
    return [
        *(text for at, event in enumerate(events) if _is_entry(event) for text in _too_late(events, at)),
        *(text for at, event in enumerate(events) if _is_entry(event) for text in _acted_on(events, at)),
    ]


def _is_entry(event: Event) -> bool:
    return event.kind == "name" and bool(_ENTRY.search(event.path))


def _too_late(events: Sequence[Event], at: int) -> list[str]:
    """Returns the data files of the entry at `at` that were not on the disk when it was written."""
    table = Path(events[at].path).parents[1]
    late = []
    for path in _added(Path(events[at].path)):
        file = table / path
        written = max(i for i, event in enumerate(events[:at]) if event == Event("write", str(file)))
        if Event("sync", str(file)) not in events[written:at]:
            late.append(f"{file} is not synced before {events[at].path}")
        for folder in (file, *(parent for parent in file.parents if table in (parent, *parent.parents))):
            made = [i for i, event in enumerate(events[:at]) if event == Event("create", str(folder))]
            if made and Event("sync", str(folder.parent)) not in events[made[0] : at]:
                late.append(f"the name of {folder} is not synced before {events[at].path}")
    return late


def _added(entry: Path) -> list[str]:
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    return [action["add"]["path"] for action in actions if "add" in action]


def _acted_on(events: Sequence[Event], at: int) -> list[str]:
    """Returns what of the entry at `at` was not on the disk when the next commit, of a table or the group, was made."""
    entry = Path(events[at].path)
    acts = (i for i, event in enumerate(events) if i > at and (event.kind == "group" or _is_entry(event)))
    before = events[at : next(acts, len(events))]
    wanted = [Event("sync", str(entry)), Event("sync", str(entry.parent))]
    unsynced = [event.path for event in wanted if event not in before]
    return [f"{path} is not synced before what follows {entry}" for path in unsynced]


def strace_works() -> bool:
    """Returns whether strace is installed and may trace a process here, which some containers forbid."""
    strace = shutil.which("strace")
    return (
        strace is not None and subprocess.run([strace, "-qq", "true"], capture_output=True, check=False).returncode == 0
    )


needs_strace = pytest.mark.skipif(
    not strace_works(),
    reason="the order of writes and syncs needs strace (Debian, Ubuntu: apt install strace) and the right to trace",
)


@needs_strace
def test_data_is_on_the_disk_before_its_log_entry_and_the_entry_before_any_process_acts_on_it(tmp_path: Path) -> None:
    events = traced(tmp_path, "")
    entries = [event.path for event in events if _is_entry(event)]
    names = [Path(path).parents[1].name for path in entries]
    assert {name: names.count(name) >= 4 for name in ("plans", "outcomes", "settlements")} == dict.fromkeys(names, True)
    assert [event.kind for event in events].count("group") == 2
    assert sum(len(_added(Path(path))) for path in entries) > len(entries) / 2
    placed = [at for at, event in enumerate(events) if event.kind == "name" and _CHECKPOINT.search(event.path)]
    assert len(placed) == 6
    for at in placed:
        name = Path(events[at].path).name
        assert name in {Path(event.path).name for event in events[:at] if event.kind == "sync"}
    assert violations(events) == []


@needs_strace
@pytest.mark.parametrize("mutant", sorted(MUTANTS))
def test_a_writer_that_leaves_out_a_sync_is_detected(tmp_path: Path, mutant: str) -> None:
    assert violations(traced(tmp_path, mutant))


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


# ---- power cuts: what a process has acted on is never undone


State = tuple[object, ...]
Commit = Callable[[LedgerStore], bool]
TURNS = 2


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
    """Returns the commits of some turns in their order."""
    of: dict[str, Commit] = {"genesis": lambda store: store.store_settlement(settlement(0))}
    for n in range(1, TURNS + 1):
        of[f"plan {n}"] = partial(LedgerStore.store_plan, plan=plan(n))
        of[f"outcomes {n}"] = partial(store_outcomes, n=n)
        decided = {TP: [OutcomeRow(5, 0, Outcome.DEAD, NOON)]} if n == 1 else {}
        of[f"decisions {n}"] = partial(LedgerStore.store_decisions, plan=plan(n), run_id="run", decisions=decided)
        of[f"settlement {n}"] = partial(LedgerStore.store_settlement, settlement=settlement(n), plan=plan(n))
    return of


def test_fault_32_after_a_power_cut_at_any_moment_a_commit_is_whole_or_can_be_made_again(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Includes the first commit, which creates its table, and checkpoints, which are due after every third commit."""
    monkeypatch.setattr(audit_table, "CHECKPOINT_EVERY", 3)
    copies, trial = tmp_path / "copies", tmp_path / "trial"
    copies.mkdir()
    Path(root).mkdir()
    disk, store = Disk(Path(root), copies), LedgerStore(root, "orders", "live")
    before, tried = state_of(Path(root)), Counter[str]()
    for name, commit in commits().items():
        *cuts, acknowledged = disk.watch(partial(commit, store), monkeypatch)
        after = state_of(Path(root))
        assert not acknowledged.names | acknowledged.contents, f"{name} is acknowledged and not on the disk"
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
        monkeypatch.setattr(f"ackline.tables.{module}.{left_out}", lambda path: None)
    Path(root).mkdir()
    (tmp_path / "copies").mkdir()
    store = LedgerStore(root, "orders", "live")
    *_, acknowledged = Disk(Path(root), tmp_path / "copies").watch(
        lambda: store.store_settlement(settlement(0)), monkeypatch
    )
    assert acknowledged.names | acknowledged.contents
