"""A file of outcomes as a Spark task reports it to the driver."""

from dataclasses import dataclass

from ackline.outcome import Outcome


@dataclass(slots=True)
class WrittenFile:
    """A file of outcomes, with what an `AddAction` of the Delta log needs.

    `path` is relative to the table's root. `modification_time` is in milliseconds since 1970. `stats` is Delta's JSON.
    """

    path: str
    size: int
    rows: int
    outcome: Outcome
    stats: str
    modification_time: int
