"""Exact reads: given offsets, and nothing else, for as little of the log as Kafka lets one fetch.

Every wanted offset is answered exactly once, and never by inference: a record is `Found`; or it is gone
because the log starts above it, or because the reader, having started at or below it, was given a later
record or the end of the partition. Whatever else happens (nothing comes, a batch that can't be decoded) is an
error.

The least that Kafka hands out is one producer batch. Far apart, offsets are sought one by one, a batch each;
close together, they are read through; long close stretches get a client made for throughput.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from ackline.kafka.cluster import Cluster
from ackline.kafka.cursor import Cursor, Found, Gone
from ackline.kafka.fetching import Fetcher, beyond_end
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome

__all__ = ["TIMEOUT", "ExactReader", "Found", "Gone", "read_exactly"]

TIMEOUT = 30.0
"""Seconds without any progress after which a read fails."""


class ExactReader:
    """Reads given offsets. Close it, or use it as a context manager."""

    def __init__(self, config: Mapping[str, object], isolation: str, *, timeout: float = TIMEOUT) -> None:
        self._config = config
        self._isolation = isolation
        self._timeout = timeout
        self._cluster = Cluster(config, isolation)
        self._fetchers: dict[bool, Fetcher] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._cluster.close()

    @property
    def delivered(self) -> int:
        """Records received so far, those passed over included; ask between reads, while open.

        The head of a batch, before the position asked for, is not among them; it is in `received_bytes`.
        """
        for fetcher in self._fetchers.values():
            fetcher.refresh_meter()
        return sum(fetcher.meter.records for fetcher in self._fetchers.values())

    @property
    def received_bytes(self) -> int:
        """Bytes received from brokers so far; ask between reads, while open."""
        for fetcher in self._fetchers.values():
            fetcher.refresh_meter()
        return sum(fetcher.meter.bytes for fetcher in self._fetchers.values())

    def read(self, wanted: Mapping[TopicPartition, Sequence[int]]) -> Iterator[Found | Gone]:
        """Answer each offset of `wanted` (ascending for each partition) once, in order within its partition.

        Lazy, with bounded memory; partitions take turns. Raises FatalError for an offset beyond the log's end
        (the last stable offset under read_committed) and for what can't be decoded, TransientError when
        nothing comes for the time-out. Answers already given stay true.
        """
        cursors = [_cursor(tp, offsets) for tp, offsets in sorted(wanted.items()) if offsets]
        bounds = self._cluster.bounds(cursor.partition for cursor in cursors)
        for cursor in cursors:
            end = bounds[cursor.partition].end
            if cursor.wanted[-1] >= end:
                raise beyond_end(cursor.partition, cursor.wanted[-1], end)
        for cursor in cursors:
            yield from cursor.gone_below(bounds[cursor.partition].start, Outcome.EXPIRED)
        while remaining := [cursor for cursor in cursors if not cursor.answered]:
            turns: dict[bool, list[Cursor]] = {False: [], True: []}
            for cursor in remaining:
                turns[cursor.aim()].append(cursor)
            for dense, together in turns.items():
                if together:
                    yield from self._fetcher(dense).read(together)

    def _fetcher(self, dense: bool) -> Fetcher:
        if dense not in self._fetchers:
            self._fetchers[dense] = Fetcher(
                self._config, self._isolation, self._cluster, dense=dense, timeout=self._timeout
            )
        return self._fetchers[dense]


def _cursor(tp: TopicPartition, wanted: Sequence[int]) -> Cursor:
    if wanted[0] < 0 or any(wanted[i] >= wanted[i + 1] for i in range(len(wanted) - 1)):
        raise ValueError(f"offsets of {tp} are not ascending")
    return Cursor(tp, wanted, stop=len(wanted))


def read_exactly(
    config: Mapping[str, object], isolation: str, wanted: Mapping[TopicPartition, Sequence[int]]
) -> Iterator[Found | Gone]:
    """`ExactReader.read` with a reader of its own."""
    with ExactReader(config, isolation) as reader:
        yield from reader.read(wanted)
