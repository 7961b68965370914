"""The sums over packed events, against sums that are made one event at a time."""

from collections import defaultdict
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from ackline.spark.trees.packed_events import BLOCK, NO_TIMESTAMP, Block, EventFormat, PackedEvents, block_of
from ackline.spark.trees.rows import Event, Root

STEPS = 2
FORMAT = EventFormat(STEPS)
U64 = st.integers(0, (1 << 64) - 1)
Sent = tuple[Root, Event, int]


@st.composite
def events(draw: st.DrawFn) -> Sent:
    """An event of one of a few roots, among them offsets at the end of Kafka's range."""
    root = Root(draw(st.integers(0, 1)), draw(st.sampled_from([0, 1, BLOCK, (1 << 63) - 1])), draw(st.integers(1, 2)))
    event = Event(draw(st.integers(-1, STEPS - 1)), draw(U64), STEPS)
    event.xor = draw(U64)
    event.sources = int(event.by == -1)
    event.timestamp = draw(st.integers(-5, 5)) if event.sources else None
    event.key_hash = f"hash-{root}" if event.sources else None
    event.note = draw(st.none() | st.binary(max_size=3))
    event.open = draw(st.lists(st.integers(-9, 9), min_size=STEPS, max_size=STEPS))
    event.acked = draw(st.lists(st.integers(0, 9), min_size=STEPS, max_size=STEPS))
    return root, event, draw(st.integers(0, 1 << 60))


def rows_of(sent: list[Sent], random: Random) -> dict[Block, list[bytes]]:
    """The rows of three tasks, to which the events are dealt."""
    tasks = [PackedEvents(FORMAT) for _ in range(3)]
    for each in sent:
        random.choice(tasks).add(*each)
    rows: dict[Block, list[bytes]] = defaultdict(list)
    for task in tasks:
        for block, payload in task.take():
            rows[block].append(payload)
        assert (task.size, list(task.take())) == (0, [])
    return rows


@settings(max_examples=300, deadline=None)
@given(st.lists(events(), min_size=1, max_size=12, unique_by=lambda e: (e[0], e[1].edge, e[1].by)), st.randoms())
def test_s63_the_sums_are_those_of_each_event_once_however_often_and_in_which_order_it_comes(
    sent: list[Sent], random: Random
) -> None:
    repeated = sent + random.choices(sent, k=4)
    random.shuffle(repeated)
    found = {}
    for block, payloads in rows_of(repeated, random).items():
        sums = FORMAT.sums(payloads)
        assert sums.offsets.tolist() == sorted(sums.offsets.tolist())
        for row in range(len(sums.offsets)):
            root = Root(block.tp, int(sums.offsets[row]), int(sums.attempts[row]))
            assert block_of(root) == block
            found[root] = (
                int(sums.xors[row]), int(sums.sources[row]), int(sums.times[row]), int(sums.timestamps[row]),
                sums.open_tuples[:, row].tolist(), sums.acked[:, row].tolist(), sums.notes[row], sums.key_hashes[row],
            )  # fmt: skip
    assert found == {root: expected(root, sent) for root in {root for root, _, _ in sent}}


def expected(root: Root, sent: list[Sent]) -> tuple[object, ...]:
    """The sums of a root, one event at a time."""
    mine = [(event, time) for of, event, time in sent if of == root]
    xor = 0
    for event, _ in mine:
        xor ^= event.xor
    return (
        xor,
        sum(event.sources for event, _ in mine),
        max(time for _, time in mine),
        max(NO_TIMESTAMP if event.timestamp is None else event.timestamp for event, _ in mine),
        [sum(event.open[step] for event, _ in mine) for step in range(STEPS)],
        [sum(event.acked[step] for event, _ in mine) for step in range(STEPS)],
        min((event.note for event, _ in mine if event.note is not None), default=None),
        next((event.key_hash for event, _ in mine if event.key_hash is not None), None),
    )


def test_the_route_of_a_block_is_no_negative_number() -> None:
    """Spark's column of routes is signed, and a topic may have any offset that Kafka has."""
    assert all(0 <= block_of(Root(tp, (1 << 63) - 1, 1)).route < 1 << 63 for tp in (0, 1, 1 << 20))
