"""Delta tables: their rows are read, and a table that cannot be read gives no verdict."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from ackline.verify.check import Report, judge
from ackline.verify.evidence import Unreadable
from ackline.verify.read_tables import read_table
from tests.verify.fabricated import SCHEMAS, History


def test_real_delta_tables_have_the_same_verdict(tmp_path: Path) -> None:
    history, tables, ledger = History(), {}, ""
    for name, schema in SCHEMAS.items():
        data = pa.Table.from_pylist(getattr(history, name), schema)
        for pipeline in ("orders", "other"):
            folder = str(tmp_path / pipeline / name)
            DeltaTable.create(
                folder, data.schema, partition_by=["plan_date"], configuration={"ackline.ledger": f"of {pipeline}"},
                raise_if_key_not_exists=False,
            )  # fmt: skip
            write_deltalake(folder, data, mode="append")
        tables[name], ledger = read_table(str(tmp_path), name, "orders", "live")
        assert len(tables[name]) == len(data)
    evidence = replace(history.evidence(), **tables, ledger="ledger-1")
    assert judge(evidence, max_retries=1, settled=True).violations == []
    assert ledger == "of orders"
    found = judge(replace(evidence, ledger=ledger), max_retries=1, settled=True).violations
    assert any("the group has committed 10 with metadata" in line for line in found)


def test_without_settlements_there_is_no_verdict(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="table settlements"):
        read_table(str(tmp_path), "settlements", "orders", "live")


@pytest.mark.parametrize("name", ["plans", "outcomes"])
def test_with_a_torn_table_there_is_no_verdict(tmp_path: Path, name: str) -> None:
    log = tmp_path / "orders" / name / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("torn")
    with pytest.raises(Unreadable, match=f"table {name}"):
        read_table(str(tmp_path), name, "orders", "live")


def judge_without_tables(history: History, folder: Path, *names: str) -> Report:
    """Return the report on a history whose tables `names` do not exist."""
    tables = {name: read_table(str(folder), name, "orders", "live")[0] for name in names}
    return judge(replace(history.evidence(), **tables), max_retries=1)


def test_a_lane_that_has_only_begun_has_neither_plans_nor_outcomes_and_passes(tmp_path: Path) -> None:
    history = History(committed=0, turn=0, letters=[], calls=[])
    history.settlements = history.settlements[:1]
    report = judge_without_tables(history, tmp_path, "plans", "outcomes")
    assert (report.violations, report.totals["records"], report.totals["acked"]) == ([], 9, 0)


def test_lost_outcomes_are_found_in_a_lane_with_later_turns(tmp_path: Path) -> None:
    found = judge_without_tables(History(), tmp_path, "outcomes").violations
    assert "I2 orders[0] offset 0: is below the committed offset, but has no terminal outcome" in found
    assert "I4 orders[0] offset 0: is neither settled nor pending, but below complete_to" in found
