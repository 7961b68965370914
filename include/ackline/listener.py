"""Hooks: a class of the user's that is told what happened, in batches, after it is durable.

Name it in the pipeline file, `listener: module:Class`. It is made without arguments, anew in each process that opens
the pipeline (each task of a DAG, replay's driver, each command), and called in one thread, which is not the run's. It
gets copies. What it raises is logged and changes nothing; one that takes longer than PATIENCE is told nothing more: a
listener is never able to break a run, unless it ends its process (`os._exit`). An event may be told twice, or, where a
process dies between the event and the call, not at all; the tables are the record.
"""

import copy
import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from queue import SimpleQueue
from threading import Thread
from typing import Any

from ackline.commit_rule import Committed
from ackline.errors import ConfigError
from ackline.offsets import TopicPartition
from ackline.turns import Plan, SettledPartition, TurnId

log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, Sequence[int]]

PATIENCE = 30.0
"""Seconds that a listener may take for an event; one that takes longer is told nothing more by that process."""


class Listener:
    """Override what you want to hear."""

    def on_open(self, pipeline: str, run_id: str) -> None:
        """A step or command has opened the pipeline."""

    def on_planned(self, plan: Plan) -> None:
        """A plan was stored by this process."""

    def on_handled(self, turn: TurnId, counts: Mapping[TopicPartition, Mapping[str, int]]) -> None:
        """The outcomes of a turn were stored by this process: counts by outcome. They count once the turn is settled; a
        turn that is void after this is handled again."""

    def on_acked(self, turn: TurnId, counts: Mapping[TopicPartition, int]) -> None:
        """A turn was settled in which records were acked."""

    def on_retry(self, turn: TurnId, offsets: Offsets) -> None:
        """A turn was settled in which these failed, and wait for another attempt; not those that wait for their dead
        letter."""

    def on_dead(self, turn: TurnId, offsets: Offsets) -> None:
        """A turn was settled in which these were given up; their dead letters, if there are any, are acknowledged."""

    def on_expired(self, turn: TurnId, ranges: Mapping[TopicPartition, Sequence[tuple[int, int]]]) -> None:
        """A turn was settled in which retention was found to have taken these ranges `(start, end)`."""

    def on_partitions_changed(self, partitions: Mapping[TopicPartition, SettledPartition]) -> None:
        """Partitions have joined the lane, and where they start."""

    def on_committed(self, committed: Mapping[TopicPartition, Committed]) -> None:
        """The group's offsets were committed and read back."""

    def on_close(self) -> None:
        """The step or command ends."""


class ListenerThread:
    """Tells a listener, made in a thread of its own, one event after another.

    A thread, because of what a listener may do: one that hangs holds a run up once, for `patience` seconds, and
    whatever it raises ends in its thread, while a signal to the run is raised in the run's. What it is given is a copy,
    its own to change. Raises what `make` raises, and TimeoutError where that hangs.
    """

    def __init__(self, make: Callable[[], Listener], patience: float = PATIENCE) -> None:
        self.patience = patience
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._hangs = False
        self.thread = Thread(target=self._serve, name="ackline-listener", daemon=True)
        self.thread.start()
        made = self._called(make)
        if not made.done():
            raise TimeoutError(f"it is not made after {patience:g} s")
        self._listener = made.result()

    def notify(self, event: str, *said: Any) -> None:
        """Call `on_EVENT(*said)` and wait for it; what it raises, or that it hangs, is logged."""
        if self._hangs:
            return
        copies = copy.deepcopy(said)
        answer = self._called(lambda: getattr(self._listener, f"on_{event}")(*copies))
        if not answer.done():
            self._hangs = True
            log.warning(
                "the listener's on_%s has not come back for %g s; the run goes on, and it is told nothing more",
                event, self.patience,
            )  # fmt: skip
        elif (error := answer.exception()) is not None:
            log.warning("the listener's on_%s raised %s; the run goes on", event, type(error).__name__)

    def close(self) -> None:
        """Tell it that this is the end."""
        self.notify("close")
        self._calls.put(None)

    def _called(self, function: Callable[[], Any]) -> "Future[Any]":
        answer: Future[Any] = Future()
        self._calls.put((answer, function))
        wait([answer], self.patience)
        return answer

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            answer, function = call
            try:
                answer.set_result(function())
            except BaseException as error:  # sys.exit and KeyboardInterrupt too: this thread is the listener's alone
                answer.set_exception(error)


def load_listener(path: str | None) -> ListenerThread | None:
    """What tells the listener named by `module:Class`; None without one. Raises ConfigError where it can't be made."""
    if path is None:
        return None
    module, _, name = path.partition(":")

    def make() -> Listener:
        made = found()
        if not isinstance(made, Listener):
            raise ConfigError(f"listener {path} is no ackline.listener.Listener", key="listener")
        return made

    try:
        found = getattr(importlib.import_module(module), name)  # here: what it imports may want the main thread
        return ListenerThread(make)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"listener {path} can't be made: {type(error).__name__}: {error}", key="listener") from None
