"""How rows are answered, in whichever process the handler runs: a Spark task's, or one of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from time import time_ns

from ackline.handler import Handler, Tier
from ackline.outcome import Outcome
from ackline.spark.handlers.call import Answers, Clock, Watch, answer
from ackline.spark.handlers.streams import Streams, load_answering
from ackline.spark.output.outcome_files import Turn
from ackline.spark.records import EPOCH, Records
from ackline.translation import Translation

Answering = Callable[[Records], Answers]


@dataclass(frozen=True, slots=True)
class Work:
    """What every task of a job has to know. Holds no secret but what `translation` may know of a registry."""

    turn: Turn
    handler: str | None
    tier: Tier
    topic: str | None
    deliver_tombstones: bool
    on_failure: Outcome
    now: datetime | None
    once: bool = False
    rate: float | None = None
    """Records a second that this task may handle."""
    record_outcomes: bool = True
    isolated: bool = False
    record_timeout: float | None = None
    """Seconds that a call of the handler may take."""
    translation: Translation | None = None


def answering(work: Work, watch: Watch | None = None) -> Answering:
    """How rows are answered in the process in which this is called, be that a task's or the handler's own."""
    handler, clock = _answering(work.handler, work.translation), clock_of(work.now)
    return lambda rows: answer(handler, work.tier, rows, clock, work.deliver_tombstones, watch)


@lru_cache(maxsize=8)
def _answering(handler: str | None, translation: Translation | None) -> Handler | Streams:
    return load_answering(handler, translation)


def clock_of(now: datetime | None) -> Clock:
    """Microseconds of now, or of the run's fixed time, rounded up to milliseconds."""
    if now is None:
        return lambda: -(-time_ns() // 1_000_000) * 1000
    since = now - EPOCH
    fixed = -(-(since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds) // 1000) * 1000
    return lambda: fixed
