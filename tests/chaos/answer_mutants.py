"""Mutants of what settle decides about answers from outside: each breaks one rule, and the state machine finds it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ackline.in_flight import decide
from ackline.in_flight.ack_topic import AnswerRange, range_to_read
from ackline.lane.adapters import Adapters
from ackline.ledger.answers import AnswerReport, Ignored
from ackline.ledger.fold import OutcomeRow
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import AnswerKind, ErrorClass, Outcome
from ackline.ledger.turns import Plan, Settlement
from ackline.steps import settle


def stale_answers_count(patch: pytest.MonkeyPatch) -> None:
    """An answer of a void turn ends the attempt that a later turn has made (S69)."""
    patch.setattr(decide._Judge, "_is_void", lambda *_: False)


def older_attempts_count(patch: pytest.MonkeyPatch) -> None:
    """An answer of an older attempt ends the attempt that is in flight now (S69)."""
    real = decide._Judge._obstacle

    def obstacle(judge: Any, token: Any) -> Any:
        waiting = judge.in_flight.get(token.tp)
        current = waiting.attempt_at(token.offset) if waiting else None
        found = real(judge, token)
        if found is Ignored.STALE and current is not None and token.turn.epoch == judge.plan.turn.epoch:
            return None
        return found

    def apply(judge: Any, token: Any, answer: Any) -> None:
        current = judge.in_flight[token.tp].attempt_at(token.offset)
        applied(judge, token._replace(attempt=current), answer)

    applied = decide._Judge._apply
    patch.setattr(decide._Judge, "_obstacle", obstacle)
    patch.setattr(decide._Judge, "_apply", apply)


def position_not_fenced(patch: pytest.MonkeyPatch) -> None:
    """The settlement takes the position from the topic as it is now, and not from the stored decisions (S69)."""

    def answer_report(adapters: Adapters, plan: Plan, before: Settlement) -> AnswerReport | None:
        report = real(adapters, plan, before)
        if report is None or plan.ack_position is None:
            return report
        return replace(report, position=range_to_read(adapters, plan.ack_position).after)

    real = settle._answer_report
    patch.setattr(settle, "_answer_report", answer_report)


def timeouts_before_answers(patch: pytest.MonkeyPatch) -> None:
    """An attempt whose deadline has passed times out although its answer is there (S65)."""
    real = decide._Judge.rows

    def rows(judge: Any, time_out: bool) -> dict[TopicPartition, list[OutcomeRow]]:
        decided = {tp: list(rows) for tp, rows in real(judge, time_out).items()}
        for tp, rows in decided.items() if time_out else ():
            overdue = judge.in_flight[tp].runs.overdue_at(judge.now)
            for index, row in enumerate(rows):
                if any(run.start <= row.offset < run.end for run in overdue):
                    rows[index] = OutcomeRow(
                        row.offset, row.attempt, Outcome.FAILED, judge.now, ErrorClass.ACK_TIMEOUT,
                        answer=AnswerKind.TIMEOUT,
                    )  # fmt: skip
        return decided

    patch.setattr(decide._Judge, "rows", rows)


def hidden_answers_time_out(patch: pytest.MonkeyPatch) -> None:
    """Attempts time out although an open transaction may hold their answers (S65)."""
    real = range_to_read

    def without_hidden(*arguments: Any) -> AnswerRange:
        return replace(real(*arguments), hides_answers=False)

    patch.setattr(decide, "range_to_read", without_hidden)


ANSWER_MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    mutant.__name__: mutant
    for mutant in (
        stale_answers_count,
        older_attempts_count,
        position_not_fenced,
        timeouts_before_answers,
        hidden_answers_time_out,
    )
}
