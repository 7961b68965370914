"""Processes are killed under at most once (S50, fault 37): a record may be lost, and no record is handled twice (I7).

tests/chaos/test_lines.py kills them at every line, in memory.
"""

import json
import os
import signal
from collections import Counter

import pytest

from ackline.errors import TransientError
from ackline.lane import claim
from ackline.local.processes import wait_until
from ackline.outputs.turn import publish_settled
from tests.chaos import victims
from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row, all_of

GRACE = 600


def assert_handled_once(lane: Lab) -> None:
    """I7, by the journal of all processes."""
    assert set(Counter(call.offset for call in lane.calls()).values()) <= {1}


@pytest.mark.parametrize(
    ("write", "lost"),
    [
        ("claim", False),
        pytest.param("commit", False, marks=pytest.mark.deep),
        pytest.param("start", True, marks=pytest.mark.deep),
    ],
)
def test_fault_37_killed_after_the_claim_the_range_is_handled_once_or_lost(
    lab: MakeLab, write: str, lost: bool
) -> None:
    """Before the start marker is stored no record is handed out, so the next run may handle the range."""
    lane = lab(guarantee="at_most_once", lost_after=f"{GRACE}s", retry={"max_retries": 0})
    lane.produce_records(4, {1: {"fail": -1}})
    lane.plan()
    victims.kill(lane, "replay", write, "after")
    assert lane.calls() == []
    assert lane.committed() == (None if write == "claim" else 4)
    lane.judge()
    if lost:
        with pytest.raises(TransientError, match="handed out by another process"):
            lane.run()
        lane.advance_clock(GRACE)
    lane.run()
    assert lane.rows() == (
        [Row(0, 0, "lost", 4)] if lost else sorted([*all_of("acked", [0, 2, 3]), Row(1, 1, "dropped")])
    )
    assert lane.committed() == 4
    assert lane.letters() == []
    assert_handled_once(lane)
    lane.judge(settled=True)


@pytest.mark.parametrize("gone", [2, 4], ids=["in part", "whole"])
def test_s50_a_claimed_range_that_is_gone_from_the_log_is_lost_whole_and_not_void(lab: MakeLab, gone: int) -> None:
    """The log loses its records after the claim has moved the group: none is handed out, and none is expired."""
    lane = lab(guarantee="at_most_once", lost_after=f"{GRACE}s")
    lane.produce_records(4)
    plan = lane.plan()
    with lane.adapters() as adapters:
        claim.claim(adapters, plan, lane.settlement(), publish_settled)
    assert lane.committed() == 4
    lane.expire(gone)
    assert wire.log_start(lane.broker.bootstrap, lane.topic) == gone
    lane.run()
    assert (lane.rows(), lane.calls()) == ([Row(0, 0, "lost", 4)], [])
    assert (lane.settlement().kind, lane.committed()) == ("run", 4)
    lane.produce_records(1)
    lane.run()
    assert lane.rows() == [Row(0, 0, "lost", 4), Row(4, 1, "acked")]
    lane.judge(settled=True)


@pytest.mark.deep
def test_fault_37_a_batch_whose_run_was_killed_is_repeated_by_no_later_run(lab: MakeLab) -> None:
    """The group moves before the first call and never moves back; later records are handled as usual."""
    lane = lab(guarantee="at_most_once", lost_after=f"{GRACE}s", handler="tests.chaos.handlers:slow")
    lane.produce_records(40)
    with victims.ended(victims.start(lane, "run")) as victim:
        assert wait_until(lambda: len(lane.calls()) >= 3, victims.SECONDS), victim.poll()
        assert lane.committed() == 40
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait(30)
    assert 3 <= len(lane.calls()) < 40
    lane.judge()
    for _ in range(2):
        with pytest.raises(TransientError):
            lane.run()
    lane.produce_records(2)
    lane.advance_clock(GRACE)
    lane.run()
    lane.configure(handler="tests.support.journal:handle")
    lane.run()
    assert lane.rows() == [Row(0, 0, "lost", 40), *all_of("acked", [40, 41])]
    offset, metadata = lane.group_commit() or (None, "{}")
    assert (offset, json.loads(metadata).get("n")) == (42, 2)
    assert_handled_once(lane)
    lane.judge(settled=True)
