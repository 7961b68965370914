"""What a ledger store promises, in memory and on real Delta tables, so that the double cannot drift. How it commits, it
proves in an object store, too."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake.transaction import AddAction

from ackline.errors import LedgerError
from ackline.ledger.account import Result
from ackline.ledger.commit_rule import Committed
from ackline.ledger.copies import Copies, CopyLog, CopyRun
from ackline.ledger.fold import OutcomeRow, PartitionState, Pending, PendingKind
from ackline.ledger.metrics import FetchTimes, TurnReport
from ackline.ledger.offsets import LogBounds, OffsetRange, OffsetRuns, Ranges, TopicPartition, ValuedRange, ranges_of
from ackline.ledger.outcomes import AnswerKind, Outcome
from ackline.ledger.turns import (
    LIVE,
    AckPosition,
    AnswerReport,
    Marker,
    MarkerKind,
    OperatorLoss,
    Plan,
    PlannedPartition,
    SettledPartition,
    Settlement,
    TurnId,
    TurnKind,
)
from ackline.tables.chosen import OutcomeFilter
from ackline.tables.store import LedgerStore
from tests.support.memory import World
from tests.support.memory_store import MemoryStore
from tests.support.memory_table import OutcomesFile
from tests.support.object_store.store import ObjectStore
from tests.tables import lane_rows
from tests.tables.lane_rows import NOON, TP, TP1, newest_of, plan, settlement, turn

WAIVER = Marker(MarkerKind.WAIVER, "run-b", NOON, "alice", "the range is gone", by_operator=True, pause=True)
Rows = list[tuple[int, int, str]]


class Tables:
    """Real tables below a root that does not exist yet."""

    def __init__(self, root: str) -> None:
        self.root = root

    def store(self, pipeline: str = "orders", lane: str = LIVE) -> LedgerStore:
        """Returns a new store, as each process has one."""
        return LedgerStore(self.root, pipeline, lane)

    def written(self, of: TurnId, rows: Rows, tp: TopicPartition, due: datetime | None = None) -> AddAction:
        """Writes an outcome file."""
        return lane_rows.written(self.store(), of, rows, tp, due=due)


class MemoryTables(Tables):
    """The tables of a world."""

    def __init__(self) -> None:
        self.world = World(NOON)

    def store(self, pipeline: str = "orders", lane: str = LIVE) -> LedgerStore:
        return MemoryStore(self.world, pipeline, lane)

    def written(self, of: TurnId, rows: Rows, tp: TopicPartition, due: datetime | None = None) -> AddAction:
        path = self.world.new_id("file")
        values = tuple(OutcomeRow(offset, attempt, Outcome(word), NOON, due=due) for offset, attempt, word in rows)
        self.world.tables.files[path] = OutcomesFile(of, {tp: values})
        return AddAction(path, 1, {}, 0, True, "{}")


# ---- what the tests of terminal outcomes store


IDS = {"orders": "id"}


def of_both(planned: Plan, topic_id: str = "id") -> Plan:
    """The plan with two partitions of the topic of this id."""
    row: PlannedPartition = replace(planned.partitions[TP], topic_id=topic_id)
    return replace(planned, partitions={TP: row, TP1: row})


def store_turn(
    tables: Tables, store: LedgerStore, planned: Plan, decisions: dict[TopicPartition, list[OutcomeRow]], kind: TurnKind
) -> None:
    n, epoch = planned.turn.n, planned.turn.epoch
    store.store_plan(planned)
    files = [
        tables.written(planned.turn, [(0, 1, "acked"), (1, 1, "acked"), (2, 1, "failed"), (5, 1, "skipped")], TP),
        tables.written(planned.turn, [(7, 1, "failed")], TP1),
    ]
    store.store_outcomes(planned.turn, files)
    store.store_decisions(planned, "run", decisions)
    settled: Settlement = replace(settlement(n, epoch=epoch), kind=kind, code=f"v{n}")
    store.store_settlement(settled, planned)


DECISIONS = {
    TP: [OutcomeRow(2, 0, Outcome.DEAD, NOON, "ValueError"), OutcomeRow(6, 0, Outcome.EXPIRED, NOON, None, 9)],
    TP1: [OutcomeRow(7, 0, Outcome.DEAD, NOON, "KeyError")],
}


def shown(found: dict[TopicPartition, Ranges]) -> dict[TopicPartition, list[OffsetRange]]:
    return {tp: list(ranges_of(ranges)) for tp, ranges in found.items()}


class CommitContract:
    """Which commit is refused, and what each process then reads."""

    def test_a_lane_that_has_not_begun_has_nothing(self, tables: Tables) -> None:
        store = tables.store()
        assert (store.newest(), store.ledger_id()) == (None, "")
        assert not store.has_outcomes(turn(1))
        assert not store.has_decisions(turn(1))
        outcomes = store.outcomes_of(turn(1))
        assert (outcomes.rows, outcomes.counts, outcomes.attempted) == ({}, {}, {})
        for read in (store.plan, store.settlement):
            with pytest.raises(LedgerError):
                read(turn(1))

    def test_s7_i11_a_number_that_is_taken_is_refused_and_adds_no_row(self, tables: Tables) -> None:
        """Each kind of commit has numbers of its own, which all processes share."""
        first, second = tables.store(), tables.store()
        assert first.store_settlement(settlement(0))
        assert first.open_plan(settlement(0)) is None
        assert first.store_plan(plan(1, "first"))
        assert second.open_plan(settlement(0)) == plan(1, "first")
        assert not first.has_outcomes(turn(1))
        assert second.store_outcomes(turn(1), [tables.written(turn(1), [(0, 1, "failed")], TP)])
        assert not second.has_decisions(turn(1))
        assert first.store_decisions(plan(1), "first", {TP: [OutcomeRow(3, 0, Outcome.DEAD, NOON)]})
        assert second.store_settlement(settlement(1, "second"), plan(1))
        before = first.outcomes_of(turn(1))
        assert before.counts == {TP: {"failed": 1, "dead": 1}}

        assert not second.store_plan(plan(1, "second"))
        assert not first.store_outcomes(turn(1), [tables.written(turn(1), [(0, 1, "acked")], TP)])
        assert not second.store_decisions(plan(1), "second", {TP: [OutcomeRow(0, 0, Outcome.DEAD, NOON)]})
        for n in (0, 1):
            assert not first.store_settlement(settlement(n, "first"), plan(n) if n else None)
        assert first.outcomes_of(turn(1)) == before
        assert (first.plan(turn(1)), first.newest()) == (plan(1, "first"), settlement(1, "second"))
        assert first.settlement(turn(1)) == settlement(1, "second")
        assert first.open_plan(settlement(1, "second")) is None
        assert first.ledger_id() == second.ledger_id() != ""

    def test_s7_a_late_process_of_an_older_turn_can_store_nothing(self, tables: Tables) -> None:
        store = tables.store()
        store.store_settlement(settlement(0))
        for n in (1, 2, 3):
            store.store_plan(plan(n))
            store.store_outcomes(turn(n), [])
            store.store_settlement(settlement(n), plan(n))
        assert not store.store_outcomes(turn(2), [tables.written(turn(2), [(5, 1, "acked")], TP)])
        assert not store.store_plan(plan(2, "late"))
        assert not store.store_settlement(settlement(2, "late"), plan(2))
        assert store.outcomes_of(turn(2)).counts == {}

    @pytest.mark.parametrize("waives", [False, True])
    def test_i7_of_a_claim_and_a_waiver_of_one_turn_the_first_one_counts(self, tables: Tables, waives: bool) -> None:
        store, rival = tables.store(), tables.store()
        store.store_settlement(settlement(0))
        store.store_plan(plan(1))
        assert store.is_claimable(turn(1))
        assert not store.has_claim(turn(1)) | store.has_waiver(turn(1))
        assert store.store_waiver(plan(1), WAIVER) if waives else store.store_claim(plan(1))
        assert not rival.store_claim(plan(1))
        assert not rival.store_waiver(plan(1), WAIVER)
        for reader in (store, rival):
            assert (reader.has_claim(turn(1)), reader.has_waiver(turn(1))) == (not waives, waives)
            assert reader.waiver_of(turn(1)) == (WAIVER if waives else None)
            assert not reader.is_claimable(turn(1))
        store.store_plan(plan(2))
        store.store_claim(plan(2))
        assert [store.has_claim(turn(n)) or store.has_waiver(turn(n)) for n in (1, 2)] == [False, True]

    def test_s50_when_a_turn_was_started_is_stored_once_and_is_no_part_of_the_plan(self, tables: Tables) -> None:
        store = tables.store()
        store.store_settlement(settlement(0))
        store.store_plan(plan(1))
        assert store.started_at(turn(1)) is None
        assert store.store_start_marker(plan(1), "run-a", NOON)
        assert not store.store_start_marker(plan(1), "run-b", NOON + timedelta(minutes=1))
        assert (tables.store().started_at(turn(1)), tables.store().plan(turn(1))) == (NOON, plan(1))

    def test_pipelines_lanes_and_epochs_do_not_fence_one_another(self, tables: Tables) -> None:
        store, other, lane = tables.store(), tables.store("payments"), tables.store(lane="backfill-7")
        assert store.store_plan(plan(1))
        assert other.store_plan(plan(1, pipeline="payments"))
        assert lane.store_outcomes(turn(1)._replace(lane="backfill-7"), [])
        assert not store.has_outcomes(turn(1))
        assert store.store_plan(plan(1, epoch=1))
        assert store.plan(turn(1)).turn.epoch == 0

    def test_a_report_goes_with_the_outcomes_of_who_won_and_is_there_for_all(self, tables: Tables) -> None:
        first, second = tables.store(), tables.store()
        assert first.report_of(turn(1)) is None
        report = TurnReport(
            {TP: {"acked": 3}, TP1: {"dropped": 1}}, {TP: FetchTimes(2, 0.5, 0.25), TP1: FetchTimes()}, False
        )
        assert first.store_outcomes(turn(1), [], report)
        assert not second.store_outcomes(turn(1), [], TurnReport())
        assert second.store_decisions(plan(1), "run", {})
        assert (first.report_of(turn(1)), second.report_of(turn(1))) == (report, report)
        assert second.store_outcomes(turn(2), [])
        assert first.report_of(turn(2)) is None
        assert first.report_of(turn(1, epoch=1)) is None
        assert first.store_lost(plan(3), "run", {TP: [OutcomeRow(0, 0, Outcome.LOST, NOON, None, 3)]})
        assert first.report_of(turn(3)) == TurnReport()

    def test_starts_of_a_plan_by_two_stores_are_counted_together(self, tables: Tables) -> None:
        first, second = tables.store(), tables.store()
        first.store_settlement(settlement(0))
        first.store_plan(plan(1))
        assert [store.count_start(plan(1)) for store in (first, second, first, second, second)] == [1, 2, 3, 4, 4]
        assert second.open_plan(settlement(0)) == plan(1)
        assert not first.has_outcomes(turn(1))
        assert first.store_settlement(settlement(1), plan(1))
        assert [second.count_start(plan(2)), first.count_start(plan(2))] == [1, 2]
        assert first.count_start(plan(1)) == 4
        assert tables.store().count_start(plan(2)) == 3

    def test_a_turns_outcomes_are_counted_and_those_that_did_not_succeed_at_once_are_read(self, tables: Tables) -> None:
        store = tables.store()
        store.store_outcomes(
            turn(1),
            [
                tables.written(turn(1), [(offset, 1, "acked") for offset in range(5)], TP),
                tables.written(turn(1), [(5, 1, "failed")], TP),
                tables.written(turn(1), [(2, 2, "acked")], TP1),
                tables.written(turn(1), [(9, 1, "skipped")], TP1),
            ],
        )
        decided = OutcomeRow(7, 0, Outcome.EXPIRED, NOON, None, 9)
        store.store_decisions(plan(1), "run", {TP: [decided]})
        store.store_outcomes(turn(2), [tables.written(turn(2), [(100, 1, "failed")], TP)])
        outcomes = store.outcomes_of(turn(1))
        assert outcomes.counts == {TP: {"acked": 5, "failed": 1, "expired": 2}, TP1: {"acked": 1, "skipped": 1}}
        assert outcomes.attempted == {TP: 6, TP1: 1}
        assert sorted(outcomes.rows[TP]) == [OutcomeRow(5, 1, Outcome.FAILED, NOON), decided]
        assert list(outcomes.rows[TP1]) == [OutcomeRow(2, 2, Outcome.ACKED, NOON)]


class StoreContract(CommitContract):
    """What comes back of the values that are stored, and of the turns that count."""

    def test_s32_a_lane_may_begin_without_a_partition(self, tables: Tables) -> None:
        store = tables.store()
        first = Settlement(turn(0), TurnKind.GENESIS, "run", NOON, {})
        assert store.store_settlement(first, subscription={"topics": ["orders"]})
        newest = newest_of(tables.store())
        assert (newest.turn, newest.kind, newest.partitions) == (turn(0), TurnKind.GENESIS, {})
        assert store.open_plan(newest) is None
        assert not store.store_settlement(settlement(0), subscription={"topics": ["others"]})
        assert tables.store().first_subscription(turn(0)) == {"topics": ["orders"]}

    def test_what_a_first_genesis_of_an_earlier_version_was_made_for_is_not_known(self, tables: Tables) -> None:
        store = tables.store()
        assert store.store_settlement(settlement(0))
        assert store.first_subscription(turn(0)) is None

    def test_a_plan_reads_back_as_it_was_stored(self, tables: Tables) -> None:
        """Ordered by topic-partition."""
        retries = (ValuedRange(2, 5, 2), ValuedRange(7, 8, 3))
        reads = PlannedPartition(
            "Zq1", OffsetRange(10, 20), retries, 2, 10, LogBounds(1, 30, 7), None, Committed(2, '{"n": "é"}'), 3
        )
        partitions = {
            TP1: PlannedPartition("Zq1", OffsetRange(9, 9), (), 9, 9, LogBounds(2, 9), "nothing new", Committed(0, "")),
            TopicPartition("new", 11): PlannedPartition("Yx", OffsetRange(0, 0), (), 0, 0, LogBounds(0, 0), "new"),
            TP: reads,
        }
        settings = {"retry": {"period": "60s"}, "kafka": {"topics": ["é", "'"]}}
        stored = Plan(
            turn(1), TurnKind.RUN, "run", NOON, partitions, "read_uncommitted", settings, "ann", "why not", "v1"
        )
        store = tables.store()
        assert store.store_plan(stored)
        read = tables.store().plan(turn(1))
        assert read == stored
        assert list(read.partitions) == sorted(partitions)

    def test_a_settlement_reads_back_as_it_was_stored(self, tables: Tables) -> None:
        pending = (
            ValuedRange(0, 2, Pending(PendingKind.RETRY, 3, NOON + timedelta(microseconds=1), "ValueError")),
            ValuedRange(5, 6, Pending(PendingKind.DEAD_LETTER, 4, None, None)),
            ValuedRange(8, 9, Pending(PendingKind.RETRY, 1, datetime.max.replace(tzinfo=UTC), None)),
        )
        # Touching ranges of equal value stay two: each value is of its whole range.
        gaps = (ValuedRange(1, 4, 2), ValuedRange(4, 9, 2), ValuedRange(2**40, 2**62, 2**50))
        logs = CopyLog("rescue", "Zq2", 3), CopyLog("rescue", "Zq3", 0)
        copies = Copies.of([CopyRun(0, 2, logs[1], 2**40), CopyRun(5, 6, logs[0], 0)])
        released = OffsetRuns.of([OffsetRange(1, 2), OffsetRange(8, 9)])
        state = PartitionState(2**62, pending, gaps, copies=copies, released=released)
        counts = {"acked": 7, "failed": 2}
        partitions = {
            TP: SettledPartition("Zq1", 0, state, counts, 3, 40, Committed(4, "{}"), "outcomes 1", leader_epoch=7),
            TP1: SettledPartition("Zq1", 9, PartitionState(9), paused=True, leader_epoch=0),
        }
        stored = Settlement(turn(1), TurnKind.VOID, "run", NOON, partitions, "ann", "range gone", code="v1-dirty")
        store = tables.store()
        assert store.store_settlement(stored, plan(1))
        assert tables.store().settlement(turn(1)) == stored

    @pytest.mark.parametrize("reported", [False, True])
    @pytest.mark.parametrize("pause", [False, True])
    def test_an_operators_mark_is_stored_with_the_lost_ranges_and_with_these_only(
        self, pause: bool, reported: bool, tables: Tables
    ) -> None:
        first, second, loss = tables.store(), tables.store(), OperatorLoss("the driver hangs", pause)
        rows = {TP: [OutcomeRow(0, 0, Outcome.LOST, NOON, None, 3, loss.reason)]}
        assert first.operator_loss(turn(1)) is None
        if reported:
            assert first.store_outcomes(turn(1), [])
            assert not second.store_lost(plan(1), "run", rows, loss)
            assert first.operator_loss(turn(1)) is None
            assert second.replace_by_lost(plan(1), "run", rows, loss)
        else:
            assert second.store_lost(plan(1), "run", rows, loss)
        assert (first.operator_loss(turn(1)), second.operator_loss(turn(1))) == (loss, loss)
        assert first.store_lost(plan(2), "run", rows)
        assert first.operator_loss(turn(2)) is None

    def test_figures_and_totals_come_back_and_may_be_missing(self, tables: Tables) -> None:
        store, state = tables.store(), PartitionState(5)
        rows = {
            TP: SettledPartition("id", 0, state, gaps=None, metrics={"lag": 3.0, "due": 0.0}, totals={"acked": 2}),
            TP1: SettledPartition("id", 0, state, metrics={}, totals={}),
            TopicPartition("payments", 0): SettledPartition("id", 0, state),
        }
        assert store.store_settlement(Settlement(turn(0), TurnKind.GENESIS, "run", NOON, rows))
        assert tables.store().settlement(turn(0)).partitions == rows

    def test_zero_rows_are_a_proof_and_a_later_number_proves_no_gap(self, tables: Tables) -> None:
        store = tables.store()
        assert store.store_outcomes(turn(2), [])
        assert not store.store_outcomes(turn(1), [])
        assert store.has_outcomes(turn(2))
        found = store.outcomes_of(turn(2))
        assert (found.rows, found.counts, found.attempted) == ({}, {}, {})
        assert not store.has_outcomes(turn(3))
        assert not store.has_decisions(turn(2))

    def test_an_epoch_is_opened_by_the_last_turn_of_the_one_before(self, tables: Tables) -> None:
        store = tables.store()
        for n in range(3):
            store.store_settlement(settlement(n))
        assert store.reset_into(1) == turn(2)

    def test_s53_who_looked_before_others_went_on_finds_no_plan(self, tables: Tables) -> None:
        first, late = tables.store(), tables.store()
        first.store_settlement(settlement(0))
        before = late.newest()
        assert before is not None
        first.store_plan(plan(2))
        with pytest.raises(LedgerError, match="a commit of the tables is missing"):
            late.open_plan(before)
        first.store_settlement(settlement(1), plan(1))
        assert late.open_plan(before) is None
        assert not late.store_plan(plan(1, "late"))

    def test_a_turn_gives_its_records_in_flight_and_what_ended_them_and_counts_no_answer_as_an_attempt(
        self, tables: Tables
    ) -> None:
        """Also where all answers are acks of first attempts, whose file statistics could pass for acked records."""
        store, due = tables.store(), NOON + timedelta(minutes=1)
        report = AnswerReport(AckPosition("acks", "id", {0: 7}), {"acked": 2}, ("lost",))
        handed_on = [OutcomeRow(offset, 1, Outcome.IN_FLIGHT, NOON, due=due) for offset in (3, 4)]
        acks = [OutcomeRow(offset, 1, Outcome.ACKED, NOON, answer=AnswerKind.ACK) for offset in (3, 4)]
        store.store_plan(plan(1))
        store.store_outcomes(turn(1), [tables.written(turn(1), [(3, 1, "in_flight"), (4, 1, "in_flight")], TP, due)])
        assert store.store_decisions(plan(1), "run", {TP: acks}, report)
        outcomes = store.outcomes_of(turn(1))
        assert (outcomes.counts, outcomes.attempted) == ({TP: {"in_flight": 2, "acked": 2}}, {TP: 2})
        assert sorted(outcomes.rows[TP], key=lambda row: (row.offset, row.answer or "")) == [
            row for pair in zip(handed_on, acks, strict=True) for row in pair
        ]
        assert (store.first_attempts_of(turn(1)), store.answers_of(turn(1))) == ({"in_flight": 2}, report)

    def test_s72_terminal_offsets_are_found_by_outcome_class_run_and_code(self, tables: Tables) -> None:
        store = tables.store()
        store.store_settlement(settlement(0))
        store_turn(tables, store, of_both(plan(1)), DECISIONS, TurnKind.RUN)
        every, older = store.terminal_offsets(0, IDS, None)
        assert shown(every) == {
            TP: [OffsetRange(0, 3), OffsetRange(5, 9)],
            TP1: [OffsetRange(7, 8)],
        }
        assert older == {}
        dead = store.terminal_offsets(0, IDS, OutcomeFilter("dead", "ValueError"))[0]
        assert shown(dead) == {TP: [OffsetRange(2, 3)]}
        without = store.terminal_offsets(0, IDS, OutcomeFilter(error_class=""))[0]
        assert shown(without) == {TP: [OffsetRange(0, 2), OffsetRange(5, 9)]}
        assert shown(store.terminal_offsets(0, IDS, OutcomeFilter(run_id="run"))[0]) == shown(every)
        assert store.terminal_offsets(0, IDS, OutcomeFilter(run_id="other")) == ({}, {})
        assert (store.turns_of_code("v1"), store.turns_of_code("v2")) == ({0: [1]}, {})
        assert [done.code for done in store.turns_of_epoch(0)] == ["v1"]
        assert shown(store.terminal_offsets(0, IDS, OutcomeFilter(code="v1"))[0]) == shown(every)
        assert store.terminal_offsets(0, IDS, OutcomeFilter(code="v2")) == ({}, {})
        assert store.terminal_offsets(0, {"other": "id"}, None) == ({}, {})
        results = store.terminal_results(0, IDS)[TP]
        found = {
            (start, results.results[code])
            for start, code in zip(results.starts.tolist(), results.codes.tolist(), strict=True)
        }
        assert {(2, Result("dead", "ValueError")), (5, Result("skipped", None)), (6, Result("expired", None))} <= found

    def test_s72_rows_of_void_open_and_older_turns_are_left_out_or_kept_apart(self, tables: Tables) -> None:
        store = tables.store()
        store.store_settlement(settlement(0))
        store_turn(tables, store, of_both(plan(1)), {}, TurnKind.VOID)
        store_turn(tables, store, of_both(plan(2), "an older id"), DECISIONS, TurnKind.RUN)
        store.store_plan(of_both(plan(3)))
        store.store_outcomes(turn(3), [tables.written(turn(3), [(8, 1, "acked")], TP1)])
        current, older = store.terminal_offsets(0, IDS, None)
        assert (current, shown(older)[TP1]) == ({}, [OffsetRange(7, 8)])
        assert store.terminal_results(0, IDS) == {}
        assert [(done.kind, done.settings) for done in store.turns_of_epoch(0)] == [("run", plan(2).settings)]

    def test_s88_the_newest_copy_of_each_record_of_a_topic_is_found(self, tables: Tables) -> None:
        store, log = tables.store(), CopyLog("rescue", "Zq2", 0)
        pending = (ValuedRange(0, 9, Pending(PendingKind.RETRY, 1, NOON, None)),)
        of_turns = [
            ("id", [CopyRun(0, 4, log, 10)]), ("id", [CopyRun(2, 6, log, 90)]), ("other", [CopyRun(7, 8, log, 1)]),
            ("id", []),
        ]  # fmt: skip
        assert store.copies_of({TP.topic: "id"}) == {}
        for n, (topic_id, runs) in enumerate(of_turns, 1):
            state = PartitionState(9, pending, copies=Copies.of(runs))
            rows = {TP: SettledPartition(topic_id, 0, state), TP1: SettledPartition("id", 0, PartitionState(0))}
            assert store.store_settlement(replace(settlement(n), partitions=rows), plan(n))
        expected = Copies.of([CopyRun(0, 2, log, 10), CopyRun(2, 6, log, 90)])
        assert store.copies_of({TP.topic: "id"}) == {TP: expected}

    def test_the_sums_of_a_lane_are_those_up_to_a_turn(self, tables: Tables) -> None:
        store = tables.store()
        store.store_settlement(settlement(0))
        for n in (1, 2):
            planned = plan(n)
            store.store_plan(planned)
            counted = settlement(n)
            row = replace(counted.partitions[TP], counts={"acked": n, "dead": 1}, gaps=n)
            store.store_settlement(replace(counted, partitions={TP: row}), planned)
        assert store.tallies(turn(2)) == ({"acked": 3, "dead": 2}, 3)
        assert store.tallies(turn(1)) == ({"acked": 1, "dead": 1}, 1)


class TestInMemory(StoreContract):
    @pytest.fixture
    def tables(self) -> Tables:
        return MemoryTables()


class TestOnDisk(StoreContract):
    @pytest.fixture
    def tables(self, tmp_path: Path) -> Tables:
        return Tables(str(tmp_path / "audit"))


class TestInAnObjectStore(CommitContract):
    @pytest.fixture
    def tables(self, s3: ObjectStore) -> Tables:
        return Tables(f"{s3.bucket(f'bucket-{uuid.uuid4()}')}/audit")
