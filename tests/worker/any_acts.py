"""Strategies of what handlers do: what they emit, raise and return, and what an Arrow handler answers for a batch."""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import strategies as st

from ackline import Dead, Emit, Fail, Hold, InFlight, Skip
from ackline.errors import ConfigError, FatalError, TransientError
from tests.worker.any_values import ENCODABLE, NAMES, SCALARS, VALUES, Mute, Strategy, Text, Word, mostly, one_of


class Span(timedelta):
    """A duration that divides into no number of microseconds."""

    def __floordiv__(self, other: Any) -> Any:
        return 0.5


def made(*makers: Callable[[], Any]) -> Strategy[Any]:
    return one_of(*makers).map(lambda maker: maker())


TIMEOUTS = st.none() | st.sampled_from(["1h", "30s", timedelta(hours=1), timedelta.max, pd.Timedelta("1h")])
ODD_TIMEOUTS = NAMES | st.floats() | st.integers() | one_of(
    "-1s", "9999999999999999d", "0s", "0.0000001s", "nans", "1" * 63 + "s", "1" * 65 + "s", "٣s", Mute(), Text("1h"),
    timedelta.min, timedelta(-1), Span(hours=1), np.timedelta64(1, "s"), pd.NaT,
)  # fmt: skip
IN_FLIGHT = st.builds(InFlight, mostly(TIMEOUTS, ODD_TIMEOUTS, 5))


def emits(streams: Sequence[str], values: Strategy[Any], keys: Strategy[Any] = VALUES) -> Strategy[Any]:
    """An Emit, mostly to one of these streams."""
    return st.builds(
        Emit, values, mostly(st.sampled_from(streams), NAMES | one_of(None, 1, Text("default"), Mute())),
        mostly(st.none() | ENCODABLE, keys), mostly(st.none(), one_of((), [], 1, "x", [Mute()], iter([1]), Mute())),
    )  # fmt: skip


class Broken(Exception):
    """An exception whose every attribute raises."""

    def __getattribute__(self, name: str) -> Any:
        raise ValueError("nothing")


class Nameless(type):
    __name__ = property(lambda kind: 1 // 0)
    __module__ = property(lambda kind: 1 // 0)


def _class(base: type[BaseException] = Exception, **body: Any) -> Callable[[], BaseException]:
    return lambda: type("Odd", (base,), body)("text")


def _raises(*_: Any) -> Any:
    raise RuntimeError("in turn")


def _too_deep() -> BaseException:
    try:
        return _too_deep()
    except RecursionError as error:
        return error


RAISED: Strategy[BaseException] = made(
    *(lambda kind=kind: kind("\ud800\x00 text") for kind in (
        ValueError, KeyError, Skip, Dead, SystemExit, BaseException, StopIteration, GeneratorExit, KeyboardInterrupt,
        MemoryError, OSError, TransientError, FatalError, ConfigError, AssertionError)),
    *(_class(base, **{name: body}) for base in (Exception, Skip, Dead, BaseException) for name, body in (
        ("__str__", _raises), ("__str__", lambda _: Text("odd")), ("__str__", lambda _: 1), ("__repr__", _raises),
        ("__str__", lambda _: "x" * 3_000_000), ("__class__", property(_raises)), ("__traceback__", property(_raises)),
        ("__traceback__", "none"), ("args", property(_raises)), ("__reduce__", _raises), ("__eq__", _raises),
        ("__module__", "\ud800"), ("__module__", None), ("__module__", "m" * 5000), ("__cause__", property(_raises)),
        ("__getattr__", _raises))),
    lambda: Broken(), lambda: Nameless("Odd", (Exception,), {})(), lambda: Nameless("Odd", (Dead,), {})(),
    lambda: type("a b\nß" * 50, (Exception,), {})(), lambda: type("a b\nß" * 50, (Skip,), {})(),
    lambda: type("InvalidOutcome", (Exception,), {})(), lambda: Skip(Mute()), lambda: Dead(*range(99)),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "\ud800"), lambda: ExceptionGroup("\ud800", [ValueError()]),
    _too_deep,
)  # fmt: skip


def yields(items: Sequence[Any], raised: BaseException | None) -> Callable[[], Iterator[Any]]:

    def run() -> Iterator[Any]:
        yield from items
        if raised is not None:
            raise raised

    return run


def returns(value: Any, raised: BaseException | None) -> Callable[..., Any]:

    def run(*_: Any) -> Any:
        if raised is not None:
            raise raised
        return value

    return run


def answers_of_step(
    answers: Sequence[tuple[int, Any, Any, Sequence[int]]], raised: BaseException | None
) -> Callable[[Sequence[Any]], Iterator[Any]]:
    """A step's body: yields what the kind of each answer makes of its value and places, and raises at its end."""

    def run(given: Sequence[Any]) -> Iterator[Any]:
        for kind, emit, reason, places in answers:
            chosen = [given[place % len(given)] for place in places]
            if kind == 0:
                yield Fail(chosen[0], reason)
            elif kind == 1:
                yield Hold(chosen[0])
            elif kind == 2:
                yield Emit(emit.value, emit.stream, emit.key, chosen)
            else:
                yield emit
        if raised is not None:
            raise raised

    return run


PLACES = st.lists(st.integers(0, 9), min_size=1, max_size=3)
MAYBE_RAISED = mostly(st.none(), RAISED, 8)
_NO_ANSWERS = emits(["default"], VALUES) | one_of(False, [InFlight()], {"a": InFlight})
RETURNED = st.builds(returns, mostly(mostly(VALUES, IN_FLIGHT, 2), _NO_ANSWERS, 12), MAYBE_RAISED)
WANTED = st.builds(returns, mostly(st.booleans(), SCALARS | one_of(np.True_, np.array([True]))), MAYBE_RAISED)


def of_step(values: Strategy[Any], join: bool) -> Strategy[Callable[[Sequence[Any]], Any]]:
    """What a step does: mostly it emits these values. A join also fails and holds what it gets."""
    emitted = emits(["default", "sent"], values)
    kinds = st.integers(0, 6) if join else mostly(st.integers(2, 4), st.integers(0, 1))
    reasons = NAMES | one_of(None, 1, Mute(), Text("x"), "x" * 10_000)
    usual = st.lists(st.tuples(kinds, emitted, reasons, PLACES), max_size=3)
    odd = st.lists(st.tuples(st.just(9), VALUES | IN_FLIGHT | emitted, reasons, PLACES), max_size=2)
    return st.builds(answers_of_step, mostly(usual, odd, 9), MAYBE_RAISED)


class Marked(pa.ExtensionType):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(pa.string(), "marked")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


def _with_bytes(rows: int, content: bytes, middle: int) -> pa.Array:
    """A column of texts whose bytes are no text, or whose middle offsets are beyond them."""
    offsets = np.arange(rows + 1, dtype=np.int32)
    offsets[1:-1] += middle
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(content * (rows + 1)))


COLUMN_FORMS: list[Callable[[list[Any]], Any]] = [
    lambda words: words, tuple, pa.array, np.array, lambda words: pa.array(words, pa.string()),
    lambda words: pa.array(words, pa.large_string()), lambda words: pa.array(words, pa.string_view()),
    lambda words: pa.array(words, pa.string()).dictionary_encode(),
    lambda words: pa.chunked_array([words[:1], words[1:]], pa.string()),
    lambda words: pa.array(["", *words], pa.string()).slice(1),
    lambda words: pa.ExtensionArray.from_storage(Marked(), pa.array(words, pa.string())),
    pd.Series, iter, lambda _: pa.chunked_array([], pa.string()), lambda words: pa.nulls(len(words)),
    lambda words: pa.array([words] * len(words)), lambda words: pa.array([{"word": word} for word in words]),
    lambda words: pa.array([b"\xff" for _ in words]), lambda words: pa.array(range(len(words))),
    lambda words: pa.array([0.5] * len(words)), lambda words: pa.array([True] * len(words)),
    lambda words: pa.RunEndEncodedArray.from_arrays([len(words)], ["acked"]),
    lambda words: pa.DictionaryArray.from_arrays(pa.array([7] * len(words)), pa.array(["acked"]), safe=False),
    lambda words: _with_bytes(len(words), b"\xff", 0), lambda words: _with_bytes(len(words), b"a", 1 << 30),
    lambda words: pa.array(["x" * 100_000] * len(words)), lambda words: {"outcome": words}, lambda words: words[0],
    lambda words: pd.DataFrame({"outcome": words}), lambda _: Mute(),
]  # fmt: skip
"""What makes a column, or something that is none, of some words. The first FITTING of them are answers."""
FITTING = 11
WORDS = mostly(st.sampled_from(["acked", "failed", "skipped", "dead"]), NAMES | one_of(None, 1, Word.ACKED, Text("x")))


def _columns(
    names: Sequence[str], forms: Sequence[int], words: Sequence[Any], rows: int, more: int, raised: BaseException | None
) -> Any:
    if raised is not None:
        raise raised
    count = max(1, rows + more)
    columns = [COLUMN_FORMS[form]([words[place % len(words)] for place in range(count)]) for form in forms]
    return columns[0] if not names else pa.table(columns[: len(names)], names=list(names))


def _batch_answer(
    names: Sequence[str], forms: Sequence[int], words: Sequence[Any], more: int, raised: BaseException | None
) -> Callable[[int], Any]:
    return lambda rows: _columns(names, forms, words, rows, more, raised)


TABLE_NAMES = st.sampled_from(
    [[], ["outcome"], ["outcome", "error_class"], ["outcome", "error_message"], ["outcome", "offset"], ["outcome"] * 2,
     ["error_class", "error_message", "outcome"], ["other"]]
)  # fmt: skip
_FORMS = mostly(st.integers(0, FITTING - 1), st.integers(FITTING, len(COLUMN_FORMS) - 1), 3)
BATCHES: Strategy[Callable[[int], Any]] = st.builds(
    _batch_answer, TABLE_NAMES, st.lists(_FORMS, min_size=3, max_size=3),
    st.lists(WORDS, min_size=1, max_size=3), mostly(st.just(0), st.integers(-1, 1)), MAYBE_RAISED,
)  # fmt: skip
