"""The offsets of a lane by their terminal outcome: on real Delta tables and in memory alike."""

from dataclasses import replace

from ackline.ledger.account import Result
from ackline.ledger.fold import OutcomeRow
from ackline.ledger.offsets import OffsetRange, Ranges, TopicPartition, ranges_of
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import Plan, PlannedPartition, Settlement, TurnKind
from ackline.tables.chosen import OutcomeFilter
from ackline.tables.store import LedgerStore
from tests.tables.lane_rows import NOON, TP, TP1, plan, settlement, turn
from tests.tables.tables import Tables

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
    settled: Settlement = replace(settlement(n, epoch=epoch), kind=kind)
    store.store_settlement(settled, planned)


DECISIONS = {
    TP: [OutcomeRow(2, 0, Outcome.DEAD, NOON, "ValueError"), OutcomeRow(6, 0, Outcome.EXPIRED, NOON, None, 9)],
    TP1: [OutcomeRow(7, 0, Outcome.DEAD, NOON, "KeyError")],
}


def shown(found: dict[TopicPartition, Ranges]) -> dict[TopicPartition, list[OffsetRange]]:
    return {tp: list(ranges_of(ranges)) for tp, ranges in found.items()}


def test_s72_terminal_offsets_are_found_by_outcome_class_and_run(tables: Tables) -> None:
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
    assert shown(store.terminal_offsets(0, IDS, OutcomeFilter(run_id="run"))[0]) == shown(every)
    assert store.terminal_offsets(0, IDS, OutcomeFilter(run_id="other")) == ({}, {})
    assert store.terminal_offsets(0, {"other": "id"}, None) == ({}, {})
    results = store.terminal_results(0, IDS)[TP]
    found = {
        (start, results.results[code])
        for start, code in zip(results.starts.tolist(), results.codes.tolist(), strict=True)
    }
    assert {(2, Result("dead", "ValueError")), (5, Result("skipped", None)), (6, Result("expired", None))} <= found


def test_s72_rows_of_void_open_and_older_turns_are_left_out_or_kept_apart(tables: Tables) -> None:
    store = tables.store()
    store.store_settlement(settlement(0))
    store_turn(tables, store, of_both(plan(1)), {}, TurnKind.VOID)
    store_turn(tables, store, of_both(plan(2), "an older id"), DECISIONS, TurnKind.RUN)
    store.store_plan(of_both(plan(3)))
    store.store_outcomes(turn(3), [tables.written(turn(3), [(8, 1, "acked")], TP1)])
    current, older = store.terminal_offsets(0, IDS, None)
    assert (current, shown(older)[TP1]) == ({}, [OffsetRange(7, 8)])
    assert store.terminal_results(0, IDS) == {}


def test_the_sums_of_a_lane_are_those_up_to_a_turn(tables: Tables) -> None:
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
