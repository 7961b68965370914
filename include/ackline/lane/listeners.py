"""The listener of a process: its thread, its creation, and the events that a settlement makes for it.

`ackline.listener.Listener` is what the user overrides. Other events are passed on by `Adapters.notify`, each after the
write that it is about.
"""

import copy
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from queue import SimpleQueue
from threading import Thread
from typing import Any

from ackline.calling import is_asynchronous
from ackline.errors import ConfigError
from ackline.handler import import_problem, imported
from ackline.ledger.fold import PendingKind
from ackline.ledger.offsets import TopicPartition, index_of_range
from ackline.ledger.outcomes import Outcome, OutcomeColumns
from ackline.ledger.turns import Plan, Settlement, TurnKind
from ackline.listener import Listener
from ackline.tables.turn_outcomes import TurnOutcomes

log = logging.getLogger(__name__)

EVENT_TIMEOUT = 30.0
"""How long a listener may take to be created, or for one event, in seconds."""


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

    Raises ConfigError if the class does not import, can't be created, is not a subclass of `Listener`, or has a method
    that is asynchronous.
    """
    if path is None:
        return None

    def make() -> Listener:
        listener = create()
        if not isinstance(listener, Listener):
            raise ConfigError(f"listener {path} is not a subclass of ackline.listener.Listener", key="listener")
        for name in (name for name in vars(Listener) if name.startswith("on_")):
            if is_asynchronous(getattr(listener, name)):
                raise ConfigError(
                    f"listener {path} has an asynchronous {name}, which nothing awaits; write a plain method",
                    key="listener",
                )
        return listener

    try:
        # Imported here, in the main thread: some modules can be imported only there, such as those that set signals.
        create = imported(path)
        return ListenerThread(make)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"listener {path} can't be created: {import_problem(path, error)}", key="listener") from None


def notify_settled(listener: ListenerThread, plan: Plan, settlement: Settlement, outcomes: TurnOutcomes) -> None:
    """Passes the events of a settlement to the listener.

    Only the process that has stored the settlement calls this. If others did too, every event would come again.
    """
    if plan.kind is TurnKind.GENESIS:
        listener.notify("partitions_changed", {tp: settlement.partitions[tp] for tp in plan.partitions})
    acked = {tp: counts[Outcome.ACKED] for tp, counts in outcomes.counts.items() if counts.get(Outcome.ACKED)}
    if acked:
        listener.notify("acked", plan.turn, acked)
    offsets: dict[str, dict[TopicPartition, Sequence[Any]]] = {"retry": {}, "dead": {}, "expired": {}}
    for tp, rows in outcomes.rows.items():
        columns = OutcomeColumns.of(rows)
        failed = columns.with_outcome(Outcome.FAILED).offsets
        retries = settlement.partitions[tp].state.pending.of_kind(PendingKind.RETRY)
        offsets["retry"][tp] = failed[index_of_range(failed, retries.ranges) >= 0].tolist()
        offsets["dead"][tp] = columns.with_outcome(Outcome.DEAD).offsets.tolist()
        expired = columns.with_outcome(Outcome.EXPIRED)
        offsets["expired"][tp] = list(zip(expired.offsets.tolist(), expired.ends.tolist(), strict=True))
    for event, details in offsets.items():
        if any(details.values()):
            listener.notify(event, plan.turn, {tp: numbers for tp, numbers in details.items() if numbers})
