"""The steps of a pipeline and the streams between them. Pure.

A step takes the streams of other steps; `source` is the handler of the pipeline file. The steps have an order in which
each one comes after all that it takes from, so one pass over them handles every tuple.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from pydantic import Field, model_validator

from ackline.handler import DEFAULT_STREAM, SOURCE
from ackline.pipeline.field_types import CodePath, InputStreams, StepName, StrictBlock
from ackline.pipeline.outputs import Output, OutputBlock
from ackline.pipeline.refusals import error_at

SOURCE_STEP = -1
"""The number of the step `source`, which comes before all others."""

T = TypeVar("T")


class StepBlock(StrictBlock):
    """One step: its handler, the streams that it takes, and whether tuples of one key go to one worker."""

    name: StepName
    handler: CodePath
    input: InputStreams
    group_by: Literal["key"] | None = None
    join: bool = False
    concurrency: int | None = Field(None, ge=1, le=10_000)

    @model_validator(mode="after")
    def _check_join(self) -> "StepBlock":
        if self.join and self.group_by is None:
            raise ValueError("a join gets all tuples of a key at once; add `group_by: key`")
        return self


@dataclass(frozen=True, slots=True, order=True)
class Stream:
    """A stream of a step."""

    step: str
    name: str = DEFAULT_STREAM

    @classmethod
    def parse(cls, text: str) -> "Stream":
        """Returns the stream that a file names as STEP or STEP.STREAM."""
        step, _, name = text.partition(".")
        return cls(step, name or DEFAULT_STREAM)

    def __str__(self) -> str:
        return self.step if self.name == DEFAULT_STREAM else f"{self.step}.{self.name}"


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a topology. `number` is its place in the file, from 0."""

    number: int
    name: str
    handler: str
    inputs: tuple[Stream, ...]
    grouped: bool
    join: bool
    concurrency: int | None = None
    """Calls under way at once, at most; None for 1, or for an asynchronous handler the default."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The steps in an order in which each comes after those that it takes from; and who takes each stream."""

    steps: tuple[Step, ...]
    consumers: Mapping[Stream, tuple[Step, ...]]
    """The steps that take a stream, in the order of the file."""
    outputs: Mapping[Stream, tuple[Output, ...]] = field(default_factory=dict)
    """The outputs that take a stream, in the order of the file."""

    @property
    def all_outputs(self) -> tuple[Output, ...]:
        """The outputs, in the order of the file."""
        by_number = {output.number: output for outputs in self.outputs.values() for output in outputs}
        return tuple(by_number[number] for number in sorted(by_number))

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams that a step or an output takes, in an order that is the same in each process."""
        return tuple(sorted({*self.consumers, *self.outputs}))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the steps in the order of the file, without `source`."""
        return tuple(step.name for step in sorted(self.steps, key=lambda step: step.number))

    def name_of(self, number: int) -> str:
        """Returns the name of the step with this number."""
        return next((step.name for step in self.steps if step.number == number), SOURCE)


def topology(steps: Sequence[StepBlock], outputs: Sequence[OutputBlock] = ()) -> Topology:
    """Returns the topology of a pipeline file.

    Raises pydantic's error, with the key, if two steps have the same name, an input names no step, or a step can't be
    reached from `source`, because it takes its own tuples or those of steps after it; and if an output takes from no
    step, or two outputs write to one table, or calls of a join are to be under way at once.
    """
    _check_names(steps)
    _check_streams(steps)
    _check_outputs(steps, outputs)
    declared = [
        Step(
            number,
            block.name,
            block.handler,
            _parsed(block.input),
            block.group_by is not None,
            block.join,
            block.concurrency,
        )
        for number, block in enumerate(steps)
    ]
    ordered = _ordered(declared)
    return Topology(
        tuple(ordered),
        _by_stream((stream, step) for step in declared for stream in step.inputs),
        _by_stream(
            (stream, Output.of(number, block))
            for number, block in enumerate(outputs)
            for stream in _parsed(block.from_)
        ),
    )


def _parsed(texts: Iterable[str]) -> tuple[Stream, ...]:
    return tuple(dict.fromkeys(map(Stream.parse, texts)))


def _by_stream(pairs: Iterable[tuple[Stream, T]]) -> dict[Stream, tuple[T, ...]]:
    grouped: dict[Stream, list[T]] = {}
    for stream, value in pairs:
        grouped.setdefault(stream, []).append(value)
    return {stream: tuple(values) for stream, values in grouped.items()}


def _check_names(steps: Sequence[StepBlock]) -> None:
    names: set[str] = set()
    for number, block in enumerate(steps):
        if block.name == SOURCE:
            raise error_at(
                ("steps", number, "name"), f"{SOURCE} is the name of the pipeline's handler; rename the step"
            )
        if block.name in names:
            raise error_at(("steps", number, "name"), f"two steps are named {block.name}; rename one of them")
        if block.join and (block.concurrency or 1) > 1:
            raise error_at(("steps", number, "concurrency"), "a join gets one key after the other; remove this key")
        names.add(block.name)


def _check_streams(steps: Sequence[StepBlock]) -> None:
    names = [SOURCE, *(block.name for block in steps)]
    for number, block in enumerate(steps):
        for place, text in enumerate(block.input):
            _check_step(text, names, ("steps", number, "input", place))
            if text in block.input[:place]:
                raise error_at(("steps", number, "input", place), f"{text} is there twice; remove one of them")


def _check_outputs(steps: Sequence[StepBlock], outputs: Sequence[OutputBlock]) -> None:
    names, tables = [SOURCE, *(block.name for block in steps)], dict[str, int]()
    for number, block in enumerate(outputs):
        for place, text in enumerate(block.from_):
            _check_step(text, names, ("outputs", number, "from", place))
        if block.table is None:
            continue
        first = tables.setdefault(block.table, number)
        if first != number:
            raise error_at(
                ("outputs", number, "table"),
                f"outputs.{first} writes to {block.table}, too; give one of them both streams: `from: [A, B]`",
            )


def _check_step(text: str, names: Sequence[str], key_path: tuple[str | int, ...]) -> None:
    if (step := Stream.parse(text).step) not in names:
        raise error_at(key_path, f"no step is named {step}; write one of {', '.join(names)}")


def _ordered(steps: Sequence[Step]) -> list[Step]:
    """Returns the steps in the order of the file, except that each comes after those that it takes from."""
    ordered: list[Step] = []
    placed, left = {SOURCE}, list(steps)
    while left:
        ready = next((step for step in left if placed.issuperset(stream.step for stream in step.inputs)), None)
        if ready is None:
            names = ", ".join(step.name for step in left)
            raise error_at(
                ("steps", left[0].number, "input"),
                f"a cycle: {names} wait for one another, or for a step that does, so no tuple reaches them from "
                f"{SOURCE}; remove one of these inputs",
            )
        ordered.append(ready)
        placed.add(ready.name)
        left.remove(ready)
    return ordered
