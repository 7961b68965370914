"""The group's commit: which one a run may overwrite, and which one stops it (S36)."""

import pytest

from ackline.errors import GroupMoved
from tests.chaos import victims
from tests.e2e.fixtures import MakeLab


def test_s36_a_moved_group_stops_the_run_by_name_and_nothing_is_committed(lab: MakeLab) -> None:
    lane = lab()
    lane.produce_records(4)
    lane.run()
    lane.move_group(1, "an operator's")
    lane.produce_records(2)
    done = lane.ackline("run", lane.name)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{lane.topic}[0]: the group holds offset 1" in done.stderr
    assert "another client moved the group" in done.stderr
    assert lane.group_commit() == (1, "an operator's")
    assert lane.new_offsets() == [0, 1, 2, 3]


def test_s36_a_foreign_commit_is_overwritten_after_a_kill_before_the_first_commit_and_never_later(
    lab: MakeLab,
) -> None:
    """Killed between its first settlement and its first commit, a run leaves behind the foreign commit that its genesis
    has acknowledged. Once a commit of ours was found, a move back to the same offset is a move like any other."""
    lane = lab(start="earliest")
    lane.produce_records(4)
    lane.move_group(2, "the former owner's")
    lane.plan()
    lane.replay()
    victims.kill(lane, "settle", "commit", "before")
    assert lane.group_commit() == (2, "the former owner's")
    lane.judge()
    assert (lane.run().calls, lane.committed(), lane.settlement().turn.epoch) == (0, 4, 0)
    lane.judge(settled=True)
    lane.run()
    lane.move_group(2)
    with pytest.raises(GroupMoved):
        lane.run()
    assert lane.committed() == 2
