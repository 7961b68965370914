"""Which committed value may be overwritten: Kafka has no compare-and-set, so the rule is kept by reading first."""

import json
from random import Random

import pytest

from ackline.errors import GroupMoved, NewerCommit
from ackline.ledger import CommitMark, Committed, answered, check_held, is_ours
from ackline.offsets import TopicPartition

AT = TopicPartition("orders", 2)
NEWEST = CommitMark("ledger-a", "orders", 1, 7)


def ours(offset: int, ledger: str = "ledger-a", epoch: int = 1, n: int = 7, pipeline: str = "orders") -> Committed:
    return Committed(offset, CommitMark(ledger, pipeline, epoch, n).encode())


GARBAGE = [
    "",
    " ",
    "null",
    "true",
    "0",
    "[]",
    "{}",
    '"ledger"',
    "{",
    "\x00",
    "é" * 4_000,
    "[" * 50_000,
    '{"a":' * 20_000,
    "1e999",
    "NaN",
    '{"ledger": "l", "pipeline": "orders", "epoch": 0}',
    '{"ledger": "l", "pipeline": "orders", "epoch": 0, "n": "1"}',
    '{"ledger": "l", "pipeline": "orders", "epoch": 0, "n": 1.0}',
    '{"ledger": "l", "pipeline": "orders", "epoch": 0, "n": 1e400}',
    '{"ledger": "l", "pipeline": "orders", "epoch": 0, "n": true}',
    '{"ledger": "l", "pipeline": "orders", "epoch": -1, "n": 1}',
    '{"ledger": "l", "pipeline": "orders", "epoch": 0, "n": null}',
    '{"ledger": 5, "pipeline": "orders", "epoch": 0, "n": 1}',
    '{"ledger": "l", "pipeline": ["orders"], "epoch": 0, "n": 1}',
    '{"ledger": "l", "pipeline": "orders", "epoch": 0, "n": ' + "9" * 5_000 + "}",
    '[{"ledger": "l", "pipeline": "orders", "epoch": 0, "n": 1}]',
    json.dumps(CommitMark("l", "orders", 0, 1).encode()),
]


@pytest.mark.parametrize("metadata", GARBAGE, ids=range(len(GARBAGE)))
def test_s31_garbage_is_no_crash_and_never_ours(metadata: str) -> None:
    assert CommitMark.decode(metadata) is None
    assert not is_ours(Committed(5, metadata), "orders")
    with pytest.raises(GroupMoved):
        check_held(AT, Committed(5, metadata), NEWEST, None)


def test_s31_a_mark_survives_its_way_through_kafka() -> None:
    assert CommitMark.decode(NEWEST.encode()) == NEWEST
    long = CommitMark("l" * 36, "p" * 200, 2**31 - 1, 2**63 - 1)
    assert CommitMark.decode(long.encode()) == long
    assert len(long.encode()) <= 4_095
    assert json.loads(NEWEST.encode()) == {"ledger": "ledger-a", "pipeline": "orders", "epoch": 1, "n": 7}


def test_s31_another_owners_mark_is_not_ours() -> None:
    assert not is_ours(ours(5, pipeline="payments"), "orders")
    assert not is_ours(None, "orders")
    assert is_ours(ours(5, ledger="ledger-b"), "orders")


@pytest.mark.parametrize("n", [0, 6, 7])
@pytest.mark.parametrize("offset", [0, 3, 10**12])
def test_s36_over_a_commit_of_ours_that_is_not_newer_the_floor_is_committed(n: int, offset: int) -> None:
    check_held(AT, ours(offset, n=n), NEWEST, None)
    check_held(AT, ours(offset, epoch=0, n=99), NEWEST, None)


def test_s35_over_nothing_the_floor_is_committed() -> None:
    check_held(AT, None, NEWEST, None)
    check_held(AT, None, NEWEST, 5)


@pytest.mark.parametrize("held", [ours(5, n=8), ours(5, epoch=2, n=0), ours(5, ledger="ledger-b", n=1)])
def test_s36_a_commit_of_ours_that_is_newer_or_of_another_ledger_stops(held: Committed) -> None:
    with pytest.raises(NewerCommit, match=r"orders\[2\]: the group holds offset 5") as caught:
        check_held(AT, held, NEWEST, None)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("orders", 2, 5)


@pytest.mark.parametrize("seen", [None, 4, 0])
@pytest.mark.parametrize("held", [Committed(5, ""), Committed(5, "tool"), ours(5, pipeline="payments")])
def test_s36_anything_else_is_somebody_who_moved_the_group(held: Committed, seen: int | None) -> None:
    with pytest.raises(GroupMoved, match="somebody moved the group") as caught:
        check_held(AT, held, NEWEST, seen)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("orders", 2, 5)


def test_s36_the_message_does_not_repeat_foreign_metadata() -> None:
    with pytest.raises(GroupMoved) as caught:
        check_held(AT, Committed(5, "password=hunter2"), NEWEST, None)
    assert "hunter2" not in str(caught.value)


def test_s36_killed_between_the_first_settlement_and_the_first_commit_over_a_foreign_value() -> None:
    foreign = Committed(40, "console consumer")
    seen: int | None = 40  # what the genesis found and answered
    for _ in range(3):  # each run until one commits
        check_held(AT, foreign, NEWEST, seen)
        seen = answered(foreign, seen, NEWEST)
    check_held(AT, foreign, NEWEST, seen)

    after_ours = answered(ours(50), seen, NEWEST)
    assert after_ours is None
    with pytest.raises(GroupMoved):
        check_held(AT, foreign, NEWEST, after_ours)


@pytest.mark.parametrize("held", [None, Committed(0, "")])
def test_s31_offset_0_is_not_unset(held: Committed | None) -> None:
    check_held(AT, held, NEWEST, 0)
    with pytest.raises(GroupMoved):
        check_held(AT, Committed(0, ""), NEWEST, None)


def test_a_newer_commit_of_this_ledger_stops_also_where_its_offset_was_once_answered() -> None:
    with pytest.raises(NewerCommit):
        check_held(AT, ours(5, n=8), NEWEST, 5)


def test_s30_a_lost_ledger_can_start_anew_from_its_own_old_commit() -> None:
    """The genesis answers the commit of the ledger that was lost; plan finds it again; settle commits over it."""
    lost = ours(30, ledger="ledger-lost", epoch=0, n=12)
    genesis, settled = CommitMark("ledger-a", "orders", 0, 0), CommitMark("ledger-a", "orders", 0, 1)

    check_held(AT, lost, genesis, 30)  # plan 1
    seen = answered(lost, 30, genesis)
    check_held(AT, lost, settled, seen)  # settle 1
    assert answered(ours(30, epoch=0, n=1), seen, settled) is None  # plan 2


@pytest.mark.parametrize("seed", range(25))
def test_i3_late_commits_are_restored_by_the_next_run_and_strangers_are_never_overwritten(seed: int) -> None:
    random = Random(seed)
    held: Committed | None = random.choice([None, Committed(3, "tool")])
    seen = held.offset if held else None
    floor, n = (held.offset if held else 0), 0
    past: list[Committed] = []
    for _ in range(100):
        stranger = random.random() < 0.02
        if stranger:
            held = Committed(1_000_000 + random.randint(0, 9), random.choice(["", "tool", "{}"]))
        elif past and random.random() < 0.2:
            held = random.choice(past)  # a process that slept, or a commit that expired
        elif random.random() < 0.1:
            held = None
        mark = CommitMark("ledger-a", "orders", 0, n)
        if stranger:
            with pytest.raises(GroupMoved):
                check_held(AT, held, mark, seen)
            return
        check_held(AT, held, mark, seen)
        seen = answered(held, seen, mark)
        floor, n = floor + random.randint(0, 4), n + 1
        check_held(AT, held, CommitMark("ledger-a", "orders", 0, n), seen)
        if random.random() < 0.8:  # else killed before the commit
            held = ours(floor, epoch=0, n=n)
            past.append(held)
        assert held is None or held.offset <= floor, "I1"
