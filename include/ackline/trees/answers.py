"""Reads what the record handlers of a tree answer, and holds what they emit until it is delivered.

An emitted value is packed at once, because a handler may change a value after it has yielded it. What is usual, an
`Emit` to a stream that is taken, with the inputs as its anchors, takes the first branch of `CallReader.read`; anything
else takes the second one, with the same meaning. An answer refers to the inputs of its call by their positions, so it
can leave the process that the handler ran in. Error messages must not repeat the contents of inputs (`texts_of`).
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import GeneratorType
from typing import Any, NamedTuple

from ackline.handler import SOURCE, Emit, Fail, Hold, InFlight, Record
from ackline.pipeline.outputs import Output
from ackline.pipeline.streams import scalar_texts
from ackline.pipeline.topology import Step, Stream, Topology
from ackline.scrub import MESSAGE_LIMIT, scrub, texts_of_handler, words_of_handler
from ackline.trees.payload import Key, Payload, pack, pack_row, unpack
from ackline.trees.tuples import LEAST_BYTES, ROW_BYTES
from ackline.worker.call import kind_and_fault, refuse_false, refuse_unfinished
from ackline.worker.outcomes import InvalidOutcome

Texts = Callable[[], Iterator[bytes | str | None]]
"""Yields the contents of inputs that an error message must not repeat."""

_ANSWERS = (Emit, Fail, Hold, InFlight)
_STREAM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_MASKED_REASONS = 20
_MOST_BYTES = 1_000_000_000
"""Bytes of a tuple, packed, at most. Neither Arrow nor Spark holds more than 2 GiB in a row."""


class NotAcked(NamedTuple):
    """What a join answered about one of its tuples: that it failed for a reason, or that it is held."""

    position: int
    reason: str | None
    held: bool


class Taken(NamedTuple):
    """A stream that something takes: its number, the stream, and the steps and the outputs that take it."""

    number: int
    stream: Stream
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]


UNKNOWN = -1
"""The number of a stream that no step and no output takes."""


@dataclass(slots=True)
class Emissions:
    """What calls have emitted, one after the other. `anchors` holds, by the number of an emission, the positions of its
    anchors among the inputs of its call, if the call has named any; `problems` why it can't be delivered; `hidden` the
    fields of a value for outputs that are not in the source code of the handler: they may be content of a record, so no
    message shows them. `size` is about how many bytes keys and payloads have."""

    streams: list[int] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    payloads: list[Payload] = field(default_factory=list)
    anchors: dict[int, Sequence[int]] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)
    hidden: dict[int, Collection[Any]] = field(default_factory=dict)
    size: int = 0

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def weight(self) -> int:
        """About how many bytes the emissions count for in a batch."""
        return max(self.size + ROW_BYTES * len(self.keys), LEAST_BYTES * len(self.keys))

    def cut(self, mark: int, size: int) -> None:
        """Forgets all emissions but the first `mark`, which have this `size`: those of a call that has failed."""
        self.size = size
        del self.streams[mark:], self.keys[mark:], self.payloads[mark:]
        for of_some in (self.anchors, self.problems, self.hidden):
            for number in [number for number in of_some if number >= mark]:
                del of_some[number]

    def extend(self, other: "Emissions") -> None:
        """Adds the emissions of a call that another process has made."""
        mark = len(self.keys)
        self.streams += other.streams
        self.keys += other.keys
        self.payloads += other.payloads
        self.anchors.update((mark + number, of) for number, of in other.anchors.items())
        self.problems.update((mark + number, text) for number, text in other.problems.items())
        self.hidden.update((mark + number, names) for number, names in other.hidden.items())
        self.size += other.size


class _Source(NamedTuple):
    handler: object
    texts: frozenset[str]
    words: frozenset[str]


class Readers:
    """Reads the answers of the handlers of a topology. `takers` has what takes a stream, by the name of its step and
    then by its own."""

    def __init__(self, topology: Topology) -> None:
        self.takers: dict[str, dict[str, Taken]] = {name: {} for name in (SOURCE, *topology.names)}
        self.streams: list[Taken] = []
        for number, stream in enumerate(topology.streams):
            steps, outputs = topology.consumers.get(stream, ()), topology.outputs.get(stream, ())
            taken = self.takers[stream.step][stream.name] = Taken(number, stream, steps, outputs)
            self.streams.append(taken)
        self._sources: dict[int, _Source] = {}
        """By the `id` of the handler. An entry holds the handler, so no other object gets that id."""

    def source_of(self, handler: object) -> _Source:
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
        name = scrub(stream, texts(), self.source_of(handler).words)
        return f"emitted to {step}.{name}, which no step and no output takes{self._near(step, stream)}"[:MESSAGE_LIMIT]

    def hidden_fields(self, names: Collection[str], handler: Callable[..., Any] | None) -> Collection[str]:
        """Returns the names of fields that are not in the source code of a handler: they may be content of a record."""
        return frozenset(names) - self.source_of(handler).texts


class CallReader:
    """Reads the answers of the record handler of one step, which is None for the handler of records. `emitted` holds
    what the calls have emitted since `take`."""

    def __init__(self, readers: Readers, step: Step | None = None) -> None:
        self._readers = readers
        self._step = step
        self._name = SOURCE if step is None else step.name
        self._known = {
            name: (taken.number, pack if taken.steps else pack_row, bool(taken.outputs))
            for name, taken in readers.takers[self._name].items()
        }
        """By the name of a stream: its number, what packs its tuples, and whether an output takes it."""
        self._handler: object = None
        self._texts = frozenset[str]()
        """The texts in the source code of the last handler that has emitted a mapping to an output."""
        self.emitted = Emissions()

    def take(self) -> Emissions:
        """Returns what was emitted, and forgets it."""
        emitted, self.emitted = self.emitted, Emissions()
        return emitted

    def read(self, result: Any, given: Sequence[Any], handler: Callable[..., Any] | None, texts: Texts) -> list[Any]:
        """Adds to `emitted` what a handler emits, which returns or yields any number of `Emit`. Runs a generator to its
        end. Returns its other answers: a NotAcked for each `Fail` and `Hold` of a join, and the one `InFlight` that the
        handler of records may answer. `given` are the inputs of the call, and `texts` yields their contents. Messages
        may show words that are in the source code of `handler`. Raises InvalidOutcome for any other answer, and what a
        generator raises."""
        others: list[Any] = []
        emitted = self.emitted
        streams, keys, payloads, known = emitted.streams, emitted.keys, emitted.payloads, self._known
        unusual: _Unusual | None = None
        first, size = len(keys), 0
        for answer in result if type(result) is GeneratorType else _several(result):
            if type(answer) is Emit and answer.anchors is None and type(stream := answer.stream) is str:
                taken = known.get(stream)
                if taken is not None:
                    number, packs, is_output = taken
                    key, payload = answer.key, answer.value
                    if type(payload) is not str or not (key is None or type(key) is str):
                        if is_output and type(payload) is dict:
                            if handler is not self._handler:
                                self._handler, self._texts = handler, self._readers.source_of(handler).texts
                            if not payload.keys() <= self._texts:
                                emitted.hidden[len(keys)] = payload.keys() - self._texts
                        key, payload = packs(key, payload)
                    size += len(payload) + len(key or "")
                    streams.append(number)
                    keys.append(key)
                    payloads.append(payload)
                    continue
            unusual = unusual or _Unusual(self._readers, self._name, given, handler, texts)
            if isinstance(answer, Emit):
                size += unusual.add(answer, emitted)
            elif self._step is not None and self._step.join and isinstance(answer, Fail | Hold):
                others.append(unusual.not_acked(answer))
            else:
                others.append(_in_flight(answer, self._step, bool(others)))
        if 4 * size > _MOST_BYTES:
            _check_sizes(emitted, first)
        emitted.size += size
        return others


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


def _in_flight(answer: Any, step: Step | None, earlier: bool) -> InFlight:
    """Returns the InFlight that a handler has yielded. Raises InvalidOutcome for any other answer, for one of a step,
    and after an `earlier` one."""
    if not isinstance(answer, InFlight):
        found = kind_and_fault(answer, steps=True) or (type(answer).__name__, "yield Emit(value)")
        raise InvalidOutcome(f"the handler yielded {found[0]}; {found[1]}")
    if step is not None:
        raise InvalidOutcome(f"step {step.name} yielded InFlight; only the handler of the records may yield it")
    if earlier:
        raise InvalidOutcome("the handler yielded InFlight twice; yield it once for a record")
    return answer


class _Unusual:
    """Reads the other answers of one call: they name inputs by identity, or need a message."""

    def __init__(
        self, readers: Readers, step: str, given: Sequence[Any], handler: Callable[..., Any] | None, texts: Texts
    ) -> None:
        self._readers, self._step, self._handler, self._texts = readers, step, handler, texts
        self._positions = {id(each): position for position, each in enumerate(given)}
        self._iterators: list[Iterator[Any]] = []
        self._reasons: dict[str, str | None] = {}

    def add(self, emit: Emit, emitted: Emissions) -> int:
        """Adds a tuple. Returns about how many bytes it has."""
        number, stream, key, value = len(emitted), emit.stream, emit.key, emit.value
        if emit.anchors is not None:
            emitted.anchors[number] = self._of_anchors(emit.anchors)
        taken = self._readers.takers[self._step].get(stream) if type(stream) is str else None
        packed_key: Key = None
        payload: Payload = ""
        if taken is None:
            emitted.problems[number] = self._readers.unknown_stream(self._step, stream, self._texts, self._handler)
            pack(key, value)  # raises for what no tuple may hold
        else:
            packed_key, payload = (pack if taken.steps else pack_row)(key, value)
            is_mapping = bool(taken.outputs) and type(value) is dict
            if is_mapping and (hidden := self._readers.hidden_fields(value, self._handler)):
                emitted.hidden[number] = hidden
        emitted.streams.append(UNKNOWN if taken is None else taken.number)
        emitted.keys.append(packed_key)
        emitted.payloads.append(payload)
        return len(payload) + len(packed_key or "")

    def not_acked(self, answer: Fail | Hold) -> NotAcked:
        """Returns what a join answered about one tuple. Masks the first _MASKED_REASONS different reasons and drops all
        others, because masking takes time for each text of each tuple of the call."""
        position, reasons = self._position(answer.tuple), self._reasons
        if isinstance(answer, Hold):
            return NotAcked(position, None, True)
        reason = str.__str__(str(answer.reason))
        if reason not in reasons and len(reasons) < _MASKED_REASONS:
            reasons[reason] = scrub(reason, self._texts(), self._readers.source_of(self._handler).words) or None
        return NotAcked(position, reasons.get(reason), False)

    def _of_anchors(self, anchors: Any) -> tuple[int, ...]:
        """Returns the positions of the anchors of an Emit: one input, or an iterable of inputs such as a list or a
        generator. It reads the iterable at once, because the handler may change its list later. Raises InvalidOutcome
        for an iterator that an earlier Emit has read: it is empty now, and the tuple would silently belong to no
        record."""
        if isinstance(anchors, Iterator):
            if any(anchors is earlier for earlier in self._iterators):
                raise InvalidOutcome("two Emits share one iterator as anchors, which the first consumes; pass a list")
            self._iterators.append(anchors)
        given = anchors if isinstance(anchors, Iterable) and not isinstance(anchors, str | bytes) else (anchors,)
        return tuple([self._position(anchor) for anchor in given])

    def _position(self, given: object) -> int:
        """Returns the position of an input. Raises InvalidOutcome for anything else."""
        position = self._positions.get(id(given))
        if position is None:
            raise InvalidOutcome("an anchor, a Fail or a Hold names something that the call was not given")
        return position


def _check_sizes(emitted: Emissions, first: int) -> None:
    """Raises InvalidOutcome for an emission, from the number `first` on, that has more than _MOST_BYTES."""
    for key, payload in zip(emitted.keys[first:], emitted.payloads[first:], strict=True):
        sizes = [len(part.encode("utf-8", "surrogatepass")) if type(part) is str else len(part or b"")
                 for part in (key, payload)]  # fmt: skip
        if sum(sizes) > _MOST_BYTES:
            raise InvalidOutcome("an emitted value takes more than 1 GB with its key; emit it in parts")


def texts_of_record(record: Record) -> Iterator[bytes | str | None]:
    """Yields the contents of a record that an error message must not repeat."""
    return scalar_texts([record.key, record.value, *(value for _, value in record.headers)])


def texts_of(keys: Sequence[Key], payloads: Sequence[Payload]) -> Iterator[bytes | str | None]:
    """Yields the contents of packed tuples that an error message must not repeat. They are unpacked again, because a
    handler may have changed their values."""
    for key, payload in zip(keys, payloads, strict=True):
        for part in unpack(key, payload):
            yield from scalar_texts(part)
