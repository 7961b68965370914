"""Which wanted offsets of a partition are answered, and what the log's next event proves about the others. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

from confluent_kafka import Message

from ackline.offsets import TopicPartition
from ackline.outcome import Outcome

SEEK_DISTANCE = 48
"""A reader seeks an offset farther ahead than this. Up to here it reads on: a seek fetches that many on average."""
DENSE_SPAN = 50_000
"""Offsets that a close stretch must span to be read for throughput. The records fetched beyond it are few beside it."""

Headers = list[tuple[str, bytes | None]]

# A consumer's message always has pairs of name and bytes, although the stubs allow more. Called through methodcaller,
# because the specialised method call of a warm interpreter does not check whether the call has failed, and the client
# then returns its broken answer all the same.
_headers: Callable[[Message], Any] = methodcaller("headers")


def headers_of(message: Message) -> Headers | None:
    """Returns a record's headers in their order; a name may repeat. None if a name is not UTF-8: the client then gives
    no header at all.

    Call it once for each message: after such a failure the client's next answer ends the process.
    """
    try:
        headers = _headers(message)
    except (SystemError, UnicodeError):
        return None
    return list(headers or ())


@dataclass(frozen=True, slots=True)
class Found:
    """A wanted offset and its record."""

    message: Message
    topic_partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class Gone:
    """A wanted offset that is proved to hold no record: retention (EXPIRED) or compaction (COMPACTED) removed it."""

    topic_partition: TopicPartition
    offset: int
    outcome: Outcome


@dataclass(slots=True)
class Cursor:
    """One partition's ascending wanted offsets and how far they are answered.

    `wanted[:index]` are answered; `wanted[index:stop]` are the stretch that is being read. `position` is the next
    offset that the client hands out, as far as the reader can tell.
    """

    tp: TopicPartition
    wanted: Sequence[int]
    index: int = 0
    stop: int = 0
    position: int = 0

    @property
    def next(self) -> int:
        """The lowest offset without an answer."""
        return self.wanted[self.index]

    @property
    def stretch_answered(self) -> bool:
        """Whether each offset of the present stretch is answered."""
        return self.index >= self.stop

    @property
    def all_answered(self) -> bool:
        """Whether each wanted offset is answered."""
        return self.index >= len(self.wanted)

    @property
    def must_seek(self) -> bool:
        """Whether a seek to the next wanted offset costs less than reading on to it."""
        return self.next - self.position > SEEK_DISTANCE

    def choose_stretch(self) -> bool:
        """Sets `stop` to the end of the next stretch: offsets that one kind of client reads best. Returns whether they
        are dense."""
        stop, dense = self._cluster_end(self.index), self._is_dense(self.index)
        while not dense and stop < len(self.wanted) and not self._is_dense(stop):
            stop = self._cluster_end(stop)
        self.position, self.stop = self.next, stop
        return dense

    def on_record(self, message: Message, offset: int) -> Iterator[Found | Gone]:
        """Yields the answers that the log's next record, at `offset`, proves: wanted offsets below it are gone."""
        self.position = offset + 1
        yield from self.gone_below(offset, Outcome.COMPACTED)
        if not self.stretch_answered and self.next == offset:
            self.index += 1
            yield Found(message, self.tp, offset)

    def gone_below(self, offset: int, outcome: Outcome) -> Iterator[Gone]:
        """Yields `outcome` as the answer to each wanted offset of the stretch below `offset`."""
        while not self.stretch_answered and self.next < offset:
            self.index += 1
            yield Gone(self.tp, self.wanted[self.index - 1], outcome)

    def _cluster_end(self, index: int) -> int:
        """The index after the last offset that is reached from `wanted[index]` without a seek."""
        end = index + 1
        while end < len(self.wanted) and self.wanted[end] - self.wanted[end - 1] <= SEEK_DISTANCE:
            end += 1
        return end

    def _is_dense(self, index: int) -> bool:
        return self.wanted[self._cluster_end(index) - 1] - self.wanted[index] >= DENSE_SPAN
