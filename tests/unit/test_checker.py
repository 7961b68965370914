"""The checker passes a correct history, and names what is wrong with any other; no broker is needed."""

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from ackline.testing import checker
from ackline.testing.checker import Evidence, Letter, Log, Report, judge

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
WHEN = pa.timestamp("us", tz="UTC")
KEY = [("pipeline", pa.string()), ("plan_date", pa.date32()), ("lane", pa.string()), ("epoch", pa.int32()),
       ("turn", pa.int64()), ("run_id", pa.string())]  # fmt: skip
PENDING = pa.struct([("start_offset", pa.int64()), ("end_offset", pa.int64()), ("kind", pa.string()),
                     ("attempts", pa.int32()), ("due", WHEN), ("error_class", pa.string())])  # fmt: skip
SCHEMAS = {
    "outcomes": pa.schema([
        *KEY, ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()),
        ("end_offset", pa.int64()), ("attempt", pa.int32()), ("outcome", pa.string()),
        ("error_class", pa.string()), ("error_message", pa.string()), ("record_timestamp", WHEN), ("handled_at", WHEN),
    ]),
    "plans": pa.schema([
        *KEY, ("kind", pa.string()), ("topic", pa.string()), ("partition", pa.int32()),
        ("topic_id", pa.string()),
        ("start_offset", pa.int64()), ("end_offset", pa.int64()), ("settings", pa.string()),
    ]),
    "settlements": pa.schema([
        *KEY, ("kind", pa.string()), ("topic", pa.string()), ("partition", pa.int32()),
        ("topic_id", pa.string()),
        ("old_floor", pa.int64()), ("new_floor", pa.int64()), ("complete_to", pa.int64()),
        ("pending", pa.list_(PENDING)), ("counts", pa.map_(pa.string(), pa.int64())), ("gaps", pa.int64()),
    ]),
}  # fmt: skip


Row = dict[str, Any]


def at(seconds: int) -> datetime:
    return NOON + timedelta(seconds=seconds)


def row(turn: int, **columns: Any) -> Row:
    return {"pipeline": "orders", "plan_date": date(2026, 3, 1), "lane": "live", "epoch": 0, "turn": turn,
            "run_id": f"run-{turn}", "topic": "orders", "partition": 0, **columns}  # fmt: skip


def outcome(turn: int, offset: int, attempt: int, word: str, **columns: Any) -> Row:
    return row(turn, offset=offset, attempt=attempt, outcome=word, handled_at=at(turn * 60), **columns)


def plan(turn: int, start: int, end: int, **columns: Any) -> Row:
    return row(turn, **{"kind": "run", "start_offset": start, "end_offset": end, **columns})


def settlement(turn: int, old: int, new: int, complete_to: int, *pending: Row, **columns: Any) -> Row:
    return row(turn, **{"kind": "run", "old_floor": old, "new_floor": new, "complete_to": complete_to,
                        "pending": list(pending), "counts": [], **columns})  # fmt: skip


def retry(start: int, end: int, attempts: int, due: datetime) -> Row:
    return {"start_offset": start, "end_offset": end, "kind": "retry", "attempts": attempts, "due": due}


@dataclass
class History:
    """Ten offsets, 6 a gap: 3 fails twice and is dead, 5 fails once, 7 is a tombstone; max_retries 1."""

    records: list[int] = field(default_factory=lambda: [0, 1, 2, 3, 4, 5, 7, 8, 9])
    log_start: int = 0
    log_end: int = 10
    committed: int | None = 10
    epoch: int = 0
    turn: int = 2
    ledger: str = "ledger-1"
    hidden: list[int] | None = None
    letters: list[Letter] = field(default_factory=lambda: [Letter("live", 0, "orders", 0, 3, "digest")])
    outcomes: list[Row] = field(default_factory=lambda: [
        *(outcome(1, offset, 1, "acked") for offset in (0, 1, 2, 4, 8, 9)),
        outcome(1, 3, 1, "failed", error_class="ValueError"),
        outcome(1, 5, 1, "failed", error_class="ValueError"),
        outcome(1, 7, 1, "skipped", error_class="Tombstone"),
        outcome(2, 3, 2, "failed", error_class="ValueError"), outcome(2, 5, 2, "acked"),
        outcome(2, 3, 0, "dead"),
    ])  # fmt: skip
    plans: list[Row] = field(default_factory=lambda: [plan(1, 0, 10), plan(2, 10, 10)])
    settlements: list[Row] = field(default_factory=lambda: [
        settlement(0, 0, 0, 0, kind="genesis"),
        settlement(1, 0, 3, 10, retry(3, 4, 1, at(100)), retry(5, 6, 1, at(100))),
        settlement(2, 3, 10, 10),
    ])  # fmt: skip
    calls: list[tuple[int, int]] = field(
        default_factory=lambda: [(o, 1) for o in (0, 1, 2, 3, 4, 5, 8, 9)] + [(3, 2), (5, 2)]
    )

    def evidence(self) -> Evidence:
        metadata = {"ledger": self.ledger, "pipeline": "orders", "epoch": self.epoch, "n": self.turn}
        hidden = None if self.hidden is None else np.array(self.hidden, np.int64)
        log = Log(self.log_start, self.log_end, np.array(self.records, np.int64), self.committed,
                  json.dumps(metadata), hidden, {3: "digest"})  # fmt: skip
        tables = {
            name: pa.Table.from_pylist(getattr(self, name), schema).drop_columns(["pipeline", "plan_date", "run_id"])
            for name, schema in SCHEMAS.items()
        }
        calls = pa.table({
            "topic": pa.array(["orders"] * len(self.calls), pa.string()),
            "partition": pa.array([0] * len(self.calls), pa.int64()),
            "offset": pa.array([offset for offset, _ in self.calls], pa.int64()),
            "attempt": pa.array([attempt for _, attempt in self.calls], pa.int64()),
        })  # fmt: skip
        logs = {("orders", 0): log}
        return Evidence("orders", "live", logs, **tables, ledger="ledger-1", letters=self.letters, calls=calls)

    def judged(self, settled: bool = True, max_retries: int = 1) -> Report:
        return judge(self.evidence(), max_retries=max_retries, settled=settled)

    def find(self, turn: int, offset: int, attempt: int = 1) -> Row:
        """The row of `outcomes` with these."""
        return next(r for r in self.outcomes if (r["turn"], r["offset"], r["attempt"]) == (turn, offset, attempt))


def test_a_correct_history_passes_and_is_counted() -> None:
    report = History().judged()
    assert report.violations == []
    assert report.totals == report.topics["orders"] == {
        "records": 9, "acked": 7, "skipped": 1, "dropped": 0, "dead": 1, "expired": 0, "compacted": 0,
        "lost": 0, "pending": 0, "attempts": 11, "failed": 3, "letters": 1, "letters_again": 0, "calls": 10,
        "calls_again": 0,
    }  # fmt: skip


def test_a_history_with_pending_retries_passes_until_it_is_said_to_be_settled() -> None:
    history = History(committed=3, turn=1, letters=[])
    history.outcomes, history.settlements = history.outcomes[:9], history.settlements[:2]
    history.plans, history.calls = history.plans[:1], history.calls[:8]
    assert history.judged(settled=False).violations == []
    assert [v for v in history.judged().violations if "still pending" in v] == [
        "settled orders[0] offset 3: is still pending", "settled orders[0] offset 5: is still pending",
    ]  # fmt: skip


def test_rows_of_an_open_turn_do_not_count_and_its_letter_is_on_its_way() -> None:
    history = History(committed=3, turn=1)
    history.settlements = history.settlements[:2]
    assert history.judged(settled=False).violations == []
    assert "settled: turn 2 of epoch 0 is still open" in history.judged().violations


def test_rows_of_a_void_turn_do_not_count() -> None:
    history = History(turn=3)
    for rows in (history.outcomes, history.plans, history.settlements):
        for late in [r for r in rows if r["turn"] == 2]:
            late.update(turn=3, handled_at=at(180))
    history.plans.append(plan(2, 10, 10))
    history.outcomes.append(outcome(2, 3, 2, "acked"))
    history.settlements.append(replace(history).settlements[1] | row(2, kind="void", old_floor=3))
    assert history.judged().violations == []


def test_duplicate_letters_and_repeated_calls_are_counted_not_refused() -> None:
    history = History()
    history.letters *= 3
    history.calls += [(5, 2)]
    report = history.judged()
    assert report.violations == []
    assert (report.totals["letters"], report.totals["letters_again"], report.totals["calls_again"]) == (
        1,
        2,
        1,
    )


def test_expired_offsets_are_settled_by_a_range_s41() -> None:
    history = History(records=[8, 9], log_start=8)
    history.outcomes = [
        outcome(1, 0, 0, "expired", end_offset=8),
        *(outcome(1, o, 1, "acked") for o in (8, 9)),
    ]
    history.settlements = [settlement(0, 0, 0, 0, kind="genesis"), settlement(1, 0, 10, 10)]
    history.plans, history.letters, history.calls, history.turn = [plan(1, 8, 10)], [], [(8, 1), (9, 1)], 1
    report = history.judged()
    assert report.violations == []
    assert (report.totals["expired"], report.totals["acked"]) == (8, 2)


def test_rows_for_records_that_compaction_has_removed_since_are_fine_and_aborted_ones_are_not_i14() -> None:
    history = History(records=[0, 3, 5, 7, 8, 9], hidden=[])
    assert history.judged().violations == []
    history.hidden = [4]
    assert history.judged().violations == [
        "I14 orders[0] offset 4: was handled, but no consumer is given such a record"
    ]


def test_a_genesis_turn_for_a_new_partition_does_not_move_the_start_of_the_others() -> None:
    """It has a row of every partition; what lies below these is judged as before."""
    history = History(turn=3)
    history.plans.append(plan(3, 0, 0, kind="genesis", partition=1))
    history.settlements.append(settlement(3, 10, 10, 10, kind="genesis"))
    assert history.judged().violations == []
    history.outcomes = [r for r in history.outcomes if r["offset"] != 8]
    assert "I4 orders[0] offset 8: is neither settled nor pending, but below complete_to" in history.judged().violations


ONCE = json.dumps({"guarantee": "at_most_once"})


def at_most_once(*outcomes: Row, settled: bool = True) -> History:
    """One turn that reads all, whose claim is committed."""
    history = History(turn=1, letters=[], outcomes=list(outcomes), plans=[plan(1, 0, 10, settings=ONCE)])
    history.settlements = [settlement(0, 0, 0, 0, kind="genesis"), settlement(1, 0, 10, 10)][: 1 + settled]
    history.calls = [(offset, 1) for offset in history.records if offset < 5]
    return history


def test_at_most_once_a_claim_is_committed_before_its_turn_is_settled_i1() -> None:
    history = at_most_once(settled=False)
    assert history.judged(settled=False).violations == []
    history.committed = 9
    assert any(found.startswith("I1") for found in history.judged(settled=False).violations)
    history.committed, history.plans = 10, [plan(1, 0, 10)]
    found = history.judged(settled=False).violations
    assert "I1 orders[0] offset 10: committed for turn 1 of epoch 0, which is not settled" in found
    assert "I2 orders[0] offset 0: is below the committed offset, but has no terminal outcome" in found


def test_at_most_once_what_was_called_and_never_reported_is_lost() -> None:
    history = at_most_once(outcome(1, 0, 0, "lost", end_offset=10))
    assert history.judged().violations == []


def test_at_most_once_a_second_call_for_an_offset_is_found_i7() -> None:
    history = at_most_once(outcome(1, 0, 0, "lost", end_offset=10))
    history.calls.append((3, 1))
    said = "a handler was called for it again, and it was planned at most once"
    assert history.judged().violations == [f"I7 orders[0] offset 3: {said}"]
    history.plans[0].update(settings=None)
    assert history.judged().violations == []


def test_another_lane_has_no_commit_of_its_own() -> None:
    history = History(committed=4)
    history.letters = [replace(letter, lane="backfill-1") for letter in history.letters]
    assert judge(replace(history.evidence(), lane="backfill-1"), max_retries=1).violations == []


def test_a_reset_opens_an_epoch_that_is_judged_by_itself() -> None:
    history = History(epoch=1, turn=1)
    history.plans += [plan(3, 8, 8, kind="reset"), plan(1, 8, 10, epoch=1)]
    history.settlements += [settlement(3, 10, 8, 8, kind="reset"), settlement(1, 8, 10, 10, epoch=1)]
    history.outcomes += [outcome(1, offset, 1, "acked", epoch=1) for offset in (8, 9)]
    report = history.judged()
    assert report.violations == []
    assert (report.totals["acked"], report.totals["dead"]) == (2, 0)


def die_early(history: History) -> None:
    history.find(1, 4).update(outcome="failed")
    history.outcomes.append(outcome(2, 4, 0, "dead"))


def floor_passes_a_failure(history: History) -> None:
    """Offset 3 is buried in turn 2 only, and was below the floor after turn 1 already."""
    history.find(1, 3).update(error_class="Dead")
    history.outcomes.remove(history.find(2, 3, 2))
    history.settlements[1:] = [settlement(1, 0, 5, 10, retry(5, 6, 1, at(100))), settlement(2, 5, 10, 10)]


def forget_a_failure(history: History) -> None:
    """Offset 5 waits, and is not pending; turn 2 has a decision on it all the same."""
    history.settlements[1]["pending"].pop()
    history.find(2, 5, 2).update(attempt=0, outcome="compacted")


def pass_over_what_retention_took(history: History) -> None:
    history.records, history.log_start = [8, 9], 8
    history.plans[0].update(start_offset=8)
    history.outcomes = [outcome(1, offset, 1, "acked") for offset in (8, 9)]
    history.settlements[1:] = [settlement(1, 0, 10, 10), settlement(2, 10, 10, 10)]


def skip_without_a_row(history: History) -> None:
    pass_over_what_retention_took(history)
    history.plans[0].update(kind="skip")
    history.settlements[1].update(kind="skip")


def void_forgets(history: History) -> None:
    history.settlements[2].update(kind="void", new_floor=3, pending=[retry(3, 4, 1, at(100))])


def settle_half_a_lane(history: History) -> None:
    history.plans.append(plan(3, 0, 0, kind="genesis", partition=1))
    history.settlements.append(settlement(3, 0, 0, 0, kind="genesis", partition=1))


def ack_a_range(history: History) -> None:
    history.find(1, 8).update(end_offset=10)
    history.outcomes.remove(history.find(1, 9))


def limit_window(history: History) -> None:
    history.plans[0].update(settings=json.dumps({"guarantee": "at_least_once", "max_uncommitted": 9}))


def miscount(history: History) -> None:
    history.settlements[1].update(counts=[("acked", 7), ("skipped", 1), ("failed", 2)], gaps=0)


def leave_turns_out(history: History) -> None:
    history.plans.append(plan(5, 10, 10))
    history.settlements.append(settlement(5, 10, 10, 10))


def seed(change: Callable[[History], object], *sentences: str) -> Any:
    return pytest.param(change, sentences, id=sentences[0][:60])


@pytest.mark.parametrize(("change", "sentences"), [
    seed(lambda h: setattr(h, "committed", 11),
         "I1 orders[0] offset 11: committed, above the floor 10 that it names"),
    seed(lambda h: setattr(h, "committed", 9),
         "I1 orders[0] offset 9: committed, below the floor 10 that it names"),
    seed(lambda h: setattr(h, "turn", 3),
         "I1 orders[0] offset 10: committed for turn 3 of epoch 0, which is not settled"),
    seed(lambda h: setattr(h, "ledger", "another"), "settled orders[0]: Kafka holds 10 with metadata"),
    seed(lambda h: setattr(h, "committed", None),
         "settled orders[0]: Kafka holds nothing, but the log ends at 10"),
    seed(lambda h: h.outcomes.remove(h.find(1, 4)),
         "I2 orders[0] offset 4: is below the committed offset, but has no terminal outcome",
         "I4 orders[0] offset 4: is neither settled nor pending, but below complete_to",
         "I4 orders[0] offset 4: a handler was called, but no outcome of that attempt counts"),
    seed(lambda h: h.records.insert(6, 6), "I2 orders[0] offset 6: is below the committed offset"),
    seed(lambda h: h.settlements.append(settlement(3, 10, 5, 10, retry(5, 6, 1, at(0))) | {"turn": 3}),
         "I3 orders[0] offset 5: turn 3 (run) lowers the floor from 10"),
    seed(lambda h: h.settlements[2].update(old_floor=2),
         "I3 orders[0] offset 2: turn 2 goes on from this floor"),
    seed(lambda h: h.settlements[2].update(complete_to=9, new_floor=9),
         "I3 orders[0] offset 9: turn 2 lowers complete_to"),
    seed(lambda h: h.settlements[1].update(new_floor=4),
         "I4 orders[0] offset 4: is the floor of turn 1, but what it"),
    seed(lambda h: h.settlements[2].update(pending=[retry(4, 5, 1, at(0))], new_floor=4),
         "I4 orders[0] offset 4: is settled, and pending as well"),
    seed(lambda h: h.settlements[2].update(kind="run", pending=[retry(3, 4, 1, at(0))] * 2, new_floor=3),
         "I4 orders[0] offset 3: is pending more than once"),
    seed(lambda h: h.outcomes.append(outcome(2, 10, 1, "acked")),
         "I4 orders[0] offset 10: has an outcome, but epoch 0"),
    seed(lambda h: h.settlements.pop(0), "I4 orders[0]: nothing says where epoch 0 starts"),
    seed(lambda h: h.find(2, 3, 2).update(attempt=3), "I5 orders[0] offset 3: attempts are not 1, 2, 3",
         "I5 orders[0] offset 3: more than 2 attempts"),
    seed(lambda h: h.find(2, 5, 2).update(attempt=1), "I5 orders[0] offset 5: attempts are not 1, 2, 3"),
    seed(lambda h: h.find(2, 5, 2).update(turn=1),
         "I5 orders[0] offset 5: a later attempt is not of a later turn"),
    seed(lambda h: h.find(2, 5, 2).update(handled_at=at(99)),
         "I5 orders[0] offset 5: was tried again before its due time"),
    seed(lambda h: h.settlements[1]["pending"].pop(),
         "I5 orders[0] offset 5: was tried again, but no such retry"),
    seed(lambda h: h.settlements[1]["pending"][1].update(kind="dead_letter"),
         "I5 orders[0] offset 5: was tried again"),
    seed(lambda h: h.calls.append((3, 3)),
         "I5 orders[0] offset 3: a handler was called for more than 2 attempts"),
    seed(lambda h: h.letters.clear(),
         "I6 orders[0] offset 3: is dead, but has no dead letter"),
    seed(lambda h: h.letters.append(replace(h.letters[0], offset=4)),
         "I6 orders[0] offset 4: has a dead letter, but is not dead"),
    seed(lambda h: setattr(h, "letters", [Letter("live", 0, "orders", 0, 3, "other")]),
         "I6 orders[0] offset 3: its dead letter does not carry the key and value of the record"),
    seed(die_early,
         "I6 orders[0] offset 4: is dead, but had retries left"),
    seed(lambda h: h.find(1, 4).update(outcome="dead", attempt=0),
         "I6 orders[0] offset 4: is dead, but never failed"),
    seed(lambda h: h.outcomes.append(h.find(1, 4)),
         "I9 orders[0] offset 4: the same attempt and outcome are stored twice",
         "I9 orders[0] offset 4: has more than one terminal outcome"),
    seed(lambda h: h.outcomes.append(outcome(2, 3, 0, "skipped")),
         "I9 orders[0] offset 3: has more than one terminal"),
    seed(lambda h: h.outcomes.append(outcome(2, 0, 0, "expired", end_offset=3)),
         "I9 orders[0] offset 2: has more than one"),
    seed(lambda h: h.outcomes.append(outcome(2, 4, 2, "failed")),
         "I9 orders[0] offset 4: was attempted again after it was"),
    seed(lambda h: h.settlements.append(h.settlements[2]),
         "I11 orders[0]: turn 2 of epoch 0 has 2 settlements"),
    seed(lambda h: h.plans.append(h.plans[0]), "I11 orders[0]: turn 1 of epoch 0 has 2 plans"),
    seed(lambda h: h.plans.pop(0), "I11: turn 1 of epoch 0 is settled, but has no plan"),
    seed(lambda h: h.plans.extend([plan(3, 10, 10), plan(4, 10, 10)]),
         "I11: turn 3 of epoch 0 was left open, and later"),
    seed(leave_turns_out,
         "I11: turn 3 of epoch 0 does not exist, but later ones do"),
    seed(lambda h: h.records.remove(4),
         "I14 orders[0] offset 4: was handled, but no consumer is given such a record"),
    seed(lambda h: h.outcomes.append(outcome(2, 12, 1, "acked")),
         "I14 orders[0] offset 12: was handled, but the log ends"),
    seed(lambda h: h.calls.remove((8, 1)),
         "I2 orders[0] offset 8: has an outcome of an attempt that no handler was"),
    seed(lambda h: setattr(h, "log_end", 12), "settled orders[0]: floor is 10, but the log ends at 12"),
    seed(lambda h: setattr(h, "ledger", "another"),
         "I1 orders[0] offset 10: committed in the name of another ledger of this pipeline"),
    seed(floor_passes_a_failure,
         "I1 orders[0] offset 3: floor had passed it before the turn that settled it",
         "I4 orders[0] offset 3: had failed and was not settled, but is not pending after turn 1"),
    seed(forget_a_failure,
         "I4 orders[0] offset 5: had failed and was not settled, but is not pending after turn 1"),
    seed(lambda h: h.settlements[1]["pending"].append(retry(8, 9, 1, at(100))),
         "I4 orders[0] offset 8: is pending after turn 1, but no row says why"),
    seed(lambda h: h.find(1, 9).update(turn=2),
         "I4 orders[0] offset 9: complete_to had passed it before the turn that settled it",
         "I11 orders[0] offset 9: was read by a turn whose plan does not hold it"),
    seed(void_forgets,
         "I4 orders[0] offset 5: had failed and was not settled, but is not pending after turn 2"),
    seed(pass_over_what_retention_took,
         "I4 orders[0] offset 0: turn 1 (run) passes it, but has neither read it nor a row for it"),
    seed(skip_without_a_row,
         "I4 orders[0] offset 0: turn 1 (skip) passes it, but has neither read it nor a row for it"),
    seed(lambda h: h.plans[0].update(end_offset=9),
         "I4 orders[0] offset 9: turn 1 (run) passes it, but has neither read it nor a row for it",
         "I11 orders[0] offset 9: was read by a turn whose plan does not hold it"),
    seed(settle_half_a_lane, "I4 orders[0]: turn 3 of epoch 0 is settled without this partition"),
    seed(miscount, "I4 orders[0]: turn 1 counted {'acked': 7, 'skipped': 1, 'failed': 2}, but its rows are"),
    seed(lambda h: h.find(1, 4).update(outcome="done"),
         "I4 orders[0] offset 4: has an outcome that is none", "I2 orders[0] offset 4: is below the committed"),
    seed(lambda h: h.find(1, 4).update(outcome=None),
         "I4 orders[0] offset 4: has an outcome that is none", "I2 orders[0] offset 4: is below the committed"),
    seed(lambda h: h.find(1, 4).update(attempt=0),
         "I4 orders[0] offset 4: has the outcome of an attempt, but of no attempt"),
    seed(lambda h: h.find(2, 3, 0).update(attempt=2),
         "I4 orders[0] offset 3: has an outcome that no attempt can have"),
    seed(ack_a_range,
         "I4 orders[0] offset 8: a range of offsets has the outcome of one record"),
    seed(lambda h: h.find(2, 3, 0).update(turn=1),
         "I9 orders[0] offset 3: was attempted after a turn had settled it"),
    seed(limit_window, "I8 orders[0] offset 10: turn 1 reads up to here, the floor was 0, max_uncommitted is 9"),
    seed(lambda h: h.settlements[2].update(complete_to=11, new_floor=11),
         "I14 orders[0] offset 11: is said to be read up to here, but the log ends at 10"),
])  # fmt: skip
def test_each_violation_is_named(change: Callable[[History], object], sentences: tuple[str, ...]) -> None:
    history = History()
    change(history)
    found = history.judged().violations
    for sentence in sentences:
        assert any(violation.startswith(sentence) for violation in found), found


def test_of_many_offsets_with_one_fault_a_few_are_named_and_the_rest_counted() -> None:
    history = History()
    history.outcomes = [r for r in history.outcomes if r["outcome"] != "acked"]
    found = [v for v in history.judged().violations if v.startswith("I4 orders[0]") and "neither" in v]
    assert len(found) == 4
    assert found[-1] == "I4 orders[0]: is neither settled nor pending, but below complete_to, at 4 more offsets"


def test_the_same_is_found_in_real_delta_tables(tmp_path: Path) -> None:
    history, tables, ledger = History(), {}, ""
    for name, schema in SCHEMAS.items():
        data = pa.Table.from_pylist(getattr(history, name), schema)
        for other in (data, data.set_column(0, "pipeline", pa.array(["other"] * len(data)))):
            write_deltalake(str(tmp_path / name), other, mode="append", partition_by=["pipeline", "plan_date"])
        tables[name], ledger = checker.read_table(str(tmp_path), name, "orders", "live")
        assert len(tables[name]) == len(data)
    evidence = replace(history.evidence(), **tables, ledger="ledger-1")
    assert judge(evidence, max_retries=1, settled=True).violations == []
    assert ledger
    named = judge(replace(evidence, ledger=ledger), max_retries=1, settled=True).violations
    assert any("Kafka holds 10 with metadata" in violation for violation in named)


def test_a_table_that_is_not_there_is_said_and_is_not_a_verdict(tmp_path: Path) -> None:
    with pytest.raises(checker.Unreadable, match="table settlements"):
        checker.read_table(str(tmp_path), "settlements", "orders", "live")


@pytest.mark.parametrize("name", ["plans", "outcomes"])
def test_a_table_that_can_not_be_read_is_not_a_verdict_either(tmp_path: Path, name: str) -> None:
    log = tmp_path / name / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("torn")
    with pytest.raises(checker.Unreadable, match=f"table {name}"):
        checker.read_table(str(tmp_path), name, "orders", "live")


def without_tables(history: History, tmp_path: Path, *names: str) -> Report:
    """What is found where these tables were never made, or are lost."""
    tables = {name: checker.read_table(str(tmp_path), name, "orders", "live")[0] for name in names}
    return judge(replace(history.evidence(), **tables), max_retries=1)


def test_a_lane_that_has_only_begun_has_neither_plans_nor_outcomes_and_passes(tmp_path: Path) -> None:
    begun = History(committed=0, turn=0, letters=[], calls=[])
    begun.settlements = begun.settlements[:1]
    report = without_tables(begun, tmp_path, "plans", "outcomes")
    assert (report.violations, report.totals["records"], report.totals["acked"]) == ([], 9, 0)


def test_outcomes_that_were_lost_convict_a_lane_that_went_on(tmp_path: Path) -> None:
    found = without_tables(History(), tmp_path, "outcomes").violations
    assert "I2 orders[0] offset 0: is below the committed offset, but has no terminal outcome" in found
    assert "I4 orders[0] offset 0: is neither settled nor pending, but below complete_to" in found


def test_it_shares_no_code_with_the_product_and_runs_by_path() -> None:
    tree = ast.parse(Path(checker.__file__).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    others = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert others == {"confluent_kafka", "deltalake", "numpy", "pyarrow"}
    shown = subprocess.run([sys.executable, checker.__file__, "--help"], capture_output=True, text=True, check=True)
    assert "--dead-letter-topic" in shown.stdout
