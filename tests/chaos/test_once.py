"""At most once, and the process dies (S50, fault 37): a loss is allowed and recorded, a repetition is not (I7).

tests/chaos/test_lines.py ends it at every line, in memory.
"""

import json
import os
import signal
from collections import Counter

import pytest

from ackline.errors import TransientError
from ackline.local.processes import wait_until
from tests.chaos import victims
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row, all_of

GRACE = 600


def handled_once(one: Lab) -> None:
    """I7, by the journal of all processes."""
    assert set(Counter(call.offset for call in one.calls()).values()) <= {1}


@pytest.mark.parametrize(("write", "lost"), [("claim", False), ("commit", False), ("start", True)])
def test_fault_37_killed_after_the_claim_the_range_is_handled_once_or_lost(
    lab: MakeLab, write: str, lost: bool
) -> None:
    """Until it has said that it starts, nothing can have been handed out, and whoever comes next may handle it."""
    one = lab(guarantee="at_most_once", lost_after=f"{GRACE}s", retry={"max_retries": 0})
    one.records(4, {1: {"fail": -1}})
    one.plan()
    victims.kill(one, "replay", write, "after")
    assert one.calls() == []
    assert one.committed() == (None if write == "claim" else 4)
    one.judge()
    if lost:
        with pytest.raises(TransientError, match="handed out by another process"):
            one.run()
        one.wait(GRACE)
    one.run()
    assert one.rows() == (
        [Row(0, 0, "lost", 4)] if lost else sorted([*all_of("acked", [0, 2, 3]), Row(1, 1, "dropped")])
    )
    assert one.committed() == 4
    assert one.letters() == []
    handled_once(one)
    one.judge(settled=True)


def test_fault_37_killed_in_the_middle_of_its_batch_it_repeats_nothing_whoever_tries_again(lab: MakeLab) -> None:
    """The group has moved before the first call, and never moves back; what comes afterwards is handled as ever."""
    one = lab(guarantee="at_most_once", lost_after=f"{GRACE}s", handler="tests.chaos.handlers:slow")
    one.records(40)
    with victims.ended(victims.start(one, "run")) as victim:
        assert wait_until(lambda: len(one.calls()) >= 3, victims.SECONDS), victim.poll()
        assert one.committed() == 40
        os.killpg(victim.pid, signal.SIGKILL)
        victim.wait(30)
    assert 3 <= len(one.calls()) < 40
    one.judge()
    for _ in range(2):
        with pytest.raises(TransientError):
            one.run()
    one.records(2)
    one.wait(GRACE)
    one.run()
    one.define(handler="ackline.testing.journal:handle")
    one.run()
    assert one.rows() == [Row(0, 0, "lost", 40), *all_of("acked", [40, 41])]
    held = one.held()
    assert held is not None
    assert (held[0], json.loads(held[1])["n"]) == (42, 2)
    handled_once(one)
    one.judge(settled=True)
