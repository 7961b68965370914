"""Listeners: a class of the user whose methods Ackline calls after something has become durable, once for each batch.

Name the class in the pipeline file, `listener: module:Class`. Each process that opens the pipeline (each task of a DAG,
replay's driver, each command) creates it without arguments, in a thread of its own, and calls it in that thread only.

A listener cannot break a run. Its arguments are copies. Ackline logs what it raises, and stops calling it if it takes
longer than `EVENT_TIMEOUT`. Only code that ends the process (`os._exit`) ends the run.

An event may come twice. If a process dies between the write and the call, the event does not come at all. Totals
belong to the tables, not to a listener.
"""

import copy
import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from queue import SimpleQueue
from threading import Thread
from typing import Any

from ackline.errors import ConfigError
from ackline.ledger.commit_rule import Committed
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import Plan, SettledPartition, TurnId

log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, Sequence[int]]

EVENT_TIMEOUT = 30.0
"""How long a listener may take to be created, or for one event, in seconds."""


class Listener:
    """Base class of listeners. Override the methods of the events that you need; the others do nothing.

    A listener that counts dead records::

        class CountDead(Listener):
            def on_dead(self, turn: TurnId, offsets: Offsets) -> None:
                statsd.incr("orders.dead", sum(len(numbers) for numbers in offsets.values()))
    """

    def on_open(self, pipeline: str, run_id: str) -> None:
        """A step or command has opened the pipeline."""

    def on_planned(self, plan: Plan) -> None:
        """This process has stored a plan. Not called for an open plan that it adopts."""

    def on_handled(self, turn: TurnId, counts: Mapping[TopicPartition, Mapping[str, int]]) -> None:
        """This process has stored the outcomes of a turn; `counts` are the records by outcome.

        They count once the turn is settled. If the turn becomes void instead, its records are handled again.
        """

    def on_acked(self, turn: TurnId, counts: Mapping[TopicPartition, int]) -> None:
        """A turn was settled that acked records; `counts` are the acked records."""

    def on_retry(self, turn: TurnId, offsets: Offsets) -> None:
        """A turn was settled in which the records at `offsets` failed and get another attempt.

        Records whose dead letter is not acknowledged yet are not among them.
        """

    def on_dead(self, turn: TurnId, offsets: Offsets) -> None:
        """A turn was settled that gave up the records at `offsets`. The broker has acknowledged their dead letters,
        unless the pipeline file has `dead_letter: none`."""

    def on_expired(self, turn: TurnId, ranges: Mapping[TopicPartition, Sequence[tuple[int, int]]]) -> None:
        """A turn was settled whose records in `ranges`, as pairs (start, end) with an exclusive end, retention had
        removed."""

    def on_partitions_changed(self, partitions: Mapping[TopicPartition, SettledPartition]) -> None:
        """Partitions have joined the lane; the values hold the offsets where they start."""

    def on_committed(self, committed: Mapping[TopicPartition, Committed]) -> None:
        """The group's offsets were committed and read back."""

    def on_close(self) -> None:
        """The step or command ends."""


class ListenerThread:
    """Creates a listener in a thread of its own, and calls it there, one event at a time.

    The thread protects the run. A listener that hangs delays the run once, by `timeout` seconds. An exception of the
    listener stays in its thread, and a signal to the run interrupts the run, not the listener. Each argument is a copy
    that the listener may change. The constructor raises what `make` raises, and TimeoutError if `make` hangs.
    """

    def __init__(self, make: Callable[[], Listener], timeout: float = EVENT_TIMEOUT) -> None:
        self.timeout = timeout
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._hangs = False
        self.thread = Thread(target=self._run_calls, name="ackline-listener", daemon=True)
        self.thread.start()
        created = self._call(make)
        if not created.done():
            raise TimeoutError(f"its constructor has not returned for {timeout:g} s")
        self._listener = created.result()

    def notify(self, event: str, *details: Any) -> None:
        """Calls `on_EVENT(*details)` and waits for it. Logs an exception or a timeout. Does nothing after a timeout."""
        if self._hangs:
            return
        copies = copy.deepcopy(details)
        call = self._call(lambda: getattr(self._listener, f"on_{event}")(*copies))
        if not call.done():
            self._hangs = True
            log.warning(
                "the listener's on_%s has not returned for %g s; the run continues and calls the listener no more",
                event, self.timeout,
            )  # fmt: skip
        elif (error := call.exception()) is not None:
            # The class only: the text of a user's exception may hold a secret.
            log.warning("the listener's on_%s raised %s; the run continues", event, type(error).__name__)

    def close(self) -> None:
        """Calls `on_close`, and ends the thread."""
        self.notify("close")
        self._calls.put(None)

    def _call(self, function: Callable[[], Any]) -> "Future[Any]":
        call: Future[Any] = Future()
        self._calls.put((call, function))
        wait([call], self.timeout)
        return call

    def _run_calls(self) -> None:
        while (entry := self._calls.get()) is not None:
            call, function = entry
            try:
                call.set_result(function())
            except BaseException as error:  # sys.exit and KeyboardInterrupt, too, end nothing but this call
                call.set_exception(error)


def load_listener(path: str | None) -> ListenerThread | None:
    """Creates the listener `module:Class` in a thread; returns None without a path.

    Raises ConfigError if the class does not import, can't be created, or is not a subclass of `Listener`.
    """
    if path is None:
        return None
    module, _, name = path.partition(":")

    def make() -> Listener:
        listener = create()
        if not isinstance(listener, Listener):
            raise ConfigError(f"listener {path} is not a subclass of ackline.listener.Listener", key="listener")
        return listener

    try:
        # Imported here, in the main thread: some modules can be imported only there, such as those that set signals.
        create = getattr(importlib.import_module(module), name)
        return ListenerThread(make)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"listener {path} can't be created: {type(error).__name__}: {error}", key="listener"
        ) from None
