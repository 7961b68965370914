"""What settle decides about records in flight: the answers from outside, and then what is overdue.

Every answer that is read is applied before any deadline is looked at, so an answer that arrived in time counts even if
the run comes late. Time is the run's clock: a renewal and a deadline are judged by the same clock.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain

import numpy as np

from ackline.errors import AcklineError, ConfigError
from ackline.in_flight.ack_topic import AnswerRange, expired_warnings, range_to_read, read_answers
from ackline.kafka.exact import Found, Gone
from ackline.lane.adapters import Adapters
from ackline.lane.log_checks import unchanged_logs
from ackline.lane.ways_out import advises_void, void_advice
from ackline.ledger.answers import SKIPPED_IN_TREE, Answer, Applied, Ignored, Keys, Token, parse_answer, parse_token
from ackline.ledger.copies import Rescued
from ackline.ledger.fold import PartitionState, PendingKind
from ackline.ledger.offsets import Int64s, TopicPartition
from ackline.ledger.outcomes import AnswerKind, ErrorClass, Outcome, OutcomeRow
from ackline.ledger.pending import LATEST_TIME, PendingRuns
from ackline.ledger.turns import AckPosition, AnswerReport, Plan, PlannedPartition, SettledPartition, Settlement, TurnId
from ackline.scrub import SCANNED, scrub

NOT_MASKED = "a reason that is not stored: its record could not be read to mask it"
"""The message of an attempt that an answer fails, in place of a reason that may quote the record."""
_MAX_OFFSET = 2**63 - 1
Key = tuple[TopicPartition, int]


def answers_of_turn(adapters: Adapters, plan: Plan, position: AckPosition) -> AnswerRange:
    """Returns the answers that the turn reads. Call it only after outcomes n are stored: no token of a later turn
    exists then.

    Raises ConfigError if the pipeline file has lost its ack topic, and what `range_to_read` raises.
    """
    if adapters.token_keys is None:
        raise ConfigError(
            f"ack_topic was removed while {plan.turn} is open, which reads {position.topic}; put it back until the "
            f"turn is settled. {void_advice(plan.turn)}",
            key="ack_topic",
        )
    with advises_void(plan.turn, ConfigError):
        return range_to_read(adapters, position)


def decide_answers(
    adapters: Adapters,
    plan: Plan,
    before: Settlement,
    wanted: AnswerRange,
    states: Mapping[TopicPartition, PartitionState],
) -> tuple[Mapping[TopicPartition, Iterable[OutcomeRow]], AnswerReport]:
    """Returns the rows that end or renew attempts in flight, and what became of each answer. Stores nothing.

    `states` are those after the outcomes of the turn, so that an answer that came before them counts, too (S64).
    `wanted` is what `answers_of_turn` has returned. Raises what reading the topic raises.
    """
    rows_of_lane: dict[TopicPartition, SettledPartition | PlannedPartition] = {**before.partitions, **plan.partitions}
    topic_ids = {tp: row.topic_id for tp, row in rows_of_lane.items()}
    runs = {tp: states[tp].pending.of_kind(PendingKind.IN_FLIGHT) for tp in plan.partitions}
    in_flight = {tp: _InFlight(waiting, waiting.attempts) for tp, waiting in runs.items() if waiting}
    judge = _Judge(
        adapters, plan, topic_ids, adapters.token_keys or (), adapters.store.ledger_id(), wanted.at, in_flight
    )
    gone: list[Gone] = []
    for answer in read_answers(adapters, wanted):
        if isinstance(answer, Found):
            judge.take(answer.message.key(), answer.message.value())
        else:
            gone.append(answer)
    judge.ended |= _masked(adapters, plan, states, judge.ended)
    rows = judge.rows(time_out=not wanted.hides_answers)
    warnings = (*wanted.warnings, *expired_warnings(wanted, gone))
    return rows, AnswerReport(wanted.after, dict(judge.counts), warnings)


def _masked(
    adapters: Adapters, plan: Plan, states: Mapping[TopicPartition, PartitionState], ended: Mapping[Key, OutcomeRow]
) -> dict[Key, OutcomeRow]:
    """Returns the rows of `ended` that hold a reason from outside, with what it shares with its record masked (I13). In
    place of a reason whose record can't be read they hold NOT_MASKED: the answer counts all the same."""
    reasons = {key: row.reason for key, row in ended.items() if row.answer is AnswerKind.FAIL and row.reason}
    masked: dict[Key, str] = {}
    if reasons:
        wanted: dict[TopicPartition, list[int]] = {}
        for tp, offset in sorted(reasons):
            wanted.setdefault(tp, []).append(offset)
        rescued = {tp: Rescued(plan.partitions[tp].topic_id, states[tp].copies) for tp in wanted}
        with suppress(AcklineError), adapters.copy_reader(rescued) as reader:
            tps, read = unchanged_logs(adapters, plan, wanted, states), dict[Key, str]()
            with suppress(AcklineError):  # what is read before an error counts
                for found in reader.read({tp: wanted[tp] for tp in tps}):
                    if isinstance(found, Found) and (headers := found.headers) is not None:
                        key, message = (found.topic_partition, found.offset), found.message
                        payload = message.key(), message.value(), *(value for _, value in headers)
                        read[key] = scrub(reasons[key], payload)
            # Checked again: another record may have taken the offset before it was read.
            unchanged = unchanged_logs(adapters, plan, tps, states)
            masked = {key: reason for key, reason in read.items() if key[0] in unchanged}
    return {key: ended[key]._replace(reason=masked.get(key, NOT_MASKED) or None) for key in reasons}


@dataclass(frozen=True, slots=True)
class _InFlight:
    """The records of a partition that are in flight."""

    runs: PendingRuns
    attempts: Int64s

    def attempt_at(self, offset: int) -> int | None:
        """Returns the attempt that is in flight at an offset; None if none is."""
        index = self._index(offset)
        return None if index is None else int(self.attempts[index])

    def skip_at(self, offset: int) -> str | None:
        """Returns the error class of the skip in the tree of the record in flight at an offset; None without one."""
        index = self._index(offset)
        return None if index is None else self.runs.states[self.runs.codes[index]].error_class

    def _index(self, offset: int) -> int | None:
        if not 0 <= offset < _MAX_OFFSET:  # a token may be forged
            return None
        index = int(np.searchsorted(self.runs.starts, offset, side="right")) - 1
        return index if index >= 0 and offset < self.runs.ends[index] else None


@dataclass(frozen=True, slots=True)
class DecidedRows:
    """Rows of several kinds, one kind after the other. They can be iterated more than once."""

    kinds: tuple[Iterable[OutcomeRow], ...]

    def __iter__(self) -> Iterator[OutcomeRow]:
        return chain.from_iterable(self.kinds)


@dataclass(frozen=True, slots=True)
class OverdueRows:
    """The rows of attempts whose deadline has passed. They are made while they are iterated, and only `runs` are held:
    all records in flight may time out in one turn."""

    runs: PendingRuns
    now: datetime

    def __len__(self) -> int:
        return self.runs.offsets

    def __iter__(self) -> Iterator[OutcomeRow]:
        for run in self.runs:
            reason = f"no answer until {run.value.due:%Y-%m-%d %H:%M:%S} UTC"
            for offset in range(run.start, run.end):
                yield OutcomeRow(
                    offset, run.value.attempts, Outcome.FAILED, self.now, ErrorClass.ACK_TIMEOUT, None, reason,
                    answer=AnswerKind.TIMEOUT,
                )  # fmt: skip


@dataclass(slots=True)
class _Judge:
    """Judges one answer after the other. The first one that ends an attempt counts; of renewals, the last one."""

    adapters: Adapters
    plan: Plan
    topic_ids: Mapping[TopicPartition, str]
    """The topic id of each partition of the lane. A turn of a backfill lane plans only those that are not settled."""
    keys: Keys
    ledger: str
    now: datetime
    in_flight: Mapping[TopicPartition, _InFlight]
    counts: Counter[str] = field(default_factory=Counter)
    ended: dict[Key, OutcomeRow] = field(default_factory=dict)
    renewed: dict[Key, OutcomeRow] = field(default_factory=dict)
    void_turns: set[int] | None = None
    """The void turns of the epoch; None until an answer needs them."""

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Applies an answer, or counts why it is ignored."""
        token = parse_token((key or b"").decode("ascii", "replace"))
        obstacle = Ignored.MALFORMED if token is None else self._obstacle(token)
        # Parsed only for a valid token: without the key, a client cannot make settle parse its values.
        answer = parse_answer(value) if obstacle is None else None
        if token is None or answer is None:
            self.counts[obstacle or Ignored.MALFORMED] += 1
            return
        self._apply(token, answer)

    def _obstacle(self, token: Token) -> Ignored | None:
        """Returns why the answers of this token are ignored; None if they count."""
        turn, lane = token.turn, self.plan.turn
        if (turn.pipeline, turn.lane) != (lane.pipeline, lane.lane) or token.tp not in self.topic_ids:
            return Ignored.FOREIGN
        if not token.is_signed(self.keys, self.ledger, self.topic_ids[token.tp]):
            return Ignored.UNSIGNED
        if (token.tp, token.offset) in self.ended:
            ended = self.ended[token.tp, token.offset]
            return Ignored.REPEATED if ended.attempt == token.attempt else Ignored.STALE
        waiting = self.in_flight.get(token.tp)
        if turn.epoch != lane.epoch or waiting is None or waiting.attempt_at(token.offset) != token.attempt:
            return Ignored.STALE
        # The attempt of a void turn was ended by that turn's settlement; the same attempt was then made again, in a
        # later turn, and that one is in flight under another token.
        return Ignored.STALE if self._is_void(turn) else None

    def _is_void(self, turn: TurnId) -> bool:
        if turn.n >= self.plan.turn.n:  # the turn itself is not void, and no later one has a token yet
            return turn.n > self.plan.turn.n
        if self.void_turns is None:
            self.void_turns = self.adapters.store.void_turns(turn.epoch)
        return turn.n in self.void_turns

    def _apply(self, token: Token, answer: Answer) -> None:
        key, offset, attempt = (token.tp, token.offset), token.offset, token.attempt
        skip = self.in_flight[token.tp].skip_at(offset)
        if answer.kind is AnswerKind.RENEW:
            # A sum beyond the calendar would raise OverflowError.
            due = self.now + answer.renewal if answer.renewal < LATEST_TIME - self.now else LATEST_TIME
            self.counts[Applied.RENEWED] += 1
            self.renewed[key] = OutcomeRow(
                offset, attempt, Outcome.IN_FLIGHT, self.now, skip, due=due, answer=AnswerKind.RENEW
            )
        elif answer.kind is AnswerKind.ACK:
            self.counts[Applied.ACKED] += 1
            # The worse of both counts: the record is not acked if a step has skipped a tuple of its tree.
            outcome, reason = (Outcome.ACKED, None) if skip is None else (Outcome.SKIPPED, SKIPPED_IN_TREE)
            self.ended[key] = OutcomeRow(offset, attempt, outcome, self.now, skip, None, reason, answer=AnswerKind.ACK)
        else:
            reason = answer.reason[:SCANNED] or None  # masked once all answers are read
            self.counts[Applied.FAILED] += 1
            self.ended[key] = OutcomeRow(
                offset, attempt, Outcome.FAILED, self.now, ErrorClass.ACK_FAILED, None, reason, answer=AnswerKind.FAIL
            )

    def rows(self, time_out: bool) -> dict[TopicPartition, DecidedRows]:
        """Returns a row for each attempt that an answer has ended or renewed; with `time_out`, for each overdue one."""
        answered: dict[TopicPartition, list[OutcomeRow]] = {}
        for (tp, _), row in {**self.renewed, **self.ended}.items():  # what is ended needs no renewal
            answered.setdefault(tp, []).append(row)
        decided = {tp: DecidedRows((sorted(rows, key=lambda row: row.offset),)) for tp, rows in answered.items()}
        for tp, waiting in self.in_flight.items() if time_out else ():
            runs = waiting.runs.overdue_at(self.now)
            if tp in answered:
                offsets = np.sort(np.array([row.offset for row in answered[tp]], dtype=np.int64))
                runs = runs.minus((offsets, offsets + 1))
            if overdue := OverdueRows(runs, self.now):
                self.counts[Applied.TIMED_OUT] += len(overdue)
                decided[tp] = DecidedRows((*decided.get(tp, DecidedRows(())).kinds, overdue))
        return decided
