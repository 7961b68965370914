"""Handlers whose process is killed in the middle of a task: once at each place that has a file.

The variable KILLS names the folder of the files. The process that comes first to the place of a file removes the file,
and kills itself. The places are

- `source` and `step`: the call of the handler, or of the step `first`, for offset AT of partition 0,
- `acker`: a task of the acker, between two blocks of offsets,
- `end of source`, `end of step` and `end of acker`: a task has written and synced its files, and no other process knows
  of them yet.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ackline.handler import Emit, Record, Tuple
from ackline.trees.acker import AckerRun
from ackline.trees.stages import SourceRun, StepRun
from ackline.worker.run import TaskRun
from tests.support import journal

KILLS = "KILLS"
AT = 700
KEYS = 50
"""The join gets the tuples of a partition by so many keys."""


def strike(place: str) -> None:
    """Kills this process, if the place has a file."""
    folder = os.environ.get(KILLS)
    if folder is None:
        return
    try:
        Path(folder, place).unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def handle(record: Record) -> None:
    called(record)


def split(record: Record) -> Iterator[Emit]:
    """Emits one tuple, and one row for an output."""
    called(record)
    yield Emit({"n": record.offset}, stream="seen")
    yield Emit({"n": record.offset}, key=f"{record.partition}-{record.offset % KEYS}")


def called(record: Record) -> None:
    """Writes the call into the journal, and is killed there if the place `source` is."""
    journal.write(record.topic, record.partition, record.offset, record.attempt)
    if (record.partition, record.offset) == (0, AT):
        strike("source")


def first(given: Tuple) -> Iterator[Emit]:
    """Emits the tuple for the join, and a row for an output."""
    [origin] = given.origins
    with Path(f"{os.environ[journal.JOURNAL]}-of-step").open("a") as file:
        file.write(f"{origin.topic} {origin.partition} {origin.offset}\n")
    if (origin.partition, origin.offset) == (0, AT):
        strike("step")
    yield Emit(given.value, stream="items")
    yield Emit(given.value, key=given.key)


def meet(given: Sequence[Tuple]) -> Emit:
    """Emits how many tuples a key has."""
    return Emit({"key": given[0].key, "tuples": len(given)})


def _strike_at_end(run: Any, place: str) -> None:
    real: Callable[[Any], Any] = run.finish

    def finish(self: Any) -> list[Any]:
        rows = [*real(self)]
        strike(f"end of {place}")
        return rows

    run.finish = finish


def _strike_between_blocks() -> None:
    real = AckerRun._store_block

    def store_block(self: AckerRun) -> None:
        if self._decided:
            strike("acker")
        real(self)

    AckerRun._store_block = store_block  # type: ignore[method-assign]


# A task of the acker runs no code of a user. But Spark gives it to the Python processes that have run the tasks before
# it, and these have imported this module.
if KILLS in os.environ:
    for _run, _place in ((AckerRun, "acker"), (StepRun, "step"), (SourceRun, "source"), (TaskRun, "source")):
        _strike_at_end(_run, _place)
    _strike_between_blocks()
