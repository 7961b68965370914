"""What the calls of a task count and measure. A call only appends to lists; the end of a batch adds them up."""

from collections.abc import Sequence
from time import perf_counter_ns, time_ns

import numpy as np

from ackline.spark.trees.edge_columns import Resolved
from ackline.spark.trees.packed_events import NOT_BEGUN, Events
from ackline.tuples import SOURCE, Durations, StepCounts


class CallFigures:
    """The figures of one task. `names` are those of the steps, by number; the figures of `source` are at index -1."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = [*names, SOURCE]
        self.counts: dict[str, StepCounts] = {}
        self.latency = Durations()
        """From the call of `source` to the end of the tree, of the acked trees that ended in this task."""
        self._epoch = time_ns() - perf_counter_ns()
        """When the clock of `perf_counter_ns` was 0, in nanoseconds since 1970."""
        self.begin()

    def begin(self) -> None:
        """Begins a batch."""
        self.emitted = [0] * len(self._names)
        """Emitted tuples, by the number of the step."""
        self.calls = [0] * len(self._names)
        """Tuples that a handler got one by one, by the number of the step."""
        self.spans: list[list[int]] = [[] for _ in self._names]
        """How long each call took in nanoseconds, by the number of the step."""
        self.source_calls: list[tuple[int, int, int]] = []
        """Of each call that made a tree: the number of its edge, when it began, and when its tuples were delivered."""

    def of_step(self, number: int) -> StepCounts:
        """Returns the counts of a step."""
        return self.counts.setdefault(self._names[number], StepCounts())

    def add_up(self, events: Events, resolved: Resolved) -> None:
        """Adds up what the batch has counted and measured."""
        self._measure_trees(events, resolved)
        for number, (calls, spans) in enumerate(zip(self.calls, self.spans, strict=True)):
            if calls or spans:
                counts = self.of_step(number)
                counts.emitted += self.emitted[number]
                counts.executed += calls
                counts.acked += calls
                if spans:
                    counts.execute.add(Durations(len(spans), sum(spans), max(spans)))

    def _measure_trees(self, events: Events, resolved: Resolved) -> None:
        """Measures the trees that ended in this task. The event of any other tree holds when the tree began, so that
        the acker can measure it, perhaps on another machine."""
        if not self.source_calls:
            return
        calls = np.array(self.source_calls, np.int64)
        roots = resolved.root_of[calls[:, 0]]
        has_note = np.zeros(len(events), np.bool_)
        has_note[[*events.notes, *events.dues]] = True  # a record in flight is not complete in its turn
        ended = events.complete[roots]
        events.rows["begun"][roots] = np.where(ended, NOT_BEGUN, self._epoch + calls[:, 1])
        times = (calls[:, 2] - calls[:, 1])[ended & ~has_note[roots]]
        if len(times):
            self.latency.add(Durations(len(times), int(times.sum()), int(times.max())))
