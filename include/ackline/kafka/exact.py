"""Exact reads: reads given offsets and nothing else, and fetches as little of the log as Kafka allows.

The reader answers every wanted offset exactly once, and never by inference. A record is `Found`. An offset is `Gone` if
the log starts above it, or if the reader started at or below it and got a later record or the end of the partition.
Anything else (no record comes, a batch can't be decoded) is an error.

The least that Kafka hands out is one producer batch. The reader seeks offsets that are far apart one by one, a batch
each; it reads through offsets that are close together, and through long close stretches with a client set up for
throughput.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import pairwise

from ackline.kafka.clients import Closing
from ackline.kafka.cluster import Cluster
from ackline.kafka.fetching import Cursor, Fetcher, Found, Gone, beyond_end
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome

__all__ = ["TIMEOUT", "ExactReader", "Found", "Gone", "read_exactly"]

TIMEOUT = 120.0
"""Seconds without any progress after which a read fails: as long as Spark's source waits. A quota may make a reader
wait for a minute and more."""


class ExactReader(Closing):
    """Reads given offsets. Close it, or use it as a context manager."""

    def __init__(self, config: Mapping[str, object], isolation: str, *, timeout: float = TIMEOUT) -> None:
        self._config = config
        self._isolation = isolation
        self._timeout = timeout
        self._cluster = Cluster(config, isolation)
        self._fetchers: dict[bool, Fetcher] = {}

    def close(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._cluster.close()

    @property
    def delivered(self) -> int:
        """Records received so far, including those that were passed over. Call it between reads, while open.

        Records of a batch before the requested position are not counted here, but in `received_bytes`.
        """
        return sum(fetcher.refreshed_statistics().records for fetcher in self._fetchers.values())

    @property
    def received_bytes(self) -> int:
        """Bytes received from the brokers so far. Call it between reads, while open."""
        return sum(fetcher.refreshed_statistics().bytes for fetcher in self._fetchers.values())

    def read(self, wanted: Mapping[TopicPartition, Sequence[int]]) -> Generator[Found | Gone]:
        """Yields one answer for each offset of `wanted` (ascending in each partition), in order within its partition.

        Lazy, with bounded memory; partitions alternate. Raises FatalError for an offset beyond the log's end (the last
        stable offset under read_committed) and for a batch that can't be decoded, TransientError if nothing comes for
        the time-out. Answers that were yielded before an error stay true.
        """
        cursors = [Cursor(tp, offsets, stop=len(offsets)) for tp, offsets in sorted(wanted.items()) if offsets]
        for cursor in cursors:
            if cursor.wanted[0] < 0 or any(before >= after for before, after in pairwise(cursor.wanted)):
                raise ValueError(f"offsets of {cursor.tp} are not ascending")
        bounds = self._cluster.bounds(cursor.tp for cursor in cursors)
        for cursor in cursors:
            end = bounds[cursor.tp].end
            if cursor.wanted[-1] >= end:
                raise beyond_end(cursor.tp, cursor.wanted[-1], end)
        for cursor in cursors:
            yield from cursor.gone_below(bounds[cursor.tp].start, Outcome.EXPIRED)
        while remaining := [cursor for cursor in cursors if not cursor.all_answered]:
            by_density: dict[bool, list[Cursor]] = {False: [], True: []}
            for cursor in remaining:
                by_density[cursor.choose_stretch()].append(cursor)
            for dense, together in by_density.items():
                if together and dense not in self._fetchers:
                    self._fetchers[dense] = Fetcher(
                        self._config, self._isolation, self._cluster, dense=dense, timeout=self._timeout
                    )
                if together:
                    yield from self._fetchers[dense].read(together)


def read_exactly(
    config: Mapping[str, object], isolation: str, wanted: Mapping[TopicPartition, Sequence[int]]
) -> Iterator[Found | Gone]:
    """Yields one answer for each offset of `wanted`, as `ExactReader.read` does, with a reader of its own."""
    with ExactReader(config, isolation) as reader:
        yield from reader.read(wanted)
