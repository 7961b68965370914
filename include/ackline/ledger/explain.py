"""What holds the floor of a partition, and what became of one offset and of its tuples, in plain sentences. Pure.

The caller reads the evidence: from the broker (`answers/explain.py`), or from the tables (`audit/history.py`).
No state is a guess: a gap is an offset that an effective turn has read and that has no row, although the turn stored
its rows. The task that decides an attempt at a record writes what became of its tuples, step by step, as a `Story`: the
acker, or the task of the source where the tree ends there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

import numpy as np

from ackline import stored
from ackline.errors import counted
from ackline.handler import SOURCE
from ackline.ledger.answers import SKIPPED_IN_TREE
from ackline.ledger.fold import PartitionState
from ackline.ledger.offsets import LogBounds, OffsetRange, TopicPartition, count, index_of_range
from ackline.ledger.order import holder_of
from ackline.ledger.outcomes import ErrorClass, Outcome
from ackline.ledger.pending import Pending, PendingKind

NEXT_RUN, AFTER_REFUSAL = "the next run", "the first run that is not refused"
"""The run that does what is due; the second one in a lane that stands still."""
_CALENDAR = timedelta(days=10_000)
"""From this distance on, a time is shown without its distance from now."""


@dataclass(frozen=True, slots=True)
class HeldBy:
    """The pending offset that holds the floor."""

    offset: int
    kind: PendingKind
    attempts: int
    due: datetime | None
    error_class: str | None
    behind: "HeldBy | None" = None
    """Of a record that is held back: what it waits for; None if that is settled."""
    same_key: bool = True
    """Whether it is known to be of the key of `behind`; else their partition counts as one key."""
    rescued_to: str | None = None
    """Where its copy in the rescue topic is, as TOPIC[PARTITION]@OFFSET; None if it has none."""
    released: bool = False
    """Whether it is pending without holding the floor."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What retention does to a partition.

    `eta` is the earliest time at which it may take the first record that is not settled: the record's time plus
    `retention.ms`. None if nothing is unsettled, if the topic deletes no record by time, or if one of the two is not
    known. A limit by size may take the record earlier.
    """

    log_start: int | None
    eta: datetime | None


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """What an open transaction holds back above the readable end of a log."""

    since: datetime | None
    """The time of its first record; None if it is not known."""
    records: int
    """How many offsets: its own, and all that were written after its first one."""

    def sentence(self, end: int, now: datetime) -> str:
        """Returns it in words, for a log whose readable end is `end`."""
        since = f" since {moment_text(self.since, now)}" if self.since else ""
        return (
            f"A transaction is open at offset {end}{since}: it holds back {counted(self.records, 'offset')}, up to the "
            f"high watermark {end + self.records}, which no run reads before it ends. If its producer is gone, "
            f"`kafka-transactions.sh find-hanging` finds it, and `abort` ends it."
        )


@dataclass(frozen=True, slots=True)
class PartitionEvidence:
    """What is known about a partition: its floor and what holds it, its log, and when retention takes the next record.

    `next_expiry` is as `Retention.eta`.
    """

    tp: TopicPartition
    floor: int
    held_by: HeldBy | None
    log_start: int | None
    log_end: int | None
    next_expiry: datetime | None
    now: datetime
    why: str | None = None
    """Why runs leave the partition alone or stop at it, as `ackline status` shows it."""
    next_run: str = NEXT_RUN
    """The run that does what is due: NEXT_RUN, or AFTER_REFUSAL while each run is refused."""
    epoch: int = 0
    open_transaction: OpenTransaction | None = None
    first_at_risk: int | None = None
    """The lowest offset that is not settled and has no copy in the rescue topic; None means the floor."""
    apart: "Apart | None" = None


@dataclass(frozen=True, slots=True)
class Apart:
    """The pending records that do not hold the floor, because the lane has released them."""

    records: int
    first: HeldBy


@dataclass(frozen=True, slots=True)
class PartitionExplanation:
    """What holds the floor of a partition, and what retention takes next."""

    tp: TopicPartition
    floor: int
    held_by: HeldBy | None
    retention: Retention
    sentence: str


def held_by(state: PartitionState) -> HeldBy | None:
    """Returns the pending offset that holds the floor; None if there is none."""
    return _holder(state, state.floor) if state.floor < state.complete_to else None


def apart(state: PartitionState) -> Apart | None:
    """Returns the pending records that do not hold the floor; None if there is none."""
    released = state.released
    return Apart(count(released), _holder(state, int(released.starts[0]))) if len(released) else None


def _holder(state: PartitionState, offset: int) -> HeldBy:
    """Returns a pending offset, with what it waits for if it is held back."""
    pending = pending_at(state, offset)
    assert pending is not None
    held = holder_of(state.pending, offset) if pending.kind is PendingKind.HELD_BACK else None
    behind = _holder(state, int(state.pending.starts[held[0]])) if held is not None else None
    due = behind.due if behind is not None else pending.due  # it becomes due with that one
    same_key = held is None or held[1]
    place = state.copies.place_of(offset)
    copy = None if place is None else str(place)
    return HeldBy(
        offset, pending.kind, pending.attempts, due, pending.error_class, behind, same_key, copy,
        offset in state.released,
    )  # fmt: skip


def explain_partition(evidence: PartitionEvidence) -> PartitionExplanation:
    """Returns what holds the floor of a partition, and what retention takes next."""
    retention = Retention(evidence.log_start, evidence.next_expiry)
    why = f"Runs do not read the partition: {evidence.why}." if evidence.why else ""
    held = ""
    if evidence.open_transaction is not None and evidence.log_end is not None:
        held = evidence.open_transaction.sentence(evidence.log_end, evidence.now)
    copy = _copy_sentence(evidence.held_by)
    texts = [_floor_sentence(evidence), copy, _apart_sentence(evidence), held, why, _retention_sentence(evidence)]
    text = " ".join(filter(None, texts))
    return PartitionExplanation(evidence.tp, evidence.floor, evidence.held_by, retention, text)


def _copy_sentence(holder: HeldBy | None) -> str:
    copy = holder.rescued_to if holder is not None else None
    text = f"It is rescued to {copy}, and read from there once its topic does not hold it." if copy else ""
    return f"{text} It is released: it does not hold the floor.".lstrip() if holder and holder.released else text


def _apart_sentence(evidence: PartitionEvidence) -> str:
    if evidence.apart is None:
        return ""
    records, first = evidence.apart.records, evidence.apart.first
    what = "record is pending apart and does" if records == 1 else "records are pending apart and do"
    waits = waiting_sentence(first, evidence.now, evidence.next_run)
    copy = f" It is rescued to {first.rescued_to}." if first.rescued_to else " It has no copy now."
    return f"{records:,} released {what} not hold the floor; {'' if records == 1 else 'of these '}{waits}{copy}"


def _floor_sentence(evidence: PartitionEvidence) -> str:
    tp, floor, end = evidence.tp, evidence.floor, evidence.log_end
    if evidence.held_by is not None:
        waits = waiting_sentence(evidence.held_by, evidence.now, evidence.next_run)
        return f"The floor of {tp} is {floor}, because {waits}"
    nothing = "Nothing is pending in" if evidence.apart is None else "No record holds the floor of"
    if end is None:
        return f"{nothing} {tp}; its floor is {floor}. The end of its log is not known."
    if end <= floor and evidence.apart is not None:
        return f"{nothing} {tp}, which is {floor}: each record below it is settled, or pending apart."
    if end <= floor:
        if evidence.open_transaction is not None:
            return f"Every record of {tp} that can be read is settled, up to {end}; the log goes on."
        return f"Every record of {tp} below its log end {end} is settled; nothing holds the floor."
    again = f" in epoch {evidence.epoch}" if evidence.epoch else ""
    return f"{nothing} {tp}; its floor is {floor}, and [{floor}, {end}) is not read yet{again}."


def waiting_sentence(holder: HeldBy, now: datetime, next_run: str = NEXT_RUN) -> str:
    """Returns what the pending offset waits for, as a clause that ends a sentence."""
    cause = f" with {holder.error_class}" if holder.error_class else ""
    if holder.kind is PendingKind.DEAD_LETTER:
        return (
            f"offset {holder.offset} has no attempt left after {counted(holder.attempts, 'attempt')}{cause}, and the "
            f"broker has not acknowledged its dead letter yet; each run sends it again."
        )
    if holder.kind is PendingKind.IN_FLIGHT:
        until = f" until {moment_text(holder.due, now)}" if holder.due else ""
        return f"offset {holder.offset} is in flight and waits for its answer{until}."
    if holder.kind is PendingKind.HELD_BACK and holder.behind is not None:
        first = f"offset {holder.behind.offset}"
        of = "the same key" if holder.same_key else "the partition"
        clause = waiting_sentence(holder.behind, now, next_run).removeprefix(f"{first} ")
        return f"offset {holder.offset} waits behind {first} of {of}, which {clause}"
    if holder.kind is PendingKind.HELD_BACK:
        return f"offset {holder.offset} was held back by a lower one that is settled now; {next_run} reads it."
    if not holder.attempts:
        return f"offset {holder.offset} waits for its first attempt, which {next_run} makes."
    due = ""
    if holder.due is not None:
        moment = moment_text(holder.due, now)
        due = f", due since {moment}: {next_run} makes it" if holder.due <= now else f", due at {moment}"
    return (
        f"offset {holder.offset} failed {times_text(holder.attempts)}{cause} and waits for attempt "
        f"{holder.attempts + 1}{due}."
    )


def _retention_sentence(evidence: PartitionEvidence) -> str:
    floor, start, end = evidence.floor, evidence.log_start, evidence.log_end
    floor = floor if evidence.first_at_risk is None else evidence.first_at_risk
    if start is None or end is None or (floor >= end and evidence.open_transaction is None):
        return ""
    if start > floor:
        return f"The log starts at {start}: {evidence.next_run} settles what is gone below it as expired."
    if evidence.next_expiry is None:
        return f"The log starts at {start}; no time is known at which retention takes offset {floor}."
    moment = moment_text(evidence.next_expiry, evidence.now)
    if evidence.next_expiry <= evidence.now:
        return f"Retention may take offset {floor} at any moment, since {moment}."
    return f"Retention may take offset {floor} from {moment} on."


def times_text(number: int) -> str:
    """Returns `once`, `2 times` and so on."""
    return "once" if number == 1 else f"{number} times"


def moment_text(time: datetime, now: datetime) -> str:
    """Returns a time with its distance from now: `2026-03-01 12:00:00 UTC (in 5 minutes)`."""
    away = time - now
    text = f"{time:%Y-%m-%d %H:%M:%S} UTC"
    if abs(away) >= _CALENDAR:
        return text
    return f"{text} ({'in ' if away > timedelta() else ''}{span(abs(away))}{'' if away > timedelta() else ' ago'})"


def span(duration: timedelta) -> str:
    """Returns a duration in its largest whole unit, such as `5 minutes`."""
    seconds = int(duration.total_seconds())
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}s"
    return counted(seconds, "second")


@dataclass(frozen=True, slots=True)
class StepStory:
    """The tuples of one record at one step. A tuple that was skipped is in none of the numbers."""

    acked: int
    failed: int
    missing: int
    """Tuples that were sent to the step, and that it neither acked nor failed: a join held them, or they got lost."""

    @property
    def count(self) -> int:
        """How many tuples the step got, without those that were skipped."""
        return self.acked + self.failed + self.missing


Story = Mapping[str, StepStory]
"""By step, in the order of the pipeline file; only the steps that a tuple of the record has reached."""


def encode_story(steps: Iterable[tuple[str, StepStory]]) -> str:
    """Returns the steps as the text that the tables hold. Leaves out each step that no tuple has reached."""
    return stored.encode({name: step for name, step in steps if step.count})


def decode_story(text: str | None) -> Story | None:
    """Returns the story in a text of the tables; None without a text, and if it is damaged."""
    return stored.decode_or_none(text, dict[str, StepStory])


def story_json(story: Story | None) -> dict[str, dict[str, int]] | None:
    """Returns the story as `ackline explain --json` prints it."""
    return None if story is None else {name: asdict(step) for name, step in story.items()}


def story_text(story: Story) -> str:
    """Returns the story in words, such as `of its 5 tuples at price 3 were acked, 1 failed, 1 is missing`."""
    return "; ".join(_step_text(name, step) for name, step in story.items()) or "no step got a tuple of it"


def _step_text(name: str, step: StepStory) -> str:
    count = step.count
    if count == step.acked:
        return f"its tuple at {name} was acked" if count == 1 else f"all of its {count} tuples at {name} were acked"
    if count == 1:
        return f"its tuple at {name} {'failed' if step.failed else 'is missing'}"
    acked = f"{step.acked} {'was' if step.acked == 1 else 'were'} acked" if step.acked else ""
    failed = f"{step.failed} failed" if step.failed else ""
    missing = f"{step.missing} {'is' if step.missing == 1 else 'are'} missing" if step.missing else ""
    return f"of its {count} tuples at {name} {', '.join(filter(None, [acked, failed, missing]))}"


class OffsetState(StrEnum):
    """The states of an offset that are no outcome. An offset with a terminal outcome has that as its state."""

    PENDING = "pending"
    NOT_READ = "not yet read"
    GAP = "gap"
    WITHOUT_ROW = "settled without a row"
    """The turn that settled it stored no rows of what succeeded (`record_outcomes: false`)."""
    BELOW_START = "below the start"
    NOT_CHOSEN = "not chosen"
    """The lane of a backfill was not to read it."""
    NOT_IN_LANE = "not in the lane"
    UNEXPLAINED = "unexplained"
    """It is below `complete_to`, and neither a row nor a plan accounts for it."""


@dataclass(frozen=True, slots=True)
class Event:
    """An effective row of the audit table for an offset: an attempt, or a decision (attempt 0)."""

    epoch: int
    turn: int
    attempt: int
    outcome: Outcome
    error_class: str | None
    error_message: str | None
    at: datetime | None
    run_id: str
    range: OffsetRange | None = None
    """The offsets of the decision, if it was made for a whole range."""
    tree: Story | None = None
    """What became of the record's tuples; None of an acked attempt, and without steps."""
    letter: str | None = None
    """Of the decision that the record is dead: where its dead letter is, as TOPIC[PARTITION] OFFSET."""
    error_place: str | None = None
    """Of a failed attempt: the line of the handler's code that failed."""

    @property
    def cause(self) -> str:
        """What went wrong, and where; empty if nothing did."""
        at = f" at {self.error_place}" if self.error_place else ""
        return ": ".join(filter(None, [f"{self.error_class or ''}{at}".strip(), self.error_message]))


@dataclass(frozen=True, slots=True)
class Reading:
    """A turn whose plan has the offset, in its fresh range or among its retries."""

    epoch: int
    turn: int
    run_id: str
    planned_at: datetime
    stores_rows: bool
    """Whether the turn stores a row of each outcome."""


@dataclass(frozen=True, slots=True)
class OffsetEvidence:
    """What the tables and the broker hold about one offset of a lane."""

    tp: TopicPartition
    offset: int
    lane: str
    epoch: int
    state: PartitionState | None
    """The partition after the newest settlement; None if the lane does not have it."""
    events: Sequence[Event]
    """Of all epochs, in time order."""
    read_by: Reading | None
    """The newest effective turn that had the offset in its fresh range."""
    open_turn: Reading | None
    """The open turn, if its plan has the offset."""
    start: int | None
    """Where the partition begins in the newest epoch."""
    chosen_ranges_only: bool = False
    """Whether the lane reads chosen ranges, as the lane of a backfill does."""
    log: LogBounds | None = None
    """The readable log now; None if it is not known."""
    next_run: str = NEXT_RUN
    new_code: str | None = None
    """The code of the turn of the first failure, if that turn was the first one with this code; otherwise None."""
    acked_by: tuple[str, datetime] | None = None
    """The backfill that has acked the offset since, and when."""


@dataclass(frozen=True, slots=True)
class OffsetExplanation:
    """What became of an offset. `state` is an OffsetState or a terminal outcome."""

    offset: int
    state: str
    events: Sequence[Event]
    sentence: str
    attempts: int
    pending: Pending | None = None


def attempt_sentence(event: Event) -> str:
    """Returns what became of an attempt and of its tuples, in a pipeline with steps; empty for a decision.

    The row names the step as the first words of its message. A row of an earlier version has no tree.
    """
    words = {
        Outcome.ACKED: "was acked" if event.tree is not None else "was acked: all of its tuples were",
        Outcome.FAILED: "failed",
        Outcome.DROPPED: "failed and was dropped",
        Outcome.SKIPPED: "was skipped",
        Outcome.IN_FLIGHT: "is in flight",
    }
    if not event.attempt or event.outcome not in words:
        return ""
    message = event.error_message or ""
    step = message.removeprefix("step ").partition(":")[0] if message.startswith("step ") else SOURCE
    # The answer from outside, or its lack, has ended such an attempt: this row names no step.
    of_answer = event.error_class in (ErrorClass.ACK_FAILED, ErrorClass.ACK_TIMEOUT) or message == SKIPPED_IN_TREE
    place = "" if of_answer else f" in step {step}"
    if event.outcome is Outcome.IN_FLIGHT:
        place = f", and was skipped{place}"
    cause = f"{place}: {event.error_class}" if event.error_class else ""
    story = f"; {story_text(event.tree)}" if event.tree is not None else ""
    return f"Attempt {event.attempt} {words[event.outcome]}{cause}{story}."


def first_failure(events: Sequence[Event]) -> Event | None:
    """Returns the first attempt that failed, in the newest epoch of these events; None if none did."""
    of = (Outcome.FAILED, Outcome.DROPPED)
    return next((e for e in events if e.attempt and e.outcome in of and e.epoch == events[-1].epoch), None)


def pending_at(state: PartitionState, offset: int) -> Pending | None:
    """Returns the state of a pending offset; None if it is not pending."""
    index = int(index_of_range(np.array([offset], dtype=np.int64), state.pending.ranges)[0])
    return state.pending[index].value if index >= 0 else None


def explain_offset(evidence: OffsetEvidence, now: datetime) -> OffsetExplanation:
    """Returns what became of an offset."""
    state, pending, sentence = _state_of(evidence, now)
    last = evidence.events[-1].epoch if evidence.events else evidence.epoch
    attempts = max((event.attempt for event in evidence.events if event.epoch == last), default=0)
    failed = first_failure(evidence.events)
    deploy = ""
    if failed is not None and evidence.new_code is not None:
        deploy = f" Its failure was first seen in turn {failed.turn}, the first with code {evidence.new_code}."
    text = f"Offset {evidence.offset} of {evidence.tp} {sentence}{deploy}"
    return OffsetExplanation(evidence.offset, state, evidence.events, text, attempts, pending)


def _state_of(evidence: OffsetEvidence, now: datetime) -> tuple[str, Pending | None, str]:
    """Returns the state of the offset, its pending state, and the sentence without its subject."""
    state = evidence.state
    if state is None:
        return OffsetState.NOT_IN_LANE, None, f"is not in the lane {evidence.lane}: it does not have this partition."
    pending = pending_at(state, evidence.offset)
    if pending is not None:
        holder = _holder(state, evidence.offset)
        clause = waiting_sentence(holder, now, evidence.next_run).removeprefix(f"offset {evidence.offset} ")
        reading = evidence.open_turn
        made = f" Turn {reading.turn}, which is open, makes it." if reading else ""
        places = [event.error_place for event in evidence.events if event.outcome is Outcome.FAILED]
        failed = f" The last attempt failed at {places[-1]}." if places and places[-1] else ""
        copy = f" {_copy_sentence(holder)}".rstrip()
        return OffsetState.PENDING, replace(pending, due=holder.due), clause + failed + made + copy
    if evidence.offset >= state.complete_to:
        return OffsetState.NOT_READ, None, _unread_sentence(evidence, state, now)
    settled, sentence = _settled_state(evidence)
    return settled, None, sentence


def _unread_sentence(evidence: OffsetEvidence, state: PartitionState, now: datetime) -> str:
    log, terminal = evidence.log, _terminal(evidence.events)
    before = f" Epoch {terminal.epoch} settled it as {terminal.outcome}." if terminal else ""
    if evidence.open_turn is not None:
        reading = evidence.open_turn
        return f"is in turn {reading.turn}, which run {reading.run_id} has planned and no run has settled yet.{before}"
    if log is not None and log.end <= evidence.offset < log.high_watermark:
        held = OpenTransaction(None, log.open_transaction).sentence(log.end, now)
        return f"is not readable yet. {held}{before}"
    if log is not None and evidence.offset >= log.end:
        return f"is not written yet: the log ends at {log.high_watermark}.{before}"
    if log is not None and evidence.offset < log.start:
        return f"is not read, and retention has taken it: {evidence.next_run} settles it as expired.{before}"
    return f"is not read yet: the lane has read everything below {state.complete_to}.{before}"


def _settled_state(evidence: OffsetEvidence) -> tuple[str, str]:
    """Returns the state of an offset below `complete_to` that is not pending, and the sentence without its subject.

    The newest epoch decides. Below its start, what an earlier epoch has done still holds.
    """
    for epoch in range(evidence.epoch, -1, -1):
        events = [event for event in evidence.events if event.epoch == epoch]
        terminal = _terminal(events)
        if terminal is not None:
            return terminal.outcome.value, _terminal_sentence(evidence, events, terminal)
        reading = evidence.read_by
        if reading is not None and reading.epoch == epoch and not (events and reading.stores_rows):
            if reading.stores_rows:
                return OffsetState.GAP, (
                    f"holds no record: turn {reading.turn} has read past it. It was compacted, belongs to an aborted "
                    f"transaction, or is a transaction marker."
                )
            return OffsetState.WITHOUT_ROW, (
                f"was settled by turn {reading.turn}, which stored no rows of what succeeded (`record_outcomes: "
                f"false`): it was acked or skipped, or holds no record."
            )
    if evidence.start is not None and evidence.offset < evidence.start:
        return OffsetState.BELOW_START, f"is below {evidence.start}, where epoch {evidence.epoch} of the lane begins."
    if evidence.chosen_ranges_only:
        return OffsetState.NOT_CHOSEN, f"is in no range that the lane {evidence.lane} was to read."
    return OffsetState.UNEXPLAINED, (
        "is below what the lane has read, and neither a row nor a plan accounts for it. Check the ledger with "
        "`python -m ackline.verify`."
    )


def _terminal_sentence(evidence: OffsetEvidence, events: Sequence[Event], terminal: Event) -> str:
    attempts = max((event.attempt for event in events), default=0)
    failures = [event for event in events if event.outcome is Outcome.FAILED]
    what = {
        Outcome.ACKED: f"was acked at attempt {terminal.attempt}",
        Outcome.DEAD: f"is dead after {counted(attempts, 'attempt')}",
        Outcome.SKIPPED: "was skipped" + (" by the handler" if terminal.attempt else ""),
        Outcome.DROPPED: "failed and was dropped, as the guarantee wants it",
        Outcome.EXPIRED: "is expired: retention took it first",
        Outcome.COMPACTED: "was compacted before its retry",
        Outcome.LOST: "is lost: it was handed out, and no outcome was ever stored",
    }[terminal.outcome]
    # The message of a dead row is the number of attempts. The reason is that of the last attempt, if its row is there.
    last = failures[-1] if failures and failures[-1].error_class else replace(terminal, error_message=None)
    by_failure = terminal.outcome is Outcome.DEAD or (failures and not terminal.error_class)
    detail = last if by_failure else terminal
    cause = f" ({detail.cause})" if detail.cause else ""
    in_range = f", with all of {terminal.range}" if terminal.range else ""
    epoch = "" if terminal.epoch == evidence.epoch else f" of epoch {terminal.epoch}"
    at = f" on {terminal.at:%Y-%m-%d at %H:%M:%S} UTC" if terminal.at else ""
    since = ""
    if evidence.acked_by is not None:
        since = f" Backfill {evidence.acked_by[0]} acked it on {evidence.acked_by[1]:%Y-%m-%d at %H:%M:%S} UTC."
    return f"{what}{cause}{in_range}. Turn {terminal.turn}{epoch} settled it{at}.{since}"


def _terminal(events: Sequence[Event]) -> Event | None:
    return next((event for event in reversed(events) if event.outcome.terminal), None)
