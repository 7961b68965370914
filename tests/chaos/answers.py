"""Judges what a turn makes of the answers from outside: which attempts in flight it ends, and by what.

The checker proves that an attempt was in flight and is ended once. Only the history shows whether the answer that ended
it was there and counted, whether one that counts was left out, and whether a deadline came before an answer. Nothing
here calls the ledger, the tokens or the steps.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import LIVE
from tests.chaos.account import Turn, broken, rows_of
from tests.chaos.outside import MEANINGS, Outside, Written

if TYPE_CHECKING:
    from tests.chaos.epoch import Epoch

Key = tuple[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class InFlightAttempt:
    """An attempt in flight when a turn decides about answers."""

    attempt: int
    due: datetime | None


def check(epoch: "Epoch", settlement: Any, outside: Outside, ledger: str) -> None:
    """Judges what a turn that is settled now has decided about the answers that it has read, and where the next turn
    reads on. `epoch` is the account before the turn, `ledger` the id of the ledger now."""
    n = settlement.turn.n
    turn = epoch.turns.get(n)
    after = settlement.answers.position.as_json() if settlement.answers else None
    if turn is None or turn.plan is None:
        epoch.ack_position = after
        return
    start = turn.plan.settings.get("ack_position")
    expected = epoch.ack_position
    if turn.plan.kind == "run" and epoch.ack_position not in (None, start):
        broken("S69", f"plan {n} reads answers from {start}; turn {n - 1} ended at {epoch.ack_position}")
    if settlement.kind == "run" and start is not None and turn.decisions is not None:
        report = json.loads(turn.answers) if turn.answers else broken("S69", f"decisions {n} have no ack position")
        rows = {(tp, row.offset): row for tp, row in rows_of(turn.decisions) if row.answer is not None}
        _Turn(epoch, n, turn, outside, ledger, start, report, rows).check()
        epoch.ack_read_at = turn.outcomes_at
        expected = {name: report[name] for name in ("topic", "topic_id", "next", "leader_epochs")}
    if after != expected:
        broken("S69", f"settlement {n} leaves the ack position at {after}, its decisions at {expected}")
    epoch.ack_position = after


@dataclass(frozen=True, slots=True)
class _Turn:
    epoch: "Epoch"
    n: int
    turn: Turn
    outside: Outside
    ledger: str
    start: dict[str, Any]
    report: dict[str, Any]
    rows: dict[Key, Any]

    def check(self) -> None:
        in_flight = self.in_flight()
        for key, row in self.rows.items():
            if key not in in_flight or in_flight[key].attempt != row.attempt:
                broken("I4", f"decisions {self.n} answer attempt {row.attempt} at {key}; {in_flight.get(key)} is there")
        read = [answer for answer in self.outside.written if self.is_read(answer)]
        every_certain = all(self.is_certain(answer) for answer in read)
        counted = sum(number for word, number in self.report["counts"].items() if word != "timed_out")
        if every_certain and counted != len(read):
            broken("S69", f"decisions {self.n} count {counted} answers of {len(read)}: {self.report['counts']}")
        by_key: dict[Key, list[Written]] = {key: [] for key in in_flight}
        for answer in read:
            answered = self.attempt_of(answer.token, in_flight)
            if answered is not None and answer.value in MEANINGS:
                by_key[answered].append(answer)
        for key, attempt in in_flight.items():
            self.check_attempt(key, attempt, by_key[key])
        self.check_no_answer_is_passed_over(in_flight)

    def in_flight(self) -> dict[Key, InFlightAttempt]:
        attempts = {
            (tp, offset): InFlightAttempt(waiting.attempts, waiting.due)
            for tp in self.turn.plan.partitions
            for offset, waiting in self.epoch.partitions[tp].pending.items()
            if waiting.kind == "in_flight"
        }
        for tp, row in rows_of(self.turn.outcomes):
            if row.outcome == "in_flight":
                attempts[tp, row.offset] = InFlightAttempt(row.attempt, row.due)
        return attempts

    def is_read(self, answer: Written) -> bool:
        """Returns whether an answer is in the range that the turn has read, and visible there."""
        if answer.topic_id != self.report["topic_id"] or not self.is_visible(answer):
            return False
        known = self.start["next"] if self.start["topic_id"] == answer.topic_id else {}
        first, end = (numbers.get(str(answer.tp.partition), 0) for numbers in (known, self.report["next"]))
        return bool(min([first, *self.cuts(answer)]) <= answer.offset < end)

    def cuts(self, answer: Written) -> list[int]:
        """Returns where the log of an answer was truncated since the turn before has read it. The turn may have read it
        again from there on, or have read it just before."""
        since, log = self.epoch.ack_read_at, (answer.topic_id, answer.tp)
        return [end for index, *of, end in self.outside.truncations if index >= since and tuple(of) == log]

    def is_visible(self, answer: Written) -> bool:
        log = self.epoch.world.log_of(answer.topic_id, answer.tp)
        hidden = log is None or answer.offset in log.aborted
        return not hidden or self.epoch.rules.isolation == "read_uncommitted"

    def is_certain(self, answer: Written) -> bool:
        """Returns whether an answer is still there. One that is gone may or may not have been read before."""
        log = self.epoch.world.log_of(answer.topic_id, answer.tp)
        is_there = log is not None and answer.offset >= log.start and not answer.truncated
        return is_there and all(answer.offset < end for end in self.cuts(answer))

    def attempt_of(self, token: str, in_flight: dict[Key, InFlightAttempt]) -> Key | None:
        """Returns the attempt in flight that a token is of; None if its answers do not count."""
        issued = self.outside.issued.get(token)
        if issued is None or issued.ledger != self.ledger:
            return None
        call = issued.call
        key = call.tp, call.offset
        if (call.lane, call.epoch) != (LIVE, self.epoch.number) or key not in in_flight or call.turn > self.n:
            return None
        of_void = call.turn < self.n and self.epoch.turns[call.turn].settlement.kind == "void"
        same_topic = call.topic_id == self.epoch.partitions[call.tp].topic_id
        return key if same_topic and not of_void and in_flight[key].attempt == call.attempt else None

    def check_attempt(self, key: Key, attempt: InFlightAttempt, answers: list[Written]) -> None:
        row: Any = self.rows.get(key)
        kind = None if row is None else str(row.answer.value)
        meanings = [MEANINGS[answer.value] for answer in answers]
        if kind in ("ack", "fail", "renew") and kind not in [word for word, _ in meanings]:
            broken("I4", f"decisions {self.n} end {key} by {kind}; the answers that count are {answers}")
        if not all(self.is_certain(answer) for answer in answers):
            return
        ends = [meaning for meaning in meanings if meaning[0] != "renew"]
        if not meanings:
            self.check_deadline(key, attempt, row)
            return
        expected, renewal = (ends[:1] or meanings[-1:])[0]
        if kind != expected:
            broken("S69", f"decisions {self.n} have {kind} for {key}; the answers that count are {answers}")
        if renewal is not None and row.due != row.handled_at + renewal:
            broken("S65", f"decisions {self.n} renew {key} at {row.handled_at} until {row.due}: {answers}")

    def check_deadline(self, key: Key, attempt: InFlightAttempt, row: Any) -> None:
        """An attempt without an answer times out at its deadline, not before."""
        if row is not None and (attempt.due is None or attempt.due > row.handled_at):
            broken("S65", f"decisions {self.n} time out {key} at {row.handled_at}, and it is due at {attempt.due}")
        at = next((other.handled_at for other in self.rows.values()), None)
        withheld = any("nothing times out" in warning for warning in self.report["warnings"])
        if row is not None and withheld:
            broken("S65", f"decisions {self.n} time out {key}: {self.report['warnings']}")
        if row is None and not withheld and at is not None and attempt.due is not None and attempt.due <= at:
            broken("S65", f"decisions {self.n} leave {key} in flight at {at}, and it is due at {attempt.due}")

    def check_no_answer_is_passed_over(self, in_flight: dict[Key, InFlightAttempt]) -> None:
        """An attempt does not time out while its answer is there: written before the turn began to read answers."""
        timed_out = {key for key, row in self.rows.items() if row.answer.value == "timeout"}
        for answer in self.unread():
            key = self.attempt_of(answer.token, in_flight)
            if key in timed_out and answer.value in MEANINGS and answer.index < self.turn.outcomes_at:
                broken("S65", f"decisions {self.n} time out {key}, and {answer} was there")

    def unread(self) -> Iterator[Written]:
        for answer in self.outside.written:
            end = self.report["next"].get(str(answer.tp.partition), 0)
            same = answer.topic_id == self.report["topic_id"] and answer.offset >= end
            if same and self.is_visible(answer) and self.is_certain(answer):
                yield answer
