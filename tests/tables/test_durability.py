"""Each commit is on the disk before any process acts on it: the order of writes and syncs, as the kernel sees it."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from deltalake import DeltaTable, Transaction
from deltalake.transaction import CommitProperties

from ackline.tables.schemas import PARTITION_BY
from ackline.tables.store import LedgerStore
from ackline.tables.table import AuditTable
from tests.e2e.lab import ROOT
from tests.tables.lane_rows import settlement
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
