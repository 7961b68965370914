"""The rows that tasks send: sums over packed events and ids of edges, against the same one at a time; and batches."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ackline.ledger.pending import NEVER
from ackline.pipeline.topology import Step
from ackline.trees.events import BLOCK, NO_TIMESTAMP, NOT_BEGUN, Block, EventFormat, Events, PackedEvents
from ackline.trees.parcels import Arrived, parcel_rows
from ackline.trees.payload import pack
from ackline.trees.rows import Edges, Lists, Root, Roots, merged
from ackline.trees.tuples import MAX_BYTES, Packed, Tuples

STEPS = 2
MASK = (1 << 64) - 1
STRIDE = 0xD1342543DE82EF95


def mix(number: int) -> int:
    """SplitMix64's finalizer, with Python's numbers."""
    number = (number + 0x9E3779B97F4A7C15) & MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK
    return number ^ (number >> 31)


FORMAT = EventFormat(STEPS)
U64 = st.integers(0, (1 << 64) - 1)


@dataclass(frozen=True)
class Event:
    root: Root
    by: int
    batch: tuple[int, int]
    xor: int
    time: int
    timestamp: int | None
    key_hash: int | None
    note: bytes | None
    open: list[int]
    acked: list[int]
    due: int | None = None

    @property
    def sources(self) -> int:
        """1 in the first event of a record."""
        return int(self.by == -1)

    def columns(self) -> Events:
        timestamp = NO_TIMESTAMP if self.timestamp is None else self.timestamp
        row = (
            self.root.offset, self.xor, self.time, timestamp, NOT_BEGUN, *self.batch, self.root.attempt, self.by,
            self.sources, self.open, self.acked,
        )  # fmt: skip
        return Events(
            np.array([self.root.tp]),
            np.array([row], FORMAT.dtype),
            {} if self.note is None else {0: self.note},
            {} if self.key_hash is None else {0: self.key_hash},
            {} if self.due is None else {0: self.due},
        )


@st.composite
def events(draw: st.DrawFn) -> Event:
    """An event of one of a few roots, among them offsets at the end of Kafka's range."""
    root = Root(draw(st.integers(0, 1)), draw(st.sampled_from([0, 1, BLOCK, (1 << 63) - 1])), draw(st.integers(1, 2)))
    by = draw(st.integers(-1, STEPS - 1))
    return Event(
        root,
        by,
        draw(st.tuples(st.integers(0, 2), st.integers(0, 2))),
        draw(U64),
        draw(st.integers(0, 1 << 60)),
        draw(st.integers(-5, 5)) if by == -1 else None,
        hash(root) if by == -1 else None,
        draw(st.none() | st.binary(max_size=3)),
        draw(st.lists(st.integers(-9, 9), min_size=STEPS, max_size=STEPS)),
        draw(st.lists(st.integers(0, 9), min_size=STEPS, max_size=STEPS)),
        NEVER if by == -1 and root.attempt == 1 else None,
    )


def rows_of(sent: list[Event], random: Random) -> dict[Block, list[bytes]]:
    """The rows of three tasks, to which the events are dealt."""
    tasks = [PackedEvents() for _ in range(3)]
    for each in sent:
        random.choice(tasks).add(each.columns())
    rows: dict[Block, list[bytes]] = defaultdict(list)
    for task in tasks:
        for block, payload in task.take():
            rows[block].append(payload)
        assert (task.size, list(task.take())) == (0, [])
    return rows


@settings(max_examples=300)
@given(st.lists(events(), min_size=1, max_size=12, unique_by=lambda e: (e.root, e.batch, e.by)), st.randoms())
def test_s63_the_sums_are_those_of_each_event_once_however_often_and_in_which_order_it_comes(
    sent: list[Event], random: Random
) -> None:
    repeated = sent + random.choices(sent, k=4)
    random.shuffle(repeated)
    found = {}
    for block, payloads in rows_of(repeated, random).items():
        sums = FORMAT.sums(payloads)
        assert sums.offsets.tolist() == sorted(sums.offsets.tolist())
        for row in range(len(sums.offsets)):
            root = Root(block.tp, int(sums.offsets[row]), int(sums.attempts[row]))
            assert root.offset // BLOCK == block.number
            found[root] = (
                int(sums.xors[row]), int(sums.sources[row]), int(sums.times[row]), int(sums.timestamps[row]),
                sums.open_tuples[:, row].tolist(), sums.acked[:, row].tolist(), sums.notes[row], sums.key_hashes[row],
                sums.dues[row],
            )  # fmt: skip
    assert found == {root: expected(root, sent) for root in {event.root for event in sent}}


def expected(root: Root, sent: list[Event]) -> tuple[object, ...]:
    mine = [event for event in sent if event.root == root]
    xor = 0
    for event in mine:
        xor ^= event.xor
    return (
        xor,
        sum(event.sources for event in mine),
        max(event.time for event in mine),
        max(NO_TIMESTAMP if event.timestamp is None else event.timestamp for event in mine),
        [sum(event.open[step] for event in mine) for step in range(STEPS)],
        [sum(event.acked[step] for event in mine) for step in range(STEPS)],
        min((event.note for event in mine if event.note is not None), default=None),
        next((event.key_hash for event in mine if event.key_hash is not None), None),
        next((event.due for event in mine if event.due is not None), None),
    )


def test_events_of_several_blocks_are_divided() -> None:
    roots = [Root(0, 1, 1), Root(0, BLOCK - 1, 1), Root(0, BLOCK, 1), Root(1, 0, 1)]
    columns = [Event(root, 0, (0, 1), 1, 1, None, None, b"n", [0, 0], [0, 0]).columns() for root in roots]
    packed = PackedEvents()
    packed.add(
        Events(
            np.concatenate([each.tps for each in columns]),
            np.concatenate([each.rows for each in columns]),
            dict.fromkeys(range(4), b"n"),
        )
    )
    found = {block: FORMAT.sums([payload]) for block, payload in packed.take()}
    assert {block: sums.offsets.tolist() for block, sums in found.items()} == {
        Block(0, 0): [1, BLOCK - 1], Block(0, 1): [BLOCK], Block(1, 0): [0]
    }  # fmt: skip
    assert all(sums.notes == [b"n"] * len(sums.offsets) for sums in found.values())


Edge = tuple[Root, int]


def edges_of(edges: Edges, roots: Roots) -> list[tuple[Edge, ...]]:
    """The root and the id of each edge, by tuple."""
    found = [(roots.root(root), edge) for root, edge in zip(edges.roots.tolist(), edges.ids.tolist(), strict=True)]
    ends = np.cumsum(edges.counts).tolist()
    return [tuple(found[start:end]) for start, end in pairwise([0, *ends])]


@settings(max_examples=200)
@given(st.randoms(use_true_random=False))
def test_each_edge_has_the_root_and_the_id_that_follow_from_its_parents_and_its_position(random: Random) -> None:
    """Each call takes some tuples, none of them or several, and makes new ones from them. Of several edges of one root
    the first one goes on, and the edges of a tuple are in the order of their roots."""
    roots, expected = Roots(), list[tuple[Edge, ...]]()
    edges = Edges.none(0)
    for _ in range(random.randrange(1, 12)):
        if not expected or random.random() < 0.4:
            given = [Root(random.randrange(2), random.choice([0, 1, (1 << 63) - 1]), random.randrange(1, 3))
                     for _ in range(random.randrange(1, 4))]  # fmt: skip
            ids = [random.getrandbits(64) for _ in given]
            numbers = roots.add(*(np.array(column, np.int64) for column in zip(*given, strict=True)))
            added = Edges(np.array(ids, np.uint64), numbers, np.ones(len(given), np.int64))
            expected += [((root, edge),) for root, edge in zip(given, ids, strict=True)]
        else:
            inputs = [random.choices(range(len(expected)), k=random.choice([0, 1, 1, 2, 3])) for _ in range(3)]
            positions = [random.getrandbits(40) for _ in inputs]
            lists = Lists(
                np.array([n for each in inputs for n in each], np.int64), np.array([len(each) for each in inputs])
            )
            added = merged(lists, edges, roots).behind(np.array(positions))
            for of_tuple, position in zip(inputs, positions, strict=True):
                first: dict[Root, int] = {}
                for root, edge in (of for number in of_tuple for of in expected[number]):
                    first.setdefault(root, edge)
                ordered = sorted(first) if len(of_tuple) > 1 else list(first)
                expected.append(tuple((root, mix(first[root] ^ (position * STRIDE & MASK))) for root in ordered))
        edges = Edges.joined([edges, added])
    assert edges_of(edges, roots) == expected
    chosen = [random.randrange(len(expected)) for _ in range(3)]
    assert edges_of(edges.take(np.array(chosen)), roots) == [expected[number] for number in chosen]
    start = random.randrange(len(expected))
    assert edges_of(edges.slice(start, len(expected)), roots) == expected[start:]


MIB = 1 << 20


def test_a_row_holds_few_tuples_and_few_bytes_wherever_the_large_tuples_are() -> None:
    payloads = [b"small"] * 10_001 + [bytes(MIB)] * 40 + [b"small"]
    count, roots = len(payloads), Roots()
    numbers = roots.add(np.zeros(count, np.int64), np.arange(count), np.ones(count, np.int64))
    edges = Edges(np.arange(count).astype(np.uint64), numbers, np.ones(count, np.int64))
    packed = [pack("k", payload) for payload in payloads]
    content = Packed([key for key, _ in packed], [payload for _, payload in packed])
    step = Step(0, "end", "", (), grouped=True, join=False)
    batches = list(parcel_rows(step, Tuples(np.zeros(count, np.int64), edges, content), roots, 1))
    rows = [row for batch in batches for row in batch.to_pylist()]
    arrived = [Arrived.of_row(pa.py_buffer(row["payload"]), row["stream"]).packed() for row in rows]
    assert [value for part in arrived for _, value in part.content.content.values()] == payloads
    assert [offset for part in arrived for offset in part.origins[1].tolist()] == list(range(count))
    assert max(len(row["payload"]) for row in rows) <= MAX_BYTES + 2 * MIB
    assert max(batch.nbytes for batch in batches) <= 2 * MAX_BYTES + 2 * MIB
