"""At most once: what is checked before a claim, and what becomes of a claimed turn (I7, S50)."""

from dataclasses import replace
from typing import Any

import pytest

from ackline.errors import ConfigError, FatalError, GroupBusy, GroupMoved
from ackline.lane import claim
from ackline.ledger.offsets import ValuedRange
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnKind
from ackline.outputs.publish import publish_settled
from tests.support.actor import Actor
from tests.support.memory import BEFORE
from tests.support.memory_lane import AT_MOST_ONCE, GROUP, OK, TP, TP1, MemoryLane


def once(*values: bytes, partitions: int = 1, **settings: Any) -> MemoryLane:
    return MemoryLane(*values, partitions=partitions, guarantee=AT_MOST_ONCE, **settings)


def test_i7_a_plan_with_a_retry_is_not_handed_out_at_most_once() -> None:
    """No plan of this guarantee has one; a table that was edited by hand may."""
    lane = once(OK, OK)
    planned = lane.plan()
    claim.refuse_retries(planned)
    with_retry = replace(planned.partitions[TP], retries=(ValuedRange(0, 1, 2),))
    with pytest.raises(FatalError, match="at most once makes none"):
        claim.refuse_retries(replace(planned, partitions={TP: with_retry, TP1: planned.partitions[TP]}))
    lane.world.tables.plans[planned.turn] = replace(planned, partitions={TP: with_retry})
    with pytest.raises(FatalError, match="at most once makes none"):
        lane.replay()
    assert (lane.calls(), lane.adapters().store.has_claim(planned.turn)) == ([], False)


def refuses(*_: object) -> None:
    raise ConfigError("handler a:b does not import")


@pytest.mark.parametrize(("changes", "message"), [
    pytest.param({"check_job": refuses}, "does not import", id="a handler or a Spark that cannot be started"),
    pytest.param({"kafka": {"oauth_cb": print}}, "callback", id="a connection with a callback"),
    pytest.param({"kafka": {"bootstrap.servers": "memory", "no.such.property": "1"}}, r"no\.such\.property",
                 id="a property of no meaning"),
])  # fmt: skip
def test_s50_a_job_that_cannot_be_started_is_refused_before_the_plan_is_claimed(
    changes: dict[str, Any], message: str
) -> None:
    """Later it would be lost: a claimed plan is handed out once, or never (I7)."""
    lane = once(OK)
    with pytest.raises(ConfigError, match=message):
        lane.run(lane.adapters(**changes))
    assert (lane.adapters().store.has_claim(lane.plan().turn), lane.committed()) == (False, None)
    lane.run()
    assert (dict(lane.settled().counts), lane.newest().turn.n) == ({"acked": 1}, 1)


@pytest.mark.parametrize("group", ["has a live member", "was moved"])
def test_s36_s37_at_most_once_a_group_that_can_not_be_committed_costs_no_turn(group: str) -> None:
    """The group is checked before the plan is claimed; a claim whose commit is refused would be lost."""
    lane = once(OK).after_run()
    lane.produce(OK)
    planned, ours = lane.plan(), lane.world.committed[GROUP, TP]
    if group == "was moved":
        lane.move_group(TP, 0)
    else:
        lane.world.members = ["a console consumer"]
    lane.run_fails((GroupMoved, GroupBusy), match=r"moved|a console consumer")
    assert not lane.adapters().store.has_claim(planned.turn)
    lane.world.committed[GROUP, TP], lane.world.members = ours, []
    lane.run()
    assert lane.calls() == [(0, 1), (1, 1)]


def test_s50_of_a_claimed_turn_that_is_lost_idle_partitions_have_lost_nothing() -> None:
    lane = once(partitions=2, lost_after="0s").after_run()
    lane.produce(OK, tp=TP1)
    planned = lane.plan()
    claim.claim(lane.adapters(), planned, lane.newest(), publish_settled)
    assert claim.take_start_marker(lane.adapters(), planned)
    lane.run()
    rows = lane.adapters().store.outcomes_of(planned.turn).rows
    assert {tp: [(row.offset, row.end) for row in lost] for tp, lost in rows.items()} == {TP1: [(0, 1)]}


def test_s50_of_a_started_turn_what_was_not_reported_is_lost_although_its_job_can_not_be_built_any_more() -> None:
    """The turn runs by the outputs of its plan; the topic of one is gone, and so is the process that handed out."""
    lane = once(OK, outputs=[{"from": "source", "topic": "out"}], lost_after="0s")
    lane.create("out")
    planned = lane.plan()
    claim.claim(lane.adapters(), planned, lane.newest(), publish_settled)
    assert claim.take_start_marker(lane.adapters(), planned)
    del lane.world.topics["out"]
    lane.settings["outputs"] = None
    lane.run()
    assert (lane.ranges(Outcome.LOST), lane.calls(), lane.committed()) == ([(0, 1)], [], 1)


@pytest.mark.parametrize("gone", [2, 3], ids=["in part", "whole"])
def test_s50_a_claimed_range_that_retention_has_deleted_is_lost_whole_and_not_void(gone: int) -> None:
    """None of its records is handed out, and none is expired: the claim has moved the group over them."""
    lane = once(OK, OK, OK)
    claim.claim(lane.adapters(), lane.plan(), lane.newest(), publish_settled)
    lane.log().expire(gone)
    lane.run()
    assert (lane.newest().kind, lane.ranges(Outcome.LOST), lane.calls()) == (TurnKind.RUN, [(0, 3)], [])
    assert (len(lane.effective_rows()), lane.committed()) == (1, 3)
    lane.produce(OK)
    lane.run()
    assert lane.offsets() == [3]


@pytest.mark.parametrize("winner", ["the driver that claims", "the driver that finds the range gone"])
def test_i7_of_a_driver_that_claims_and_one_that_finds_the_range_gone_one_wins(winner: str) -> None:
    """Claim and waiver are rivals for one number: a turn that is void was never handed out."""
    lane = once(OK, OK, partitions=2)
    lane.produce(OK, OK, tp=TP1)
    lane.plan()
    claims = Actor("claims", lambda hook: lane.replay(lane.adapters("claims", hook)))
    claims.advance(lambda operation, when: (operation, when) == ("claim", BEFORE))
    lane.log(TP1).expire(1)
    voids = Actor("voids", lambda hook: lane.replay(lane.adapters("voids", hook)))
    before = "claim" if winner == "the driver that claims" else "settlement"
    voids.advance(lambda operation, when: (operation, when) == (before, BEFORE))
    for driver in (claims, voids):
        if not driver.over:
            driver.advance(None)
    lane.run()
    for tp in (TP, TP1):
        assert sorted(lane.offsets(tp)) == sorted(set(lane.offsets(tp)))
        assert lane.floor(tp) == lane.committed(tp) == 2
