"""Tables with `rows: newest` in the states of a lane: in flight, at most once, another ledger, and copies."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable

from ackline import Emit, InFlight
from ackline.actions.adopt_ledger import adopt_ledger
from ackline.errors import FatalError, LedgerError, NewerCommit
from ackline.ledger.turns import TurnKind
from ackline.outputs.given_up import give_up
from ackline.outputs.output_table import OutputTable
from tests.outputs.test_newest import EMITS, JOINED, acts, answers, emits, fails, lane_with, rows, skips, table_of
from tests.support.memory_lane import AT_MOST_ONCE, TP, void_by
from tests.worker import disk_handlers
from tests.worker.disk_lane import DiskBackfill, DiskLane, lane_of

TELLS: dict[str, Any] = {"handler": "tests.worker.disk_handlers:tells", "in_flight": {"timeout": "none"}}
TABLES = ("plans", "outcomes", "settlements")


def hands_on(offset: int, value: int, **named: Any) -> None:
    """Lets the handler emit a row for a record and hand the record on."""
    acts(offset, lambda: iter([Emit({"id": value}, **named), InFlight()]))


def ack(lane: DiskLane, offset: int, answer: str = "ack") -> None:
    lane.answer_with(disk_handlers.TOKENS[offset], answer)


def ids(lane: DiskLane) -> list[tuple[int, str, Any]]:
    """(offset, lane, value) of each row."""
    return [(offset, of_lane, value) for offset, of_lane, _, value in rows(lane)]


# ---- in flight ----------------------------------------------------------------------------------------------------


def test_of_a_record_that_a_backfill_hands_on_the_old_row_stays_until_the_answer_that_acks_it() -> None:
    with lane_with(5, **TELLS, retry={"max_retries": 0}) as lane:
        before = ids(lane)
        for offset in (1, 2, 3):
            hands_on(offset, 100 + offset)
        backfill = DiskBackfill(lane, "b", "orders:0:1-4", dead_letter="none")
        assert backfill.run().pending["in_flight"] == 3
        assert ids(lane) == before
        ack(lane, 1)
        ack(lane, 2, "fail no")
        assert backfill.run().outcomes == {"acked": 1, "dead": 1}
        assert ids(lane) == [(0, "live", 0), (1, "backfill-b", 101), *before[2:]]
        backfill.cancel("an operator skips what is in flight")
        assert ids(lane) == [(0, "live", 0), (1, "backfill-b", 101), *before[2:]]


def handed_on_and_backfilled(lane: DiskLane) -> str:
    """Returns the token of record 2, which the live lane has handed on and a backfill has acked since."""
    hands_on(2, 22)
    lane.produce(b"{}")
    lane.run()
    token: str = disk_handlers.TOKENS[2]
    answers(2, value=200)
    DiskBackfill(lane, "b", "orders:0:2-3").run()
    return token


def test_the_answer_of_the_live_lane_after_a_backfill_of_the_record_is_the_newest_handling() -> None:
    with lane_with(2, **TELLS) as lane:
        token = handed_on_and_backfilled(lane)
        assert ids(lane)[2:] == [(2, "backfill-b", 200)]
        lane.produce(b"{}")
        lane.run()
        assert ids(lane)[2:] == [(2, "backfill-b", 200), (3, "live", 3)]
        lane.answer_with(token, "ack")
        lane.run()
        assert ids(lane)[2:] == [(2, "live", 22), (3, "live", 3)]


def test_a_joined_row_whose_other_record_is_acked_later_stays_and_goes_with_both() -> None:
    """A backfill has published before: so the turn of the answer looks for older rows of the record."""
    with lane_of({**JOINED, **TELLS}) as lane:
        lane.produce(b"{}")
        lane.run()
        DiskBackfill(lane, "a", "orders:0:0-1").run()
        emits(1, {"id": 1}, key="pair")
        hands_on(2, 2, key="pair")
        lane.produce(b"{}", b"{}")
        lane.run()
        assert ids(lane) == [(0, "backfill-a", 0), (1, "live", 3)]
        ack(lane, 2)
        lane.run()
        assert (lane.floor(), ids(lane)) == (3, [(0, "backfill-a", 0), (1, "live", 3)])
        one = DiskBackfill(lane, "b", "orders:0:1-2")
        with pytest.raises(LedgerError, match=r"without the others: orders\[0\]@2 \(not in the turn\)\. "):
            one.run()
        void_by(one.adapters())
        one.cancel("both are needed")
        emits(2, {"id": 20}, key="pair")
        DiskBackfill(lane, "c", "orders:0:1-3").run()
        assert ids(lane) == [(0, "backfill-a", 0), (1, "backfill-c", 21)]


# ---- at most once -------------------------------------------------------------------------------------------------


@contextmanager
def once(file: dict[str, Any]) -> Iterator[DiskLane]:
    """A lane at most once that has handled four records."""
    with lane_of(file) as lane:
        for key in ("ack_topic", "in_flight", "retry"):  # nothing is pending at most once
            del lane.settings[key]
        lane.settings["guarantee"] = AT_MOST_ONCE
        lane.produce(*[b"{}"] * 4)
        lane.run()
        yield lane


def test_at_most_once_an_acked_record_replaces_and_a_dropped_one_leaves() -> None:
    with once(EMITS) as lane:
        answers(1, value=11)
        acts(2, fails)
        acts(3, lambda: None)
        backfill = DiskBackfill(lane, "b", "orders:0:1-4")
        assert backfill.run().outcomes == {"acked": 2, "dropped": 1}
        assert ids(lane) == [(0, "live", 0), (1, "backfill-b", 11), (2, "live", 2)]


@pytest.mark.parametrize("value", [None, 11])
def test_at_most_once_a_table_that_can_not_be_read_keeps_older_rows_waiting_and_not_the_settlement(
    value: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records are handed out, so the turn has to be settled. The next run publishes it."""

    def away(*_: Any, **__: Any) -> Any:
        raise FatalError("the table is away")

    with once(EMITS) as lane:
        emits(1, *([{"id": value}] if value is not None else []))
        acts(2, lambda: None)
        backfill = DiskBackfill(lane, "b", "orders:0:1-3")
        backfill.begin()
        with monkeypatch.context() as patch:
            patch.setattr("ackline.outputs.settled.rows_kept", away)
            patch.setattr(OutputTable, "append", away)
            with pytest.raises(FatalError, match="the table is away"):
                backfill.run()
        assert (backfill.newest().turn.n, len(ids(lane))) == (1, 4)
        backfill.run()
        new = [] if value is None else [(1, "backfill-b", value)]
        assert ids(lane) == [(0, "live", 0), *new, (3, "live", 3)]


def test_at_most_once_a_row_of_several_records_keeps_the_lane_waiting_until_it_is_given_up() -> None:
    with once(JOINED) as lane:
        one = DiskBackfill(lane, "b", "orders:0:3-4")
        with pytest.raises(
            LedgerError,
            match=r"without the others: orders\[0\]@0 \(not .* If these rows .*--give-up totals",
        ):
            one.run()
        assert (one.newest().turn.n, [row[:2] for row in ids(lane)]) == (1, [(0, "live")])
        give_up(one.adapters(), one.newest().turn, ["totals"], "a test")
        assert one.run().settled
        assert [row[:2] for row in ids(lane)] == [(0, "live")]


# ---- another ledger -----------------------------------------------------------------------------------------------


def lose_the_ledger(lane: DiskLane) -> None:
    for name in TABLES:
        shutil.rmtree(lane.root / "lane" / name)


def begin_at_the_commit(lane: DiskLane) -> None:
    lane.run_fails(NewerCommit)
    adopt_ledger(lane.adapters(), "the folder is lost")
    lane.perform(TurnKind.RESET, {TP: 2})


def begin_without_a_commit(lane: DiskLane) -> None:
    lane.world.committed.clear()
    lane.log().expire(2)


@pytest.mark.parametrize("begin", [begin_at_the_commit, begin_without_a_commit])
def test_the_rows_of_a_lost_ledger_go_where_the_next_one_handles_their_records_again(
    begin: Callable[[DiskLane], None],
) -> None:
    """Both publish as lane `live`; the transaction ids of the table tell them apart."""
    with lane_with(4) as lane:
        lose_the_ledger(lane)
        begin(lane)
        answers(2, 3, value=9)
        lane.produce(b"{}")
        lane.run()
        assert ids(lane) == [(0, "live", 0), (1, "live", 1), (2, "live", 9), (3, "live", 9), (4, "live", 4)]
        DiskBackfill(lane, "b", "orders:0:0-3" if begin is begin_at_the_commit else "orders:0:2-3").run()
        assert [row[1] for row in ids(lane)].count("backfill-b") == (3 if begin is begin_at_the_commit else 1)
        assert [row[0] for row in ids(lane)] == [0, 1, 2, 3, 4]


# ---- copies -------------------------------------------------------------------------------------------------------


def test_a_copy_of_ledger_and_table_that_is_restored_has_each_record_once_when_it_goes_on() -> None:
    with lane_with(4) as lane:
        shutil.copytree(lane.root / "lane", lane.root / "copy")
        lane.produce(b"{}", b"{}")
        lane.run()
        DiskBackfill(lane, "b", "orders:0:0-2").run()
        shutil.rmtree(lane.root / "lane")
        shutil.move(lane.root / "copy", lane.root / "lane")
        lane.run_fails(NewerCommit)
        adopt_ledger(lane.adapters(), "restored from a backup")
        lane.run()
        assert ids(lane) == [(n, "live", n) for n in range(6)]
        answers(1, 5, value=7)
        DiskBackfill(lane, "b", "orders:0:0-6").run()
        assert ids(lane) == [(n, "backfill-b", 7 if n in (1, 5) else n) for n in range(6)]


@pytest.mark.parametrize("action", ["restore", "restore command"])
def test_a_table_that_is_set_back_gets_the_rows_again_by_a_reset_and_each_record_once(action: str) -> None:
    """By a copy of its folder, or by Delta's RESTORE, which keeps the transaction ids."""
    with lane_with(4) as lane:
        shutil.copytree(table_of(lane), lane.root / "copy")
        before = DeltaTable(str(table_of(lane))).version()
        answers(0, 4, 5, value=8)
        lane.produce(b"{}", b"{}")
        lane.run()
        DiskBackfill(lane, "b", "orders:0:0-2").run()
        if action == "restore":
            shutil.rmtree(table_of(lane))
            shutil.move(lane.root / "copy", table_of(lane))
            lane.produce(b"{}")
            lane.run_fails(LedgerError, "the table is an older copy")
        else:
            DeltaTable(str(table_of(lane))).restore(before)
        assert ids(lane) == [(n, "live", n) for n in range(4)]
        lane.perform(TurnKind.RESET, {TP: 3})
        lane.run()
        end = 7 if action == "restore" else 6
        assert [row[0] for row in ids(lane)] == list(range(end))
        DiskBackfill(lane, "c", "orders:0:0-2").run()
        assert ids(lane)[:2] == [(0, "backfill-c", 8), (1, "backfill-c", 1)]
        assert [row[0] for row in ids(lane)] == list(range(end))


@pytest.mark.parametrize("change", [shutil.move, shutil.copytree], ids=["moved", "copied"])
def test_a_table_that_was_moved_and_renamed_is_corrected_at_its_new_place(change: Any) -> None:
    with lane_with(4) as lane:
        moved = lane.root / "lake" / "sums"
        moved.parent.mkdir()
        change(table_of(lane), moved)
        lane.settings["outputs"] = [{"from": "source", "table": f"file://{moved}"}]
        answers(1, value=11)
        DiskBackfill(lane, "b", "orders:0:1-2").run()
        lane.produce(b"{}")
        lane.run()
        lane.perform(TurnKind.RESET, {TP: 3})
        lane.run()
        read = DeltaTable(str(moved)).to_pyarrow_table().to_pylist()
        found = sorted((row["_offset"], row["_lane"], row["_epoch"], row["id"]) for row in read)
        assert found == [(0, "live", 0, 0), (1, "backfill-b", 0, 11), (2, "live", 0, 2), (3, "live", 1, 3),
                         (4, "live", 1, 4)]  # fmt: skip


# ---- against a model ----------------------------------------------------------------------------------------------


class Handlings:
    """A lane and its backfills, and what the table must hold: for each record the rows of the handling that was acked
    last. The handling of a record in flight is acked by its answer."""

    def __init__(self, lane: DiskLane, random: Random) -> None:
        self.lane, self.random, self.number, self.end = lane, random, 0, 0
        self.rows = dict[int, list[str]]()
        self.waiting = dict[tuple[str, int], tuple[str, list[str]]]()
        """By lane and offset, the token of a record in flight, and its rows."""
        self.backfills = dict[str, DiskBackfill]()

    def handle(self, name: str, offsets: range) -> None:
        """Runs a lane, which handles these records, each in a way that is drawn."""
        drawn = {offset: self._drawn() for offset in offsets}
        for offset, (kind, values) in drawn.items():
            items: list[Any] = [Emit({"id": value}) for value in values] + [InFlight()] * (kind == "w")
            acts(offset, {"s": skips, "f": fails}.get(kind, partial(iter, items)))
        self.backfills[name].run() if name in self.backfills else self.lane.run()
        for offset, (kind, values) in drawn.items():
            if kind == "w":
                self.waiting[name, offset] = disk_handlers.TOKENS[offset], values
            elif kind != "f":
                self.rows[offset] = values

    def _drawn(self) -> tuple[str, list[str]]:
        self.number += 1
        kind, rows = self.random.choice("rrnsfww"), self.random.choice((1, 1, 2))
        return kind, [f"{self.number}.{n}" for n in range(rows)] if kind in "rw" else []

    def live(self) -> None:
        before, self.end = self.end, self.end + self.random.choice((1, 3))
        self.lane.produce(*[b"{}"] * (self.end - before))
        self.handle("live", range(before, self.end))

    def backfill(self) -> None:
        begin, until = sorted(self.random.choices(range(self.end + 1), k=2))
        if begin < until:
            name = f"b{len(self.backfills)}"
            self.backfills[name] = DiskBackfill(self.lane, name, f"orders:0:{begin}-{until}")
            self.handle(name, range(begin, until))

    def answer(self) -> None:
        if self.waiting:
            name, offset = self.random.choice(sorted(self.waiting))
            token, values = self.waiting.pop((name, offset))
            answer = self.random.choice(("ack", "ack", "fail"))
            self.lane.answer_with(token, answer)
            self.handle(name, range(0))
            if answer == "ack":
                self.rows[offset] = values

    def compact(self) -> None:
        DeltaTable(str(table_of(self.lane))).optimize.compact()

    def reset(self) -> None:
        begin = self.random.randrange(self.end)
        self.waiting = {key: value for key, value in self.waiting.items() if key[0] != "live"}
        self.lane.perform(TurnKind.RESET, {TP: begin})
        self.handle("live", range(begin, self.end))


@pytest.mark.parametrize("seed", range(3))
def test_i16_with_records_in_flight_each_record_has_the_rows_of_the_handling_that_was_acked_last(seed: int) -> None:
    random = Random(seed)
    with lane_of({**EMITS, **TELLS, "retry": {"max_retries": 0}, "dead_letter": "none"}) as lane:
        emits(0, {"id": "of a text column"})
        lane.produce(b"{}")
        lane.run()
        found = Handlings(lane, random)
        found.rows, found.end = {0: ["of a text column"]}, 1
        for _ in range(10):
            act = random.choice([found.live, found.backfill, found.answer] * 2 + [found.compact, found.reset])
            act()
            expected = sorted((offset, value) for offset, values in found.rows.items() for value in values)
            assert sorted((offset, value) for offset, _, value in ids(lane)) == expected, act.__name__


def test_rows_that_wait_replace_older_ones_also_after_the_output_was_taken_out_of_the_file() -> None:
    with lane_with(2, **TELLS) as lane:
        token = handed_on_and_backfilled(lane)
        lane.settings.pop("outputs")
        lane.answer_with(token, "ack")
        lane.run()
        assert ids(lane)[2:] == [(2, "live", 22)]
