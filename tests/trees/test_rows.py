"""The rows that tasks send: sums over packed events and ids of edges, against the same one at a time; and batches."""

from collections import defaultdict
from dataclasses import dataclass
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ackline.ledger.pending import NEVER
from ackline.trees.batch import MAX_BYTES, MAX_ROWS, SentTuples
from ackline.trees.events import BLOCK, NO_TIMESTAMP, NOT_BEGUN, Block, EventFormat, Events, PackedEvents
from ackline.trees.rows import MASK, EdgeColumns, Root, mix

STEPS = 2
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


@settings(max_examples=200)
@given(st.randoms(use_true_random=False))
def test_each_edge_has_the_root_and_the_id_that_follow_from_its_parent_and_position(random: Random) -> None:
    """Given edges and made ones may come in any order, as long as each parent comes before its children."""
    columns, expected = EdgeColumns(), list[tuple[Root, int]]()
    for _ in range(random.randrange(1, 40)):
        if not expected or random.random() < 0.4:
            root = Root(random.randrange(2), random.choice([0, 1, (1 << 63) - 1]), random.randrange(1, 3))
            expected.append((root, random.getrandbits(64)))
            columns.add_input_edge(*root, expected[-1][1])
            continue
        parents = tuple(random.sample(range(len(expected)), k=min(len(expected), random.choice([1, 1, 2]))))
        position = random.getrandbits(40)
        added = columns.add_emitted_edges(parents, position)
        assert added == tuple(range(len(expected), len(expected) + len(parents)))
        for parent in parents:
            root, edge = expected[parent]
            expected.append((root, mix(edge ^ (position * 0xD1342543DE82EF95 & MASK))))
    numbers = tuple(range(len(expected)))
    assert columns.resolve().edges(numbers) == tuple(expected)
    assert [columns.root(number) for number in numbers] == [root for root, _ in expected]


def test_edges_given_as_columns_are_those_given_one_by_one() -> None:
    several, single = EdgeColumns(), EdgeColumns()
    rows = [(0, 5, 1, 11), (0, 5, 2, 12), (1, 4, 1, 13)]
    single.add_input_edge(*rows[0])
    assert several.add_input_edges(*zip(rows[0], strict=True)) == 0
    for row in rows[1:]:
        single.add_input_edge(*row)
    assert several.add_input_edges(*zip(*rows[1:], strict=True)) == 1
    assert several.resolve().edges((0, 1, 2)) == single.resolve().edges((0, 1, 2))


MIB = 1 << 20


def test_a_batch_holds_few_rows_and_few_bytes_wherever_the_large_tuples_are() -> None:
    tuples, edges = SentTuples(), EdgeColumns()
    payloads = [b"small"] * (MAX_ROWS + 1) + [bytes(MIB)] * 40 + [b"small"]
    for number, payload in enumerate(payloads):
        tuples.add(0, 0, (edges.add_input_edge(0, number, 1, number),), b"k", payload)
    batches = tuples.rows(edges.resolve())
    assert [payload for batch in batches for payload in batch.column("payload").to_pylist()] == payloads
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == list(range(len(payloads)))
    assert max(len(batch) for batch in batches) <= MAX_ROWS
    assert max(batch.nbytes for batch in batches) <= MAX_BYTES + 2 * MIB
    assert len(batches) <= 6
