"""Which committed value may be overwritten: Kafka has no compare-and-set, so the rule is kept by reading first."""

import json
from random import Random

import pytest

from ackline.commit_rule import CommitMetadata, Committed, check_commit_allowed, is_ours, still_acknowledged
from ackline.errors import GroupMoved, NewerCommit
from ackline.offsets import TopicPartition

AT = TopicPartition("orders", 2)
NEWEST = CommitMetadata("ledger-a", "orders", 1, 7)


def ours(offset: int, ledger: str = "ledger-a", epoch: int = 1, n: int = 7, pipeline: str = "orders") -> Committed:
    return Committed(offset, CommitMetadata(ledger, pipeline, epoch, n).encode())


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
    json.dumps(CommitMetadata("l", "orders", 0, 1).encode()),
]


@pytest.mark.parametrize("metadata", GARBAGE, ids=range(len(GARBAGE)))
def test_s31_garbage_is_no_crash_and_never_ours(metadata: str) -> None:
    assert CommitMetadata.decode(metadata) is None
    assert not is_ours(Committed(5, metadata), "orders")
    with pytest.raises(GroupMoved):
        check_commit_allowed(AT, Committed(5, metadata), NEWEST, None)


def test_s31_a_mark_survives_its_way_through_kafka() -> None:
    assert CommitMetadata.decode(NEWEST.encode()) == NEWEST
    long = CommitMetadata("l" * 36, "p" * 200, 2**31 - 1, 2**63 - 1)
    assert CommitMetadata.decode(long.encode()) == long
    assert len(long.encode()) <= 4_095
    assert json.loads(NEWEST.encode()) == {"ledger": "ledger-a", "pipeline": "orders", "epoch": 1, "n": 7}


def test_s31_another_owners_mark_is_not_ours() -> None:
    assert not is_ours(ours(5, pipeline="payments"), "orders")
    assert not is_ours(None, "orders")
    assert is_ours(ours(5, ledger="ledger-b"), "orders")


@pytest.mark.parametrize("n", [0, 6, 7])
@pytest.mark.parametrize("offset", [0, 3, 10**12])
def test_s36_over_a_commit_of_ours_that_is_not_newer_the_floor_is_committed(n: int, offset: int) -> None:
    check_commit_allowed(AT, ours(offset, n=n), NEWEST, None)
    check_commit_allowed(AT, ours(offset, epoch=0, n=99), NEWEST, None)


def test_s35_over_nothing_the_floor_is_committed() -> None:
    check_commit_allowed(AT, None, NEWEST, None)
    check_commit_allowed(AT, None, NEWEST, 5)


@pytest.mark.parametrize("committed", [ours(5, n=8), ours(5, epoch=2, n=0), ours(5, ledger="ledger-b", n=1)])
def test_s36_a_commit_of_ours_that_is_newer_or_of_another_ledger_stops(committed: Committed) -> None:
    with pytest.raises(NewerCommit, match=r"orders\[2\]: the group holds offset 5") as caught:
        check_commit_allowed(AT, committed, NEWEST, None)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("orders", 2, 5)


@pytest.mark.parametrize("acknowledged_foreign_offset", [None, 4, 0])
@pytest.mark.parametrize("committed", [Committed(5, ""), Committed(5, "tool"), ours(5, pipeline="payments")])
def test_s36_anything_else_is_somebody_who_moved_the_group(
    committed: Committed, acknowledged_foreign_offset: int | None
) -> None:
    with pytest.raises(GroupMoved, match="somebody moved the group") as caught:
        check_commit_allowed(AT, committed, NEWEST, acknowledged_foreign_offset)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("orders", 2, 5)


def test_s36_the_message_does_not_repeat_foreign_metadata() -> None:
    with pytest.raises(GroupMoved) as caught:
        check_commit_allowed(AT, Committed(5, "password=hunter2"), NEWEST, None)
    assert "hunter2" not in str(caught.value)


def test_s36_killed_between_the_first_settlement_and_the_first_commit_over_a_foreign_value() -> None:
    foreign = Committed(40, "console consumer")
    acknowledged_foreign_offset: int | None = 40  # what the genesis found and answered
    for _ in range(3):  # each run until one commits
        check_commit_allowed(AT, foreign, NEWEST, acknowledged_foreign_offset)
        acknowledged_foreign_offset = still_acknowledged(foreign, acknowledged_foreign_offset, NEWEST)
    check_commit_allowed(AT, foreign, NEWEST, acknowledged_foreign_offset)

    after_ours = still_acknowledged(ours(50), acknowledged_foreign_offset, NEWEST)
    assert after_ours is None
    with pytest.raises(GroupMoved):
        check_commit_allowed(AT, foreign, NEWEST, after_ours)


@pytest.mark.parametrize("committed", [None, Committed(0, "")])
def test_s31_offset_0_is_not_unset(committed: Committed | None) -> None:
    check_commit_allowed(AT, committed, NEWEST, 0)
    with pytest.raises(GroupMoved):
        check_commit_allowed(AT, Committed(0, ""), NEWEST, None)


def test_a_newer_commit_of_this_ledger_stops_also_where_its_offset_was_once_answered() -> None:
    with pytest.raises(NewerCommit):
        check_commit_allowed(AT, ours(5, n=8), NEWEST, 5)


def test_s30_a_lost_ledger_can_start_anew_from_its_own_old_commit() -> None:
    """The genesis answers the commit of the ledger that was lost; plan finds it again; settle commits over it."""
    lost = ours(30, ledger="ledger-lost", epoch=0, n=12)
    genesis, settled = CommitMetadata("ledger-a", "orders", 0, 0), CommitMetadata("ledger-a", "orders", 0, 1)

    check_commit_allowed(AT, lost, genesis, 30)  # plan 1
    acknowledged_foreign_offset = still_acknowledged(lost, 30, genesis)
    check_commit_allowed(AT, lost, settled, acknowledged_foreign_offset)  # settle 1
    assert still_acknowledged(ours(30, epoch=0, n=1), acknowledged_foreign_offset, settled) is None  # plan 2


@pytest.mark.parametrize("seed", range(25))
def test_i3_late_commits_are_restored_by_the_next_run_and_strangers_are_never_overwritten(seed: int) -> None:
    random = Random(seed)
    committed: Committed | None = random.choice([None, Committed(3, "tool")])
    acknowledged_foreign_offset = committed.offset if committed else None
    floor, n = (committed.offset if committed else 0), 0
    past: list[Committed] = []
    for _ in range(100):
        stranger = random.random() < 0.02
        if stranger:
            committed = Committed(1_000_000 + random.randint(0, 9), random.choice(["", "tool", "{}"]))
        elif past and random.random() < 0.2:
            committed = random.choice(past)  # a process that slept, or a commit that expired
        elif random.random() < 0.1:
            committed = None
        mark = CommitMetadata("ledger-a", "orders", 0, n)
        if stranger:
            with pytest.raises(GroupMoved):
                check_commit_allowed(AT, committed, mark, acknowledged_foreign_offset)
            return
        check_commit_allowed(AT, committed, mark, acknowledged_foreign_offset)
        acknowledged_foreign_offset = still_acknowledged(committed, acknowledged_foreign_offset, mark)
        floor, n = floor + random.randint(0, 4), n + 1
        check_commit_allowed(AT, committed, CommitMetadata("ledger-a", "orders", 0, n), acknowledged_foreign_offset)
        if random.random() < 0.8:  # else killed before the commit
            committed = ours(floor, epoch=0, n=n)
            past.append(committed)
        assert committed is None or committed.offset <= floor, "I1"
