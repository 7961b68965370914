"""Each row gets exactly one outcome, whatever its handler does; the three tiers mean the same."""

import asyncio
import concurrent.futures
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ackline import Dead, Record, Skip, arrow_handler
from ackline.handler import Handler, tier_of
from ackline.offsets import TopicPartition
from ackline.outcome import MESSAGE_LIMIT, Outcome
from ackline.spark.handlers.call import Answers, answer
from ackline.spark.records import RECORD_COLUMNS, Records

NOW = 1_700_000_000_000_000


def rows_of(values: list[bytes | None], headers: Any = None, keys: list[bytes | None] | None = None) -> Records:
    count = len(values)
    return Records(
        TopicPartition("orders", 3),
        np.arange(100, 100 + count, dtype=np.int64),
        np.full(count, 1_600_000_000_123_000, dtype=np.int64),
        pa.array(keys or [None] * count, pa.binary()),
        pa.array(values, pa.binary()),
        headers,
        np.full(count, 2, dtype=np.int32),
    )


def answers(handler: Handler, rows: Records, deliver_tombstones: bool = False) -> Answers:
    return answer(handler, tier_of(handler), rows, lambda: NOW, deliver_tombstones)


def outcomes(handler: Handler, values: list[bytes | None], **settings: bool) -> list[tuple[str, str | None]]:
    """Outcome and error class of each row."""
    found = answers(handler, rows_of(values), **settings)
    assert [one.row for one in found.unacked] == sorted({one.row for one in found.unacked})
    unacked = {one.row: (one.outcome.value, one.error_class) for one in found.unacked}
    assert len(found.handled_at) == len(values)
    return [unacked.get(row, ("acked", None)) for row in range(len(values))]


def raising(error: Callable[[], BaseException]) -> Handler:
    """Raises for the value b"x" only."""

    def handle(record: Record) -> None:
        if record.value == b"x":
            raise error()

    return handle


def test_a_handler_gets_the_whole_record() -> None:
    seen: list[Record] = []
    headers = [(("trace", b"1"), ("trace", None)), ()]
    answers(seen.append, rows_of([b"a", b"b"], headers, [b"k", None]))
    first, second = seen
    assert type(first) is Record
    assert (first.topic, first.partition, first.offset, first.attempt) == ("orders", 3, 100, 2)
    assert (first.key, first.value, first.headers) == (b"k", b"a", (("trace", b"1"), ("trace", None)))
    assert first.timestamp is not None
    assert first.timestamp.isoformat() == "2020-09-13T12:26:40.123000+00:00"
    assert (second.key, second.headers) == (None, ())
    assert first == Record("orders", 3, 100, first.timestamp, b"k", b"a", first.headers, 2)
    with pytest.raises(AttributeError):
        first.value = b"other"  # type: ignore[misc]


def test_a_record_without_timestamp_says_so() -> None:
    rows = rows_of([b"a"])
    rows.timestamps[0] = -1000
    seen: list[Record] = []
    answers(seen.append, rows)
    assert seen[0].timestamp is None


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Classless(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("no class")


class NamelessType(type):
    __name__ = property(lambda kind: 1 // 0)


class Nameless(Exception, metaclass=NamelessType):
    pass


class OddText(str):
    def __getitem__(self, key: Any) -> str:
        raise RuntimeError("no part")


class Odd(Exception):
    def __str__(self) -> str:
        return OddText("odd")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (lambda: ValueError("no"), ("failed", "ValueError")),
        (lambda: SystemExit(3), ("failed", "SystemExit")),
        (KeyboardInterrupt, ("failed", "KeyboardInterrupt")),
        (GeneratorExit, ("failed", "GeneratorExit")),
        (StopIteration, ("failed", "StopIteration")),
        (RecursionError, ("failed", "RecursionError")),
        (Broken, ("failed", "Broken")),
        (lambda: Classless(), ("failed", "Classless")),
        (lambda: Nameless(), ("failed", "Exception")),
        (Odd, ("failed", "Odd")),
        (lambda: Skip("not ours"), ("skipped", "Skip")),
        (lambda: Dead("never"), ("failed", "Dead")),
        (lambda: type("Dead", (Exception,), {"__module__": "shop"})(), ("failed", "shop.Dead")),
        (lambda: type("Tombstone", (Exception,), {"__module__": "shop"})(), ("failed", "shop.Tombstone")),
        (lambda: type("Late", (Skip,), {})(), ("skipped", "Skip")),
        (lambda: type("A<b>" + "x" * 500, (Exception,), {})(), ("failed", "Ab" + "x" * 118)),
    ],
)
def test_what_a_record_handler_raises_is_the_outcome_of_its_record_alone(
    error: Callable[[], BaseException], outcome: tuple[str, str]
) -> None:
    assert outcomes(raising(error), [b"a", b"x", b"b"]) == [("acked", None), outcome, ("acked", None)]


def test_sys_exit_in_a_handler_ends_nothing() -> None:
    assert outcomes(lambda _: sys.exit("bye"), [b"a"]) == [("failed", "SystemExit")]


def generator(record: Record) -> Iterator[int]:
    yield record.offset


async def coroutine(record: Record) -> None:
    raise AssertionError("not awaited")


def future(record: Record) -> Any:
    loop = asyncio.new_event_loop()
    loop.close()
    return asyncio.Future(loop=loop)


def submitted(record: Record) -> Any:
    return concurrent.futures.Future[None]()


@pytest.mark.parametrize("handler", [generator, coroutine, future, submitted])
def test_an_answer_that_stands_for_work_not_done_is_a_failure(handler: Handler) -> None:
    assert outcomes(lambda record: handler(record), [b"a"]) == [("failed", "InvalidOutcome")]


@pytest.mark.parametrize("rubbish", [0, False, "failed", object(), [], {"outcome": "failed"}])
def test_a_record_handler_that_returns_anything_else_acks(rubbish: object) -> None:
    assert outcomes(lambda _: rubbish, [b"a"]) == [("acked", None)]


@pytest.mark.parametrize("answer", [Skip("not ours"), Dead("never"), ValueError("no"), Skip])
def test_an_exception_that_is_returned_was_meant_to_be_raised(answer: object) -> None:
    assert outcomes(lambda _: answer, [b"a"]) == [("failed", "InvalidOutcome")]


@pytest.mark.parametrize("tier", ["record", "arrow"])
@pytest.mark.parametrize("exits", [True, False])
def test_a_process_that_the_handler_forks_handles_no_other_record(tier: str, exits: bool, tmp_path: Path) -> None:
    """I9, I7: it comes back with an exception, or just returns, and would go on with the next record."""
    here, calls = os.getpid(), tmp_path / "calls"

    def handle(given: Record | pa.RecordBatch) -> list[str]:
        with calls.open("a") as file:
            file.write("called\n")
        if os.fork() == 0 and exits:
            sys.exit(3)
        if os.getpid() == here:
            ended.append(os.waitstatus_to_exitcode(os.wait()[1]))
        return ["acked"]

    ended: list[int] = []
    handler = arrow_handler(handle) if tier == "arrow" else handle
    for value in (b"a", b"b"):
        found = outcomes(handler, [value])
        if os.getpid() != here:
            os._exit(99)
        assert found == [("acked", None)]
    assert ended == [3 if exits else 0] * 2
    assert calls.read_text().splitlines() == ["called"] * 2


def test_tombstones_are_skipped_without_the_handler() -> None:
    seen: list[Record] = []
    found = outcomes(seen.append, [b"a", None, b"", None])
    assert found == [("acked", None), ("skipped", "Tombstone"), ("acked", None), ("skipped", "Tombstone")]
    assert [record.value for record in seen] == [b"a", b""]


def test_tombstones_reach_the_handler_that_wants_them() -> None:
    seen: list[Record] = []
    assert outcomes(seen.append, [None], deliver_tombstones=True) == [("acked", None)]
    assert seen[0].value is None


def test_outcomes_keep_their_rows_when_tombstones_lie_between() -> None:
    found = outcomes(raising(lambda: ValueError("no")), [None, b"x", None, b"a", b"x"])
    assert [word for word, _ in found] == ["skipped", "failed", "skipped", "acked", "failed"]


def test_calls_are_the_records_given_to_the_handler() -> None:
    assert answers(lambda _: None, rows_of([b"a", None, b"b"])).calls == 2


def test_a_message_holds_nothing_of_the_record_and_is_short() -> None:
    def handle(record: Record) -> None:
        raise ValueError(f"can't read {record.value!r} of {record.key!r} {record.headers!r} " + "long " * 100)

    rows = rows_of([b"confidential 31337"], [(("h", b"token-abcdef"),)], [b"customer-9876"])
    (one,) = answers(handle, rows).unacked
    assert one.error_message is not None
    assert len(one.error_message) <= MESSAGE_LIMIT
    for secret in ("confidential", "31337", "9876", "abcdef"):
        assert secret not in one.error_message


def test_a_time_is_never_before_the_handler_ended() -> None:
    ticks = iter(range(1000, 10**9, 1000))
    now = [0]

    def clock() -> int:
        return now[0]

    def handle(record: Record) -> None:
        now[0] = next(ticks)
        ended.append(now[0])
        if record.offset % 7 == 0:
            raise ValueError("no")

    ended: list[int] = []
    rows = rows_of([b"a"] * 500)
    found = answer(handle, tier_of(handle), rows, clock, False)
    times = found.handled_at.copy()
    for one in found.unacked:
        times[one.row] = one.handled_at
        assert one.handled_at == ended[one.row]
    assert (times >= np.array(ended)).all()


# -- the Arrow tier


def arrow(reply: Callable[[pa.RecordBatch], Any]) -> Handler:
    return arrow_handler(lambda batch: reply(batch))


def test_an_arrow_handler_gets_the_promised_columns() -> None:
    seen: list[pa.RecordBatch] = []

    def reply(batch: pa.RecordBatch) -> list[str]:
        seen.append(batch)
        return ["acked"] * batch.num_rows

    answers(arrow(reply), rows_of([b"a", b"b"], [(("t", b"1"), ("t", None)), ()], [b"k", None]))
    assert seen[0].schema == RECORD_COLUMNS
    first, second = seen[0].to_pylist()
    assert first["headers"] == [{"key": "t", "value": b"1"}, {"key": "t", "value": None}]
    assert second["headers"] is None
    assert (first["topic"], first["partition"], first["offset"], first["attempt"]) == ("orders", 3, 100, 2)


SAID = ["acked", "failed", "skipped", "dead"]
MEANT = [("acked", None), ("failed", None), ("skipped", "Skip"), ("failed", "Dead")]


@pytest.mark.parametrize(
    "reply",
    [
        lambda batch: SAID,
        lambda batch: tuple(Outcome(word) for word in SAID),
        lambda batch: pa.array(SAID),
        lambda batch: pa.chunked_array([SAID[:2], SAID[2:]]),
        lambda batch: pa.array(SAID).dictionary_encode(),
        lambda batch: np.array(SAID),
        lambda batch: pa.table({"outcome": SAID}),
        lambda batch: pa.record_batch({"offset": batch["offset"], "outcome": SAID}),
        lambda batch: batch.append_column("outcome", pa.array(SAID)),
    ],
)
def test_every_form_of_an_arrow_answer_is_understood(reply: Callable[[pa.RecordBatch], Any]) -> None:
    assert outcomes(arrow(reply), [b"a", b"\xff", b"c", b"d"]) == MEANT


def test_an_arrow_answer_may_carry_classes_and_messages() -> None:
    def reply(batch: pa.RecordBatch) -> pa.Table:
        messages = [None, "can't parse hidden", "hidden"]
        return pa.table(
            {"outcome": ["acked", "failed", "failed"], "error_class": [None, "Late", "Dead"], "error_message": messages}
        )

    found = answers(arrow(reply), rows_of([b"a", b"hidden", b"hidden"])).unacked
    assert found[0].error_class == "Late"
    assert found[0].error_message == "can't parse ***"
    assert found[1].error_class == f"{__name__}.Dead"


@pytest.mark.parametrize(
    "reply",
    [
        lambda batch: ["acked"] * (batch.num_rows - 1),
        lambda batch: ["acked"] * (batch.num_rows + 1),
        lambda batch: ["acked", None, "acked"],
        lambda batch: ["acked", "ok", "acked"],
        lambda batch: ["acked", "dropped", "acked"],
        lambda batch: ["acked", 1, "acked"],
        lambda batch: [["acked"]] * 3,
        lambda batch: None,
        lambda batch: "acked",
        lambda batch: True,
        lambda batch: {"outcome": ["acked"] * 3},
        lambda batch: (word for word in ["acked"] * 3),
        lambda batch: pa.array([1, 2, 3]),
        lambda batch: pa.table({"result": ["acked"] * 3}),
        lambda batch: pa.table({"offset": [1, 2, 3], "outcome": ["acked"] * 3}),
    ],
)
def test_an_arrow_answer_that_is_not_one_outcome_a_row_is_refused_whole(
    reply: Callable[[pa.RecordBatch], Any],
) -> None:
    """Fault 13: wrong count, nulls, foreign offsets: the batch is refused, nothing of it acked."""
    assert outcomes(arrow(reply), [b"a", b"b", b"c"]) == [("failed", "InvalidOutcome")] * 3


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt()])
def test_an_arrow_handler_that_raises_fails_its_batch(error: BaseException) -> None:
    def reply(batch: pa.RecordBatch) -> None:
        raise error

    assert outcomes(arrow(reply), [b"a", b"b"]) == [("failed", type(error).__name__)] * 2


def test_an_arrow_handler_that_raises_dead_buries_no_neighbour() -> None:
    def reply(batch: pa.RecordBatch) -> None:
        raise Dead("one of these")

    assert outcomes(arrow(reply), [b"a", b"b"]) == [("failed", "ackline.handler.Dead")] * 2


def test_an_arrow_handler_sees_no_tombstone_it_does_not_want() -> None:
    seen: list[Any] = []

    def reply(batch: pa.RecordBatch) -> list[str]:
        seen.extend(batch["offset"].to_pylist())
        return ["failed"] * batch.num_rows

    found = outcomes(arrow(reply), [None, b"a", None, b"b"])
    assert [word for word, _ in found] == ["skipped", "failed", "skipped", "failed"]
    assert seen == [101, 103]
    assert outcomes(arrow(reply), [None, None]) == [("skipped", "Tombstone")] * 2
