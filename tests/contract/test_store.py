"""The ledger store on real Delta tables: its fences, races for a number, and what reads back as it was stored."""

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from deltalake import DeltaTable

from ackline.audit.rows import settlement_from_rows, settlement_rows
from ackline.audit.store import LedgerStore
from ackline.audit.table import AuditTable
from ackline.commit_rule import Committed
from ackline.errors import LedgerError
from ackline.ledger import OutcomeRow, PartitionState, Pending, PendingKind
from ackline.offsets import LogBounds, OffsetRange, TopicPartition, ValuedRange
from ackline.outcome import Outcome
from ackline.turns import Plan, PlannedPartition, SettledPartition, Settlement, TurnKind
from tests.contract.lane_rows import AT, NOON, TWO, plan, settlement, turn, written


@pytest.fixture
def root(tmp_path: Path) -> str:
    """An audit root that is not there yet."""
    return str(tmp_path / "audit")


@pytest.fixture
def store(root: str) -> LedgerStore:
    """The store of a lane that has not begun."""
    return LedgerStore(root, "orders", "live")


# ---- fences -------------------------------------------------------------------------------------------------------


def test_before_anything_is_stored_there_is_nothing_to_read(store: LedgerStore) -> None:
    assert store.newest() is None
    assert not store.has_outcomes(turn(1))
    assert not store.has_decisions(turn(1))
    assert store.outcomes_of(turn(1)).rows == {}
    with pytest.raises(LedgerError):
        store.settlement(turn(1))


def test_each_kind_of_commit_has_numbers_of_its_own(store: LedgerStore) -> None:
    assert store.store_settlement(settlement(0))
    assert store.store_plan(plan(1))
    assert not store.has_outcomes(turn(1))
    assert store.store_outcomes(turn(1), [])
    assert not store.has_decisions(turn(1))
    assert store.store_decisions(plan(1), "run", {})
    assert store.store_settlement(settlement(1), plan(1))
    assert store.newest() == store.settlement(turn(1)) == settlement(1)


def test_s7_i11_a_number_that_is_taken_is_refused_and_adds_no_row(store: LedgerStore) -> None:
    store.store_settlement(settlement(0))
    store.store_plan(plan(1, "winner"))
    store.store_outcomes(turn(1), [written(store, turn(1), [(0, 1, "failed")])])
    store.store_decisions(plan(1), "winner", {AT: [OutcomeRow(3, 0, Outcome.DEAD, NOON)]})
    store.store_settlement(settlement(1, "winner"), plan(1))
    before = store.outcomes_of(turn(1))

    assert not store.store_plan(plan(1, "loser"))
    assert not store.store_outcomes(turn(1), [written(store, turn(1), [(0, 1, "acked")])])
    assert not store.store_decisions(plan(1), "loser", {AT: [OutcomeRow(0, 0, Outcome.DEAD, NOON)]})
    assert not store.store_settlement(settlement(1, "loser"), plan(1))
    assert not store.store_settlement(settlement(0, "loser"))
    assert store.outcomes_of(turn(1)) == before
    assert store.plan(turn(1)).run_id == store.settlement(turn(1)).run_id == "winner"


def test_s7_a_late_process_of_an_older_turn_can_store_nothing(store: LedgerStore) -> None:
    store.store_settlement(settlement(0))
    for n in (1, 2, 3):
        store.store_plan(plan(n))
        store.store_outcomes(turn(n), [])
        store.store_settlement(settlement(n), plan(n))

    assert not store.store_outcomes(turn(2), [written(store, turn(2), [(5, 1, "acked")])])
    assert not store.store_plan(plan(2, "late"))
    assert not store.store_settlement(settlement(2, "late"), plan(2))
    assert store.outcomes_of(turn(2)).counts == {}


def test_zero_rows_are_a_commit_and_a_proof(store: LedgerStore) -> None:
    store.store_settlement(settlement(0))
    assert store.store_outcomes(turn(1), [])
    assert store.has_outcomes(turn(1))
    assert not store.store_outcomes(turn(1), [])
    assert not store.has_outcomes(turn(2))
    found = store.outcomes_of(turn(1))
    assert (found.rows, found.counts, found.attempted_fresh) == ({}, {}, {})


def test_pipelines_lanes_and_epochs_do_not_fence_one_another(root: str, store: LedgerStore) -> None:
    other, lane = LedgerStore(root, "payments", "live"), LedgerStore(root, "orders", "backfill-7")
    assert store.store_plan(plan(1))
    assert other.store_plan(plan(1, pipeline="payments"))
    backfill = plan(1).turn._replace(lane="backfill-7")
    assert lane.store_outcomes(backfill, [])
    assert not store.has_outcomes(turn(1))
    assert store.store_plan(plan(1, epoch=1))
    assert store.plan(turn(1)).turn.epoch == 0


def test_the_newest_settlement_is_of_the_newest_epoch(store: LedgerStore) -> None:
    for one in (settlement(0), settlement(1), settlement(2), settlement(0, epoch=1)):
        assert store.store_settlement(one)
    found = store.newest()
    assert found is not None
    assert found.turn == turn(0, epoch=1)


# ---- open plans ---------------------------------------------------------------------------------------------------


def test_a_plan_is_open_until_it_is_settled(store: LedgerStore) -> None:
    store.store_settlement(settlement(0))
    assert store.open_plan(settlement(0)) is None
    store.store_plan(plan(1))
    assert store.open_plan(settlement(0)) == plan(1)
    store.store_settlement(settlement(1), plan(1))
    assert store.open_plan(settlement(1)) is None


def test_a_plan_without_its_predecessors_settlement_is_a_contradiction(store: LedgerStore) -> None:
    store.store_settlement(settlement(0))
    store.store_plan(plan(2))
    with pytest.raises(LedgerError, match="a commit of the tables is missing"):
        store.open_plan(settlement(0))


def test_s53_who_looked_before_others_went_on_finds_no_plan_and_no_contradiction(store: LedgerStore) -> None:
    store.store_settlement(settlement(0))
    old = store.newest()
    assert old is not None
    store.store_plan(plan(1))
    store.store_settlement(settlement(1), plan(1))
    store.store_plan(plan(2))
    assert store.open_plan(old) is None
    assert not store.store_plan(plan(1, "late"))


# ---- races --------------------------------------------------------------------------------------------------------

NUMBERS = 12


def race(root: str, name: str, start: Barrier, won: "Queue[tuple[str, list[int], list[str]]]") -> None:
    """A process that tries to store plans 1 to NUMBERS, and says which it won and whose it found."""
    store = LedgerStore(root, "orders", "live")
    mine, found = [], []
    for n in range(1, NUMBERS + 1):
        start.wait(60)
        if store.store_plan(plan(n, name)):
            mine.append(n)
        found.append(store.plan(turn(n)).run_id)
    won.put((name, mine, found))


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
    for _, _, found in results:
        assert found == [winner[n] for n in range(1, NUMBERS + 1)]


class WithoutLock(AuditTable):
    """A table as on an object store: no lock, and a rival that commits between our look and our commit."""

    rival: Callable[[], object] | None = None

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        yield

    def open(self) -> DeltaTable | None:
        """The newest version; then, once, the rival is quicker."""
        table = super().open()
        if table is not None and self.rival is not None:
            rival, self.rival = self.rival, None
            rival()
        return table


@pytest.mark.parametrize("number", [0, 1, 5])
def test_without_a_lock_the_fence_alone_refuses_the_slower_of_two(root: str, number: int) -> None:
    slow, quick = WithoutLock(root, "settlements"), WithoutLock(root, "settlements")
    slow.create()
    rows = AuditTable(root, "settlements").read({"turn": 0})

    slow.rival = lambda: quick.append(rows, "app", number)
    assert not slow.append(rows, "app", number)
    assert slow.version_of("app") == number
    assert not slow.append(rows, "app", number)


def test_without_a_lock_another_pipelines_commit_in_between_is_no_conflict(root: str) -> None:
    slow, quick = WithoutLock(root, "settlements"), WithoutLock(root, "settlements")
    slow.create()
    rows = AuditTable(root, "settlements").read({"turn": 0})

    slow.rival = lambda: quick.append(rows, "another", 1)
    assert slow.append(rows, "app", 1)
    assert (slow.version_of("app"), slow.version_of("another")) == (1, 1)


# ---- round trips --------------------------------------------------------------------------------------------------


def test_a_plan_reads_back_as_it_was_stored(store: LedgerStore) -> None:
    partitions = {
        AT: PlannedPartition(
            "Zq1", OffsetRange(5, 12), (ValuedRange(0, 2, 2), ValuedRange(2, 3, 7)), 0, 5, LogBounds(0, 40, 7), None,
            Committed(4, '{"n": 1}'), 3,
        ),
        TWO: PlannedPartition("Zq1", OffsetRange(9, 9), (), 9, 9, LogBounds(2, 9), "nothing new", Committed(0, "")),
        TopicPartition("new", 11): PlannedPartition("Yx", OffsetRange(0, 0), (), 0, 0, LogBounds(0, 0), "no leader"),
    }  # fmt: skip
    settings = {"retry": {"period": "60s"}, "kafka": {"topics": ["é", "'"]}}
    whole = Plan(turn(1), TurnKind.RUN, "run", NOON, partitions, "read_uncommitted", settings, "ann", "why not")
    assert store.store_plan(whole)
    assert store.plan(turn(1)) == whole


def test_a_settlement_reads_back_as_it_was_stored(store: LedgerStore) -> None:
    pending = (
        ValuedRange(0, 2, Pending(PendingKind.RETRY, 3, NOON + timedelta(microseconds=1), "ValueError")),
        ValuedRange(5, 6, Pending(PendingKind.DEAD_LETTER, 4, None, None)),
        ValuedRange(8, 9, Pending(PendingKind.RETRY, 1, datetime.max.replace(tzinfo=UTC), None)),
    )
    partitions = {
        AT: SettledPartition(
            "Zq1", 0, PartitionState(2**62, pending), {"acked": 7, "failed": 2}, 3, 40, Committed(4, "{}"), "outcomes 1"
        ),
        TWO: SettledPartition("Zq1", 9, PartitionState(9), paused=True, leader_epoch=0),
    }
    whole = Settlement(turn(1), TurnKind.VOID, "run", NOON, partitions, "ann", "range gone")
    assert store.store_settlement(whole, plan(1))
    assert store.settlement(turn(1)) == whole


def test_the_partition_column_of_all_that_a_plan_brings_about_is_the_plans_day(store: LedgerStore) -> None:
    late = Plan(turn(1), TurnKind.RUN, "r", NOON.replace(hour=23, minute=59), plan(1).partitions, "read_committed")
    store.store_settlement(settlement(0))
    store.store_plan(late)
    store.store_decisions(late, "r", {AT: [OutcomeRow(0, 0, Outcome.DEAD, NOON + timedelta(days=1))]})
    store.store_settlement(
        Settlement(turn(1), TurnKind.RUN, "r", NOON + timedelta(days=1), settlement(1).partitions), late
    )
    for table in (store.plans, store.outcomes, store.settlements):
        assert set(table.read({"turn": 1})["plan_date"].to_pylist()) == {date(2026, 3, 1)}


def test_settlements_of_a_version_that_kept_no_figures_are_read() -> None:
    rows = settlement_rows(settlement(1), NOON.date())
    assert settlement_from_rows(rows.drop_columns(["figures", "totals"])) == settlement(1)
