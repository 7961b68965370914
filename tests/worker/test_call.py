"""Each row gets exactly one outcome, whatever its handler does; the tiers mean the same."""

import asyncio
import concurrent.futures
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from ackline import Dead, Emit, Fail, Hold, Record, Skip, arrow_handler
from ackline.handler import Handler, tier_of
from ackline.ledger.outcomes import Outcome
from ackline.scrub import MESSAGE_LIMIT
from ackline.worker.outcomes import Outcomes
from ackline.worker.records import RECORD_COLUMNS, Records
from ackline.worker.streams import call_handler
from tests.worker.batches import ACKED, NOW, RowResult, records_of, results

Reply = Callable[[pa.RecordBatch], Any]
TOMBSTONE: RowResult = ("skipped", "Tombstone")
INVALID: RowResult = ("failed", "InvalidOutcome")


def call(handler: Handler, records: Records, deliver_tombstones: bool = False) -> Outcomes:
    return call_handler(handler, tier_of(handler), records, lambda: NOW, deliver_tombstones)


def results_of(handler: Handler, values: list[bytes | None], deliver_tombstones: bool = False) -> list[RowResult]:
    return results(call(handler, records_of(values), deliver_tombstones), len(values))


def raising(error: Callable[[], BaseException]) -> Handler:
    """A handler that raises for the value b"x" only."""

    def handle(record: Record) -> None:
        if record.value == b"x":
            raise error()

    return handle


def test_a_handler_gets_the_whole_record() -> None:
    records: list[Record] = []
    headers = [(("trace", b"1"), ("trace", None)), ()]
    call(records.append, records_of([b"a", b"b"], [b"k", None], headers))
    first, second = records
    assert type(first) is Record
    assert first.timestamp is not None
    assert first.timestamp.isoformat() == "2020-09-13T12:26:40.123000+00:00"
    assert first == Record("orders", 3, 100, first.timestamp, b"k", b"a", (("trace", b"1"), ("trace", None)), 2)
    assert (second.key, second.headers) == (None, ())
    with pytest.raises(AttributeError):
        first.value = b"other"  # type: ignore[misc]


def test_a_record_without_a_timestamp_has_none() -> None:
    records, batch = list[Record](), records_of([b"a"])
    batch.timestamps[0] = -1000
    call(records.append, batch)
    assert records[0].timestamp is None


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


class Traceless(Exception):
    __traceback__ = property(lambda error: 1 // 0)


class Empty(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("no attribute")


class Odd(Exception):
    class Text(str):
        def __getitem__(self, key: Any) -> str:
            raise RuntimeError("no part")

    def __str__(self) -> str:
        return self.Text("odd")


@pytest.mark.parametrize(("error", "result"), [
    *((kind, ("failed", kind.__name__)) for kind in (ValueError, SystemExit, KeyboardInterrupt, GeneratorExit)),
    *((kind, ("failed", kind.__name__)) for kind in (StopIteration, RecursionError, Broken, Odd)),
    (lambda: sys.exit("bye"), ("failed", "SystemExit")),
    (lambda: Classless(), ("failed", "Classless")),
    (lambda: Nameless(), ("failed", "Exception")),
    (lambda: Traceless(), ("failed", "Traceless")),
    (lambda: Empty(), ("failed", "Empty")),
    (lambda: Skip("not ours"), ("skipped", "Skip")),
    (lambda: Dead("never"), ("failed", "Dead")),
    (lambda: type("Dead", (Exception,), {"__module__": "shop"})(), ("failed", "shop.Dead")),
    (lambda: type("Tombstone", (Exception,), {"__module__": "shop"})(), ("failed", "shop.Tombstone")),
    (lambda: type("Late", (Skip,), {})(), ("skipped", "Skip")),
    (lambda: type("A<b>" + "x" * 500, (Exception,), {})(), ("failed", "Ab" + "x" * 118)),
])  # fmt: skip
def test_what_a_record_handler_raises_is_the_outcome_of_its_record_alone(
    error: Callable[[], BaseException], result: RowResult
) -> None:
    assert results_of(raising(error), [b"a", b"x", b"b"]) == [ACKED, result, ACKED]


def generator(record: Record) -> Iterator[int]:
    yield record.offset


async def coroutine(record: Record) -> None:
    raise AssertionError("not awaited")


def asyncio_future(record: Record) -> Any:
    loop = asyncio.new_event_loop()
    loop.close()
    return asyncio.Future(loop=loop)


@pytest.mark.parametrize(("returned", "result"), [
    *[(work, INVALID) for work in (generator, coroutine, asyncio_future)],
    (lambda _: concurrent.futures.Future[None](), INVALID),
    *[(lambda _, value=value: value, ACKED) for value in (0, True, "failed", object(), [], [1, "x"], {"a": 1})],
])  # fmt: skip
def test_returning_unfinished_work_or_an_exception_fails_and_any_other_value_acks(
    returned: Handler, result: RowResult
) -> None:
    """Acking unfinished work, or an exception that was meant to be raised, would ack a record that was not handled."""
    assert results_of(lambda record: returned(record), [b"a"]) == [result]


@pytest.mark.parametrize("tier", ["record", "arrow"])
@pytest.mark.parametrize("exits", [True, False])
def test_a_process_that_the_handler_forks_handles_no_other_record(tier: str, exits: bool, tmp_path: Path) -> None:
    """I9, I7: the copy raises or returns, and would go on with the next record."""
    parent, calls, statuses = os.getpid(), tmp_path / "calls", list[int]()

    def handle(given: Record | pa.RecordBatch) -> list[str]:
        with calls.open("a") as file:
            file.write("called\n")
        if os.fork() == 0 and exits:
            sys.exit(3)
        if os.getpid() == parent:
            statuses.append(os.waitstatus_to_exitcode(os.wait()[1]))
        return ["acked"]

    handler = arrow_handler(handle) if tier == "arrow" else handle
    for value in (b"a", b"b"):
        became = results_of(handler, [value])
        if os.getpid() != parent:
            os._exit(99)
        assert became == [ACKED]
    assert (statuses, calls.read_text().splitlines()) == ([3 if exits else 0] * 2, ["called"] * 2)


def test_tombstones_are_skipped_without_the_handler() -> None:
    values: list[bytes | None] = [b"a", None, b"x", None, b""]
    records: list[Record] = []
    outcomes = call(records.append, records_of(values))
    assert results(outcomes, 5) == [ACKED, TOMBSTONE, ACKED, TOMBSTONE, ACKED]
    assert ([record.value for record in records], outcomes.calls) == ([b"a", b"x", b""], 3)
    assert results_of(raising(ValueError), values)[2] == ("failed", "ValueError")
    assert (results_of(records.append, [None], deliver_tombstones=True), records[-1].value) == ([ACKED], None)


def test_a_message_is_short_and_quotes_nothing_of_the_record() -> None:
    def handle(record: Record) -> None:
        raise ValueError(f"can't read {record.value!r} of {record.key!r} {record.headers!r} " + "long " * 100)

    records = records_of([b"confidential 31337"], [b"customer-9876"], [(("h", b"token-abcdef"),)])
    message = call(handle, records).not_acked[0].error_message or ""
    assert 0 < len(message) <= MESSAGE_LIMIT
    assert not [secret for secret in ("confidential", "31337", "9876", "abcdef") if secret in message]


def test_a_time_is_never_before_the_handler_ended() -> None:
    now, ended = [1000], list[int]()

    def handle(record: Record) -> None:
        now[0] += 1000
        ended.append(now[0])
        if record.offset % 7 == 0:
            raise ValueError("no")

    outcomes = call_handler(handle, tier_of(handle), records_of([b"a"] * 500), lambda: now[0], False)
    times = outcomes.handled_at.copy()
    for outcome in outcomes.not_acked:
        times[outcome.row] = outcome.handled_at
        assert outcome.handled_at == ended[outcome.row]
    assert (times >= np.array(ended)).all()


def arrow(reply: Reply) -> Handler:
    return arrow_handler(lambda batch: reply(batch))


def test_an_arrow_handler_gets_the_promised_columns() -> None:
    batches: list[pa.RecordBatch] = []

    def reply(batch: pa.RecordBatch) -> list[str]:
        batches.append(batch)
        return ["acked"] * batch.num_rows

    call(arrow(reply), records_of([b"a", b"b"], [b"k", None], [(("t", b"1"), ("t", None)), ()]))
    assert batches[0].schema == RECORD_COLUMNS
    first, second = batches[0].to_pylist()
    assert first["headers"] == [{"key": "t", "value": b"1"}, {"key": "t", "value": None}]
    assert second["headers"] is None
    assert (first["topic"], first["partition"], first["offset"], first["attempt"]) == ("orders", 3, 100, 2)


WORDS = ["acked", "failed", "skipped", "dead"]


@pytest.mark.parametrize("reply", [
    lambda batch: WORDS,
    lambda batch: tuple(Outcome(word) for word in WORDS),
    lambda batch: pa.array(WORDS),
    lambda batch: pa.chunked_array([WORDS[:2], WORDS[2:]]),
    lambda batch: pa.array(WORDS).dictionary_encode(),
    lambda batch: np.array(WORDS),
    lambda batch: pa.table({"outcome": WORDS}),
    lambda batch: pa.record_batch({"offset": batch["offset"], "outcome": WORDS}),
    lambda batch: batch.append_column("outcome", pa.array(WORDS)),
])  # fmt: skip
def test_an_arrow_handler_may_return_its_outcomes_in_any_of_these_forms(reply: Reply) -> None:
    expected = [ACKED, ("failed", None), ("skipped", "Skip"), ("failed", "Dead")]
    assert results_of(arrow(reply), [b"a", b"\xff", b"c", b"d"]) == expected


def test_an_arrow_handler_may_return_error_classes_and_messages() -> None:
    def reply(batch: pa.RecordBatch) -> pa.Table:
        messages = [None, "can't parse hidden", "hidden"]
        return pa.table(
            {"outcome": ["acked", "failed", "failed"], "error_class": [None, "Late", "Dead"], "error_message": messages}
        )

    first, second = call(arrow(reply), records_of([b"a", b"hidden", b"hidden"])).not_acked
    assert (first.error_class, first.error_message) == ("Late", "can't parse ***")
    assert second.error_class == f"{__name__}.Dead"


NO_OUTCOME = "an outcome is null, or not one of acked, failed, skipped, dead"


@pytest.mark.parametrize(("answer", "sentence"), [
    *((["acked"] * count, "") for count in (2, 4)),
    *((["acked", word, "acked"], "") for word in (None, "ok", "dropped", 1)),
    *((answer, "") for answer in ([["acked"]] * 3, None, "acked", True, {"outcome": ["acked"] * 3})),
    ((word for word in ["acked"] * 3), ""),
    (pa.array([1, 2, 3]), ""),
    (pa.table({"result": ["acked"] * 3}), ""),
    (pa.table({"offset": [1, 2, 3], "outcome": ["acked"] * 3}), ""),
    (Dead("why"), "returned Dead: return an outcome for each row"),
    (Emit(1), "returned Emit: return an outcome for each row"),
    (False, "returned bool, not a sequence of outcomes"),
    ([False] * 3, NO_OUTCOME),
    ([Skip("why")] * 3, NO_OUTCOME),
])  # fmt: skip
def test_an_invalid_answer_of_an_arrow_handler_fails_the_whole_batch(answer: object, sentence: str) -> None:
    """Fault 13: with a wrong count, nulls or foreign offsets, nothing of the batch is acked."""
    outcomes = call(arrow(lambda batch: answer), records_of([b"a", b"b", b"c"]))
    assert results(outcomes, 3) == [INVALID] * 3
    assert sentence in str(outcomes.not_acked[0].error_message)


@pytest.mark.parametrize(("error", "error_class"), [
    *((error, error.__name__) for error in (ValueError, SystemExit, KeyboardInterrupt)),
    (Dead("only one of these"), "ackline.handler.Dead"),
    (type("Gone", (Dead,), {"__module__": "\ud800"})(), "Gone"),
    (NamelessType("Gone", (Dead,), {})(), "Exception"),
    (type("G" * 500, (Skip,), {})(), "G" * 120),
])  # fmt: skip
def test_an_arrow_handler_that_raises_fails_its_batch_and_buries_none_of_it(
    error: BaseException | type[BaseException], error_class: str
) -> None:
    """`Dead` would bury the neighbours of the record that it is meant for, so the batch is tried again."""

    def reply(batch: pa.RecordBatch) -> None:
        raise error

    assert results_of(arrow(reply), [b"a", b"b"]) == [("failed", error_class)] * 2


@pytest.mark.parametrize("column", ["outcome", "error_class", "error_message", "offset"])
@pytest.mark.parametrize("middle", [1, 1 << 30], ids=["no text", "beyond its bytes"])
def test_i17_a_column_of_texts_that_are_none_fails_its_batch(column: str, middle: int) -> None:
    """Arrow reads such a column only when a value is taken from it: it raises then, or ends the process."""
    offsets = pa.py_buffer(np.array([0, middle, 2], np.int32))
    broken = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"\xff\xff"))
    table = (
        pa.table({"outcome": ["failed"] * 2, column: broken}) if column != "outcome" else pa.table([broken], [column])
    )
    assert results_of(arrow(lambda batch: table), [b"a", b"b"]) == [("failed", "ArrowInvalid")] * 2


def test_an_arrow_handler_gets_no_tombstone_that_it_does_not_want() -> None:
    offsets: list[int] = []

    def reply(batch: pa.RecordBatch) -> list[str]:
        offsets.extend(batch["offset"].to_pylist())
        return ["failed"] * batch.num_rows

    failed: RowResult = ("failed", None)
    assert results_of(arrow(reply), [None, b"a", None, b"b"]) == [TOMBSTONE, failed, TOMBSTONE, failed]
    assert (offsets, results_of(arrow(reply), [None, None])) == ([102, 106], [TOMBSTONE] * 2)


@pytest.mark.parametrize(("answer", "sentence"), [
    (False, "returned False, which is no outcome: return nothing to ack the record"),
    ([Emit(1), "text"], "returned Emit: only a pipeline with `steps` or `outputs`"),
    (Emit(1), "returned Emit: only a pipeline with `steps` or `outputs`"),
    ((Hold(cast(Any, "x")),), "returned Hold: only a step with `join: true`"),
    ({"a": Fail(cast(Any, "x"), "why")}, "returned Fail: only a step with `join: true`"),
    ([Dead("why")], "returned Dead: raise it"),
    ([Skip], "returned Skip: raise it"),
    ([1, OSError("a task of a group")], "returned OSError: raise it"),
    (np.bool_(0), "returned False, which is no outcome"),
])  # fmt: skip
def test_an_answer_that_means_nothing_fails_the_record_with_the_sentence_that_helps(
    answer: object, sentence: str
) -> None:
    (failed,) = call(lambda record: answer, records_of([b"x"])).not_acked
    assert (failed.outcome, failed.error_class) == INVALID
    assert sentence in str(failed.error_message)
