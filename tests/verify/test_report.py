"""The report and the command: counts, text, JSON and exit status."""

import json

import pytest

from ackline.verify import __main__ as command
from ackline.verify.check import Report, Sources
from ackline.verify.evidence import Unreadable
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
    assert command.main(ARGUMENTS) == 2
    assert capsys.readouterr().err == "cannot judge: topic orders does not exist\n"
