"""Tables with `rows: newest`: each record has the rows of its newest handling, whatever is killed in between."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from ackline import Emit, Skip
from ackline.delta.files import DataFileWriter
from ackline.errors import ConfigError, FatalError, LedgerError
from ackline.ledger.offsets import OffsetRange, TopicPartition, arrays_of
from ackline.ledger.published import ROWS, ROWS_OF_SEVERAL, TableOfTurn, application_of, marks_with, may_replace
from ackline.ledger.turns import TurnId, TurnKind
from ackline.outputs.given_up import give_up
from ackline.outputs.newest_rows import Found, OlderRows
from ackline.outputs.output_table import OF_ROW, OUTPUT_LAYOUT, OutputCompactor, OutputTable
from ackline.tables.store import LedgerStore
from tests.support.actor import Killed
from tests.support.memory_lane import TP, void_by
from tests.worker import disk_handlers
from tests.worker.disk_lane import DiskBackfill, DiskLane, lane_of

EMITS: dict[str, Any] = {
    "handler": "tests.worker.disk_handlers:emit",
    "outputs": [{"from": "source", "table": "totals"}],
}
Rows = list[tuple[int, str, int, Any]]
"""The rows of a table: offset, lane, epoch and value."""


def table_of(lane: DiskLane, name: str = "totals") -> Path:
    return lane.root / "lane" / "outputs" / name


def rows(lane: DiskLane, name: str = "totals") -> Rows:
    read = DeltaTable(str(table_of(lane, name))).to_pyarrow_table().to_pylist()
    return sorted((row["_offset"], row["_lane"], row["_epoch"], row["id"]) for row in read)


def emits(offset: int, *values: Any, **named: Any) -> None:
    """Lets the handler emit these rows for a record from now on."""
    disk_handlers.ANSWERS[offset] = lambda: iter([Emit(value, **named) for value in values])


def answers(*offsets: int, value: Any, stream: str = "default") -> None:
    """Lets the handler emit another id for these records from now on."""
    for offset in offsets:
        emits(offset, {"id": value}, stream=stream)


def acts(offset: int, act: Callable[[], Any]) -> None:
    def call() -> Iterator[Any]:
        yield from act() or ()

    disk_handlers.ANSWERS[offset] = call


def fails() -> None:
    raise ValueError("no")


def skips() -> None:
    raise Skip("not ours")


@contextmanager
def lane_with(records: int, **of_file: Any) -> Iterator[DiskLane]:
    """A lane that has published a row for each record, in two turns. Its table holds the ids as numbers."""
    with lane_of({**EMITS, **of_file}) as lane:
        for part in (records // 2, records - records // 2):
            for _ in range(part):
                lane.produce(b"{}")
            lane.run()
        yield lane


def test_s85_a_backfill_corrects_the_table_and_the_same_again_changes_nothing() -> None:
    with lane_with(20) as lane:
        before = rows(lane)
        assert before == [(n, "live", 0, n) for n in range(20)]
        answers(*range(5, 15), value=100)
        assert DiskBackfill(lane, "b", "orders:0:5-15").choose().replaced() == {"totals": 10}
        for name in ("b", "c"):
            DiskBackfill(lane, name, "orders:0:5-15").run()
            of_backfill = [(n, f"backfill-{name}", 0, 100) for n in range(5, 15)]
            assert rows(lane) == sorted([row for row in before if not 5 <= row[0] < 15] + of_backfill)


def test_s86_acked_without_rows_and_a_skip_of_the_handler_remove_and_every_other_end_leaves() -> None:
    with lane_with(6, retry={"max_retries": 0}) as lane:
        acts(0, lambda: None)
        acts(1, skips)
        acts(2, fails)
        answers(3, value=33)
        backfill = DiskBackfill(lane, "b", "orders:0:0-5", dead_letter="none")
        backfill.run()
        assert backfill.account().outcomes == {"acked": 3, "skipped": 1, "dead": 1}
        assert [(row[0], row[3]) for row in rows(lane)] == [(2, 2), (3, 33), (4, 4), (5, 5)]
        other = DiskBackfill(lane, "c", "orders:0:4-6")
        other.begin()
        other.cancel("an operator's skip changes no table")
        assert [(row[0], row[3]) for row in rows(lane)] == [(2, 2), (3, 33), (4, 4), (5, 5)]


def test_a_record_that_emits_to_another_output_now_leaves_the_one_before() -> None:
    outputs = [{"from": "source", "table": "totals"}, {"from": "source.late", "table": "late"}]
    with lane_with(4, outputs=outputs) as lane:
        answers(1, value=11, stream="late")
        DiskBackfill(lane, "b", "orders:0:1-2").run()
        assert [row[0] for row in rows(lane)] == [0, 2, 3]
        assert rows(lane, "late") == [(1, "backfill-b", 0, 11)]
        del disk_handlers.ANSWERS[1]
        DiskBackfill(lane, "c", "orders:0:1-2").run()
        assert [row[:2] for row in rows(lane)] == [(0, "live"), (1, "backfill-c"), (2, "live"), (3, "live")]
        assert rows(lane, "late") == []


def test_rows_all_appends_and_a_users_own_table_does_unless_the_file_says_otherwise() -> None:
    own = [{"from": "source", "table": "totals", "rows": "all"}]
    for outputs, made_by_user, expected in (
        (own, False, [0, 0, 1, 1, 2, 3]),
        (EMITS["outputs"], True, [0, 0, 1, 1, 2, 3]),
        ([{**own[0], "rows": "newest"}], True, [0, 1, 2, 3]),
    ):
        with lane_of({**EMITS, "outputs": outputs}) as lane:
            if made_by_user:
                DeltaTable.create(str(table_of(lane)), schema=pa.schema([*OF_ROW, ("id", pa.int64())]))
            for _ in range(4):
                lane.produce(b"{}")
            lane.run()
            DiskBackfill(lane, "b", "orders:0:0-2").run()
            assert [row[0] for row in rows(lane)] == expected


@pytest.mark.parametrize("operation", range(12))
@pytest.mark.parametrize("when", ["before", "after"])
def test_s85_whatever_is_killed_a_reader_sees_the_old_rows_of_a_turn_or_the_new_ones(
    operation: int, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write of a backfill dies in its turn: files of rows, the entry, the ledger's marks, the staged files."""
    count, armed = 0, True

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            nonlocal count, armed
            if (count := count + 1) == operation + 1 and armed and when == "before":
                armed = False
                raise Killed
            result = call(*arguments, **named)
            if count == operation + 1 and armed:
                armed = False
                raise Killed
            return result

        return wrapped

    with lane_with(10) as lane:
        old = rows(lane)
        answers(*range(3, 8), value=77)
        new = sorted([row for row in old if not 3 <= row[0] < 8] + [(n, "backfill-b", 0, 77) for n in range(3, 8)])
        DiskBackfill(lane, "b", "orders:0:3-8").begin()
        with monkeypatch.context() as patch:
            for owner, name in ((DataFileWriter, "finish"), (OutputTable, "commit"), (OutputTable, "append"),
                                (LedgerStore, "store_settlement"), (LedgerStore, "store_published")):  # fmt: skip
                patch.setattr(owner, name, dying(getattr(owner, name)))
            try:
                DiskBackfill(lane, "b", "orders:0:3-8").run()
            except Killed:
                assert rows(lane) in (old, new)
        DiskBackfill(lane, "b", "orders:0:3-8").run()
        assert rows(lane) == new


def test_a_lane_that_goes_forward_looks_at_no_file_also_after_a_backfill(monkeypatch: pytest.MonkeyPatch) -> None:
    look, looks = OlderRows._candidates, list[int]()

    def counted(older: OlderRows, *arguments: Any) -> Iterator[dict[str, Any]]:
        looks.append(1)
        return look(older, *arguments)

    monkeypatch.setattr(OlderRows, "_candidates", counted)
    with lane_with(4) as lane:
        assert not looks
        DiskBackfill(lane, "b", "orders:0:0-2").run()
        assert looks
        looks.clear()
        for _ in range(3):
            lane.produce(b"{}")
            lane.run()
        assert not looks
        assert [row[0] for row in rows(lane)] == list(range(7))


def test_a_reset_publishes_rows_again_in_place_of_those_of_the_epoch_before() -> None:
    with lane_with(6) as lane:
        answers(4, value=44)
        lane.perform(TurnKind.RESET, {TP: 3})
        lane.run()
        assert rows(lane) == [*((n, "live", 0, n) for n in range(3)), (3, "live", 1, 3), (4, "live", 1, 44),
                              (5, "live", 1, 5)]  # fmt: skip


def test_the_rows_of_a_topic_that_was_made_again_stay_because_their_records_are_others() -> None:
    with lane_with(4) as lane:
        lane.world.create_topic("orders")
        for offset in range(3):
            lane.produce(b"{}")
            emits(offset, {"id": 100 + offset})
        lane.perform(TurnKind.RESET, {TP: 0})
        lane.run()
        assert DiskBackfill(lane, "b", "orders:0:1-2").choose().replaced() == {"totals": 1}
        answers(1, value=201)
        DiskBackfill(lane, "b", "orders:0:1-2").run()
        assert sorted(row[::3] for row in rows(lane)) == [(0, 0), (0, 100), (1, 1), (1, 201), (2, 2), (2, 102), (3, 3)]


@pytest.mark.parametrize("first", ["live", "backfill"])
def test_rows_that_a_user_has_filled_a_table_with_are_replaced_like_any_others(first: str) -> None:
    """The user makes the table anew from its own rows, with `CREATE TABLE … AS SELECT` or a copy elsewhere."""
    own = [{**EMITS["outputs"][0], "rows": "newest"}]
    with lane_with(4, outputs=own) as lane:
        held = DeltaTable(str(table_of(lane))).to_pyarrow_table()
        shutil.rmtree(table_of(lane))
        write_deltalake(str(table_of(lane)), held)
        answers(*range(6), value=50)
        if first == "live":
            lane.produce(b"{}")
            lane.run()
        DiskBackfill(lane, "b", "orders:0:1-3").run()
        assert [(row[0], row[3]) for row in rows(lane)][:4] == [(0, 0), (1, 50), (2, 50), (3, 3)]
        lane.perform(TurnKind.RESET, {TP: 3})
        lane.run()
        assert [(row[0], row[3]) for row in rows(lane)][:4] == [(0, 0), (1, 50), (2, 50), (3, 50)]


def test_a_turn_that_settles_while_another_lane_publishes_the_same_records_comes_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The order in which settlements publish to the table is that of its log. Each entry is made upon what is there."""
    with lane_with(6) as lane:
        answers(1, 2, value=5)
        append, beside = OutputTable.append, DiskBackfill(lane, "c", "orders:0:0-4")

        def meanwhile(table: OutputTable, *arguments: Any, **named: Any) -> bool:
            monkeypatch.setattr(OutputTable, "append", append)
            answers(0, 1, value=6)
            beside.run()
            return append(table, *arguments, **named)

        monkeypatch.setattr(OutputTable, "append", meanwhile)
        DiskBackfill(lane, "b", "orders:0:0-3").run()
        assert [row[:2] for row in rows(lane)] == [(0, "backfill-b"), (1, "backfill-b"), (2, "backfill-b"),
                                                   (3, "backfill-c"), (4, "live"), (5, "live")]  # fmt: skip


def test_given_up_rows_leave_the_older_ones_and_a_later_backfill_replaces_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> bool:
        raise FatalError("the table is away")

    with lane_with(4) as lane:
        backfill = DiskBackfill(lane, "b", "orders:0:0-2")
        with monkeypatch.context() as patch:
            patch.setattr(OutputTable, "append", away)
            with pytest.raises(FatalError, match="the table is away"):
                backfill.run()
            give_up(backfill.adapters(), backfill.newest().turn, ["totals"], "a test")
        assert [row[1] for row in rows(lane)] == ["live"] * 4
        DiskBackfill(lane, "c", "orders:0:0-2").run()
        assert [row[1] for row in rows(lane)] == ["backfill-c"] * 2 + ["live"] * 2


@pytest.mark.parametrize("tool", ["maintain", "optimize", "vacuum"])
def test_what_compacts_or_cleans_a_table_keeps_the_newest_rows_replaceable(tool: str) -> None:
    with lane_with(8) as lane:
        table = DeltaTable(str(table_of(lane)))
        if tool == "maintain":
            done = OutputCompactor(OutputTable(str(table_of(lane))), OUTPUT_LAYOUT, timedelta(days=8))
            assert done.maintain("lane", "live", "totals") is not None
        elif tool == "optimize":
            table.optimize.compact()
            table.create_checkpoint()
        else:
            table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        answers(2, value=22)
        DiskBackfill(lane, "b", "orders:0:2-3").run()
        assert [(row[0], row[3]) for row in rows(lane)] == [(n, 22 if n == 2 else n) for n in range(8)]


def test_a_compaction_between_the_look_and_the_entry_brings_no_row_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with lane_with(8) as lane:
        without, done = OlderRows.without, [False]

        def beside(older: OlderRows, state: Any) -> Any:
            found = without(older, state)
            if not done[0]:
                done[0] = True
                DeltaTable(str(table_of(lane))).optimize.compact()
            return found

        monkeypatch.setattr(OlderRows, "without", beside)
        answers(2, 6, value=22)
        DiskBackfill(lane, "b", "orders:0:2-7").run()
        assert [(row[0], row[3]) for row in rows(lane)] == [(n, 22 if n in (2, 6) else n) for n in range(8)]


@pytest.mark.parametrize("property_", ["delta.appendOnly", "delta.enableChangeDataFeed"])
def test_a_table_from_which_no_row_can_be_removed_is_refused_before_a_record_is_handled(property_: str) -> None:
    with lane_with(4) as lane:
        DeltaTable(str(table_of(lane))).alter.set_table_properties({property_: "true"})
        with pytest.raises(ConfigError, match=f"{property_}.*Write `rows: all`"):
            DiskBackfill(lane, "b", "orders:0:2-3").choose().replaced()
        with pytest.raises(ConfigError, match=f"{property_}.*Write `rows: all`"):
            DiskBackfill(lane, "b", "orders:0:2-3").run()
        assert DiskBackfill(lane, "b").newest().turn.n == 0


@pytest.mark.parametrize("spelled", ["ö {}", "%C3%B6%20{}"])
def test_a_file_that_delta_rs_can_not_remove_stops_the_turn_and_is_not_compacted(spelled: str) -> None:
    """Spark writes the name of a partition with letters beside ASCII as it is; delta-rs escapes it, and to a reader
    that is another file."""
    with lane_with(4) as lane:
        uri, table = str(table_of(lane)), DeltaTable(str(table_of(lane)))
        log = table_of(lane) / "_delta_log" / f"{table.version() + 1:020}.json"
        lines = list[dict[str, Any]]()
        for entry in sorted((table_of(lane) / "_delta_log").glob("*.json")):
            for add in (line["add"] for line in map(json.loads, entry.read_text().splitlines()) if "add" in line):
                (table_of(lane) / add["path"]).rename(table_of(lane) / f"ö {add['path']}")
                lines += [{"remove": {"path": add["path"], "dataChange": False, "deletionTimestamp": 1}},
                          {"add": add | {"path": spelled.format(add["path"])}}]  # fmt: skip
        log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        before, is_spelled_so = rows(lane), spelled == "%C3%B6%20{}"
        assert len(before) == 4
        if not is_spelled_so:
            with pytest.raises(ConfigError, match="spells this path in a way in which Ackline can't remove"):
                DiskBackfill(lane, "b", "orders:0:2-3").run()
        OutputCompactor(OutputTable(uri), OUTPUT_LAYOUT, timedelta(days=8)).maintain("lane", "live", "totals")
        assert rows(lane) == before
        if is_spelled_so:
            DiskBackfill(lane, "b", "orders:0:2-3").run()
            assert [row[:2] for row in rows(lane)] == [(0, "live"), (1, "live"), (2, "backfill-b"), (3, "live")]


def test_a_table_of_two_pipelines_is_refused_because_no_column_tells_their_rows_apart() -> None:
    with lane_with(2) as lane:
        assert OutputTable(str(table_of(lane))).append([], "ackline/other/shop/live/output", 1)
        lane.produce(b"{}")
        lane.run_fails(ConfigError, "pipeline shop publishes there, too. Write `rows: all` for this output in both")


def test_partition_columns_are_kept_and_a_file_that_loses_all_its_rows_goes() -> None:
    outputs = [{"from": "source", "table": "totals", "columns": {"id": "long", "day": "string"},
                "partition_by": ["day"]}]  # fmt: skip
    with lane_of({**EMITS, "outputs": outputs}) as lane:
        for offset in range(6):
            lane.produce(b"{}")
            day = "a/b" if offset % 2 else None
            emits(offset, {"id": offset, "day": day})
        lane.run()
        emits(1, {"id": 11, "day": "c"})
        acts(0, lambda: None)
        acts(2, lambda: None)
        acts(4, lambda: None)
        DiskBackfill(lane, "b", "orders:0:0-3").run()
        read = DeltaTable(str(table_of(lane))).to_pyarrow_table().to_pylist()
        assert sorted((row["id"], row["day"]) for row in read) == [(3, "a/b"), (4, None), (5, "a/b"), (11, "c")]
        DiskBackfill(lane, "c", "orders:0:4-5").run()
        left = DeltaTable(str(table_of(lane)))
        assert sorted(part["day"] or "" for part in left.partitions()) == ["a/b", "c"]


# ---- the pure rule ------------------------------------------------------------------------------------------------


def test_a_mark_tells_whether_a_table_may_hold_older_rows_whoever_has_published_them() -> None:
    live, other = TurnId("p", "live", 0, 4), "ackline/l/p/backfill-b/output"
    own, held = "ackline/l/p/live/output", {"ackline/l/p/live/output": 1}
    held |= marks_with({}, TableOfTurn(2, [], ends={"t/0": 10}), is_new=True)
    assert not may_replace(held, own, live, {"t/0": 0}), "this lane alone has published there, and reads nothing twice"
    assert may_replace(held, own, live._replace(epoch=1), {"t/0": 9})
    assert may_replace(held | {other: 1}, own, live, {"t/0": 9, "t/1": 0})
    assert not may_replace(held | {other: 1}, own, live, {"t/0": 10, "t/1": 0})
    assert may_replace({own: 1, other: 1}, own, live, {"t/0": 10}), "a table of an earlier version has no marks"
    assert may_replace({own: 1}, own, live, {"t/0": 10}), "its user has filled it before"
    assert ROWS not in marks_with({own: 1}, TableOfTurn(2, [], ends={"t/0": 10}), is_new=False)
    several = TableOfTurn(2, [], ends={"t/0": 3}, several=True)
    assert marks_with(held, several, is_new=False) == {ROWS: ROWS_OF_SEVERAL}


# ---- several origins ----------------------------------------------------------------------------------------------


JOINED: dict[str, Any] = {
    "handler": "tests.worker.disk_handlers:emit",
    "steps": [{"name": "pairs", "handler": "tests.worker.disk_handlers:joined", "input": ["source"],
               "group_by": "key", "join": True}],
    "outputs": [{"from": "pairs", "table": "totals"}],
}  # fmt: skip


def test_s86_a_row_of_two_records_goes_with_both_and_a_turn_with_one_stops_and_names_the_other() -> None:
    with lane_of(JOINED) as lane:
        for offset in range(4):
            lane.produce(b"{}")
            emits(offset, {"id": offset}, key=f"{offset // 2}")
        lane.run()
        assert [(row[0], row[3]) for row in rows(lane)] == [(0, 1), (2, 5)]
        one = DiskBackfill(lane, "b", "orders:0:3-4")
        with pytest.raises(LedgerError, match=r"without the others: orders\[0\]@2 \(not in the turn\)\. .*--with-rel"):
            one.run()
        assert (one.newest().turn.n, [row[1] for row in rows(lane)]) == (0, ["live"] * 2)
        void_by(one.adapters())
        one.cancel("both are needed")
        both = DiskBackfill(lane, "c", "orders:0:3-4", with_related=True)
        assert (both.choose().offsets, both.choose().replaced()) == (2, {"totals": 1})
        both.run()
        assert [row[:2] for row in rows(lane)] == [(0, "live"), (2, "backfill-c")]


@pytest.mark.parametrize("name", ["live", "b"])
def test_s86_the_error_says_how_the_others_ended_and_the_ways_out_of_its_lane(name: str) -> None:
    """Both records are read, and one fails: the turn can be closed and tried again. A turn of a reset can begin too
    late, and then another reset is the way out."""
    with lane_of(JOINED) as lane:
        for offset in range(2):
            lane.produce(b"{}")
            emits(offset, {"id": offset}, key="a")
        lane.run()
        acts(0, fails)
        if name == "live":
            lane.perform(TurnKind.RESET, {TP: 1})
            lane.run_fails(
                LedgerError, r"orders\[0\]@0 \(not in the turn\).* Close the turn with `ackline void lane --r"
            )
            lane.run_fails(
                LedgerError, r"then begin a new epoch at .* with `ackline reset lane --to OFFSET .*`rows: all`"
            )
            void_by(lane.adapters())
            lane.perform(TurnKind.RESET, {TP: 0})
            lane.run_fails(LedgerError, r"orders\[0\]@0 \(failed\).* Once the others can be acked, close the turn")
            void_by(lane.adapters())
            emits(0, {"id": 7}, key="a")
            lane.run()
        else:
            backfill = DiskBackfill(lane, "b", "orders:0:0-2")
            with pytest.raises(LedgerError, match=r"orders\[0\]@0 \(failed\).*`ackline void lane --lane backfill-b"):
                backfill.run()
            void_by(backfill.adapters())
            emits(0, {"id": 7}, key="a")
            backfill.run()
        assert [(row[0], row[3]) for row in rows(lane)] == [(0, 8)]


@pytest.mark.parametrize(("ledger", "related"), [("before", {}), ("after", {("t", 0): [1]})])
def test_a_row_with_an_attempt_in_flight_of_another_ledger_goes_only_with_both_records(
    ledger: str, related: dict[Any, Any], tmp_path: Path
) -> None:
    """The live lane of the next ledger, after an adoption, begins at epoch 0 too. A row of the ledger before names an
    attempt in flight, which may have been acked there since: the next ledger's handling of the record is a newer one.
    """
    anchors = [{"topic": "t", "partition": 0, "offset": offset, "attempt": 1, "outcome": outcome}
               for offset, outcome in ((1, "acked"), (2, "in_flight"))]  # fmt: skip
    row = {"_topic": "t", "_partition": 0, "_offset": 1, "_attempt": 1, "_lane": "live", "_epoch": 0, "_turn": 3}
    rows, turn = pa.Table.from_pylist([row | {"_anchors": anchors}], OF_ROW), TurnId("shop", "live", 0, 4)
    published = CommitProperties(app_transactions=[Transaction(application_of("before", turn), 1)])
    write_deltalake(tmp_path / "totals", rows, commit_properties=published)
    two = {TopicPartition("t", 0): arrays_of([OffsetRange(2, 3)])}
    older = OlderRows(OutputTable(str(tmp_path / "totals")), two, lambda *_: {}, turn, application_of(ledger, turn))
    assert older.at_newest(older.find) == Found(0, related)


# ---- against a model ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_i16_whatever_lanes_do_each_record_has_the_rows_of_its_newest_handling(seed: int) -> None:
    """The model is a mapping from each record to its rows, which each turn that is published overwrites."""
    random = Random(seed)
    with lane_of({**EMITS, "retry": {"max_retries": 0}}) as lane:
        model, version, end = dict[int, list[str]](), 0, 0

        def change(offset: int) -> list[str] | None:
            """Draws what the handler does for a record; returns its rows, None if it leaves what is there."""
            kind, values = random.choice("rrrrnsf"), [f"{version}.{n}" for n in range(random.choice((1, 1, 2)))]
            if kind == "r":
                emits(offset, *({"id": value} for value in values))
                return values
            acts(offset, skips if kind == "s" else fails if kind == "f" else lambda: None)
            return None if kind == "f" else []

        for number in range(10):
            version += 1
            act = random.choice(("live", "live", "backfill", "backfill", "maintain", "reset"))
            begin, until = sorted(random.choices(range(end + 1), k=2))
            drawn = dict[int, list[str] | None]()
            if act == "live":
                for _ in range(random.choice((1, 3))):
                    lane.produce(b"{}")
                    end += 1
                handled = range(lane.newest().partitions[next(iter(lane.newest().partitions))].state.complete_to
                                if number and lane.adapters().store.newest() else 0, end)  # fmt: skip
                drawn = {offset: change(offset) for offset in handled}
                lane.run()
            elif act == "backfill" and begin < until:
                drawn = {offset: change(offset) for offset in range(begin, until)}
                DiskBackfill(lane, f"b{number}", f"orders:0:{begin}-{until}", dead_letter="none").run()
            elif act == "maintain" and table_of(lane).exists():
                DeltaTable(str(table_of(lane))).optimize.compact()
            elif act == "reset" and number and lane.adapters().store.newest() and end:
                lane.perform(TurnKind.RESET, {TP: begin})
                drawn = {offset: change(offset) for offset in range(begin, end)}
                lane.run()
            model |= {offset: values for offset, values in drawn.items() if values is not None}
            if table_of(lane).exists():
                found = DeltaTable(str(table_of(lane))).to_pyarrow_table().select(["_offset", "id"]).to_pylist()
                expected = sorted((offset, value) for offset, values in model.items() for value in values)
                assert sorted((row["_offset"], row["id"]) for row in found) == expected, (number, act)
