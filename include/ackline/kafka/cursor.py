"""Which wanted offsets of a partition are answered, and what an event of the log proves about the others;
pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

from confluent_kafka import Message

from ackline.offsets import TopicPartition
from ackline.outcome import Outcome

READ_ON = 48
"""Up to so many offsets ahead a reader reads on: it passes no more records than a seek would fetch on
average."""
DENSE = 50_000
"""Offsets a close stretch must span to be read for throughput; what that fetches too much is little beside
it."""


Headers = list[tuple[str, bytes | None]]

# Always pairs of name and bytes from a consumer, whatever the stubs allow. Not called as a method is: the interpreter,
# once warm, does not look there whether a call has failed, and the client returns its broken answer all the same.
_headers: Callable[[Message], Any] = methodcaller("headers")


def headers_of(message: Message) -> Headers | None:
    """A record's headers in their order; a name may repeat. None where a name is not UTF-8: the client can't tell any.

    To be asked once: after such an answer the client's next one takes the process down.
    """
    try:
        given = _headers(message)
    except (SystemError, UnicodeError):
        return None
    return list(given or ())


@dataclass(frozen=True, slots=True)
class Found:
    """A wanted record."""

    message: Message
    topic_partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class Gone:
    """A wanted offset that provably holds no record (any more): `outcome` is EXPIRED or COMPACTED."""

    topic_partition: TopicPartition
    offset: int
    outcome: Outcome


@dataclass(slots=True)
class Cursor:
    """One partition's ascending wanted offsets: `wanted[:at]` are answered, `wanted[at:stop]` are read at
    present.

    `position` is the next offset that the reader will be given, as far as it can know.
    """

    partition: TopicPartition
    wanted: Sequence[int]
    at: int = 0
    stop: int = 0
    position: int = 0

    @property
    def next(self) -> int:
        """The lowest offset without an answer."""
        return self.wanted[self.at]

    @property
    def finished(self) -> bool:
        """Whether the present stretch is answered."""
        return self.at >= self.stop

    @property
    def answered(self) -> bool:
        """Whether everything is."""
        return self.at >= len(self.wanted)

    @property
    def far(self) -> bool:
        """Whether the next wanted offset is better sought than read on to."""
        return self.next - self.position > READ_ON

    def aim(self) -> bool:
        """Set `stop` to the end of the next stretch, offsets that one client reads best; True where they are
        dense."""
        start, after, dense = self.at, self._cluster_end(self.at), self._is_dense(self.at)
        while not dense and after < len(self.wanted) and not self._is_dense(after):
            after = self._cluster_end(after)
        self.position, self.stop = self.wanted[start], after
        return dense

    def record(self, message: Message, offset: int) -> Iterator[Found | Gone]:
        """The log's next record, at `offset`: wanted ones below it are proved gone."""
        self.position = offset + 1
        yield from self.gone_below(offset, Outcome.COMPACTED)
        if not self.finished and self.next == offset:
            self.at += 1
            yield Found(message, self.partition, offset)

    def gone_below(self, offset: int, outcome: Outcome) -> Iterator[Gone]:
        """Answer every wanted offset below `offset` with `outcome`."""
        while not self.finished and self.next < offset:
            self.at += 1
            yield Gone(self.partition, self.wanted[self.at - 1], outcome)

    def _cluster_end(self, at: int) -> int:
        end = at + 1
        while end < len(self.wanted) and self.wanted[end] - self.wanted[end - 1] <= READ_ON:
            end += 1
        return end

    def _is_dense(self, at: int) -> bool:
        return self.wanted[self._cluster_end(at) - 1] - self.wanted[at] >= DENSE
