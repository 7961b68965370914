"""Logs the edges of sampled records, for `debug: {sample: …}` in the pipeline file.

A line names steps, stream, record, attempt and edge. It holds no key, no value and no error message.
"""

import logging
from collections.abc import Sequence

from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.spark.handlers.outcomes import RowOutcome
from ackline.spark.settings import TaskSettings
from ackline.spark.trees.edges import MASK, root_id, seed_of
from ackline.spark.trees.rows import Edges, Root
from ackline.topology import Stream
from ackline.tuples import Tuple

_WORDS = {Outcome.FAILED: "failed", Outcome.SKIPPED: "skipped"}
log = logging.getLogger(__name__)


class EdgeLog:
    """The log of one task.

    The id of its root decides whether an attempt at a record is logged. It is the same in each task, so either all
    edges of the attempt are logged or none.
    """

    def __init__(self, sample: float, settings: TaskSettings) -> None:
        self._limit = sample * (MASK + 1)
        self._tps: Sequence[TopicPartition] = settings.topic_partitions
        self._seeds = [seed_of(settings.target.turn, tp) for tp in self._tps]
        _write_to_stderr()

    def emitted(self, stream: Stream, to: str, edges: Edges) -> None:
        """Logs that a tuple of `stream` goes to the step `to`."""
        self._log(str(stream), to, edges, "emitted")

    def closed(self, given: Tuple, step: str, edges: Edges, outcome: RowOutcome | None, held: bool = False) -> None:
        """Logs what a step made of a tuple; `outcome` is None if it acked or held the tuple."""
        word = "held" if held else "acked"
        if outcome is not None:
            word = f"{_WORDS.get(outcome.outcome, outcome.outcome.value)} ({outcome.error_class})"
        self._log(str(Stream(given.step, given.stream)), step, edges, word)

    def _log(self, stream: str, to: str, edges: Edges, word: str) -> None:
        for root, edge in edges:
            if self._is_sampled(root):
                tp, offset, attempt = self._tps[root.tp], root.offset, root.attempt
                log.info(
                    "%s offset %d attempt %d: %s -> %s %s, edge %016x", tp, offset, attempt, stream, to, word, edge
                )

    def _is_sampled(self, root: Root) -> bool:
        return root_id(self._seeds[root.tp], root.offset, root.attempt) < self._limit


def edge_log_of(settings: TaskSettings) -> EdgeLog | None:
    """Returns the log of a task; None if the pipeline file does not have it on."""
    return None if settings.replay.debug_sample is None else EdgeLog(settings.replay.debug_sample, settings)


def _write_to_stderr() -> None:
    """Makes this log write to the task's standard error: in a Python worker of Spark nothing has set up logging."""
    log.setLevel(logging.INFO)
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.addHandler(handler)
