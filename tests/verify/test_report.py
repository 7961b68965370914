"""The report and the command: sentences, counts, text, JSON and exit status; and tables that give no verdict."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from ackline.tables.schemas import TABLES
from ackline.verify import __main__ as command
from ackline.verify.check import Report, Sources, judge
from ackline.verify.evidence import Findings, TopicPartition, Unreadable
from ackline.verify.read_tables import read_table
from tests.verify.fabricated import History

ARGUMENTS = ["--bootstrap=localhost:1", "--audit=/audit", "--pipeline=orders", "--group=g", "--topic=orders",
             "--no-dead-letters"]  # fmt: skip


def test_a_correct_history_is_counted() -> None:
    report = History().judged()
    assert report.totals == report.topics["orders"] == {
        "records": 9, "acked": 7, "skipped": 1, "dropped": 0, "dead": 1, "expired": 0, "compacted": 0,
        "lost": 0, "pending": 0, "attempts": 11, "failed": 3, "letters": 1, "letters_again": 0, "calls": 10,
        "calls_again": 0,
    }  # fmt: skip


def judge_without_reading(monkeypatch: pytest.MonkeyPatch, report: Report | Unreadable) -> None:
    """Let the command have this result."""

    def check(sources: Sources, *, max_retries: int | None, settled: bool) -> Report:
        assert (sources.topics, sources.dead_letter_topic, max_retries, settled) == (["orders"], None, None, False)
        if isinstance(report, Unreadable):
            raise report
        return report

    monkeypatch.setattr(command, "check", check)


def test_the_command_prints_counts_and_succeeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judge_without_reading(monkeypatch, Report([], {"records": 1000, "dead": 0}, {"orders": {"records": 1000}}))
    assert command.main(ARGUMENTS) == 0
    assert capsys.readouterr().out == "orders: 1,000 records\nall: 1,000 records\nevery invariant holds\n"


def test_violations_are_printed_and_the_status_is_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judge_without_reading(monkeypatch, Report(["I1: wrong"], {"records": 2}, {}))
    assert (command.main(ARGUMENTS), capsys.readouterr().out) == (1, "all: 2 records\nI1: wrong\n")
    assert command.main([*ARGUMENTS, "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    verdict = {"ok": False, "violations": ["I1: wrong"], "not_judged": []}
    assert printed == {**verdict, "totals": {"records": 2}, "topics": {}}


def test_without_evidence_there_is_no_verdict_and_the_status_is_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judge_without_reading(monkeypatch, Unreadable("topic orders does not exist"))
    assert (command.main(ARGUMENTS), capsys.readouterr().err) == (2, "cannot judge: topic orders does not exist\n")


def test_of_many_offsets_with_one_violation_three_are_named_and_the_others_counted() -> None:
    history = History()
    history.outcomes = [r for r in history.outcomes if r["outcome"] != "acked"]
    found = [line for line in history.violations() if line.startswith("I4 orders[0]") and "neither" in line]
    assert len(found) == 4
    assert found[-1] == "I4 orders[0]: is neither settled nor pending, but below complete_to, at 4 more offsets"


def test_an_offset_that_is_found_twice_is_named_once_and_no_offset_adds_nothing() -> None:
    found = Findings()
    found.add_offsets("I4", "is wrong", TopicPartition("orders", 1), [7, 7])
    found.add_offsets("I4", "is wrong", TopicPartition("orders", 2), [])
    found.add("I11", "is wrong, too")
    assert found.sentences == ["I4 orders[1] offset 7: is wrong", "I11: is wrong, too"]


def test_real_delta_tables_have_the_same_verdict(tmp_path: Path) -> None:
    history, tables, ledger = History(), {}, ""
    for name, schema in TABLES.items():
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
    assert (judge(evidence, max_retries=1, settled=True).violations, ledger) == ([], "of orders")
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
