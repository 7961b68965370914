"""Listeners: a class of the user whose methods Ackline calls after something has become durable, once for each batch.

Name the class in the pipeline file, `listener: module:Class`. Each process that opens the pipeline (each task of a DAG,
replay's driver, each command) creates it without arguments, in a thread of its own, and calls it in that thread only.

A listener cannot break a run. Its arguments are copies. Ackline logs what it raises, and stops calling it if it takes
longer than 30 seconds for an event. Only code that ends the process (`os._exit`) ends the run.

An event may come twice. If a process dies between the write and the call, the event does not come at all. Totals
belong to the tables, not to a listener.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ackline.ledger.commit_rule import Committed
    from ackline.ledger.offsets import TopicPartition
    from ackline.ledger.turns import Plan, SettledPartition, TurnId

Offsets = Mapping["TopicPartition", Sequence[int]]
"""The offsets that an event is about, by topic-partition."""


class Listener:
    """Base class of listeners. Override the methods of the events that you need; the others do nothing.

    A listener that counts dead records::

        class CountDead(Listener):
            def on_dead(self, turn: TurnId, offsets: Offsets) -> None:
                statsd.incr("orders.dead", sum(len(numbers) for numbers in offsets.values()))
    """

    def on_open(self, pipeline: str, run_id: str) -> None:
        """A step or command has opened the pipeline."""

    def on_planned(self, plan: "Plan") -> None:
        """This process has stored a plan. Not called for an open plan that it adopts."""

    def on_handled(self, turn: "TurnId", counts: "Mapping[TopicPartition, Mapping[str, int]]") -> None:
        """This process has stored the outcomes of a turn; `counts` are the records by outcome.

        They count once the turn is settled. If the turn becomes void instead, its records are handled again.
        """

    def on_acked(self, turn: "TurnId", counts: "Mapping[TopicPartition, int]") -> None:
        """A turn was settled that acked records; `counts` are the acked records."""

    def on_retry(self, turn: "TurnId", offsets: Offsets) -> None:
        """A turn was settled in which the records at `offsets` failed and get another attempt.

        Records whose dead letter is not acknowledged yet are not among them.
        """

    def on_dead(self, turn: "TurnId", offsets: Offsets) -> None:
        """A turn was settled that gave up the records at `offsets`. The broker has acknowledged their dead letters,
        unless the pipeline file has `dead_letter: none`."""

    def on_expired(self, turn: "TurnId", ranges: "Mapping[TopicPartition, Sequence[tuple[int, int]]]") -> None:
        """A turn was settled whose records in `ranges`, as pairs (start, end) with an exclusive end, retention had
        removed."""

    def on_partitions_changed(self, partitions: "Mapping[TopicPartition, SettledPartition]") -> None:
        """Partitions have joined the lane; the values hold the offsets where they start."""

    def on_committed(self, committed: "Mapping[TopicPartition, Committed]") -> None:
        """The group's offsets were committed and read back."""

    def on_close(self) -> None:
        """The step or command ends."""
