"""Reads what the handler of a tree answers.

An emitted value is packed at once, because a handler may change a value after it has yielded it. An answer refers to
the inputs of its call by their positions, so it can leave the process that the handler ran in. Error messages must not
repeat the contents of inputs (`texts_of`).
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from difflib import get_close_matches
from types import GeneratorType
from typing import Any, NamedTuple

from ackline.handler import SOURCE, Emit, Fail, Hold, InFlight, Origin, Record, Tuple, new_tuple
from ackline.pipeline.outputs import Output
from ackline.pipeline.streams import scalar_texts
from ackline.pipeline.topology import Step, Stream, Topology
from ackline.scrub import MESSAGE_LIMIT, scrub, texts_of_handler, words_of_handler
from ackline.trees.payload import copied, pack, unpack
from ackline.trees.rows import EdgeNumbers
from ackline.worker.call import kind_and_fault, refuse_false, refuse_unfinished
from ackline.worker.outcomes import InvalidOutcome

Texts = Callable[[], Iterator[bytes | str | None]]
"""Yields the contents of inputs that an error message must not repeat."""

_ANSWERS = (Emit, Fail, Hold, InFlight)
_STREAM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_MASKED_REASONS = 20
_MOST_BYTES = 1_000_000_000
"""Bytes of a tuple, packed, at most. Neither Arrow nor Spark holds more than 2 GiB in a row."""


class Emitted(NamedTuple):
    """An `Emit` as it was when the handler yielded it."""

    stream: str
    anchors: Sequence[int] | None
    """The positions of its anchors among the inputs of the call; None for all of them."""
    key: bytes
    payload: bytes
    """Key and value for steps, packed; both are empty if no step takes the stream."""
    row: "EmittedRow | None" = None
    """Key and value for outputs; None if no output takes the stream."""
    problem: str = ""
    """Why no step and no output takes it; empty if one does."""


class EmittedRow(NamedTuple):
    """A row for outputs, of about `size` bytes. `hidden` are the names of fields that are not in the source code of the
    handler: they may be content of a record, so no message shows them."""

    key: Any
    value: Any
    size: int
    hidden: Collection[Any] = ()


class NotAcked(NamedTuple):
    """What a join answered about one of its tuples: that it failed for a reason, or that it is held."""

    position: int
    reason: str | None
    held: bool


class Waiting(NamedTuple):
    """An `InFlight` with its deadline in microseconds since 1970, NEVER without one."""

    answer: InFlight
    due: int


Answer = Emitted | NotAcked | InFlight | Waiting
"""What a handler may answer. `AnswerReader.read` puts an InFlight last, wherever the handler yielded it."""

_Taken = tuple[int, Stream, tuple[Step, ...], tuple[Output, ...]]
"""The number of a stream, the stream, and the steps and the outputs that take it."""

_new = tuple.__new__  # a named tuple's own constructor takes three times as long, and there is one for each tuple


class _Source(NamedTuple):
    handler: object
    texts: frozenset[str]
    words: frozenset[str]


class AnswerReader:
    """Reads the answers of the handlers of a topology."""

    def __init__(self, topology: Topology) -> None:
        self.takers: dict[str, dict[str, _Taken]] = {name: {} for name in (SOURCE, *topology.names)}
        """What takes a stream, by the name of its step and then by its own."""
        for number, stream in enumerate(topology.streams):
            steps, outputs = topology.consumers.get(stream, ()), topology.outputs.get(stream, ())
            self.takers[stream.step][stream.name] = number, stream, steps, outputs
        self._sources: dict[int, _Source] = {}
        """By the `id` of the handler. An entry holds the handler, so no other object gets that id."""

    def read(
        self,
        result: Any,
        given: "Sequence[Input] | Sequence[Record]",
        step: Step | None = None,
        handler: Callable[..., Any] | None = None,
    ) -> list[Answer]:
        """Returns the answers of a handler, which returns or yields any number of `Emit`; a join `Fail` and `Hold`,
        too, and the handler of records one `InFlight`. Runs a generator to its end. `given` are the inputs of the call;
        one record for the handler of records, whose `step` is None. Messages may show words that are in the source code
        of `handler`. Raises InvalidOutcome for any other answer, and what a generator raises."""
        name = SOURCE if step is None else step.name
        takers = self.takers[name]
        positions: _Positions | None = None
        reasons: dict[str, str | None] = {}
        answers: list[Answer] = []
        in_flight: InFlight | None = None
        for answer in result if type(result) is GeneratorType else _several(result):
            if isinstance(answer, Emit):
                anchors: Sequence[int] | None = None
                if answer.anchors is not None:
                    positions = positions or _Positions(given)
                    anchors = positions.of_anchors(answer.anchors)
                stream = answer.stream
                taken = takers.get(stream) if type(stream) is str else None
                if taken is None:
                    problem = self.unknown_stream(name, stream, lambda: texts_of(given), handler)
                    pack(answer.key, answer.value)
                    answers.append(Emitted(stream, anchors, b"", b"", problem=problem))
                    continue
                _, _, to_steps, to_outputs = taken
                key = payload = b""
                if to_steps:
                    key, payload = pack(answer.key, answer.value)
                    if len(key) + len(payload) > _MOST_BYTES:
                        raise InvalidOutcome("an emitted value takes more than 1 GB with its key; emit it in parts")
                row = self._row(answer, handler) if to_outputs else None
                answers.append(_new(Emitted, (stream, anchors, key, payload, row, "")))
            elif step is not None and step.join and isinstance(answer, Fail | Hold):
                positions = positions or _Positions(given)
                answers.append(_not_acked(answer, positions, reasons, given, self._source_of(handler)))
            else:
                in_flight = _in_flight(answer, step, in_flight)
        return answers if in_flight is None else [*answers, in_flight]

    def _row(self, emit: Emit, handler: Callable[..., Any] | None) -> EmittedRow:
        """Returns the row for outputs. Raises InvalidOutcome for a key or value that no tuple may hold."""
        value, size = copied(emit.value)
        hidden: Collection[Any] = ()
        if type(value) is dict and not value.keys() <= (source := self._source_of(handler)).texts:
            hidden = value.keys() - source.texts
        return _new(EmittedRow, (emit.key if emit.key is None else copied(emit.key)[0], value, size, hidden))

    def _source_of(self, handler: object) -> _Source:
        """Returns the texts and words in the source code of a handler, which is read once."""
        if id(handler) not in self._sources:
            self._sources[id(handler)] = _Source(handler, texts_of_handler(handler), words_of_handler(handler))
        return self._sources[id(handler)]

    def _near(self, step: str, stream: str) -> str:
        """Returns the end of a message: the streams of a step that are taken, the name nearest to `stream` first."""
        names = sorted(self.takers[step])
        near = get_close_matches(stream, names, 1, 0.5)
        ordered = [*near, *(name for name in names if name not in near)]
        return f"; taken are {', '.join(f'{step}.{name}' for name in ordered)}" if ordered else ""

    def unknown_stream(self, step: str, stream: Any, texts: Texts, handler: Callable[..., Any] | None) -> str:
        """Returns the error message for a tuple that was emitted to a stream which no step and no output takes. Raises
        InvalidOutcome if `stream` is no valid name."""
        if type(stream) is not str or not _STREAM_NAME.fullmatch(stream):
            raise InvalidOutcome("the stream of an Emit is no name of a stream")
        name = scrub(stream, texts(), self._source_of(handler).words)
        return f"emitted to {step}.{name}, which no step and no output takes{self._near(step, stream)}"[:MESSAGE_LIMIT]

    def hidden_fields(self, names: Collection[str], handler: Callable[..., Any] | None) -> Collection[str]:
        """Returns the names of fields that are not in the source code of a handler: they may be content of a record."""
        return frozenset(names) - self._source_of(handler).texts


def _several(result: Any) -> Iterable[Any]:
    """Returns the answers that a handler has returned without a generator. Raises InvalidOutcome for what is neither an
    answer nor a list, tuple or iterator of answers."""
    if result is None:
        return ()
    if isinstance(result, _ANSWERS):
        return (result,)
    if isinstance(result, Iterator | list | tuple):
        return result
    refuse_unfinished(result)
    refuse_false(result)
    found = kind_and_fault(result, steps=True) or (type(result).__name__, "yield Emit(value)")
    raise InvalidOutcome(f"the handler returned {found[0]}; {found[1]}, or return nothing")


def _in_flight(answer: Any, step: Step | None, earlier: InFlight | None) -> InFlight:
    """Returns the InFlight that a handler has yielded. Raises InvalidOutcome for any other answer, for one of a step,
    and after an `earlier` one."""
    if not isinstance(answer, InFlight):
        found = kind_and_fault(answer, steps=True) or (type(answer).__name__, "yield Emit(value)")
        raise InvalidOutcome(f"the handler yielded {found[0]}; {found[1]}")
    if step is not None:
        raise InvalidOutcome(f"step {step.name} yielded InFlight; only the handler of the records may yield it")
    if earlier is not None:
        raise InvalidOutcome("the handler yielded InFlight twice; yield it once for a record")
    return answer


def _not_acked(
    answer: Fail | Hold,
    positions: "_Positions",
    reasons: dict[str, str | None],
    given: "Sequence[Input] | Sequence[Record]",
    source: _Source,
) -> NotAcked:
    """Returns what a join answered about one tuple. Masks the first _MASKED_REASONS different reasons and drops all
    others, because masking takes time for each text of each tuple of the call."""
    position = positions.of(answer.tuple)
    if isinstance(answer, Hold):
        return NotAcked(position, None, True)
    reason = str.__str__(str(answer.reason))
    if reason not in reasons and len(reasons) < _MASKED_REASONS:
        reasons[reason] = scrub(reason, texts_of(given), source.words) or None
    return NotAcked(position, reasons.get(reason), False)


class _Positions:
    """The positions of the inputs of a call. Most calls need none, so they are found at the first call of `of`."""

    __slots__ = ("_by_id", "_given", "_iterators")

    def __init__(self, given: "Sequence[Input] | Sequence[Record]") -> None:
        self._given = given
        self._by_id: dict[int, int] | None = None
        self._iterators: list[Iterator[Any]] = []

    def of_anchors(self, anchors: Any) -> tuple[int, ...]:
        """Returns the positions of the anchors of an Emit: one input, or an iterable of inputs such as a list or a
        generator. It reads the iterable at once, because the handler may change its list later. Raises InvalidOutcome
        for an iterator that an earlier Emit has read: it is empty now, and the tuple would silently belong to no
        record."""
        if isinstance(anchors, Iterator):
            if any(anchors is earlier for earlier in self._iterators):
                raise InvalidOutcome("two Emits share one iterator as anchors, which the first consumes; pass a list")
            self._iterators.append(anchors)
        given = anchors if isinstance(anchors, Iterable) and not isinstance(anchors, str | bytes) else (anchors,)
        return tuple([self.of(anchor) for anchor in given])

    def of(self, given: object) -> int:
        """Returns the position of an input. Raises InvalidOutcome for anything else."""
        if self._by_id is None:
            self._by_id = {
                id(each.tuple if type(each) is Input else each): position for position, each in enumerate(self._given)
            }
        position = self._by_id.get(id(given))
        if position is None:
            raise InvalidOutcome("an anchor, a Fail or a Hold names something that the call was not given")
        return position


class Input(NamedTuple):
    """A tuple with the edges that lead to it from its roots, and the bytes that it came from."""

    tuple: Tuple
    edges: EdgeNumbers
    key: bytes
    payload: bytes


def input_of(key: bytes, payload: bytes, stream: Stream, origins: tuple[Origin, ...], edges: EdgeNumbers) -> Input:
    """Returns a tuple that was emitted to `stream`, as the input of a call."""
    name, value = unpack(key, payload)
    return _new(Input, (new_tuple(value, name, stream.name, stream.step, origins), edges, key, payload))


def texts_of(given: Sequence[Input] | Sequence[Record]) -> Iterator[bytes | str | None]:
    """Yields the contents of the inputs of a call that an error message must not repeat. Tuples are unpacked again,
    because a handler may have changed their values."""
    for each in given:
        if isinstance(each, Record):
            yield from scalar_texts([each.key, each.value, *(value for _, value in each.headers)])
        else:
            for part in unpack(each.key, each.payload):
                yield from scalar_texts(part)
