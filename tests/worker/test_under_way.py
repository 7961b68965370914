"""Many calls are under way in one task, and each means what it means when one call follows the other."""

import asyncio
import contextvars
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ackline import Dead, Emit, InFlight, Record, Skip
from ackline.calling import ManagedHandler, close_handlers
from ackline.errors import FatalError, TransientError
from ackline.handler import Handler, Tier
from ackline.ledger.outcomes import Outcome
from ackline.worker.call import use_in_flight_settings
from ackline.worker.outcomes import Outcomes
from ackline.worker.portions import WaitingHandlers
from ackline.worker.records import Records
from ackline.worker.settings import ReplaySettings
from ackline.worker.streams import call_handler, waiting_handlers
from ackline.worker.under_way import CallsUnderWay
from tests.e2e.documents import blocks, section
from tests.worker.batches import NOW, records_of, results

SETTINGS = ReplaySettings(handler=None, deliver_tombstones=False, on_failure=Outcome.FAILED, now=None)
SECONDS = 20
"""The longest that a call of these tests waits for another one."""


def later(handler: Handler) -> Handler:
    """The handler as a coroutine function, which lets other calls go on before it answers."""

    async def handle(record: Record) -> Any:
        await asyncio.sleep(0)
        return handler(record)

    return ManagedHandler(handle, "handlers:handle", emits=False)


@contextmanager
def calls_of(handler: Handler, concurrency: int | None = 3, **settings: Any) -> Iterator[CallsUnderWay]:
    """The calls of a task, whose handlers are closed at its end."""
    waiting = waiting_handlers(replace(SETTINGS, concurrency=concurrency, **settings), handler)
    assert waiting is not None
    clock = iter(range(NOW, NOW + 10**9))
    calls = CallsUnderWay(waiting, lambda: next(clock))
    try:
        yield calls
        close_handlers()
    finally:
        calls.close()


def handled(handler: Handler, *batches: Records, **settings: Any) -> list[tuple[Records, Outcomes]]:
    with calls_of(handler, **settings) as calls:
        return [*(each for batch in batches for each in calls.take(batch)), *calls.finish()]


def batch_at(start: int, count: int, value: bytes = b"x") -> Records:
    return replace(records_of([value] * count), offsets=np.arange(start, start + count, dtype=np.int64))


def test_as_many_calls_as_the_file_says_are_under_way_over_batches() -> None:
    threads, tasks = threading.Barrier(3), asyncio.Barrier(3)

    async def meet(record: Record) -> None:
        await asyncio.wait_for(tasks.wait(), SECONDS)

    for handler in (lambda _: threads.wait(SECONDS), ManagedHandler(meet, "handlers:meet", emits=False)):
        parts = handled(handler, *(batch_at(start, 2) for start in (0, 2, 4)))
        assert [part.offsets.tolist() for part, _ in parts] == [[0, 1], [2, 3], [4, 5]]
        assert not any(outcomes.not_acked for _, outcomes in parts)


def test_no_more_calls_are_under_way_than_the_file_says() -> None:
    lock, most, under_way = threading.Lock(), [0], [0]

    def count(record: Record) -> None:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        time.sleep(0)
        with lock:
            under_way[0] -= 1

    handled(count, batch_at(0, 300))
    handled(later(count), batch_at(0, 300))
    assert 1 <= most[0] <= 3


def test_a_slow_call_keeps_no_other_waiting_and_outcomes_come_in_the_order_of_offsets() -> None:
    """And what waits for the outcome of a slow call is held without its payload."""
    last, held, size = threading.Event(), list[int](), 1000

    def first_waits_for_the_last(record: Record) -> None:
        if record.offset == 0:
            assert last.wait(SECONDS)
        elif record.offset == 2999:
            held.append(calls._bytes)
            last.set()
        if record.offset % 1000 == 7:
            raise ValueError

    with calls_of(first_waits_for_the_last) as calls:
        early = list(calls.take(batch_at(0, 3000, bytes(size))))
        parts = [*early, *calls.finish()]
    assert np.concatenate([part.offsets for part, _ in parts]).tolist() == list(range(3000))
    failed = [part.offsets[outcome.row] for part, outcomes in parts for outcome in outcomes.not_acked]
    assert failed == [7, 1007, 2007]
    first, second = parts[0][1].handled_at[:2]
    assert first > second, "each outcome has the time at which its own call has ended"
    assert held[0] <= 2 * 500 * (size + 20), "two portions of 500 records"


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _raise(error: BaseException) -> Any:
    raise error


ANSWERS: dict[str, Callable[[Record], Any]] = {
    "nothing": lambda _: None,
    "anything": lambda record: {"of": record.offset},
    "false": lambda _: False,
    "emit": lambda _: Emit(1),
    "class": lambda _: Skip,
    "future": lambda _: Future(),
    "flight": lambda _: InFlight("5s"),
    "flights": lambda _: [InFlight()],
    "skip": lambda record: _raise(Skip(f"a test {record.value!r}")),
    "dead": lambda _: _raise(Dead("unknown currency")),
    "error": lambda record: _raise(ValueError(f"can't read {record.value!r}")),
    "odd": lambda _: _raise(Odd()),
    "exit": lambda _: sys.exit(3),
    "interrupt": lambda _: _raise(KeyboardInterrupt()),
    "cancelled": lambda _: _raise(asyncio.CancelledError()),
    "stop": lambda _: _raise(StopAsyncIteration()),
}


def by_word(record: Record) -> Any:
    return ANSWERS[record.value.decode()](record)


class Calling:
    """A class whose objects are called as `by_word` is."""

    def __call__(self, record: Record) -> Any:
        return by_word(record)


@pytest.mark.parametrize("seed", range(6))
def test_an_answer_means_what_it_means_when_one_call_follows_the_other(seed: int, monkeypatch: Any) -> None:
    monkeypatch.setattr("ackline.worker.under_way._PORTION", 7)
    draw = random.Random(seed)
    values = [draw.choice([None, *(word.encode() for word in ANSWERS)]) for _ in range(60)]
    records = records_of(values, [draw.choice([None, b"key"]) for _ in values])
    expected = call_handler(by_word, Tier.RECORD, records, lambda: NOW, False)
    for handler in (by_word, later(by_word), ManagedHandler(Calling, "handlers:Calling", emits=False)):
        parts = handled(handler, records.slice(0, 25), records.slice(25, 60))
        found = [
            (int(part.offsets[each.row]), each.outcome, each.error_class, each.error_message)
            for part, outcomes in parts
            for each in outcomes.not_acked
        ]
        assert found == [
            (int(records.offsets[each.row]), each.outcome, each.error_class, each.error_message)
            for each in expected.not_acked
        ]
        assert sum(outcomes.calls for _, outcomes in parts) == sum(value is not None for value in values)


def test_a_record_may_be_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackline.worker.call._allowed", True)
    for handler in (lambda _: InFlight("5s"), later(lambda _: InFlight("5s"))):
        [(_, outcomes)] = handled(handler, batch_at(0, 2))
        assert [(each.outcome, each.due) for each in outcomes.not_acked] == [
            (Outcome.IN_FLIGHT, int(time) + 5_000_000) for time in outcomes.handled_at
        ]
    use_in_flight_settings(SETTINGS)


def test_each_call_has_a_context_of_its_own() -> None:
    of_call = contextvars.ContextVar("of_call", default=-1)

    def handle(record: Record) -> None:
        assert of_call.get() == -1
        of_call.set(record.offset)

    for handler in (handle, later(handle)):
        assert not any(outcomes.not_acked for _, outcomes in handled(handler, batch_at(0, 50)))
    assert of_call.get() == -1


def test_an_overdue_call_is_cancelled_and_fails_alone() -> None:
    cancelled: list[int] = []

    async def handle(record: Record) -> None:
        for _ in range(record.offset // 2 + 1 if record.offset in (1, 3) else 0):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:  # the call at offset 3 goes on, and is cancelled again
                cancelled.append(record.offset)

    [(_, outcomes)] = handled(
        ManagedHandler(handle, "handlers:handle", emits=False), batch_at(0, 5), record_timeout=0.05
    )
    assert results(outcomes, 5) == [("acked", None), ("failed", "Timeout")] * 2 + [("acked", None)]
    assert outcomes.not_acked[0].error_message == "the handler did not return within 0.05 s"
    assert cancelled == [1, 3, 3]


def test_a_call_that_can_not_be_cancelled_ends_as_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ackline.worker.under_way._CANCEL_AGAIN", 0.01)

    async def handle(record: Record) -> None:
        while record.offset == 1 and not ended:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    ended: list[int] = []
    [(_, outcomes)] = handled(
        ManagedHandler(handle, "handlers:handle", emits=False), batch_at(0, 3), record_timeout=0.01
    )
    ended.append(1)
    assert results(outcomes, 3) == [("acked", None), ("failed", "Timeout"), ("acked", None)]


def test_a_handler_that_cancels_other_calls_fails_them_and_no_call_is_lost() -> None:
    async def handle(record: Record) -> None:
        if record.offset == 4:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
        await asyncio.sleep(0)

    [(_, outcomes)] = handled(ManagedHandler(handle, "handlers:handle", emits=False), batch_at(0, 20))
    assert {each.error_class for each in outcomes.not_acked} <= {"CancelledError"}
    assert len(outcomes.handled_at) == 20


@pytest.mark.parametrize("seed", range(3))
def test_streams_with_threads_and_a_loop_share_the_limit(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, under_way, most = threading.Lock(), [0], [0]

    def begin(change: int) -> None:
        with lock:
            under_way[0] += change
            most[0] = max(most[0], under_way[0])

    def plain(record: Record) -> None:
        begin(1)
        time.sleep(0.001)
        begin(-1)

    async def later(record: Record) -> None:
        begin(1)
        await asyncio.sleep(0.001)
        begin(-1)

    handlers: list[Handler] = [plain, ManagedHandler(later, "handlers:later", emits=False)]
    waiting = WaitingHandlers(
        handlers, lambda records: (lambda record: (handlers[record.offset % 2], record), records.payload_of),
        4, 4, False, None,
    )  # fmt: skip
    calls = CallsUnderWay(waiting, lambda: NOW)
    parts = [*calls.take(batch_at(0, 200)), *calls.finish()]
    calls.close()
    assert sum(len(part) for part, _ in parts) == 200
    assert 1 < most[0] <= 4


def test_what_has_ended_leaves_no_payload_behind() -> None:
    last = threading.Event()

    def first_waits(record: Record) -> None:
        if record.offset == 0:
            assert last.wait(SECONDS)
        elif record.offset == 2999:
            held.append([portion.records.values.null_count for portion in calls._portions])
            last.set()

    held: list[list[int]] = []
    with calls_of(first_waits) as calls:
        ended = [*calls.take(batch_at(0, 3000, b"payload")), *calls.finish()]
    assert sum(held[0]) >= 1500
    assert all(part.values.null_count == len(part) for part, _ in ended)


class Buffered:
    """A handler that writes what it has buffered when it is closed."""

    events: list[str]

    def __init__(self) -> None:
        self.events.append("made")

    async def open(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.events.append("opened")

    async def __call__(self, record: Record) -> None:
        assert asyncio.get_running_loop() is self.loop
        self.events.append("called")

    async def close(self) -> None:
        assert asyncio.get_running_loop() is self.loop
        self.events.append("closed")


class Plain:
    """The same without a loop."""

    events: list[str]

    def __init__(self) -> None:
        self.events.append("made")

    def open(self) -> None:
        self.events.append("opened")

    def __call__(self, record: Record) -> None:
        self.events.append("called")

    def close(self) -> None:
        self.events.append("closed")


@pytest.mark.parametrize("kind", [Buffered, Plain])
def test_an_object_is_made_once_a_process_and_opened_and_closed_once_a_task(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task without records does neither."""
    monkeypatch.setattr("ackline.calling._objects", {})
    events: list[str] = []
    monkeypatch.setattr(kind, "events", events, raising=False)
    handler = ManagedHandler(kind, f"handlers:{kind.__name__}", emits=False)
    for batches in ((), (records_of([None]),), (batch_at(0, 2), batch_at(2, 1)), (batch_at(3, 1),)):
        with calls_of(handler) as calls:
            for batch in batches:
                list(calls.take(batch))
            list(calls.finish())
    called = ["opened", "called", "called", "called", "closed", "opened", "called", "closed"]
    assert events == ["made", *called]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError("no route to pay:8080"), TransientError),
        (ValueError("token=secret"), FatalError),
        (TransientError("later"), TransientError),
        (SystemExit(1), FatalError),
    ],
)
def test_an_object_that_does_not_open_ends_the_task_and_fails_no_record(
    error: BaseException, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ackline.calling._objects", {})
    monkeypatch.setattr(Plain, "events", [], raising=False)
    monkeypatch.setattr(Plain, "open", lambda self: _raise(error))
    with calls_of(ManagedHandler(Plain, "handlers:Plain", emits=False)) as calls, pytest.raises(expected) as caught:
        list(calls.take(batch_at(0, 1)))
    assert "secret" not in str(caught.value)
    if not isinstance(error, TransientError):
        assert str(caught.value).startswith(f"`open` of handlers:Plain failed: {type(error).__name__}: ")
    assert "called" not in Plain.events


def test_a_task_that_ends_early_cancels_what_is_under_way_and_stores_nothing_of_it() -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def handle(record: Record) -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with calls_of(ManagedHandler(handle, "handlers:handle", emits=False)) as calls:
        assert list(calls.take(batch_at(0, 2))) == []
        assert begun.wait(SECONDS)
    assert cancelled.wait(SECONDS)
    assert calls.calls_ended() == 0


def test_a_handler_that_blocks_the_loop_is_named_with_the_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ackline.worker.event_loop._BLOCKED", 0.05)

    async def handle(record: Record) -> None:
        time.sleep(0.4)

    with caplog.at_level(logging.WARNING), calls_of(ManagedHandler(handle, "handlers:handle", emits=False)) as calls:
        list(calls.take(batch_at(0, 1)))
        list(calls.finish())
        until = time.monotonic() + SECONDS
        while not caplog.records and time.monotonic() < until:
            calls._loop.run(asyncio.sleep(0.01))  # type: ignore[union-attr]
    assert "the handler blocked the event loop for 0." in caplog.text
    assert "test_under_way.py:" in caplog.text


def test_a_copy_that_a_handler_forks_ends_with_its_call(tmp_path: Path) -> None:
    """Otherwise it would handle the records that are left a second time."""
    journal = tmp_path / "journal"

    def handle(record: Record) -> None:
        with journal.open("a") as file:
            file.write(f"{record.offset}\n")
        if record.offset == 3:
            os.fork()

    with calls_of(handle, concurrency=2) as calls:
        list(calls.take(batch_at(0, 6)))
        list(calls.finish())
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    assert sorted(journal.read_text().split()) == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("document", "heading"),
    [("README.md", "## A handler that calls an API"), ("docs/settings.md", "### Handlers that wait")],
)
def test_the_handlers_of_the_documents_call_an_api_many_times_at_once(
    document: str, heading: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer of the server comes once eight requests are there."""
    monkeypatch.setattr("ackline.calling._objects", {})
    together = threading.Barrier(8)

    class Orders(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            together.wait(SECONDS)
            order = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response({b"bad": 422, b"down": 503}.get(order, 200))
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Prints nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Orders) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        [code, *_] = blocks(section(document, heading))
        names: dict[str, Any] = {}
        exec(code.text.replace("pay.internal:8080", f"127.0.0.1:{server.server_port}"), names)  # noqa: S102
        values = [b"1", b"2", b"bad", b"4", b"down", b"6", b"7", b"8"]
        handler = ManagedHandler(names["Pay"], "handlers.pay:Pay", emits=False)
        [(_, outcomes)] = handled(handler, records_of(values), concurrency=None)
        server.shutdown()
    refused = "Dead" if document == "docs/settings.md" else "HTTPStatusError"
    assert {int(each.row): each.error_class for each in outcomes.not_acked} == {2: refused, 4: "HTTPStatusError"}
