"""Calls a handler on records: each record gets exactly one outcome, whatever the handler does.

A handler may answer `InFlight`. What becomes of it depends on the settings of the task that this process works on.
"""

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from datetime import timedelta
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ackline.calling import TaskFailure, Yielded
from ackline.handler import Dead, Emit, Fail, Handler, Hold, InFlight, Record, Skip, sign_tokens_with
from ackline.ledger.backoff import parse_duration
from ackline.ledger.outcomes import Outcome
from ackline.ledger.pending import LATEST, MICROSECOND
from ackline.scrub import place_of_error, words_of_handler
from ackline.worker.gate import Gate
from ackline.worker.isolation.serving import Observer
from ackline.worker.outcomes import (
    INVALID_WORD,
    OUTCOME_WORDS,
    Clock,
    InvalidOutcome,
    Outcomes,
    PayloadOf,
    RowOutcome,
    error_class_of,
    outcome_of_exception,
    outcome_of_word,
    scrubbed_message,
)
from ackline.worker.progress import note_calls
from ackline.worker.records import Int64s, Records
from ackline.worker.settings import ReplaySettings

_allowed = False
_timeout: timedelta | None = None
# Global, as the signer of tokens in `ackline.handler` is, because a process works on one task at a time.


def use_in_flight_settings(settings: ReplaySettings) -> None:
    """Sets whether handlers of this process may return InFlight, its default timeout, and the signer of tokens."""
    global _allowed, _timeout
    _allowed, _timeout = settings.tokens is not None, settings.in_flight_timeout
    sign_tokens_with(settings.tokens.token if settings.tokens is not None else None)


def in_flight_outcome(answer: InFlight, row: int, handled_at: int) -> RowOutcome:
    """Returns the outcome of a row that is in flight from `handled_at` on, in microseconds since 1970. Raises
    InvalidOutcome if the pipeline has no ack topic, and for a timeout that is no duration above zero."""
    if not _allowed:
        raise InvalidOutcome("InFlight needs `ack_topic` in the pipeline file")
    timeout: Any = _timeout if answer.timeout is None else answer.timeout
    if timeout is None:
        return RowOutcome(row, Outcome.IN_FLIGHT, None, None, handled_at)
    try:
        duration = parse_duration(timeout)
    except ValueError:  # its text may quote what the handler has made of the record
        duration = timedelta()
    # Called by its class: that of the handler's duration may divide otherwise.
    microseconds = timedelta.__floordiv__(duration, MICROSECOND)
    if microseconds <= 0:
        raise InvalidOutcome("the timeout of InFlight is no timedelta above zero, and no text such as 30s or 1h30m")
    return RowOutcome(row, Outcome.IN_FLIGHT, None, None, handled_at, min(handled_at + microseconds, LATEST))


_OUTCOME_COLUMNS = ("outcome", "error_class", "error_message")
# The acked records of a small group share one time: reading the clock for each would take a tenth of all the time.
_GROUP = 64

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


IsFull = Callable[[], bool]
"""Returns whether no more records should be handled, because what their calls have emitted waits in memory."""


def call_record_handler(
    handler: Handler,
    records: Records,
    now: Clock,
    payload_of: PayloadOf | None = None,
    observer: Observer | None = None,
    is_full: IsFull | None = None,
) -> Outcomes:
    """Calls a handler of the record tier once for each record. `payload_of` is for a handler that sees more of a record
    than its raw bytes. Records that wait for a lower one of their key (`ackline.worker.gate`) are held back, and get no
    call. Stops after a record for which `is_full` returns True, and returns the outcomes up to it."""
    count = len(records)
    remaining: Iterator[Record] = iter(records)
    forks = _forks
    not_acked: list[RowOutcome] = []
    times: list[int] = []
    gate = Gate()
    if records.order_keys is not None:
        handler = _gated(handler, gate, records.order_keys)
    keep = _keeping(not_acked, records, gate, observer)
    while len(times) * _GROUP < count:
        for record in islice(remaining, _GROUP):
            try:
                result = handler(record)
                if _forks != forks:
                    end_forked_copy()
                if result is not None:
                    in_flight = in_flight_answer(result)
                    if in_flight is not None:
                        row = int(np.searchsorted(records.offsets, record.offset))
                        keep(in_flight_outcome(in_flight, row, now()))
            except TaskFailure as failure:
                raise failure.error from None
            except BaseException as error:  # sys.exit, too, is the outcome of this record alone
                if _forks != forks:
                    end_forked_copy(error)
                row = int(np.searchsorted(records.offsets, record.offset))
                keep(outcome_of_exception(error, row, records, now(), payload_of))
            if is_full is not None and is_full():
                count = int(np.searchsorted(records.offsets, record.offset)) + 1
                remaining = iter(())
                break
        note_calls(min(_GROUP, count - len(times) * _GROUP))
        times.append(now())
    handled_at = np.repeat(np.array(times, dtype=np.int64), _GROUP)[:count]
    held_back = sum(outcome.outcome is Outcome.HELD_BACK for outcome in not_acked)
    return Outcomes(handled_at, not_acked, count - held_back)


def _keeping(
    not_acked: list[RowOutcome], records: Records, gate: Gate, observer: Observer | None
) -> Callable[[RowOutcome], None]:
    """Returns what adds an outcome to `not_acked`, and has the gate and the observer take it."""

    def keep(outcome: RowOutcome) -> None:
        not_acked.append(outcome)
        if records.order_keys is not None:
            gate.note_all(records, (outcome,))
        if observer is not None and outcome.outcome is not Outcome.HELD_BACK:
            observer.report(int(records.offsets[outcome.row]), outcome)

    return keep


def _gated(handler: Handler, gate: Gate, keys: Int64s) -> Handler:
    """Returns a handler that the gate lets through to `handler`. It gets the records with these order keys in turn."""
    remaining, behind, refuse = iter(keys.tolist()), gate.behind, gate.refuse

    def call(record: Record) -> Any:
        key = next(remaining)
        if key in behind:
            refuse(key, record.offset)
        return handler(record)

    return call


def forks() -> int:
    """Returns how often this process is a copy that a fork has made. A handler may fork in its call."""
    return _forks


def in_flight_answer(result: Any) -> InFlight | None:
    """Returns the InFlight that a record handler has returned or yielded; None if it has not, so that the record is
    acked. Raises InvalidOutcome for a result that stands for unfinished work, for False, for a value of Ackline that
    means nothing there, alone or within a list, tuple, set or mapping, and for a generator that has yielded anything
    else or more than one InFlight."""
    if isinstance(result, InFlight):
        return result
    if not isinstance(result, Yielded):
        if result is InFlight or (
            isinstance(result, list | tuple) and any(item is InFlight or isinstance(item, InFlight) for item in result)
        ):
            raise InvalidOutcome("the handler returned InFlight in another form: return InFlight()")
        refuse_unfinished(result)
        refuse_false(result)
        _refuse_no_answer(result)
        return None
    if not all(isinstance(item, InFlight) for item in result) or len(result) > 1:
        raise InvalidOutcome("a handler may yield one InFlight, and nothing else")
    return result[0] if result else None


_MEANT: dict[type, str] = {
    Fail: "only a step with `join: true` may answer it; raise an exception to fail the record",
    Hold: "only a step with `join: true` may answer it",
    Skip: "raise it",
    Dead: "raise it",
}
_MEANT_WITHOUT_STEPS = {
    Emit: "only a pipeline with `steps` or `outputs` takes it, and this one has neither",
    InFlight: "return InFlight() alone",
    **_MEANT,
}
"""What is wrong with a value of Ackline that the handler of a record has returned, or holds in what it has returned."""
_MEANT_WITH_STEPS = {Emit: "yield Emit(value)", InFlight: "yield InFlight()", **_MEANT}
"""What is wrong with a value of Ackline that a handler has answered in a pipeline with steps or outputs."""


def kind_and_fault(value: Any, steps: bool) -> tuple[str, str] | None:
    """Returns the name of the class of Ackline that a value is, or is of, or the class of an exception, and what is
    wrong with it as an answer; None for any other value. `steps` is whether the pipeline takes what handlers emit."""
    for kind, fault in (_MEANT_WITH_STEPS if steps else _MEANT_WITHOUT_STEPS).items():
        if value is kind or isinstance(value, kind):
            return kind.__name__, fault
    return (type(value).__name__, "raise it") if isinstance(value, BaseException) else None


def refuse_false(result: Any) -> None:
    """Raises InvalidOutcome for False, which its author means as a failure, and which would ack the record."""
    if isinstance(result, bool | np.bool_) and not result:
        raise InvalidOutcome(
            "the handler returned False, which is no outcome: return nothing to ack the record, raise an exception to "
            "have it tried again, and raise Skip or Dead to settle it"
        )


def _refuse_no_answer(result: Any) -> None:
    """Raises InvalidOutcome for a value of Ackline that its author means as an answer, and that would ack the record.
    Any other value is ignored, as other task runners do."""
    inside = result.values() if isinstance(result, dict) else result
    for value in inside if isinstance(result, list | tuple | set | frozenset | dict) else (result,):
        if found := kind_and_fault(value, steps=False):
            raise InvalidOutcome(f"the handler returned {found[0]}: {found[1]}")


def end_forked_copy(error: BaseException | None = None) -> None:
    """Ends this process, a copy that the handler has forked and that has returned from the handler's call. Otherwise
    the copy would handle each record that is left a second time."""
    code = error.code if isinstance(error, SystemExit) else error
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def refuse_unfinished(result: Any) -> None:
    """Raises InvalidOutcome for a result that stands for unfinished work, or for an exception that was returned instead
    of raised. Acking either would ack a record that was not handled."""
    if isinstance(result, BaseException) or (isinstance(result, type) and issubclass(result, BaseException)):
        raise InvalidOutcome("the handler returned an exception: raise it")
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
    elif not (inspect.isawaitable(result) or inspect.isasyncgen(result) or isinstance(result, Future)):
        return
    raise InvalidOutcome("the handler returned a coroutine, future or generator: its work was not done")


def call_arrow_handler(handler: Handler, records: Records, now: Clock) -> Outcomes:
    """Calls a handler of the Arrow tier once for all records. An invalid answer fails the whole batch."""
    forks = _forks
    try:
        result = handler(records.to_arrow())
        if _forks != forks:
            end_forked_copy()
        if found := kind_and_fault(result, steps=False):
            raise InvalidOutcome(f"the handler returned {found[0]}: return an outcome for each row")
        refuse_unfinished(result)
        words, classes, messages = _outcome_columns(result, records)
    except TaskFailure as failure:
        raise failure.error from None
    except BaseException as error:  # sys.exit, too, is the outcome of this batch alone
        if _forks != forks:
            end_forked_copy(error)
        count, time = len(records), now()
        message = scrubbed_message(error, (part for row in range(count) for part in records.payload_of(row)))
        # `Dead` gets the name of its module, so it means nothing to settle: it would bury all records of the batch.
        error_class = error_class_of(error)
        same = RowOutcome(0, Outcome.FAILED, error_class, message, time, error_place=place_of_error(error))
        failed = [same.at_row(row) for row in range(count)]
        return Outcomes(np.full(count, time, np.int64), failed, count)
    time = now()
    module = str(getattr(handler, "__module__", "handler"))
    rows = np.flatnonzero(pc.not_equal(words, "acked").to_numpy(zero_copy_only=False)).tolist()
    kept = words_of_handler(handler) if rows else frozenset[str]()
    not_acked = []
    for row in rows:
        said = words[row].as_py(), text_in(classes, row), text_in(messages, row)
        not_acked.append(outcome_of_word(row, *said, records.payload_of, time, module, kept))
    return Outcomes(np.full(len(records), time, np.int64), not_acked, len(records))


def text_in(column: pa.Array | None, row: int) -> str | None:
    """Returns the text in a row of a column; None if there is no column."""
    return None if column is None else column[row].as_py()


def _outcome_columns(result: Any, records: Records) -> tuple[pa.Array, pa.Array | None, pa.Array | None]:
    """Returns the columns outcome, error_class and error_message of what an Arrow handler returned. Raises
    InvalidOutcome, or Arrow's own error, unless that is one outcome for each row."""
    classes: pa.Array | None = None
    messages: pa.Array | None = None
    if isinstance(result, pa.Table | pa.RecordBatch):
        names = result.schema.names
        if "offset" in names:
            result.column("offset").validate(full=True)
            if result.column("offset").to_pylist() != records.offsets.tolist():
                raise InvalidOutcome("the handler returned other offsets than it was given")
        if "outcome" not in names:
            raise InvalidOutcome("the returned table has no column `outcome`")
        words, classes, messages = outcome_columns(result)
    else:
        words = _string_column(result)
    if len(words) != len(records):
        raise InvalidOutcome(f"{len(words)} outcomes for {len(records)} records")
    if words.null_count or not pc.all(pc.is_in(words, OUTCOME_WORDS)).as_py():
        raise InvalidOutcome(INVALID_WORD)
    return words, classes, messages


def outcome_columns(table: pa.Table | pa.RecordBatch) -> tuple[pa.Array, pa.Array | None, pa.Array | None]:
    """Returns the columns outcome, error_class and error_message of a table that has at least the first, as texts. Does
    not look at what the texts say. Raises Arrow's own error if one of them can't be text."""
    # The handler may return its own batch with columns added, so columns of other names are ignored.
    columns = {name: _string_column(table.column(name)) for name in table.schema.names if name in _OUTCOME_COLUMNS}
    return columns["outcome"], columns.get("error_class"), columns.get("error_message")


def _string_column(column: Any) -> pa.Array:
    if isinstance(column, pa.Array | pa.ChunkedArray):
        column.validate(full=True)  # bytes that are no text raise only when they are read, or end the process
        return (column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column).cast(pa.string())
    if isinstance(column, str | bytes | dict) or not isinstance(column, Sequence | np.ndarray):
        raise InvalidOutcome(f"the handler returned {type(column).__name__}, not a sequence of outcomes")
    try:
        return pa.array([str(word) if isinstance(word, str) else word for word in column], pa.string())
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
        raise InvalidOutcome(INVALID_WORD) from error
