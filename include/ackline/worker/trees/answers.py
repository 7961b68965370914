"""Reads what the handler of a tree answers. Packs emitted values at once, because a handler may change a value after it
has yielded it.

An answer refers to the inputs of its call by their positions, so it can leave the process that the handler ran in.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import GeneratorType
from typing import Any, NamedTuple

from ackline.handler import SOURCE, Emit, Fail, Hold, InFlight
from ackline.pipeline.topology import Step, Stream, Topology
from ackline.scrub import scrub
from ackline.worker.call import refuse_unfinished
from ackline.worker.outcomes import InvalidOutcome
from ackline.worker.trees.payload import copied, pack

Texts = Callable[[], Iterator[bytes | str | None]]
"""Yields what an error message must not repeat."""

_ANSWERS = (Emit, Fail, Hold, InFlight)
_STREAM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_MASKED_REASONS = 20


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
    """Why nothing can get it; empty if a step or an output can."""


class EmittedRow(NamedTuple):
    """A row for outputs. `size` is about how many bytes it has."""

    key: Any
    value: Any
    size: int


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

_new = tuple.__new__  # a named tuple's own constructor takes three times as long, and there is one for each tuple


class AnswerReader:
    """Reads the answers of the handlers of a topology."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._taken: dict[tuple[str, str], tuple[bool, bool]] = {
            (stream.step, stream.name): (stream in topology.consumers, stream in topology.outputs)
            for stream in {*topology.consumers, *topology.outputs}
        }
        """Whether steps and whether outputs take a stream, by the names of its step and of the stream."""

    def read(self, result: Any, inputs: Sequence[Any], texts: Texts, step: Step | None = None) -> list[Answer]:
        """Returns what a handler answered: None, an `Emit`, or several, which it may yield; a join may answer `Fail`
        and `Hold` too, and the handler of records one `InFlight`. Runs a generator to its end.

        `inputs` are the inputs of the call; `step` is None for the handler of records. Raises InvalidOutcome for any
        other answer, and what a generator raises.
        """
        if result is None:
            return []
        if isinstance(result, _ANSWERS):
            result = (result,)
        elif type(result) is not GeneratorType and not isinstance(result, Iterator | list | tuple):
            refuse_unfinished(result)
            raise InvalidOutcome(f"the handler returned {type(result).__name__}; yield Emit(value), or return nothing")
        name, join = (step.name, step.join) if step is not None else (SOURCE, False)
        positions: _Positions | None = None
        reasons: dict[str, str | None] = {}
        answers: list[Answer] = []
        in_flight: InFlight | None = None
        for answer in result:
            if isinstance(answer, Emit):
                anchors = None
                if answer.anchors is not None:
                    positions = positions or _Positions(inputs)
                    anchors = positions.of_anchors(answer.anchors)
                answers.append(self._emitted(answer, name, anchors, texts))
            elif join and isinstance(answer, Fail | Hold):
                positions = positions or _Positions(inputs)
                answers.append(_not_acked(answer, positions, reasons, texts))
            elif isinstance(answer, InFlight):
                _check_in_flight(step, in_flight)
                in_flight = answer
            else:
                raise InvalidOutcome(f"the handler yielded {type(answer).__name__}; yield Emit(value)")
        return answers if in_flight is None else [*answers, in_flight]

    def _emitted(self, emit: Emit, step: str, anchors: Sequence[int] | None, texts: Texts) -> Emitted:
        """Returns what is emitted, packed. Raises InvalidOutcome for what can't be emitted."""
        stream = emit.stream
        taken = self._taken.get((step, stream)) if type(stream) is str else None
        if taken is None:
            problem = self._problem(step, stream, texts)
            pack(emit.key, emit.value)
            return Emitted(stream, anchors, b"", b"", problem=problem)
        to_steps, to_outputs = taken
        row, (key, payload) = None, pack(emit.key, emit.value) if to_steps else (b"", b"")
        if to_outputs:
            value, size = copied(emit.value)
            row = _new(EmittedRow, (emit.key if emit.key is None else copied(emit.key)[0], value, size))
        return _new(Emitted, (stream, anchors, key, payload, row, ""))

    def _problem(self, step: str, name: Any, texts: Texts) -> str:
        """Returns why no step and no output gets what is emitted to a stream. Raises InvalidOutcome if no stream can
        have this name."""
        if type(name) is not str or not _STREAM_NAME.fullmatch(name):
            raise InvalidOutcome("the stream of an Emit is no name of a stream")
        return scrub(f"emitted to {Stream(step, name)}, which no step and no output takes", texts())


def _check_in_flight(step: Step | None, earlier: InFlight | None) -> None:
    """Raises InvalidOutcome if a step answers InFlight, or the handler of records a second time for one record."""
    if step is not None:
        raise InvalidOutcome(f"step {step.name} yielded InFlight; only the handler of the records may yield it")
    if earlier is not None:
        raise InvalidOutcome("the handler yielded InFlight twice; yield it once for a record")


def _not_acked(answer: Fail | Hold, positions: "_Positions", reasons: dict[str, str | None], texts: Texts) -> NotAcked:
    """Returns what a join answered about one tuple. Masks each of the first reasons once; drops further ones, because
    masking takes time for each text of each tuple of the call."""
    position = positions.of(answer.tuple)
    if isinstance(answer, Hold):
        return NotAcked(position, None, True)
    reason = str.__str__(str(answer.reason))
    if reason not in reasons and len(reasons) < _MASKED_REASONS:
        reasons[reason] = scrub(reason, texts()) or None
    return NotAcked(position, reasons.get(reason), False)


class _Positions:
    """The positions of the inputs of a call. Most calls need none, so they are counted when the first one is."""

    __slots__ = ("_by_id", "_inputs", "_iterators")

    def __init__(self, inputs: Sequence[Any]) -> None:
        self._inputs = inputs
        self._by_id: dict[int, int] | None = None
        self._iterators: list[Iterator[Any]] = []

    def of_anchors(self, anchors: Any) -> tuple[int, ...]:
        """Returns the positions of the anchors of an Emit: one input, or an iterable of inputs such as a list or a
        generator. It reads the iterable at once, because the handler may change its list later.

        Raises InvalidOutcome for an iterator that an earlier Emit has read: it is empty now, and the tuple would
        silently belong to no record.
        """
        if isinstance(anchors, Iterator):
            if any(anchors is earlier for earlier in self._iterators):
                raise InvalidOutcome("two Emits share one iterator as anchors, which the first consumes; pass a list")
            self._iterators.append(anchors)
        given = anchors if isinstance(anchors, Iterable) and not isinstance(anchors, str | bytes) else (anchors,)
        return tuple([self.of(anchor) for anchor in given])

    def of(self, given: object) -> int:
        """Returns the position of an input. Raises InvalidOutcome for anything else."""
        if self._by_id is None:
            self._by_id = {id(each): position for position, each in enumerate(self._inputs)}
        position = self._by_id.get(id(given))
        if position is None:
            raise InvalidOutcome("an anchor, a Fail or a Hold names something that the call was not given")
        return position
