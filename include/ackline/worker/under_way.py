"""Keeps many calls of a record handler under way in one Spark task.

Plain functions are called by threads, asynchronous ones on an event loop. Calls begin in the order of offsets, and no
call waits for the end of a batch: the task gives more records before the calls of the last ones have ended. What ended
waits here until all before it has ended, so that outcomes are stored in the order of offsets.

With an `order`, a row whose key has a call under way waits in a chain of its key, which counts against no limit: one
key keeps no other waiting. The first thread begins the next call of a chain once the one before has ended.

Memory is bounded. At most `limit` calls are under way, and as many records wait for one. A portion of records is kept
whole until its last call has ended; then its payloads go, and what is left of a record takes some hundred bytes.
"""

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np

from ackline.calling import ManagedHandler, TaskFailure, run_nothing
from ackline.errors import FatalError, TransientError
from ackline.handler import Handler, Record
from ackline.ledger.order import NO_KEY
from ackline.ledger.outcomes import ErrorClass, Outcome
from ackline.worker.call import end_forked_copy, forks, in_flight_answer, in_flight_outcome
from ackline.worker.event_loop import EventLoop
from ackline.worker.gate import Gate
from ackline.worker.isolation.serving import Observer
from ackline.worker.outcomes import (
    NOT_CALLED,
    Clock,
    Outcomes,
    RowOutcome,
    outcome_of_exception,
    tombstone_outcome,
)
from ackline.worker.portions import Call, Portion, WaitingHandlers
from ackline.worker.records import Records

_PORTION = 500
"""Records that are kept until the last of their calls has ended."""
_MOST_BYTES = 64 << 20
"""Payload that is kept beyond that of one portion."""
_MOST_ROWS = 1_000_000
"""Records whose outcomes wait for that of an earlier one."""
_PATIENCE = 1.0
_CANCEL_AGAIN, _MOST_CANCELS = 1.0, 5
"""Seconds between two cancellations of a call that goes on, and after how many of them it counts as ended."""
GRACE = 5.0
"""Seconds after its limit in which an asynchronous call must have ended: a process that is killed ends others, too."""


_Ended = tuple[Call, Any, BaseException | None, int]
"""A call that has ended, with what it has returned or raised, and when."""


class CallsUnderWay:
    """The calls of one Spark task. Close it at the end of the task, also of one that fails. An `observer` logs each
    call before it is made, and gets the outcome of each that has ended."""

    def __init__(self, waiting: WaitingHandlers, now: Clock, observer: Observer | None = None) -> None:
        self._waiting, self._now, self._observer = waiting, now, observer
        self._limit, self._queued = waiting.limit, 1
        self._is_mixed = len({_is_asynchronous(handler) for handler in waiting.handlers}) > 1
        self._choosing = -1
        """The row, by its number in the request, for which a handler is being chosen."""
        if observer is not None and waiting.registry is not None:
            waiting.registry.waiting = self._registry_time
        self._forks = forks()
        self._portions: deque[Portion] = deque()
        """Those whose outcomes are not yet taken, in the order of their records."""
        self._begun = self._kept = self._taken = 0
        """Calls that have begun, those whose outcomes are kept, and those whose outcomes `take` has yielded."""
        self._bytes = self._rows = 0
        self._ended: deque[_Ended] = deque()
        self._enough_ended = threading.Event()
        self._awaited = -1
        """So few calls must be under way before the task's first thread goes on. It is woken once for many calls: to
        wake it for each would take more time than all the rest."""
        self._chain_goes_on = False
        """A call has ended for which rows of its key wait: the first thread is woken at once."""
        self._next: deque[Call] = deque()
        self._for_threads: SimpleQueue[bool] = SimpleQueue()
        """True for each call in `_next`, for the thread that takes it; False ends a thread."""
        self._threads: list[threading.Thread] = []
        self._for_loop: deque[Call] = deque()
        self._loop: EventLoop | None = None
        self._running = 0  # touched on the loop alone
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop_is_to_look = False
        self._is_open = self._closed = False
        self._broken: BaseException | None = None

    def take(
        self, records: Records, alone: bool = False, gate: Gate | None = None
    ) -> Iterator[tuple[Records, Outcomes]]:
        """Begins the calls of some records, as soon as there is room for each: `alone` after the end of the call
        before. Those that have order keys pass the gate. Yields the records whose outcomes are known, in the order in
        which they were given. Raises the AcklineError that keeps a record from being handled without being its fault.
        """
        # Calls that wait for another to end, for each that is under way.
        self._queued = 0 if alone or self._waiting.rated or self._is_mixed else 1
        self._limit = 1 if alone else self._waiting.limit
        for start in range(0, len(records), _PORTION):
            self._begin(records.slice(start, _PORTION), start, gate)
            yield from self._known()

    def outcomes_of(self, records: Records, alone: bool) -> Outcomes:
        """Returns the outcomes of some records, once each of their calls has ended. Raises what `take` raises."""
        self._open()  # before a call is logged, as they are closed after each request
        gate = None if records.order_keys is None else Gate({}, self._waiting.failures_hold)
        parts = [outcomes for _, outcomes in (*self.take(records, alone, gate), *self.finish())]
        starts = np.cumsum([0, *(len(part.handled_at) for part in parts)])
        not_acked = [
            each.at_row(each.row + int(start))
            for part, start in zip(parts, starts, strict=False)
            for each in part.not_acked
        ]
        times = [part.handled_at for part in parts]
        return Outcomes(np.concatenate([np.empty(0, np.int64), *times]), not_acked, sum(part.calls for part in parts))

    def finish(self) -> Iterator[tuple[Records, Outcomes]]:
        """Waits for the calls that are under way. Yields the records that `take` has not."""
        while self._portions:
            yield from self._known()
            self._await(0)

    def calls_ended(self) -> int:
        """Returns how many calls have ended whose outcomes are not yet taken."""
        return self._kept + len(self._ended) - self._taken

    def _open(self) -> None:
        """Opens the handlers, before the first call: a task without one needs no connection."""
        managed = [handler for handler in self._waiting.handlers if isinstance(handler, ManagedHandler)]
        if any(handler.needs_loop for handler in managed):
            self._loop = EventLoop()
        for handler in managed:
            handler.open(run_nothing if self._loop is None else self._loop.run)
        self._is_open = True

    def _begin(self, records: Records, first: int, gate: Gate | None) -> None:
        choose, payload_of = self._waiting.choose(records)
        portion = Portion(records, first, np.zeros(len(records), np.int64), choose, payload_of, gate)
        while self._portions and (self._bytes + portion.size > _MOST_BYTES or self._rows > _MOST_ROWS):
            if not self._portions[0].left:
                break  # its outcomes are known, and wait for nothing but being taken
            self._await_one()
        self._portions.append(portion)
        self._bytes += portion.size
        self._rows += len(records)
        portion.left = 1  # until the last call has begun, so that none of them ends the portion
        called = None
        if not self._waiting.deliver_tombstones and records.values.null_count:
            called = records.values.is_valid().to_numpy(zero_copy_only=False)
        keys = None if records.order_keys is None else records.order_keys.tolist()
        for row, record in enumerate(records):
            if called is not None and not called[row]:
                portion.handled_at[row] = self._now()
                portion.not_acked.append(tombstone_outcome(row, int(portion.handled_at[row])))
                continue
            key = NO_KEY if keys is None else keys[row]
            if key != NO_KEY and not self._passes(portion, row, key):
                continue
            if self._begun - self._kept >= (1 + self._queued) * self._limit:
                self._await(max(0, (1 + self._queued) * self._limit - max(1, self._limit * self._queued)))
            if not self._call(portion, row, record, key) and key != NO_KEY:
                self._go_on(portion, key)
        self._end_one(portion)

    def _passes(self, portion: Portion, row: int, key: int) -> bool:
        """Returns whether a row is to be called now: not if it waits in the chain of its key, or is held back."""
        gate = portion.gate
        assert gate is not None
        while key in gate.chains:
            if not self._waiting.rated:
                portion.chain(row, key)
                return False
            self._await_one()
        if portion.holds_back(row, key, self._now):
            return False
        gate.chains[key] = None
        return True

    def _go_on(self, portion: Portion, key: int) -> None:
        """Begins the next call of a key whose call has ended, a row of `portion` or of one after it."""
        assert portion.gate is not None
        chains = portion.gate.chains
        while chain := chains[key]:
            portion, row = chain.popleft()
            under_way = not portion.holds_back(row, key, self._now) and self._call(
                portion, row, portion.records.record(row), key, ahead=True
            )
            self._end_one(portion)
            if under_way:
                return
        del chains[key]

    def _call(self, portion: Portion, row: int, record: Record, key: int, ahead: bool = False) -> bool:
        """Returns whether the call of a row is under way; otherwise its outcome is known. It begins before those that
        wait for room if it goes `ahead`."""
        number = portion.first + row
        try:
            # Filters and decoders are a part of the call: they, too, may end the process.
            self._choosing = number
            self._log_begin(number, False)
            handler, record = portion.choose(record)
        except TaskFailure as failure:
            raise failure.error from None
        except BaseException as error:  # of a filter, or because nothing takes the record
            if self._forks != forks():
                end_forked_copy(error)
            portion.handled_at[row] = time = self._now()
            outcome = outcome_of_exception(error, row, portion.records, time, portion.payload_of)
            portion.calls += outcome.error_class not in NOT_CALLED
            portion.not_acked.append(outcome)
            if portion.gate is not None:
                portion.gate.note(key, record.offset, outcome)
            self._log_end(number, record, outcome)
            return False
        if not self._is_open:
            self._open()
        portion.left += 1
        portion.calls += 1
        self._begun += 1
        begin = handler.begin if isinstance(handler, ManagedHandler) else handler
        call = Call(portion, row, begin, record, contextvars.copy_context(), key)
        if self._observer is not None:
            self._observer.log.withdraw_row(number)  # it waits: the handler is not called yet
        if _is_asynchronous(handler):
            (self._for_loop.appendleft if ahead else self._for_loop.append)(call)
            if not self._loop_is_to_look:
                self._loop_is_to_look = True
                assert self._loop is not None
                self._loop.submit(self._look)
            return True
        (self._next.appendleft if ahead else self._next.append)(call)
        self._for_threads.put(True)
        if len(self._threads) < min(self._waiting.threads, self._limit, self._begun - self._kept):
            thread = threading.Thread(target=self._work, name=f"ackline-call-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return True

    def _work(self) -> None:
        """In a thread: makes one call after the other."""
        while self._for_threads.get() and not self._closed:
            call, result, error = self._next.popleft(), None, None
            self._log_begin(call.portion.first + call.row, False)
            try:
                result = call.context.run(call.handler, call.record)
            except BaseException as raised:  # sys.exit, too, is the outcome of this record alone
                error = raised
            if self._forks != forks():
                end_forked_copy(error)
            self._end(call, result, error)

    def _look(self) -> None:
        """On the loop: begins the calls that there is room for."""
        # First: a call that is appended from now on is found here, or comes with another look.
        self._loop_is_to_look = False
        assert self._loop is not None
        while self._for_loop and self._running < self._limit and not self._closed:
            call = self._for_loop.popleft()
            self._running += 1
            task = self._loop.loop.create_task(self._await_call(call), context=call.context)
            self._tasks.add(task)  # a loop alone does not keep its tasks alive
            task.add_done_callback(partial(self._on_done, call))

    async def _await_call(self, call: Call) -> None:
        result, error, timer = None, None, None
        self._log_begin(call.portion.first + call.row, True)
        if self._waiting.timeout is not None:
            task = asyncio.current_task()
            timer = asyncio.get_running_loop().call_later(self._waiting.timeout, self._cancel, call, task)
        try:
            result = await call.handler(call.record)
        except BaseException as raised:
            error = raised
        if timer is not None:
            timer.cancel()
        self._end_on_loop(call, result, error)

    def _on_done(self, call: Call, task: "asyncio.Task[None]") -> None:
        """On the loop: ends a call whose task was cancelled before it began, by a handler that cancels others."""
        self._tasks.discard(task)
        self._end_on_loop(call, None, asyncio.CancelledError())

    def _end_on_loop(self, call: Call, result: Any, error: BaseException | None) -> None:
        if self._closed or call.ended:  # where the task of Spark has failed or was cancelled, nothing of it is stored
            return
        call.ended = True
        if self._forks != forks():
            end_forked_copy(error)
        self._end(call, result, error)
        self._running -= 1
        if self._for_loop:
            self._look()

    def _cancel(self, call: Call, task: "asyncio.Task[Any] | None") -> None:
        """On the loop: cancels an overdue call, and again each second that it goes on. One that goes on for ever is
        left alone, and counts as ended."""
        if task is None or task.done() or call.ended:
            return
        call.cancelled += 1
        if call.cancelled > _MOST_CANCELS:
            self._end_on_loop(call, None, None)
            return
        task.cancel()
        asyncio.get_running_loop().call_later(_CANCEL_AGAIN, self._cancel, call, task)

    def _log_begin(self, number: int, asynchronous: bool) -> None:
        """Logs that the call of a row begins: for an asynchronous one, which is cancelled here, later by a grace."""
        if self._observer is not None:
            self._observer.log.begin_row(number, GRACE if asynchronous else 0.0)

    def _log_end(self, number: int, record: Record, outcome: RowOutcome | None) -> None:
        if self._observer is not None:  # at once: another call may end this process
            if outcome is not None:
                self._observer.report(record.offset, outcome)
            self._observer.log.end_row(number)

    @contextmanager
    def _registry_time(self) -> Iterator[None]:
        assert self._observer is not None
        begun = self._observer.log.pause_row(self._choosing)
        try:
            yield
        finally:
            self._observer.log.go_on(self._choosing, begun)

    def _end(self, call: Call, result: Any, error: BaseException | None) -> None:
        """In a thread, or on the loop: says that a call has ended."""
        try:
            time = self._now()
            if self._observer is not None:
                outcome = self._outcome(call, result, error, time)
                self._log_end(call.portion.first + call.row, call.record, outcome)
            self._ended.append((call, result, error, time))
        except BaseException as broken:  # the task can't go on, and must not wait for this call
            self._broken = self._broken or broken
        if call.key != NO_KEY and call.portion.gate is not None and call.portion.gate.chains.get(call.key):
            # Looked at after it is in `_ended`, which the first thread looks at after it has made a chain longer.
            self._chain_goes_on = True
            self._enough_ended.set()
        elif self._broken is not None or self._begun - self._kept - len(self._ended) <= self._awaited:
            self._enough_ended.set()

    def _await_one(self) -> None:
        """Waits until at least one more call has ended."""
        self._await(self._begun - self._kept - 1, self._kept)

    def _await(self, under_way: int, kept: int = -1) -> None:
        """Waits until at most so many calls are under way, or more than `kept` have ended if it is given. Keeps the
        outcomes of those that have ended."""
        self._awaited = under_way
        while self._keep_ended() > under_way and not self._kept > kept >= 0:
            self._enough_ended.clear()
            # Looked at after it is cleared: a call that has ended before that has not set it.
            while self._is_to_wait(under_way) and not self._enough_ended.wait(_PATIENCE):
                self._check_loop()
            if self._broken is not None:
                raise FatalError(f"a call could not be ended ({type(self._broken).__name__})") from None
        self._awaited = -1

    def _is_to_wait(self, under_way: int) -> bool:
        return not self._chain_goes_on and self._begun - self._kept - len(self._ended) > under_way

    def _check_loop(self) -> None:
        """Raises TransientError if the loop is gone, or blocked for longer than a call may take: its calls can't be
        cancelled. After three such starts of the turn the handler runs in a process of its own, which is killed."""
        if self._loop is None:
            return
        if not self._loop.is_alive:
            raise TransientError("the event loop of the handler has ended: a call has closed what it needs")
        if self._waiting.timeout is not None and self._loop.blocked > self._waiting.timeout + GRACE:
            raise TransientError(
                f"a call of the handler has blocked the event loop for {self._loop.blocked:.0f} s, so it can't be "
                f"cancelled; await what it waits for, or write a plain function"
            )

    def _keep_ended(self) -> int:
        """Keeps the outcomes of the calls that have ended. Returns how many are under way."""
        self._chain_goes_on = False  # first: what ends from now on sets it again
        while self._ended:
            self._kept += 1
            self._keep(*self._ended.popleft())
        return self._begun - self._kept

    def _keep(self, call: Call, result: Any, error: BaseException | None, time: int) -> None:
        call.portion.handled_at[call.row] = time
        if (outcome := self._outcome(call, result, error, time)) is not None:
            call.portion.not_acked.append(outcome)
        if call.key != NO_KEY and call.portion.gate is not None:
            call.portion.gate.note(call.key, call.record.offset, outcome)
            self._go_on(call.portion, call.key)
        self._end_one(call.portion)

    def _outcome(self, call: Call, result: Any, error: BaseException | None, time: int) -> RowOutcome | None:
        """Returns the outcome of a call that has ended; None if its record is acked."""
        if call.cancelled:
            text = f"the handler did not return within {self._waiting.timeout:g} s"
            return RowOutcome(call.row, Outcome.FAILED, ErrorClass.TIMEOUT, text, time)
        if error is None and result is not None:
            try:
                in_flight = in_flight_answer(result)
                return None if in_flight is None else in_flight_outcome(in_flight, call.row, time)
            except BaseException as invalid:  # of a result with a class of its own
                error = invalid
        if error is None:
            return None
        return outcome_of_exception(error, call.row, call.portion.records, time, call.portion.payload_of)

    def _end_one(self, portion: Portion) -> None:
        portion.left -= 1
        if not portion.left:
            self._bytes -= portion.size - portion.records.keys.nbytes  # the keys stay
            portion.without_payload()

    def _known(self) -> Iterator[tuple[Records, Outcomes]]:
        """Yields the first portions, as far as each of their calls has ended."""
        self._keep_ended()
        while self._portions and not self._portions[0].left:
            portion = self._portions.popleft()
            self._rows -= len(portion.records)
            self._bytes -= portion.records.keys.nbytes
            self._taken += portion.calls
            yield portion.records, portion.outcomes()

    def stop(self) -> None:
        """Begins no more calls, and cancels what is under way on the loop: the task has failed."""
        self._closed = True
        for _ in self._threads:
            self._for_threads.put(False)
        if self._loop is not None and self._loop.is_alive:
            self._loop.submit(lambda: [task.cancel() for task in self._tasks])

    def close(self) -> None:
        """Ends the threads and the loop. What is under way on the loop is cancelled; a thread ends with its call."""
        self.stop()
        if self._loop is not None:
            self._loop.close()


def _is_asynchronous(handler: Handler) -> bool:
    return isinstance(handler, ManagedHandler) and handler.is_asynchronous
