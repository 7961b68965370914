"""Which committed offset the newest floor may be committed over, and whose commit metadata is trusted."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from random import Random

import pytest

from ackline.errors import GroupMoved, NewerCommit
from ackline.ledger.commit_rule import (
    CommitMetadata,
    Committed,
    check_commit_allowed,
    is_of_ledger,
    is_of_pipeline,
    stamp_of,
    still_acknowledged,
)
from ackline.ledger.offsets import TopicPartition

TP = TopicPartition("orders", 2)
NEWEST = CommitMetadata("ledger-a", "orders", 1, 7)


def ours(offset: int, ledger: str = "ledger-a", epoch: int = 1, n: int = 7, pipeline: str = "orders") -> Committed:
    return Committed(offset, CommitMetadata(ledger, pipeline, epoch, n).encode())


def fields(**changes: object) -> str:
    """The metadata of a commit of `orders` with some fields changed."""
    return json.dumps({"ledger": "l", "pipeline": "orders", "epoch": 0, "n": 1} | changes)


GARBAGE = [
    " ", "{}", '"ledger"', "é" * 4_000, '{"a":' * 20_000, "NaN", '{"ledger": "l", "pipeline": "orders", "epoch": 0}',
    '{"ledger": "l", "pipeline": "orders", "epoch": 0, "n": 1e400}',
    '{"ledger": "l", "pipeline": "orders", "epoch": 0, "n": ' + "9" * 5_000 + "}",
    fields(n="1"), fields(n=1.0), fields(n=True), fields(n=None), fields(epoch=-1), fields(ledger=5),
    fields(epoch=2**31), fields(epoch=0, n=2**63), fields(pipeline=["orders"]), f"[{fields()}]", json.dumps(fields()),
]  # fmt: skip


@pytest.mark.parametrize("metadata", GARBAGE, ids=range(len(GARBAGE)))
def test_s31_garbage_never_raises_and_is_never_a_commit_of_ours(metadata: str) -> None:
    assert CommitMetadata.decode_or_none(metadata) is None
    assert not is_of_pipeline(Committed(5, metadata), "orders")
    with pytest.raises(GroupMoved):
        check_commit_allowed(TP, Committed(5, metadata), NEWEST, None)


def test_s31_commit_metadata_is_read_back_as_it_was_stored() -> None:
    longest = CommitMetadata("l" * 36, "p" * 200, 2**31 - 1, 2**63 - 1, "1a2b3c4d")
    for metadata in (NEWEST, longest):
        assert CommitMetadata.decode_or_none(metadata.encode()) == metadata
    assert len(longest.encode()) <= 4_095
    stored = {"ledger": "ledger-a", "pipeline": "orders", "epoch": 1, "n": 7}
    assert json.loads(NEWEST.encode()) == stored | {"stamp": ""}
    assert CommitMetadata.decode_or_none(json.dumps(stored | {"later": []})) == NEWEST, "of another version"


def test_s31_a_commit_is_of_the_pipeline_and_the_ledger_that_its_metadata_names() -> None:
    other_pipeline, other_ledger = ours(5, pipeline="payments"), ours(5, ledger="ledger-b")
    commits = (ours(5), other_ledger, other_pipeline, None)
    assert [is_of_pipeline(committed, "orders") for committed in commits] == [True, True, False, False]
    assert [is_of_ledger(committed, "orders", "ledger-a") for committed in commits] == [True, False, False, False]


@pytest.mark.parametrize("committed", [
    *(ours(offset, n=n) for offset in (0, 3, 10**12) for n in (0, 6, 7)),
    *(ours(offset, epoch=0, n=99) for offset in (0, 3, 10**12)),
])  # fmt: skip
def test_s36_the_floor_is_committed_over_a_commit_of_this_ledger_that_is_not_newer(committed: Committed) -> None:
    check_commit_allowed(TP, committed, NEWEST, None)


@pytest.mark.parametrize("acknowledged_foreign_offset", [None, 5])
def test_s35_the_floor_is_committed_where_kafka_holds_nothing(acknowledged_foreign_offset: int | None) -> None:
    check_commit_allowed(TP, None, NEWEST, acknowledged_foreign_offset)


@pytest.mark.parametrize(("committed", "acknowledged_foreign_offset"), [
    (ours(5, n=8), None), (ours(5, epoch=2, n=0), None), (ours(5, n=8), 5),
    (ours(5, ledger="ledger-b", n=1), None), (ours(5, ledger="ledger-b", n=1), 4),
], ids=["newer turn", "newer epoch", "newer turn at that offset", "other ledger", "other offset"])  # fmt: skip
def test_s36_a_newer_commit_and_one_of_another_ledger_stop_the_run(
    committed: Committed, acknowledged_foreign_offset: int | None
) -> None:
    with pytest.raises(NewerCommit, match=r"orders\[2\]: the group holds offset 5") as caught:
        check_commit_allowed(TP, committed, NEWEST, acknowledged_foreign_offset)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("orders", 2, 5)


@pytest.mark.parametrize("acknowledged_foreign_offset", [None, 4, 0])
@pytest.mark.parametrize(
    "committed", [Committed(5, ""), Committed(5, "password=hunter2"), ours(5, pipeline="payments")]
)
def test_s36_any_other_foreign_commit_stops_the_run_and_its_metadata_is_not_repeated(
    committed: Committed, acknowledged_foreign_offset: int | None
) -> None:
    with pytest.raises(GroupMoved, match="another client moved the group") as caught:
        check_commit_allowed(TP, committed, NEWEST, acknowledged_foreign_offset)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("orders", 2, 5)
    assert "hunter2" not in str(caught.value)


def test_s36_a_foreign_commit_is_overwritten_after_a_kill_before_the_first_commit_and_never_later() -> None:
    foreign = Committed(40, "console consumer")
    acknowledged_foreign_offset: int | None = 40  # as the genesis stored it
    for _ in range(3):  # runs that are killed before they commit
        check_commit_allowed(TP, foreign, NEWEST, acknowledged_foreign_offset)
        acknowledged_foreign_offset = still_acknowledged(foreign, acknowledged_foreign_offset, NEWEST)
    check_commit_allowed(TP, foreign, NEWEST, acknowledged_foreign_offset)
    after_ours = still_acknowledged(ours(50), acknowledged_foreign_offset, NEWEST)
    assert after_ours is None
    with pytest.raises(GroupMoved):
        check_commit_allowed(TP, foreign, NEWEST, after_ours)


def test_s36_a_commit_of_another_copy_of_the_ledger_stops_although_its_turn_is_no_newer_one() -> None:
    commit = Committed(5, replace(NEWEST, stamp="1a2b3c4d").encode())
    check_commit_allowed(TP, commit, NEWEST, None, lambda _: True)
    with pytest.raises(NewerCommit, match=r"turn 7 of epoch 1 of another copy of ledger ledger-a; .* is another one"):
        check_commit_allowed(TP, commit, NEWEST, None, lambda found: found.stamp != "1a2b3c4d")


def test_s36_a_stamp_stands_for_what_was_stored_by_whom_and_when() -> None:
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    same = at.astimezone(timezone(timedelta(hours=5)))
    assert stamp_of("plan", "run", at) == stamp_of("plan", "run", same)
    others = [("settlement", "run", at), ("plan", "run-2", at), ("plan", "run", at + timedelta(microseconds=1))]
    assert len({stamp_of(*other) for other in [("plan", "run", at), *others]}) == 4


def test_s31_offset_0_is_a_commit_and_not_a_missing_one() -> None:
    check_commit_allowed(TP, Committed(0, ""), NEWEST, 0)
    with pytest.raises(GroupMoved):
        check_commit_allowed(TP, Committed(0, ""), NEWEST, None)


def test_s30_a_new_ledger_commits_over_the_old_commit_of_a_ledger_that_was_lost() -> None:
    """The genesis acknowledges that commit. plan finds it again, and settle commits over it."""
    lost = ours(30, ledger="ledger-lost", epoch=0, n=12)
    genesis, settled = CommitMetadata("ledger-a", "orders", 0, 0), CommitMetadata("ledger-a", "orders", 0, 1)
    check_commit_allowed(TP, lost, genesis, 30)  # plan 1
    acknowledged_foreign_offset = still_acknowledged(lost, 30, genesis)
    check_commit_allowed(TP, lost, settled, acknowledged_foreign_offset)  # settle 1
    assert still_acknowledged(ours(30, epoch=0, n=1), acknowledged_foreign_offset, settled) is None  # plan 2


@pytest.mark.parametrize("seed", range(25))
def test_i3_late_commits_are_overwritten_by_the_next_run_and_foreign_ones_never(seed: int) -> None:
    random = Random(seed)
    committed: Committed | None = random.choice([None, Committed(3, "tool")])
    acknowledged_foreign_offset = committed.offset if committed else None
    floor, n = (committed.offset if committed else 0), 0
    past: list[Committed] = []
    for _ in range(100):
        newest = CommitMetadata("ledger-a", "orders", 0, n)
        if random.random() < 0.02:
            moved = Committed(1_000_000 + random.randint(0, 9), random.choice(["", "tool", "{}"]))
            with pytest.raises(GroupMoved):
                check_commit_allowed(TP, moved, newest, acknowledged_foreign_offset)
            return
        if past and random.random() < 0.2:
            committed = random.choice(past)  # of a process that slept
        elif random.random() < 0.1:
            committed = None  # the commit has expired
        check_commit_allowed(TP, committed, newest, acknowledged_foreign_offset)
        acknowledged_foreign_offset = still_acknowledged(committed, acknowledged_foreign_offset, newest)
        floor, n = floor + random.randint(0, 4), n + 1
        check_commit_allowed(TP, committed, CommitMetadata("ledger-a", "orders", 0, n), acknowledged_foreign_offset)
        if random.random() < 0.8:  # else it is killed before the commit
            committed = ours(floor, epoch=0, n=n)
            past.append(committed)
        assert committed is None or committed.offset <= floor, "I1"
