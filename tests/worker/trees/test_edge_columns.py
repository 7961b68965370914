"""The ids and roots of edges that are computed at once, against the same one edge at a time."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from ackline.worker.trees.rows import MASK, EdgeColumns, Root, mix


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


def test_the_first_edge_of_a_root_is_the_one_that_was_given_first() -> None:
    columns = EdgeColumns()
    for root, edge in (((0, 7, 1), 30), ((0, 5, 1), 20), ((0, 7, 1), 10)):
        columns.add_input_edge(*root, edge)
    resolved = columns.resolve()
    assert resolved.roots.offsets.tolist() == [5, 7]
    assert resolved.ids[resolved.firsts].tolist() == [20, 30]
