"""What the handlers of a tree get and yield: `Tuple`, `Emit`, `Fail`, `Hold` and `InFlight`.

A record is the root of a tree. Its handler is the first step, named `source`. What a step yields goes to the steps that
take that stream as their input, and each of these tuples is acked or failed in turn. A record is acked once its whole
tree is. Storm's words are the same: anchoring, ack, fail.

Nothing here needs Spark. `ackline.pipeline.topology` holds the steps of a pipeline.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

SOURCE = "source"
"""The name of the first step: the handler of the pipeline file."""
DEFAULT_STREAM = "default"
"""The stream of what is emitted without naming one."""


class Origin(NamedTuple):
    """The record that a tuple comes from."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Tuple:
    """One tuple, as the handler of a step gets it. It can't be changed, and is equal only to itself.

    `value` and `key` are what was emitted. `stream` is the stream and `step` the step that it was emitted by. `origins`
    are the records that it is anchored to, directly or through other tuples, in the order of topic, partition and
    offset; none for a tuple that is not tracked.
    """

    value: Any
    key: Any
    stream: str
    step: str
    origins: tuple[Origin, ...]


class _MutableTuple:
    """A `Tuple` before its class is set."""

    __slots__ = Tuple.__slots__

    def __init__(self, value: Any, key: Any, stream: str, step: str, origins: tuple[Origin, ...]) -> None:
        self.value = value
        self.key = key
        self.stream = stream
        self.step = step
        self.origins = origins


def new_tuple(value: Any, key: Any, stream: str, step: str, origins: tuple[Origin, ...]) -> Tuple:
    """Returns a tuple. The constructor of a frozen dataclass takes three times as long."""
    made: Any = _MutableTuple(value, key, stream, step, origins)
    made.__class__ = Tuple
    return made  # type: ignore[no-any-return]


# Not frozen, because a handler makes one for each tuple, and a frozen object takes three times as long. It is read when
# it is yielded, so a later change has no effect.
@dataclass(slots=True, eq=False)
class Emit:
    """Yielded by a step: a new tuple.

    `value` and `key` hold what JSON holds, bytes, datetime and Decimal. `anchors` are those inputs of the call that the
    new tuple belongs to: a record is acked only after each tuple that is anchored to it. Left out, they are all inputs
    of the call. With `()` no record waits for the tuple::

        yield Emit(item, stream="items", key=item["product"])
    """

    value: Any
    stream: str = DEFAULT_STREAM
    key: Any = None
    anchors: Iterable[Any] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Fail:
    """Yielded by a join: this input failed, and with it each record that it comes from. The others are not affected."""

    tuple: Tuple
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """Yielded by a join: this input is not acked. Its records fail as `Unacked`, so they are tried again."""

    tuple: Tuple


@dataclass(frozen=True, slots=True)
class InFlight:
    """Returned or yielded by the handler of the pipeline, once for a record: an answer from outside settles the record.

    The record holds the floor until an answer with its token acks or fails it, and its own tree is complete.
    Without an answer within `timeout` it fails as `AckTimeout`. It is a timedelta, or a text as in the pipeline file,
    such as `30s` or `1h30m`; None means the timeout of the pipeline file.
    """

    timeout: timedelta | str | None = None


@dataclass(slots=True)
class Durations:
    """How many measured spans there were, with their sum and the longest one, both in nanoseconds."""

    count: int = 0
    total: int = 0
    longest: int = 0

    def measure(self, nanoseconds: int) -> None:
        """Adds one span."""
        self.count += 1
        self.total += nanoseconds
        if nanoseconds > self.longest:
            self.longest = nanoseconds

    def add(self, other: "Durations") -> None:
        """Adds the spans that another task has measured."""
        self.count += other.count
        self.total += other.total
        self.longest = max(self.longest, other.longest)


@dataclass(slots=True)
class StepCounts:
    """What the handler of a step did, in one task or in all of them.

    Of `source`, `acked` and `failed` count records, whose trees are complete or failed; in one task they are 0.
    """

    executed: int = 0
    """Tuples that it was given."""
    emitted: int = 0
    acked: int = 0
    failed: int = 0
    execute: Durations = field(default_factory=Durations)
    """The calls of the handler. A call of a join takes all tuples of a key, so it may have fewer calls than tuples."""

    def numbers(self) -> dict[str, int]:
        """Returns the counts by name."""
        return {"executed": self.executed, "emitted": self.emitted, "acked": self.acked, "failed": self.failed}

    def add(self, other: "StepCounts") -> None:
        """Adds what another task did."""
        self.executed += other.executed
        self.emitted += other.emitted
        self.acked += other.acked
        self.failed += other.failed
        self.execute.add(other.execute)
