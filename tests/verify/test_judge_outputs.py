"""Rules on output tables: rows of acked records only, of one turn each, and before the group moves."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from ackline.verify.__main__ import format_report
from ackline.verify.check import judge
from ackline.verify.evidence import OutputTable, Unreadable
from ackline.verify.read_tables import SCHEMA, OutputTables, named_in_plans
from tests.verify.fabricated import AT_MOST_ONCE, History, Row, plan

TABLE = "order_totals"
APPLICATION = "ackline/ledger-1/orders/live/output"
SETTINGS = json.dumps({"outputs": [{"table": TABLE, "topic": None}, {"table": None, "topic": "rejected"}]})


def anchor(offset: int, attempt: int = 1, outcome: str = "acked") -> Row:
    return {"topic": "orders", "partition": 0, "offset": offset, "attempt": attempt, "outcome": outcome}


def output_row(turn: int, *anchors: Row) -> Row:
    """A row that is anchored to records and names the first acked one."""
    first = next((a for a in anchors if a["outcome"] == "acked"), {})
    record = {f"_{name}": first.get(name) for name in ("topic", "partition", "offset", "attempt")}
    return {**record, "_lane": "live", "_epoch": 0, "_turn": turn, "_anchors": list(anchors)}


def named(table: str, number: int = 7) -> str:
    """What a settlement holds of a turn that is published in a table."""
    return json.dumps({"number": number, "tables": {table: {}}, "expected": {table: {APPLICATION: [number]}}})


@dataclass
class Shop:
    """A correct history whose acked records have a row each, and a row of two records; to be changed."""

    history: History
    rows: list[Row]
    published: int = 2

    def violations(self, settled: bool = True) -> list[str]:
        table = OutputTable(TABLE, pa.Table.from_pylist(self.rows, SCHEMA), {APPLICATION: (0, self.published)})
        self.history.outputs = [table]
        return self.history.violations(settled)


def shop() -> Shop:
    history = History()
    for settlement in history.settlements[1:]:
        settlement["outputs"] = named(TABLE)
    rows = [output_row(1, anchor(offset)) for offset in (0, 1, 2, 4, 8, 9)]
    rows += [output_row(1, anchor(3, outcome="failed"), anchor(4)), output_row(2, anchor(5, 2)), output_row(2)]
    return Shop(history, rows)


def test_rows_of_acked_records_that_were_published_in_time_hold() -> None:
    assert shop().violations() == []


def append(*rows: Row) -> Callable[[Shop], Any]:
    return lambda shop: shop.rows.extend(rows)


def rewrite(number: int, **columns: Any) -> Callable[[Shop], Any]:
    return lambda shop: shop.rows[number].update(columns)


NOT_ACKED = f"I16 orders[0] offset {{}}: has a row in output table {TABLE} of an attempt and turn that did not ack it"


@pytest.mark.parametrize(("change", "sentence"), [
    pytest.param(append(output_row(1, anchor(3))), NOT_ACKED.format(3), id="of a failed record"),
    pytest.param(append(output_row(1, anchor(5))), NOT_ACKED.format(5), id="of a failed attempt of an acked record"),
    pytest.param(append(output_row(2, anchor(0))), NOT_ACKED.format(0), id="of another turn than the one that acked"),
    pytest.param(append(output_row(1, anchor(6))), NOT_ACKED.format(6), id="of an offset without a record"),
    pytest.param(append(output_row(2, anchor(0))),
                 f"I16 orders[0] offset 0: has rows of two turns in output table {TABLE}", id="of two turns"),
    pytest.param(rewrite(6, _offset=8, _attempt=1),
                 f"I16: 1 rows of output table {TABLE} do not name their first acked record", id="another record"),
    pytest.param(append(output_row(1, anchor(3, outcome="failed"))),
                 f"I16: 1 rows of output table {TABLE} do not name their first acked record", id="no acked record"),
    pytest.param(append(output_row(2, anchor(0, outcome="in_flight"), anchor(5, 2))),
                 f"I16 orders[0] offset 0: was acked before the turn of a row in output table {TABLE} that is anchored "
                 f"to it", id="published by a second ack"),
    pytest.param(append(output_row(1, anchor(4), anchor(8, outcome="failed"))),
                 f"I16 orders[0] offset 8: has another outcome among the anchors of a row in output table {TABLE}",
                 id="another outcome of an anchor"),
    pytest.param(append(output_row(3)),
                 f"I16: output table {TABLE} has rows of turn 3 of epoch 0, which did not count", id="untracked"),
    pytest.param(lambda shop: setattr(shop, "published", 0),
                 f"I16: turn 1 of epoch 0 is settled, but is not in output table {TABLE}", id="no earlier turn"),
    pytest.param(lambda shop: setattr(shop, "published", 1),
                 f"I16 orders[0] offset 10: is committed for turn 2, but output table {TABLE} has no turn 2 of epoch 0",
                 id="behind the group"),
])  # fmt: skip
def test_i16_each_violation_is_named(change: Callable[[Shop], Any], sentence: str) -> None:
    broken = shop()
    change(broken)
    assert sentence in broken.violations(), broken.violations()


def test_the_newest_turn_may_wait_to_be_published_until_it_is_committed_or_a_later_plan_is_stored() -> None:
    waiting = shop()
    waiting.published, waiting.history.committed, waiting.history.turn = 1, 3, 1
    assert waiting.violations(settled=False) == []
    late = f"I16: turn 2 of epoch 0 is settled, but is not in output table {TABLE}"
    assert late in waiting.violations(settled=True)
    waiting.history.plans.append(plan(3, 10, 10))
    assert late in waiting.violations(settled=False)


def test_a_claim_that_is_committed_before_its_turn_is_settled_needs_no_rows_of_that_turn() -> None:
    claimed = shop()
    claimed.history.plans = [plan(1, 0, 10), plan(2, 10, 10, settings=AT_MOST_ONCE)]
    claimed.history.committed, claimed.published = 3, 1
    ahead = f"I16 orders[0] offset 3: is committed for turn 2, but output table {TABLE} has no turn"
    found = claimed.violations(settled=False)
    assert not any(line.startswith(ahead) for line in found), found
    claimed.published = 0
    assert f"{ahead} 1 of epoch 0" in claimed.violations(settled=False)


def test_a_void_turn_and_a_table_of_a_version_without_outputs_need_no_rows() -> None:
    void = shop()
    void.published, void.rows = 0, []
    for settlement in void.history.settlements[1:]:
        settlement["outputs"] = None
    assert void.violations() == []
    evidence = void.history.evidence()
    old = replace(evidence, settlements=evidence.settlements.drop_columns(["outputs"]))
    assert judge(old, max_retries=1, settled=True).violations == []


def test_a_later_epoch_stands_for_a_turn_only_where_the_entries_of_its_time_are_gone() -> None:
    def version(epoch: int, turn: int) -> int:
        return (epoch << 51) + (turn << 24)

    def has(turn: int, *published: tuple[int, int]) -> bool:
        versions = {APPLICATION: [version(*each) for each in published]}
        table = OutputTable(TABLE, SCHEMA.empty_table(), {APPLICATION: (1, 1)}, transactions=versions)
        return table.has_turn(APPLICATION, (0, turn), version(0, turn))

    assert has(5, (0, 4), (0, 5), (1, 1))
    assert not has(5, (0, 4), (1, 1))
    assert has(5, (0, 4), (0, 6), (1, 1)), "an operator has given it up for this table"
    assert has(5, (1, 1))
    assert has(5)


def without_bounds(entry: Path, column: str) -> None:
    """Takes the bounds of a column out of a log entry, and leaves its number of nulls, as Ackline writes texts."""
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for add in (action["add"] for action in actions if "add" in action):
        stats = json.loads(add["stats"])
        del stats["minValues"][column], stats["maxValues"][column]
        add["stats"] = json.dumps(stats)
    entry.write_text("".join(json.dumps(action) + "\n" for action in actions))


def test_i16_real_output_tables_are_judged_by_their_rows_and_their_log(tmp_path: Path) -> None:
    made, tables = shop(), OutputTables(str(tmp_path), "orders", "live")
    other_lane = [{**row, "_lane": "backfill-x"} for row in made.rows]
    for turn in (1, 2):
        of_turn = [row for row in made.rows + other_lane if row["_turn"] == turn]
        # A user's own columns are no concern of the checker.
        data = pa.Table.from_pylist(of_turn, SCHEMA).append_column("sum", pa.array([1.5] * len(of_turn)))
        transaction = Transaction(APPLICATION, turn << 24 | 7)
        properties = CommitProperties(app_transactions=[transaction])
        write_deltalake(f"{tmp_path}/orders/outputs/{TABLE}", data, mode="append", commit_properties=properties)
    for entry in (tmp_path / "orders" / "outputs" / TABLE / "_delta_log").glob("*.json"):
        without_bounds(entry, "_lane")
    names = named_in_plans(pa.table({"settings": [SETTINGS, SETTINGS, None, "{}"]}))
    rows, published = tables.read_rows(names), tables.read_published(names, [APPLICATION, "other"])
    assert (names, rows[TABLE].num_rows) == ([TABLE], len(made.rows))
    assert published == {TABLE: {APPLICATION: (0, 2), "other": (0, 0)}}
    made.history.outputs = [OutputTable(TABLE, rows[TABLE], published[TABLE])]
    assert made.history.violations() == []


def published_at(uri: str, application: str, rows: list[Row]) -> None:
    properties = CommitProperties(app_transactions=[Transaction(application, 1 << 24)])
    write_deltalake(uri, pa.Table.from_pylist(rows, SCHEMA), mode="append", commit_properties=properties)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_i16_a_table_outside_the_root_is_judged_by_its_rows_if_this_pipeline_alone_writes_to_it(
    tmp_path: Path, checkpoint: bool
) -> None:
    tables, uri = OutputTables(str(tmp_path / "root"), "orders", "live"), f"file://{tmp_path}/elsewhere"
    published_at(uri, APPLICATION, [output_row(1, anchor(0)), output_row(1, anchor(1))])
    published_at(uri, "ackline/ledger-1/other/backfill-x/output", [{**output_row(1, anchor(0)), "_lane": "x"}])
    if checkpoint:  # its entries may expire
        DeltaTable(uri).create_checkpoint()
        for entry in Path(uri.removeprefix("file://"), "_delta_log").glob("*.json"):
            entry.unlink()
    assert tables.read_rows([uri])[uri].num_rows == 2
    assert tables.foreign_writer(tables.transactions(uri), "ledger-1") is None
    assert tables.foreign_writer(tables.transactions(uri), "ledger-2") == "ledger ledger-1"
    made = shop()
    made.rows.append(output_row(1, anchor(6)))  # a failed record
    rows = pa.Table.from_pylist(made.rows, SCHEMA)
    made.history.outputs = [
        OutputTable(uri, rows, {APPLICATION: (0, 2)}, tables.foreign_writer(tables.transactions(uri), "ledger-1"))
    ]
    assert any(f"has a row in output table {uri} of an attempt" in sentence for sentence in made.history.violations())


def test_rows_of_a_table_that_another_pipeline_publishes_to_are_not_judged_and_the_report_says_so(
    tmp_path: Path,
) -> None:
    tables, uri = OutputTables(str(tmp_path / "root"), "orders", "live"), f"file://{tmp_path}/elsewhere"
    published_at(uri, APPLICATION, [output_row(1, anchor(0))])
    published_at(uri, "ackline/ledger-1/invoices/live/output", [output_row(1, anchor(6))])
    assert tables.foreign_writer(tables.transactions(uri), "ledger-1") == "pipeline invoices"
    assert tables.foreign_writer(["ackline/of-before/orders/live/0/output"], "ledger-1") == "ledger of-before"
    made = shop()
    rows = tables.read_rows([uri])[uri]
    made.history.outputs = [OutputTable(uri, rows, {APPLICATION: (0, 2)}, "pipeline invoices"), *made.history.outputs]
    for settlement in made.history.settlements[1:]:
        settlement["outputs"] = named(uri)
    report = judge(made.history.evidence(), settled=True)
    assert (report.violations, len(report.not_judged)) == ([], 1)
    assert f"the rows of output table {uri}: pipeline invoices has published rows there too" in report.not_judged[0]
    assert f"not judged: the rows of output table {uri}" in format_report(report)
    made.history.outputs = [OutputTable(uri, rows, {APPLICATION: (0, 1)}, "pipeline invoices")]
    assert made.history.violations() == [
        f"I16: turn 2 of epoch 0 is settled, but is not in output table {uri}",
        f"I16 orders[0] offset 10: is committed for turn 2, but output table {uri} has no turn 2 of epoch 0",
    ]


def test_a_table_that_does_not_exist_or_is_foreign_has_no_turn_and_a_torn_one_gives_no_verdict(tmp_path: Path) -> None:
    tables = OutputTables(str(tmp_path), "orders", "live")
    assert tables.read_rows(["none"])["none"].num_rows == 0
    assert tables.read_published(["none"], [APPLICATION]) == {"none": {APPLICATION: (0, 0)}}
    write_deltalake(f"{tmp_path}/orders/outputs/foreign", pa.table({"sum": [1]}))
    assert tables.read_rows(["foreign"])["foreign"].num_rows == 0
    elsewhere = tmp_path / "orders" / "outputs" / "torn"
    (elsewhere / "_delta_log").mkdir(parents=True)
    (elsewhere / "_delta_log" / f"{0:020}.json").write_text("torn")
    with pytest.raises(Unreadable, match="output table torn"):
        tables.read_rows(["torn"])
    with pytest.raises(Unreadable, match="output table file://"):
        tables.read_published([f"file://{elsewhere}"], [APPLICATION])


def test_i16_a_table_that_is_ahead_of_an_older_copy_of_the_ledger_is_named_as_not_judged() -> None:
    made = shop()
    made.published = 3
    made.rows.append(output_row(3, anchor(9)))
    assert made.violations() == []
    [text] = made.history.judged().not_judged
    assert "it has turn 3 of epoch 0, which the ledger does not have" in text


def test_i16_a_table_below_the_root_in_which_a_ledger_has_published_that_was_adopted_since_is_not_judged(
    tmp_path: Path,
) -> None:
    tables = OutputTables(str(tmp_path), "orders", "live")
    published_at(f"{tmp_path}/orders/outputs/{TABLE}", APPLICATION, [output_row(1, anchor(0))])
    assert tables.foreign_writer(tables.transactions(TABLE), "ledger-1") is None
    assert tables.foreign_writer(tables.transactions(TABLE), "its new id") == "ledger ledger-1"


def test_a_row_that_is_older_in_its_table_than_the_newest_handling_of_its_record_is_named() -> None:
    """Turn 2 of the live lane has acked offset 5, and its entry comes after that of the backfill."""
    of_shop = shop()
    for settlement in of_shop.history.settlements[1:]:
        settlement["outputs"] = settlement["outputs"].replace("{}", '{"lowest": {"orders/0": 0}}')
    entries = [("live", 0, 1), ("backfill-b", 0, 1), ("live", 0, 2)]

    def judged(*rows: Row, table: list[tuple[str, int, int]] = entries) -> list[str]:
        every = pa.Table.from_pylist([*of_shop.rows, *rows], SCHEMA)
        kept = OutputTable(
            TABLE, pa.Table.from_pylist(of_shop.rows, SCHEMA), {APPLICATION: (0, 2)}, None, {}, every, table
        )
        of_shop.history.outputs = [kept]
        return of_shop.history.violations()

    by_backfill = {"_lane": "backfill-b"}
    assert judged({**output_row(1, anchor(1)), **by_backfill}) == []
    why = f"I16 orders[0] offset 5: has rows in output table {TABLE} that are older than its newest handling"
    assert judged({**output_row(1, anchor(5)), **by_backfill}) == [why]
    assert judged({**output_row(1, anchor(5), anchor(4)), **by_backfill}) == [], "only one of its records came again"
    assert judged({**output_row(1, anchor(5)), **by_backfill}, table=entries[:1]) == [], "the log has expired the entry"


def test_s87_a_shadow_publishes_in_its_own_tables_alone_and_sends_no_letter() -> None:
    changed = shop()
    changed.history.settlements[0]["arguments"] = json.dumps({"shadow": True})
    rows = pa.Table.from_pylist(changed.rows[:2], SCHEMA)
    found = judge(replace(changed.history.evidence(), beside={"real": rows, "other": SCHEMA.empty_table()})).violations
    assert f"I16: a shadow has published in output table {TABLE}, which is not its own" in found
    assert "I16: 2 rows of a shadow are in output table real, which is a real one" in found
    assert "I6: a shadow has sent 1 dead letters" in found
    for settlement in changed.history.settlements[1:]:
        settlement["outputs"] = named(f"{TABLE}__live")
    changed.history.letters.clear()
    evidence = replace(changed.history.evidence(), beside={TABLE: SCHEMA.empty_table()})
    assert not [text for text in judge(evidence).violations if "shadow" in text]
