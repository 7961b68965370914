"""The group's offsets: what may be overwritten, and what is refused by name (S36, S37)."""

import time

import pytest
from confluent_kafka import Consumer

from ackline.errors import GroupBusy, GroupMoved, NewerCommit
from ackline.local.processes import wait_until
from tests.chaos import victims
from tests.e2e import wire
from tests.e2e.fixtures import MakeLab


def test_s36_a_moved_group_is_refused_by_name_and_nothing_is_committed(lab: MakeLab) -> None:
    one = lab()
    one.records(4)
    one.run()
    one.commit(1, "an operator's")
    one.records(2)
    with pytest.raises(GroupMoved, match="offset 1"):
        one.run()
    assert one.held() == (1, "an operator's")
    assert one.offsets() == [0, 1, 2, 3]


def test_s36_a_group_moved_while_a_turn_is_under_way_is_refused_too(lab: MakeLab) -> None:
    """The turn is settled, the audit whole; only the commit is not made."""
    one = lab()
    one.records(4)
    one.run()
    one.records(2)
    one.plan()
    one.commit(1)
    with pytest.raises(GroupMoved):
        one.run()
    assert one.committed() == 1
    assert one.outcomes() == {"acked": 6}


def test_s36_a_stale_commit_of_ours_is_overwritten_without_reading_again(lab: MakeLab) -> None:
    """Fault 24: a late process commits an old floor; the next run restores the newest."""
    one = lab()
    one.records(2)
    one.run()
    old = one.held()
    one.records(3)
    one.run()
    assert old is not None
    one.commit(*old)
    assert one.run().calls == 0
    assert one.committed() == 5
    one.judge(settled=True)


def test_s36_a_foreign_value_seen_at_the_genesis_is_overwritten_after_a_crash(lab: MakeLab) -> None:
    """Killed between the first settlement and the first commit: no reset, the floor is committed."""
    one = lab(start="earliest")
    one.records(4)
    one.commit(2, "the former owner's")
    one.plan()
    one.replay()
    victims.kill(one, "settle", "commit", "before")
    assert one.held() == (2, "the former owner's")
    one.judge()
    assert one.run().calls == 0
    assert one.committed() == 4
    assert one.settlement().turn.epoch == 0
    one.judge(settled=True)


def test_s36_once_ours_was_found_the_former_foreign_value_is_answered_no_more(lab: MakeLab) -> None:
    """The group is moved back to the very value that the genesis has overwritten: that is a move like any other."""
    one = lab(start="earliest")
    one.records(4)
    one.commit(2)
    one.run()
    one.run()
    one.commit(2)
    with pytest.raises(GroupMoved):
        one.run()
    assert one.committed() == 2


def test_a_commit_newer_than_the_ledger_is_refused(lab: MakeLab) -> None:
    """An old copy of the audit folder must not pull the group back."""
    one = lab()
    one.records(2)
    one.run()
    held = one.held()
    assert held is not None
    one.commit(2, held[1].replace('"n": 1', '"n": 9'))
    with pytest.raises(NewerCommit, match="turn 9"):
        one.run()
    one.judged = True  # the commit that is wrong here is the test's own


def test_s37_with_a_live_member_nothing_is_committed_and_the_next_run_commits(lab: MakeLab) -> None:
    """Fault 21."""
    one = lab()
    one.records(3)
    member = Consumer({"bootstrap.servers": one.broker.bootstrap, "group.id": one.group, "client.id": "intruder"})
    with wire.closing(member):
        member.subscribe([one.topic])
        assert wait_until(lambda: member.poll(0.1) is None and bool(member.assignment()), 30)
        with pytest.raises(GroupBusy, match="intruder"):
            one.run()
        assert one.committed() is None
        assert one.outcomes() == {"acked": 3}
    deadline = time.monotonic() + 30
    while one.committed() is None:
        assert time.monotonic() < deadline
        one.run()
    assert one.committed() == 3
    assert one.offsets() == [0, 1, 2]
    one.judge(settled=True)
