"""Records in flight in the tables: their rows, the rows that end them, and the report of the answers."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from ackline.actions.maintain import maintain
from ackline.audit.queries import AuditFilter, audit_rows
from ackline.audit.sql import sql_result
from ackline.delta.table import CHECKPOINT_EVERY
from ackline.ledger.outcomes import UNIX_EPOCH, AnswerKind, ErrorClass, Outcome, OutcomeColumns, OutcomeRow
from ackline.ledger.turns import LIVE, AckPosition, AnswerReport, TurnKind
from ackline.spark.job import ReplayResult
from ackline.steps.replay import add_actions
from ackline.tables.schemas import plan_date
from ackline.tables.store import LedgerStore
from ackline.worker.files import Chunk, OutcomeFiles, OutcomeTarget
from tests.tables.lane_rows import NOON, TP, plan, settlement, store_turn, turn, written

MINUTE = timedelta(minutes=1)
REPORT = AnswerReport(AckPosition("acks", "id", {0: 7}), {"acked": 2}, ("lost",))
HANDED_ON = [OutcomeRow(offset, 1, Outcome.IN_FLIGHT, NOON, due=NOON + MINUTE) for offset in (3, 4)]
ACKS = [OutcomeRow(offset, 1, Outcome.ACKED, NOON, answer=AnswerKind.ACK) for offset in (3, 4)]


@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_a_deadline_at_the_end_of_the_calendar_is_stored_by_the_task_and_by_settle(
    store: LedgerStore, from_checkpoint: bool
) -> None:
    end = datetime.max.replace(tzinfo=UTC)
    store.store_settlement(settlement(0))
    store.store_plan(plan(1))
    store.outcomes.create()
    files = OutcomeFiles(OutcomeTarget(store.outcomes.uri, turn(1), plan_date(NOON), "run"))
    times = np.full(2, int(NOON.timestamp() * 1e6), dtype=np.int64)
    dues = [(end - UNIX_EPOCH) // timedelta(microseconds=1)] * 2
    chunk = Chunk(np.array([3, 4]), times, np.ones(2, np.int32), times, [None] * 2, [None] * 2, dues=dues)
    files.add(TP, Outcome.IN_FLIGHT, chunk)
    store.store_outcomes(turn(1), add_actions(plan(1), ReplayResult(tuple(files.close()), {}, 0, 0, {})))
    renewed = OutcomeRow(3, 1, Outcome.IN_FLIGHT, NOON, due=end, answer=AnswerKind.RENEW)
    assert store.store_decisions(plan(1), "run", {TP: [renewed]}, REPORT)
    # Then the files come from a checkpoint, and not from log entries.
    for number in range(CHECKPOINT_EVERY if from_checkpoint else 0):
        store.outcomes.append([], "orders/live/0/other", number)
    outcomes = store.outcomes_of(turn(1))
    assert (outcomes.counts, outcomes.attempted) == ({TP: {"in_flight": 3}}, {TP: 2})
    assert {row.due for row in outcomes.rows[TP]} == {end}


def test_columns_keep_deadlines_and_answers_when_they_are_joined_and_chosen() -> None:
    plain = OutcomeColumns.of([OutcomeRow(1, 1, Outcome.FAILED, NOON)])
    assert (plain.dues, plain.answers) == (None, None)
    joined = OutcomeColumns.concat([plain, HANDED_ON, ACKS, plain])
    assert list(joined) == [*plain, *HANDED_ON, *ACKS, *plain]
    assert list(joined.where(joined.answered)) == ACKS
    assert list(joined.with_outcome(Outcome.IN_FLIGHT)) == HANDED_ON


def test_a_settlement_keeps_the_report_and_a_void_turn_is_found(store: LedgerStore) -> None:
    store.store_settlement(settlement(0))
    store.store_settlement(replace(settlement(1), answers=REPORT), plan(1))
    store.store_settlement(replace(settlement(2), kind=TurnKind.VOID), plan(2))
    assert LedgerStore(store.root, "orders", LIVE).settlement(turn(1)).answers == REPORT
    assert LedgerStore(store.root, "orders", LIVE).settlement(turn(2)).answers is None
    assert (store.void_turns(0), store.void_turns(1)) == ({2}, set())


@pytest.fixture
def lane(tmp_path: Path) -> LedgerStore:
    """Offset 3 is acked in its own turn, 4 times out in turn 2 and is acked by the retry, 5 is in flight."""
    store = LedgerStore(str(tmp_path), "orders", LIVE)
    store.store_settlement(settlement(0))
    timeout = OutcomeRow(4, 1, Outcome.FAILED, NOON, ErrorClass.ACK_TIMEOUT, answer=AnswerKind.TIMEOUT)
    turns = [
        ([(3, 1, "in_flight"), (4, 1, "in_flight"), (5, 1, "in_flight")], ACKS[:1]),
        ([(6, 1, "acked")], [timeout, OutcomeRow(5, 1, Outcome.IN_FLIGHT, NOON, answer=AnswerKind.RENEW)]),
        ([(4, 2, "acked")], []),
    ]
    for n, (attempts, decisions) in enumerate(turns, 1):
        file = written(store, turn(n), attempts)
        store_turn(store, plan(n), file, settled=settlement(n), decisions=decisions)
    return store


@pytest.mark.parametrize("compacted", [False, True])
def test_the_audit_shows_a_record_in_flight_before_what_ended_it(lane: LedgerStore, compacted: bool) -> None:
    if compacted:
        maintain(lane.root)
    found = [
        (row["offset"], row["turn"], row["attempt"], row["outcome"])
        for row in audit_rows(lane.root, "orders", AuditFilter())
    ]
    assert found == [
        (3, 1, 1, "in_flight"), (3, 1, 1, "acked"), (4, 1, 1, "in_flight"), (4, 2, 1, "failed"), (4, 3, 2, "acked"),
        (5, 1, 1, "in_flight"), (5, 2, 1, "in_flight"), (6, 2, 1, "acked"),
    ]  # fmt: skip
    assert lane.outcomes_of(turn(2)).attempted == {TP: 1}


def test_the_view_of_records_has_the_outcome_that_ended_each(lane: LedgerStore) -> None:
    query = 'SELECT "offset", outcome, attempts, error_class FROM records ORDER BY 1'
    with sql_result(lane.root, query) as reader:
        found = [tuple(row.values()) for row in reader.read_all().to_pylist()]
    assert found == [
        (3, "acked", 1, None), (4, "acked", 2, None), (5, "pending", 1, None), (6, "acked", 1, None),
    ]  # fmt: skip
