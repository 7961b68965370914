"""The ledger store on real Delta tables: races for a number, filters, lost answers. See also test_store_contract.py."""

import multiprocessing
import os
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures
from deltalake.exceptions import CommitFailedError
from typer.testing import CliRunner

from ackline.actions.maintain import maintain
from ackline.audit.queries import AuditFilter, audit_rows
from ackline.cli.app import app
from ackline.delta import append
from ackline.delta.errors import user_name
from ackline.delta.folder import granted_by_list, usable_by_owner
from ackline.delta.log import DeltaLog
from ackline.delta.reads import pruned_dataset
from ackline.errors import ConfigError, FatalError
from ackline.ledger.fold import OutcomeRow
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import (
    LOST_BY_OPERATOR,
    AckPosition,
    AnswerReport,
    Marker,
    MarkerKind,
    Plan,
    Settlement,
    TurnKind,
)
from ackline.outputs.output_table import OutputTable
from ackline.tables.audit_table import AuditTable
from ackline.tables.layout import StoppedFile, all_lanes
from ackline.tables.schemas import SETTLEMENTS, marker_rows, plan_rows, settlement_rows
from ackline.tables.store import LedgerStore
from tests.bench.injected import InjectedLane
from tests.tables.lane_rows import NOON, TP, TP1, newest_of, plan, settlement, turn, written
from tests.tables.lanes import WithoutLock
from tests.tables.roots import ON_BOTH


def test_the_newest_settlement_is_of_the_newest_epoch(store: LedgerStore) -> None:
    for stored in (settlement(0), settlement(1), settlement(2), settlement(0, epoch=1)):
        assert store.store_settlement(stored)
    newest = newest_of(store)
    assert newest.turn == turn(0, epoch=1)


def test_a_partition_is_paused_since_the_first_act_that_paused_it_after_its_last_resume(store: LedgerStore) -> None:
    """Whatever its kind: a void of a turn, one that was recorded as lost, and a pause. A later one changes nothing."""
    kinds = [
        (TurnKind.GENESIS, False, ""), (TurnKind.PAUSE, True, "weekend"), (TurnKind.RESUME, False, ""),
        (TurnKind.VOID, True, "a broken batch"), (TurnKind.RUN, True, ""), (TurnKind.PAUSE, True, "incident"),
    ]  # fmt: skip
    for n, (kind, paused, reason) in enumerate(kinds):
        of = replace(settlement(n), kind=kind, actor="ada", reason=reason)
        rows = {tp: replace(row, paused=paused) for tp, row in of.partitions.items()}
        assert store.store_settlement(replace(of, partitions=rows))
    assert {tp: act.reason for tp, act in store.pauses().items()} == {TP: "a broken batch"}
    lost = replace(settlement(7), reason="lost")
    for n, evidence in ((6, ""), (7, LOST_BY_OPERATOR)):
        kind, paused = (TurnKind.RESUME, False) if n == 6 else (TurnKind.RUN, True)
        of = replace(settlement(n), kind=kind, reason=lost.reason)
        rows = {tp: replace(row, paused=paused, evidence=evidence) for tp, row in of.partitions.items()}
        assert store.store_settlement(replace(of, partitions=rows))
    assert {tp: act.reason for tp, act in store.pauses().items()} == {TP: "lost"}


@pytest.mark.parametrize("name", ["plans", "outcomes", "settlements"])
@pytest.mark.parametrize(("features", "command"), [
    ([TableFeatures.DeletionVectors], r"REORG TABLE delta.`.*` APPLY \(PURGE\); ALTER TABLE .* DROP FEATURE delet"),
    ([TableFeatures.RowTracking, TableFeatures.DomainMetadata], "DROP FEATURE domainMetadata; .* DROP FEATURE rowT"),
    ([TableFeatures.ChangeDataFeed, TableFeatures.CheckConstraints], None),
], ids=["deletion vectors", "row tracking", "listed and not used"])  # fmt: skip
def test_a_table_whose_protocol_another_engine_has_changed_is_refused_with_the_command_that_ends_it(
    store: LedgerStore, name: str, features: list[TableFeatures], command: str | None
) -> None:
    """Also by a process that has the table open: else `maintain` would bring deleted rows back, and a run would hand
    out records whose outcomes it can't store."""
    settled, planned = settlement(0), plan(1)
    assert store.store_settlement(settled)
    assert store.store_plan(planned)
    assert store.store_outcomes(turn(1), [])
    table: AuditTable = getattr(store, name)
    DeltaTable(table.uri).alter.add_feature(features, allow_protocol_versions_increase=True)
    for use in (table.state, table.open, lambda: AuditTable(store.folder, name).append([], "x", 1)):
        if command is None:
            assert use()
            continue
        with pytest.raises(FatalError, match=f"the table {name} .* another engine has given it .*{command}"):
            use()


@pytest.mark.parametrize(
    ("user", "group", "mode", "usable"),
    [
        (0, 0, 0o644, False), (0, 0, 0o600, False), (0, 5, 0o660, True), (0, 5, 0o640, False), (0, 0, 0o666, True),
        (7, 7, 0o600, False), (7, 7, 0o644, True), (7, 5, 0o640, True), (8, 5, 0o600, True),
    ],
)  # fmt: skip
def test_a_file_is_usable_by_the_owner_of_a_folder_by_its_user_its_group_or_all(
    user: int, group: int, mode: int, usable: bool
) -> None:
    owner, made = (os.stat_result((mode, 0, 0, 1, *ids, 0, 0, 0, 0)) for ids in ((8, 5), (user, group)))
    assert usable_by_owner(owner, made) == usable


def acl(mask: int) -> bytes:
    """An access control list of POSIX as Linux stores it, in which user 65534 has all rights that `mask` allows."""
    no_user = 2**32 - 1
    entries = [(1, 7, no_user), (2, 7, 65534), (4, 5, no_user), (16, mask, no_user), (32, 0, no_user)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@pytest.mark.parametrize(("user", "mask", "granted"), [(65534, 7, 7), (65534, 4, 4), (7, 7, 0)])
def test_a_list_grants_a_user_what_its_mask_allows(
    user: int, mask: int, granted: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert granted_by_list(tmp_path, user) == 0, "it has none"
    monkeypatch.setattr(os, "getxattr", lambda *_: acl(mask))
    assert granted_by_list(tmp_path, user) == granted
    owner, made = (os.stat_result((0o660, 0, 0, 1, *ids, 0, 0, 0, 0)) for ids in ((user, 5), (0, 0)))
    assert usable_by_owner(owner, made, granted) == (granted == 7)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
@pytest.mark.parametrize("lane", ["live", "backfill-b"])
def test_root_writes_nothing_into_the_tables_of_another_user_and_is_told_whose_they_are(
    lane: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LedgerStore(str(tmp_path), "orders", "live")
    store.store_settlement(settlement(0))
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, 65534, 65534)
    before = sorted(tmp_path.rglob("*"))
    again = LedgerStore(str(tmp_path), "orders", lane)
    name = user_name(65534)
    for write in (lambda: again.store_settlement(settlement(1)), lambda: StoppedFile(store.folder).write("a note")):
        with pytest.raises(FatalError, match=f"belongs to {name}, .* Run this as {name}, `sudo -E -u '{name}' ackline"):
            write()
    assert (sorted(tmp_path.rglob("*")), newest_of(store).turn.n) == (before, 0)
    if lane == "live":  # a list of the folders grants the owner what anyone makes there, whatever the mode bits say
        for folder in filter(Path.is_dir, [tmp_path, *tmp_path.rglob("*")]):
            os.setxattr(folder, "system.posix_acl_default", acl(7))
        assert again.store_settlement(settlement(1)) is not None
        return
    monkeypatch.setattr(os, "geteuid", lambda: 65534)  # as for the owner, nothing is tried
    assert again.store_settlement(settlement(1)) is not None


def test_a_commit_that_the_table_refuses_is_no_rival_and_names_what_is_refused(tmp_path: Path) -> None:
    """delta-rs raises the class of a lost race for both."""
    table = OutputTable(f"{tmp_path}/totals", {"n": "long"})
    table.create()
    features = [TableFeatures.RowTracking, TableFeatures.DomainMetadata]
    DeltaTable(table.uri).alter.add_feature(features, allow_protocol_versions_increase=True)
    with pytest.raises(FatalError, match=r"the table totals at .* Unsupported table features required: .*RowTracking"):
        table.append([], "x", 1)


NUMBERS = 5


def race(root: str, name: str, start: Barrier, won: "Queue[tuple[str, list[int], list[str]]]") -> None:
    """Try to store plans 1 to NUMBERS; puts which of them were stored, and whose plan each number has."""
    store = LedgerStore(root, "orders", "live")
    mine, winners = [], []
    for n in range(1, NUMBERS + 1):
        start.wait(60)
        if store.store_plan(plan(n, name)):
            mine.append(n)
        winners.append(store.plan(turn(n)).run_id)
    won.put((name, mine, winners))


def test_s53_of_processes_that_race_for_a_number_one_wins_and_the_others_read_the_winners(root: str) -> None:
    context = multiprocessing.get_context("spawn")
    start, won = context.Barrier(3), context.Queue()
    racers = [context.Process(target=race, args=(root, name, start, won)) for name in ("a", "b", "c")]
    for racer in racers:
        racer.start()
    try:
        results = [won.get(timeout=120) for _ in racers]
    finally:
        for racer in racers:
            racer.join(10)
            racer.kill()
    assert sorted(n for _, mine, _ in results for n in mine) == list(range(1, NUMBERS + 1))
    winner = {n: name for name, mine, _ in results for n in mine}
    for _, _, winners in results:
        assert winners == [winner[n] for n in range(1, NUMBERS + 1)]


@pytest.mark.parametrize("number", [0, 1, 5])
@pytest.mark.parametrize("theirs", ["app", "another"])
def test_without_a_lock_the_fence_alone_refuses_the_slower_of_two_and_another_pipelines_commit_is_no_conflict(
    root: str, number: int, theirs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = WithoutLock(root, "settlements"), AuditTable(root, "settlements")
    slow.create()
    rows = quick.read({"turn": 0})
    monkeypatch.setattr(WithoutLock, "contested", "settlements")
    monkeypatch.setattr(WithoutLock, "rivals", [lambda: quick.append(rows, theirs, number)])
    assert slow.append(rows, "app", number) is (theirs == "another")
    assert slow.version_of("app") == slow.version_of(theirs) == number
    assert not slow.append(rows, "app", number)


def test_all_rows_of_a_turn_have_the_day_of_its_plan_as_their_partition(store: LedgerStore) -> None:
    late = Plan(turn(1), TurnKind.RUN, "r", NOON.replace(hour=23, minute=59), plan(1).partitions, "read_committed")
    store.store_settlement(settlement(0))
    store.store_plan(late)
    store.store_decisions(late, "r", {TP: [OutcomeRow(0, 0, Outcome.DEAD, NOON + timedelta(days=1))]})
    store.store_settlement(
        Settlement(turn(1), TurnKind.RUN, "r", NOON + timedelta(days=1), settlement(1).partitions), late
    )
    for table in (store.plans, store.outcomes, store.settlements):
        assert set(table.read({"turn": 1})["plan_date"].to_pylist()) == {date(2026, 3, 1)}


def test_each_lane_has_three_tables_in_a_folder_of_its_own(root: str) -> None:
    for pipeline, lane in [("orders", "live"), ("orders", "backfill-7"), ("plans", "live")]:
        LedgerStore(root, pipeline, lane).store_settlement(settlement(0, pipeline=pipeline))
    assert [str(path.parent.relative_to(root)) for path in sorted(Path(root).rglob("_delta_log"))] == [
        "orders/backfill-7/settlements", "orders/settlements", "plans/settlements",
    ]  # fmt: skip
    assert [(lane.pipeline, lane.lane) for lane in all_lanes(root)] == [
        ("orders", "live"), ("orders", "backfill-7"), ("plans", "live")
    ]  # fmt: skip


def test_the_first_layout_is_refused_with_what_to_do(
    root: str, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    DeltaTable.create(f"{root}/settlements", SETTLEMENTS, partition_by=["pipeline", "plan_date"])
    for refused in (store.newest, lambda: maintain(root), lambda: list(audit_rows(root, "orders", AuditFilter()))):
        with pytest.raises(ConfigError, match=r"first layout.*Point ACKLINE_AUDIT at an empty folder"):
            refused()
    monkeypatch.setenv("ACKLINE_AUDIT", root)
    assert isinstance(CliRunner().invoke(app, ["maintain"]).exception, ConfigError)
    assert not Path(store.folder).exists()


# ---- filtered reads


@pytest.fixture
def outcomes(store: LedgerStore) -> AuditTable:
    """Two files: one of ten acked rows without an error class, and one of a decision with one."""
    store.store_settlement(settlement(0))
    store.store_plan(plan(1))
    store.store_outcomes(turn(1), [written(store, turn(1), [(offset, 1, "acked") for offset in range(10)])])
    store.store_decisions(plan(1), "run", {TP1: [OutcomeRow(7, 0, Outcome.DEAD, NOON, "HTTPError")]})
    store.store_settlement(settlement(1), plan(1))
    return store.outcomes


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("where", [{"error_class": "HTTPError"}, {"run_id": "run", "outcome": "dead"}])
def test_a_filter_on_a_column_without_statistics_finds_its_rows(
    root: str, outcomes: AuditTable, where: dict[str, str], compacted: bool
) -> None:
    if compacted:
        maintain(root)
    rows = outcomes.read(where).to_pylist()
    assert [(row["partition"], row["offset"], row["outcome"]) for row in rows] == [(1, 7, "dead")]


def test_a_file_whose_statistics_rule_a_match_out_is_not_opened(outcomes: AuditTable) -> None:
    version = outcomes.open()
    assert version is not None

    def files(where: dict[str, str | int]) -> int:
        return len(list(pruned_dataset(outcomes, version, where).get_fragments()))

    assert files({"epoch": 0}) == 2
    assert files({"partition": TP.partition}) == files({"outcome": "dead"}) == files({"turn": 1, "attempt": 1}) == 1
    assert files({"turn": 2}) == files({"topic": "other"}) == 0
    assert files({"error_class": "HTTPError"}) == 2, "it has no statistics"


def test_the_position_in_the_ack_topic_and_the_execution_stay_when_the_log_has_expired_the_notes(
    store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise answers that were applied would be read again, and a renewal would extend its deadline twice."""
    store.store_plan(plan(1))
    store.store_outcomes(turn(1), [], execution=0xFF_FFFF)
    position = AckPosition("acks", "a/b+c", {0: 7, 11: 0}, {11: 3})
    store.store_decisions(plan(1), "run", {}, AnswerReport(position, {"acked": 2}))
    assert store.answers_of(turn(1)) == AnswerReport(position, {"acked": 2})
    monkeypatch.setattr(store.outcomes, "note_of", lambda *_: None)
    assert (store.answers_of(turn(1)), store.execution_of(turn(1))) == (AnswerReport(position), 0xFF_FFFF)
    store.store_outcomes(turn(2), [])
    store.store_decisions(plan(2), "run", {}, AnswerReport(AckPosition("acks", "a/b+c", {0: 5})))
    assert store.answers_of(turn(2)) is not None
    assert store.execution_of(turn(2)) is None
    store.store_decisions(plan(3), "run", {})
    assert store.answers_of(turn(3)) is None


def test_a_damaged_text_in_a_row_is_an_error_that_names_the_table_and_a_damaged_note_is_none(
    store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def store_damaged(table: AuditTable, kind: str, rows: pa.Table, column: str) -> None:
        rows = rows.set_column(rows.column_names.index(column), column, pa.array(["[]"]))
        table.append(rows, f"ackline/orders/live/0/{kind}", 1)

    store_damaged(store.plans, "plan", plan_rows(plan(1)), "settings")
    store_damaged(store.plans, "start", marker_rows(plan(1), Marker(MarkerKind.START, "run", NOON)), "settings")
    store_damaged(store.settlements, "settlement", settlement_rows(settlement(1), NOON.date()), "answers")
    for read, text in (
        (store.plan, "the column settings: no dict is stored there.*; restore its folder from a backup"),
        (store.started_at, "no dict is stored there"),
        (store.settlement, "the column answers: no AnswerReport is stored there"),
    ):
        with pytest.raises(FatalError, match=f"the table (plans|settlements) at .* can't be used: {text}"):
            read(turn(1))
    store.store_decisions(plan(1), "run", {}, AnswerReport(AckPosition("acks", "id", {0: 7}), {"acked": 2}))
    for table in (store.outcomes, store.settlements):
        monkeypatch.setattr(table, "note_of", lambda *_: "[")
    assert (store.report_of(turn(1)), store.first_subscription(turn(0))) == (None, None)
    assert store.answers_of(turn(1)) == AnswerReport(AckPosition("acks", "id", {0: 7}))


@ON_BOTH
@pytest.mark.parametrize("error", [CommitFailedError("version is stored already"), OSError("after 3 retries: timeout")])
def test_a_commit_whose_answer_is_lost_is_won_and_that_of_a_rival_is_not(
    store: LedgerStore, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Taken for a rival's, an own start marker would let nobody hand out the turn, and its range would be lost."""

    def lost(commit: Callable[..., None]) -> Callable[..., None]:
        def commit_and_fail(*arguments: Any, **more: Any) -> None:
            commit(*arguments, **more)
            raise error

        return commit_and_fail

    store.store_plan(plan(1))
    monkeypatch.setattr("ackline.delta.table.link_entry", lost(append.link_entry))
    monkeypatch.setattr(AuditTable, "commit", lost(AuditTable.commit))
    assert store.store_start_marker(plan(1), "run", NOON)
    assert not store.store_start_marker(plan(1), "rival", NOON)
    assert store.plan(turn(1)) == plan(1)


def test_an_error_after_a_commit_is_stored_does_not_say_that_nothing_is_visible(
    store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing before a checkpoint fails."""
    assert store.store_plan(plan(1))

    def fail(*_: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(DeltaLog, "since_checkpoint", fail)
    assert store.store_plan(plan(2))
    assert store.plan(turn(2)) == plan(2)


def test_plan_and_settle_list_the_log_of_each_table_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other entries are found by their numbers: entry n + 1 is looked for until there is none."""
    lane, listed, real = InjectedLane(tmp_path, 2), Counter[str](), DeltaLog._listed
    planned = dict[str, int]()

    def counted(log: DeltaLog) -> Any:
        listed[log.storage.uri.rpartition("/")[2]] += 1
        return real(log)

    monkeypatch.setattr(DeltaLog, "_listed", counted)
    for _ in range(3):
        lane.grow(10)
        listed.clear()
        taken = lane.plan()
        planned = dict(listed)
        lane.inject(taken, failed=1)
        listed.clear()
        lane.settle()
    assert planned == {"plans": 1, "settlements": 1}
    assert dict(listed) == {"plans": 1, "settlements": 1, "outcomes": 1}
