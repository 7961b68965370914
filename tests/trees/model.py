"""A naive model of tuple trees: it follows each tuple and notes by itself what that means for its records.

The handlers follow orders: the value of each tuple determines, for each step that gets it, what the step does with it.
So the handlers of the code under test and this model do the same, and share nothing else.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import strategies as st

from ackline.handler import Dead, Emit, Fail, Hold, Record, Skip, Tuple
from ackline.pipeline.topology import Topology

WORDS = ("ack",) * 12 + ("fail", "skip", "dead")
JOIN_WORDS = ("ack",) * 12 + ("hold", "fail one", "fail all")
KEYS = "abc"
MAX_DEPTH = 5
_RANK = {"dead": 0, "fail": 1, "skip": 3, "ack": 4}

Item = tuple[str, str, str, bool]
"""What is emitted: value, stream, key, and whether it is anchored."""


def order_of(value: str, step: str, words: Sequence[str]) -> tuple[str, list[Item]]:
    """What a step does with a tuple of this value: a word, and what it emits. The value alone decides. It is the path
    of the tuple, so no two tuples of a step have the same."""
    random = Random(f"{value}/{step}")
    word = random.choice(words)
    count = random.choice((0, 1, 1, 2, 3)) if value.count("/") < MAX_DEPTH else 0
    return word, [
        (f"{value}/{step}{n}", random.choice(("default", "other")), random.choice(KEYS), random.random() < 0.9)
        for n in range(count)
    ]


@st.composite
def step_blocks(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Up to five steps; each takes one or two streams of the source or of steps before it."""
    blocks: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 5))):
        names = ["source", *(block["name"] for block in blocks)]
        streams = [f"{name}{stream}" for name in names for stream in ("", ".other")]
        inputs = draw(st.lists(st.sampled_from(streams), min_size=1, max_size=3, unique=True))
        block = {"name": f"s{number}", "handler": "shop:handle", "input": inputs}
        blocks.append(block | ({"group_by": "key", "join": draw(st.booleans())} if draw(st.booleans()) else {}))
    return blocks


def act(word: str) -> None:
    """Raises the error of the word: fail, skip or dead. Returns for any other word."""
    if word == "fail":
        raise ValueError("broken")
    if word == "skip":
        raise Skip
    if word == "dead":
        raise Dead


def source(record: Record) -> Iterator[Emit]:
    """The handler of the records; it never fails, because then no tree begins."""
    for value, stream, key, anchored in order_of(record.value, "source", ("ack",))[1]:
        yield Emit(value, stream, key) if anchored else Emit(value, stream, key, anchors=())


def step_handler(name: str, join: bool) -> Any:

    def one(given: Tuple) -> Iterator[Emit]:
        word, emitted = order_of(given.value, name, WORDS)
        for value, stream, key, anchored in emitted:
            yield Emit(value, stream, key) if anchored else Emit(value, stream, key, anchors=())
        act(word)

    def several(given: Sequence[Tuple]) -> Iterator[Any]:
        first = min(given, key=lambda each: str(each.value))
        for each in given:
            word, emitted = order_of(each.value, name, JOIN_WORDS)
            if word == "fail all":
                raise ValueError("broken")
            if word != "ack":
                yield Hold(each) if word == "hold" else Fail(each)
            for value, stream, key, anchored in emitted:
                yield Emit(value, stream, key, anchors=(each, first) if anchored else ())

    return several if join else one


@dataclass(slots=True)
class Model:
    """All records of a turn. `verdicts` holds, for each record, everything that kept it from being acked."""

    topology: Topology
    verdicts: dict[int, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))
    executed: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _waiting: list[tuple[int, str, str, frozenset[int]]] = field(default_factory=list)

    def run(self, records: Mapping[int, str]) -> dict[int, set[str]]:
        """Returns the worst verdicts of each record that emitted something."""
        roots: dict[int, bool] = {}
        for offset, value in records.items():
            emitted = order_of(value, "source", ("ack",))[1]
            if emitted:
                roots[offset] = True
            for item in emitted:
                self._emit("source", -1, item, frozenset({offset}), frozenset({offset}))
        for step in self.topology.steps:
            if step.grouped:
                mine = [item for item in self._waiting if item[0] == step.number]
                self._waiting = [item for item in self._waiting if item[0] != step.number]
                if step.join:
                    for key in {item[2] for item in mine}:
                        self._join(step, [item for item in mine if item[2] == key])
                else:
                    for _, value, _, of in mine:
                        self._one(step, value, of)
        return {offset: self._worst(offset) for offset in roots}

    def _worst(self, offset: int) -> set[str]:
        verdicts = self.verdicts[offset]
        best = min((_RANK[word] for _, word in verdicts), default=4)
        return {word for _, word in verdicts if _RANK[word] == best} or {"ack"}

    def _emit(self, step: str, number: int, item: Item, of: frozenset[int], of_call: frozenset[int]) -> None:
        value, stream, key, anchored = item
        origins = of if anchored else frozenset[int]()
        consumers = [s for s in self.topology.steps if any((i.step, i.name) == (step, stream) for i in s.inputs)]
        if not consumers:
            self._note(origins or of_call, number, "fail")
        for consumer in consumers:
            if consumer.grouped:
                self._waiting.append((consumer.number, value, key, origins))
            else:
                self._one(consumer, value, origins)

    def _one(self, step: Any, value: str, of: frozenset[int]) -> None:
        self.executed[step.name] += 1
        word, emitted = order_of(value, step.name, WORDS)
        if word != "ack":
            self._note(of, step.number, word)
            return
        for item in emitted:
            self._emit(step.name, step.number, item, of, of)

    def _join(self, step: Any, items: list[tuple[int, str, str, frozenset[int]]]) -> None:
        self.executed[step.name] += len(items)
        orders = [(order_of(value, step.name, JOIN_WORDS), of) for _, value, _, of in items]
        fails = any(word == "fail all" for (word, _), _ in orders)
        first = min(items, key=lambda item: item[1])[3]
        of_call = frozenset[int]().union(*(of for _, of in orders))
        for (word, emitted), of in orders:
            if fails or word != "ack":  # a held tuple counts as failed: its step did not ack it
                self._note(of, step.number, "fail")
            for item in () if fails else emitted:
                self._emit(step.name, step.number, item, of | first, of_call)

    def _note(self, of: frozenset[int], step: int, word: str) -> None:
        for offset in of:
            self.verdicts[offset].append((step, word))
