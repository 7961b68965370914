"""Retries in a Spark task: which offsets one task reads, and the rows that its exact read brings."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Message

from ackline.errors import FatalError
from ackline.kafka.cursor import headers_of
from ackline.kafka.exact import ExactReader, Found, Gone
from ackline.offsets import Run, Runs, TopicPartition
from ackline.outcome import Outcome
from ackline.spark.records import Headers, Records, from_messages

Wanted = Mapping[TopicPartition, Runs[int]]
"""Offsets that one task reads, with the number of the attempt to be made."""

# A task costs some tens of milliseconds for its connection; more offsets than this are worth another one.
_OFFSETS_A_TASK = 500
_TASKS_A_CORE = 4
_BATCH_ROWS = 1000
_BATCH_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class GoneRows:
    """Wanted offsets that the log does not hold any more."""

    tp: TopicPartition
    offsets: Sequence[int]
    outcome: Outcome


def chunks(retries: Wanted, cores: int) -> list[Wanted]:
    """`retries` in parts of about equal size, each a stretch of the log, for tasks on so many cores."""
    total = sum(len(run) for runs in retries.values() for run in runs)
    wanted = max(1, min(-(-total // _OFFSETS_A_TASK), cores * _TASKS_A_CORE))
    size = -(-total // wanted)
    parts: list[dict[TopicPartition, list[Run[int]]]] = []
    room = 0
    for tp, runs in sorted(retries.items()):
        for run in runs:
            start = run.start
            while start < run.end:
                if not room:
                    parts.append({})
                    room = size
                end = min(run.end, start + room)
                parts[-1].setdefault(tp, []).append(Run(start, end, run.value))
                room -= end - start
                start = end
    return [{tp: tuple(runs) for tp, runs in part.items()} for part in parts]


@dataclass(frozen=True, slots=True)
class UnreadableRows:
    """Wanted records whose headers the client can't tell, so that no handler can be given them; here without any."""

    rows: Records

    @property
    def tp(self) -> TopicPartition:
        """Where they are."""
        return self.rows.tp


@dataclass(slots=True)
class _Waiting:
    """Answers about one topic-partition that are not handed on yet: records, or offsets gone alike."""

    attempts: Mapping[int, int]
    messages: list[Message] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)
    readable: bool = True
    size: int = 0
    gone: list[int] = field(default_factory=list)
    outcome: Outcome = Outcome.EXPIRED

    def taken(self, tp: TopicPartition, answer: Found | Gone) -> Iterator[Records | GoneRows | UnreadableRows]:
        """Keep `answer`; hands on what was kept when that is enough, or of another kind."""
        if isinstance(answer, Gone):
            if self.messages or answer.outcome is not self.outcome:
                yield from self.flush(tp)
            self.outcome = answer.outcome
            self.gone.append(answer.offset)
        else:
            headers = headers_of(answer.message)
            if self.gone or self.readable is not (headers is not None):
                yield from self.flush(tp)
            self.readable = headers is not None
            self.messages.append(answer.message)
            self.headers.append(tuple(headers or ()))
            self.size += len(answer.message.value() or b"") + len(answer.message.key() or b"")
        if len(self.messages) + len(self.gone) >= _BATCH_ROWS or self.size >= _BATCH_BYTES:
            yield from self.flush(tp)

    def flush(self, tp: TopicPartition) -> Iterator[Records | GoneRows | UnreadableRows]:
        """Hand on all that was kept."""
        gone, self.gone = self.gone, []
        messages, self.messages, self.size = self.messages, [], 0
        headers, self.headers = self.headers, []
        if gone:
            yield GoneRows(tp, gone, self.outcome)
        if messages:
            attempts = [self.attempts[message.offset() or 0] for message in messages]
            rows = from_messages(tp, messages, headers, attempts)
            yield rows if self.readable else UnreadableRows(rows)


def exact_rows(
    wanted: Wanted, config: Mapping[str, str], isolation: str, fetched: Callable[[int], None]
) -> Iterator[Records | GoneRows | UnreadableRows]:
    """What `wanted` brings, in the order of offsets within a partition; then tells `fetched` what the broker sent.

    Raises what the exact reader raises, and FatalError where an offset was not answered.
    """
    waiting = {tp: _Waiting(_attempts(runs)) for tp, runs in wanted.items()}
    answered = 0
    with ExactReader(config, isolation) as reader:
        for found in reader.read({tp: list(one.attempts) for tp, one in waiting.items()}):
            answered += 1
            one = waiting[found.topic_partition]
            yield from one.taken(found.topic_partition, found)
        for tp, one in waiting.items():
            yield from one.flush(tp)
        fetched(reader.delivered)
    expected = sum(len(one.attempts) for one in waiting.values())
    if answered != expected:
        raise FatalError(f"{expected} retries were to be read, {answered} were answered")


def _attempts(runs: Runs[int]) -> dict[int, int]:
    return {offset: run.value for run in runs for offset in range(run.start, run.end)}
