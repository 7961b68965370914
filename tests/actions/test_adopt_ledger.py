"""A group that another ledger of the pipeline has committed: a run stops, and an operator adopts one ledger (S30)."""

import contextlib
import copy
import re
from datetime import timedelta
from typing import Any

import pytest

from ackline.actions.adopt_ledger import adopt_ledger, prepare_adoption
from ackline.actions.report import adoption_text
from ackline.actions.void import open_turn, void_open_turn
from ackline.answers.status import status
from ackline.errors import ConfigError, FatalError, GroupBusy, GroupTaken, NewerCommit, TransientError
from ackline.lane.genesis import check_not_of_another_ledger
from ackline.lane.log_checks import observe_kafka
from ackline.ledger.commit_rule import CommitMetadata, Committed
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnKind
from ackline.steps.plan import preview
from tests.support.actor import Killed
from tests.support.memory import AFTER, BEFORE, MemoryLog, MemoryTables
from tests.support.memory_lane import AT_LEAST_ONCE, AT_MOST_ONCE, FAILS, GROUP, OK, PAYMENTS, TP, TP1, MemoryLane

LATER = {"initial_delay": "1h", "period": "1h"}


STARTS = ["earliest", "latest", "timestamp", "uncommitted_earliest", "uncommitted_latest", "uncommitted_timestamp"]


def other(n: int = 9, epoch: int = 0, ledger: str = "lost") -> str:
    """The metadata of a commit of another ledger."""
    return CommitMetadata(ledger, "lane", epoch, n).encode()


def own(lane: MemoryLane, n: int, epoch: int = 0) -> str:
    """The metadata of a commit of the lane's own ledger, at another turn."""
    return CommitMetadata(lane.adapters().store.ledger_id(), "lane", epoch, n).encode()


def lost_ledger(start: str = "latest") -> MemoryLane:
    """A lane without a ledger, whose group was committed by one; a second partition has no commit."""
    time: dict[str, Any] = {"start_timestamp": "2026-03-01T00:00:00Z"} if "timestamp" in start else {}
    lane = MemoryLane(*[OK] * 6, partitions=2, start=start, **time)
    lane.produce(*[OK] * 3, tp=TP1)
    lane.log(TP1).expire(1)
    lane.move_group(TP, 4, other())
    return lane


@pytest.mark.parametrize("start", STARTS)
def test_s30_a_commit_of_a_ledger_that_is_not_there_stops_the_run_until_it_is_adopted(start: str) -> None:
    """Then the new ledger begins at the commit, whatever `start` is, and without one at the log start."""
    lane = lost_ledger(start)
    error = lane.run_fails(NewerCommit, "of ledger lost of this pipeline")
    assert "ACKLINE_AUDIT is memory://" in str(error)
    assert "`ackline adopt-ledger lane --reason …`" in str(error)
    assert (error.topic, error.partition, error.offset) == ("orders", 0, 4)
    with pytest.raises(NewerCommit):
        preview(lane.adapters())
    assert (next(row.floor for row in status(lane.adapters())), lane.world.tables.settlements) == (4, {})

    done = adopt_ledger(lane.adapters(), "the folder is lost")
    assert (done.ledgers, done.not_committed) == (("lost",), None)
    assert (lane.kinds(), lane.newest().reason) == (["genesis"], "the folder is lost")
    assert (lane.floor(), lane.floor(TP1), lane.committed(), lane.committed(TP1)) == (4, 1, 4, 1)
    lane.run()
    assert (lane.offsets(), lane.offsets(TP1), lane.committed()) == ([4, 5], [1, 2], 6)


def test_s30_a_topic_that_is_new_to_the_ledger_is_adopted_as_well() -> None:
    lane = MemoryLane(OK).after_run()
    lane.topics.append(PAYMENTS.topic)
    lane.create(PAYMENTS.topic, records=5)
    lane.move_group(PAYMENTS, 3, other())
    lane.run_fails(NewerCommit, r"payments\[0\]")
    adopt_ledger(lane.adapters(), "a wrong folder")
    lane.run()
    assert (lane.offsets(), lane.offsets(PAYMENTS), lane.kinds()[-1]) == ([0], [3, 4], "run")


def test_s30_a_topic_is_not_adopted_under_a_guarantee_that_pending_records_do_not_have() -> None:
    """Its genesis turn would run by the new guarantee, and the pending retry would be dropped without a letter."""
    lane = MemoryLane(FAILS).after_run()
    lane.topics.append(PAYMENTS.topic)
    lane.create(PAYMENTS.topic, records=5)
    lane.move_group(PAYMENTS, 3, other())
    lane.settings["guarantee"] = "no_guarantee"
    with pytest.raises(ConfigError, match=r"guarantee was changed .* `ackline reset"):
        adopt_ledger(lane.adapters(), "reason")
    assert lane.newest().turn.n == 1


def test_s30_a_dry_run_stores_nothing_and_shows_what_is_adopted() -> None:
    lane = lost_ledger()
    written = len(lane.world.history)
    shown = prepare_adoption(lane.adapters(), "x")
    assert {tp: row.state.floor for tp, row in shown.begins.items()} == {TP: 4, TP1: 1}
    assert (shown.ledgers, shown.action, len(lane.world.history)) == (("lost",), None, written)


@pytest.mark.parametrize("foreign", [0, 2, 5, 900])
def test_s36_a_ledger_that_returns_over_commits_of_another_keeps_complete_to_and_pending(foreign: int) -> None:
    lane = MemoryLane(OK, FAILS, OK, OK, retry=LATER).after_run()
    lane.produce(OK, OK)
    before = lane.state()
    lane.move_group(TP, foreign, other())
    lane.run_fails(NewerCommit, "adopt-ledger lane")
    done = adopt_ledger(lane.adapters(), "back again")
    assert done.action is not None
    assert done.action.plan.kind is TurnKind.SKIP
    assert (lane.state(), lane.committed(), lane.ranges(Outcome.SKIPPED)) == (before, 1, [])
    lane.world.now += timedelta(hours=2)
    lane.run()
    assert sorted(lane.calls()[4:]) == [(1, 2), (4, 1), (5, 1)]


@pytest.mark.parametrize("older_copy", [False, True])
@pytest.mark.parametrize(("foreign", "skipped"), [(2, []), (6, [(4, 6)]), (900, [(4, 7)])])
def test_i7_at_most_once_a_ledger_that_returns_skips_to_what_another_may_have_handed_out(
    foreign: int, skipped: list[tuple[int, int]], older_copy: bool
) -> None:
    """Also an older copy, to what the lost copy may have handed out."""
    lane = MemoryLane(*[OK] * 4, guarantee=AT_MOST_ONCE).after_run()
    lane.produce(OK, OK, OK)
    lane.move_group(TP, foreign, own(lane, 9) if older_copy else other())
    adopt_ledger(lane.adapters(), "back again")
    assert lane.ranges(Outcome.SKIPPED) == skipped
    lane.run()
    first = skipped[0][1] if skipped else 4
    assert (lane.offsets(), lane.committed()) == ([0, 1, 2, 3, *range(first, 7)], 7)


@pytest.mark.parametrize("epoch", [0, 5])
@pytest.mark.parametrize("foreign", [0, 3, 900])
def test_s36_an_older_copy_of_the_ledger_keeps_complete_to_and_pending(foreign: int, epoch: int) -> None:
    """It goes on under an id of its own: its next turns have numbers that the lost copy has committed."""
    lane = MemoryLane(OK, FAILS, OK, partitions=2, retry=LATER)
    lane.produce(OK, OK, tp=TP1)
    lane.run()
    lane.produce(OK)
    before, ledger = lane.state(), lane.adapters().store.ledger_id()
    lost = own(lane, 7, epoch)
    lane.move_group(TP, foreign, lost)
    lane.run_fails(NewerCommit)
    shown = prepare_adoption(lane.adapters(), "restored from a backup")
    assert (shown.older_copy, shown.ledgers, lane.adapters().store.ledger_id()) == (True, (ledger,), ledger)
    done = adopt_ledger(lane.adapters(), "restored from a backup")
    assert (done.older_copy, done.not_committed) == (True, None)
    assert (lane.newest().turn[2:], lane.state(), lane.committed(), lane.committed(TP1)) == ((0, 2), before, 1, 2)
    assert lane.ranges(Outcome.SKIPPED) == []
    assert lane.adapters().store.ledger_id() != ledger
    lane.world.now += timedelta(hours=2)
    lane.run()
    assert (sorted(lane.calls()[3:]), lane.calls(TP1)) == ([(1, 2), (3, 1)], [(0, 1), (1, 1)])
    lane.move_group(TP, foreign, lost)  # the lost copy is back, and commits once more
    lane.run_fails(NewerCommit, f"of ledger {ledger}")


def test_s36_a_lost_copy_that_comes_back_stops_at_the_commits_of_the_one_that_was_adopted() -> None:
    lane = MemoryLane(OK, OK).after_run()
    lane.move_group(TP, 2, own(lane, 7))
    lost = copy.deepcopy(lane.world.tables)
    adopt_ledger(lane.adapters(), "restored from a backup")
    lane.world.tables = lost
    lane.run_fails(NewerCommit, "adopt-ledger lane")


def test_s36_an_older_copy_commits_its_parked_partitions_under_its_new_id() -> None:
    lane = MemoryLane(OK, FAILS, topics=("orders", "payments"), start="earliest", retry=LATER)
    lane.create(PAYMENTS.topic, records=2)
    lane.run()
    lane.topics = ["orders"]
    lane.run()
    lane.move_group(TP, 2, own(lane, 9))
    adopt_ledger(lane.adapters(), "restored from a backup")
    metadata = CommitMetadata.decode_or_none(lane.world.committed["g", PAYMENTS].metadata)
    assert metadata is not None
    assert (lane.committed(PAYMENTS), metadata.ledger) == (2, lane.adapters().store.ledger_id())


@pytest.mark.parametrize("metadata", ["", None])
def test_a_group_without_a_commit_of_another_ledger_is_nothing_to_adopt(metadata: str | None) -> None:
    lane = MemoryLane(OK).after_run()
    if metadata is not None:
        lane.move_group(TP, 0, metadata)
    with pytest.raises(ConfigError, match="there is nothing to adopt"):
        adopt_ledger(lane.adapters(), "x")
    assert lane.kinds() == ["genesis", "run"]


def test_what_refuses_an_adoption_stores_nothing() -> None:
    lane = lost_ledger()
    lane.world.members = ["consumer-1 (10.0.0.1)"]
    with pytest.raises(GroupBusy):
        adopt_ledger(lane.adapters(), "x")
    lane.world.members, lane.world.taken = [], "a share group"
    with pytest.raises(GroupTaken):
        adopt_ledger(lane.adapters(), "x")
    lane.topics = ["missing"]
    lane.world.taken = None
    with pytest.raises(ConfigError, match="no subscribed topic exists"):
        adopt_ledger(lane.adapters(), "x")
    lane = MemoryLane(OK).after_plan()
    with pytest.raises(FatalError, match=re.escape("is open: let it end (`ackline run lane`), then adopt the ledger")):
        adopt_ledger(lane.adapters(), "x")


@pytest.mark.parametrize("folder", ["empty", "returns", "older copy"])
@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("write", ["settlement", "plan", "decisions", "ledger", "commit"])
def test_i9_an_adoption_that_is_killed_at_a_write_is_done_by_repeating_it_or_by_the_next_run(
    write: str, when: str, folder: str
) -> None:
    returns = folder != "empty"
    lane = MemoryLane(OK, FAILS, OK, retry=LATER).after_run() if returns else lost_ledger()
    before = lane.state() if returns else None
    lane.move_group(TP, 2, own(lane, 9) if folder == "older copy" else other())

    lane.die(write, when)
    with contextlib.suppress(Killed):  # a new ledger takes no plan and no decisions
        adopt_ledger(lane.adapters(), "x")
    lane._strikes.clear()
    with contextlib.suppress(ConfigError, FatalError):  # there is nothing to adopt any more, or the next run settles it
        adopt_ledger(lane.adapters(), "x")
    lane.run()
    assert (lane.committed(), lane.offsets()) == (1 if returns else 6, [0, 1, 2] if returns else [2, 3, 4, 5])
    assert before in (None, lane.state())


@pytest.mark.parametrize("strike", [("plan", AFTER), ("decisions", BEFORE), ("ledger", BEFORE), ("ledger", AFTER),
                                    ("settlement", BEFORE), ("settlement", AFTER), ("commit", BEFORE)])  # fmt: skip
def test_i9_once_the_plan_of_an_adoption_is_stored_the_next_run_finishes_it_and_gives_the_copy_its_id(
    strike: tuple[str, str],
) -> None:
    lane = MemoryLane(OK, FAILS, OK, retry=LATER).after_run()
    before, ledger = lane.state(), lane.adapters().store.ledger_id()
    lane.move_group(TP, 2, own(lane, 9))

    lane.die(*strike)
    with pytest.raises(Killed):
        adopt_ledger(lane.adapters(), "restored from a backup")
    lane.run()
    assert (lane.state(), lane.committed(), lane.offsets()) == (before, 1, [0, 1, 2])
    assert lane.adapters().store.ledger_id() != ledger


@pytest.mark.parametrize(
    ("guarantee", "read", "skipped"), [("at_least_once", [0, 1, 2, 3, 4], []), (AT_MOST_ONCE, [0, 1, 4], [(2, 4)])]
)
def test_an_open_turn_of_an_older_copy_ends_before_it_is_adopted(
    guarantee: str, read: list[int], skipped: list[tuple[int, int]]
) -> None:
    """At least once a run ends it, though it may not commit. At most once it hands nothing out, and a void ends it."""
    lane = MemoryLane(OK, OK, guarantee=guarantee).after_run()
    lane.produce(OK, OK, OK)
    lane.plan()
    lane.move_group(TP, 4, own(lane, 9))
    with pytest.raises(FatalError, match=r"is open: let it end .* close it with `ackline void lane"):
        adopt_ledger(lane.adapters(), "restored from a backup")
    lane.run_fails(NewerCommit)
    if guarantee == AT_MOST_ONCE:
        adapters = lane.adapters()
        void_open_turn(adapters, open_turn(adapters).plan.turn, "the copy is older", pause=False)
    adopt_ledger(lane.adapters(), "restored from a backup")
    lane.run()
    assert (lane.floor(), lane.committed(), lane.offsets(), lane.ranges(Outcome.SKIPPED)) == (5, 5, read, skipped)


def test_a_lane_that_commits_nothing_has_a_ledger_of_its_own_beside_the_group_s() -> None:
    lane = lost_ledger()
    adapters = lane.adapters()
    view = observe_kafka(adapters, None)
    with pytest.raises(NewerCommit):
        check_not_of_another_ledger(adapters, None, view)
    adapters.store.lane = "backfill-1"
    check_not_of_another_ledger(adapters, None, view)


def lane_that_others_join() -> MemoryLane:
    """A lane whose file names a second topic, which another ledger of the pipeline has committed."""
    lane = MemoryLane(OK).after_run()
    lane.create("payments", records=4)
    lane.topics.append("payments")
    lane.move_group(PAYMENTS, 2, other())
    return lane


def test_partitions_join_by_the_next_number_if_another_run_has_settled_a_turn_meanwhile() -> None:
    lane = lane_that_others_join()

    def beside() -> None:
        lane.topics.remove("payments")
        lane.produce(OK)
        lane.run()
        lane.topics.append("payments")

    lane.strike("plan", beside, BEFORE)
    adopt_ledger(lane.adapters(), "the other one is lost")
    assert [kind for kind in lane.kinds() if kind is TurnKind.GENESIS] == [TurnKind.GENESIS] * 2
    assert (lane.newest().turn.n, lane.floor(PAYMENTS), lane.committed(PAYMENTS)) == (3, 2, 2)
    lane.run()
    assert lane.offsets(PAYMENTS) == [2, 3]


def test_no_partition_joins_by_a_clock_that_is_behind_the_last_turn() -> None:
    lane = lane_that_others_join()
    with pytest.raises(ConfigError, match="is before the last turn"):
        adopt_ledger(lane.adapters(fixed_now=lane.world.now - timedelta(hours=1)), "the other one is lost")
    assert lane.kinds() == [TurnKind.GENESIS, TurnKind.RUN]


def set_back(lane: MemoryLane, tables: MemoryTables) -> None:
    """Sets the tables back to an older copy, a moment later."""
    lane.world.tables = tables.copy()
    lane.world.now += timedelta(seconds=1)


@pytest.mark.parametrize("guarantee", [AT_LEAST_ONCE, AT_MOST_ONCE])
def test_s36_an_older_copy_is_found_although_it_has_taken_as_many_turns_since(guarantee: str) -> None:
    lane = MemoryLane(OK, guarantee=guarantee).after_run()
    copied = lane.world.tables.copy()
    lane.produce(OK, OK)
    lane.run()
    set_back(lane, copied)
    lane.perform(TurnKind.PAUSE)
    lane.perform(TurnKind.RESUME)
    assert lane.newest().turn.n == 3
    lane.run_fails(NewerCommit, "committed by turn 2 of epoch 0 of another copy of ledger")
    assert lane.offsets() == [0, 1, 2]
    adopt_ledger(lane.adapters(), "restored")
    lane.produce(OK)
    lane.run()
    assert lane.offsets() == ([0, 1, 2, 3] if guarantee == AT_MOST_ONCE else [0, 1, 2, 1, 2, 3])


def test_s36_partitions_that_join_an_older_copy_do_not_hide_that_it_is_one() -> None:
    """They join in a turn of their own, which takes the number of the newer copy's commit."""
    lane = MemoryLane(OK, guarantee=AT_MOST_ONCE).after_run()
    copied = lane.world.tables.copy()
    lane.produce(OK)
    lane.run()
    set_back(lane, copied)
    lane.world.topics["orders"].logs[1] = MemoryLog()
    lane.run_fails(NewerCommit, "another copy of ledger")
    assert lane.offsets() == [0, 1]


@pytest.mark.parametrize("operation", ["claim", "commit"])
def test_i7_a_copy_that_was_made_between_a_claim_and_its_start_hands_nothing_out_again(operation: str) -> None:
    lane, copies = MemoryLane(OK, OK, guarantee=AT_MOST_ONCE), list[MemoryTables]()
    lane.strike(operation, lambda: copies.append(lane.world.tables.copy()), AFTER)
    lane.run()
    assert lane.newest().turn.n == 1
    set_back(lane, copies[0])
    for _ in range(2):  # the first one records the turn as lost, the second one settles it
        lane.run_fails(NewerCommit, "another copy of ledger")
    adopt_ledger(lane.adapters(), "restored")
    lane.produce(OK)
    lane.run()
    assert lane.offsets() == [0, 1, 2]
    assert lane.ranges(Outcome.LOST) == [(0, 2)], "this copy does not know what became of them"


def test_i7_an_older_copy_that_is_adopted_skips_what_was_handed_out_of_a_parked_partition() -> None:
    lane = MemoryLane(OK, topics=("orders", "payments"), guarantee=AT_MOST_ONCE)
    lane.create("payments", records=1)
    lane.run()
    copied = lane.world.tables.copy()
    lane.produce(OK)
    lane.produce(OK, tp=PAYMENTS)
    lane.run()
    set_back(lane, copied)
    lane.topics = ["orders"]
    lane.run_fails(NewerCommit)
    adopt_ledger(lane.adapters(), "restored")
    lane.topics = ["orders", "payments"]
    lane.produce(OK, tp=PAYMENTS)
    lane.run()
    assert (lane.offsets(), lane.offsets(PAYMENTS)) == ([0, 1], [0, 1, 2])


@pytest.mark.parametrize("guarantee", [AT_LEAST_ONCE, AT_MOST_ONCE])
def test_s36_commits_of_older_turns_and_epochs_of_this_copy_are_its_own(guarantee: str) -> None:
    """Of a claim, of a void turn, of a reset, and of a version that wrote no stamp."""
    lane = MemoryLane(OK, guarantee=guarantee, max_records_per_run=1).after_run()
    seen = [lane.world.committed[GROUP, TP]]
    lane.world.faults.commits += ["", "refused"] if guarantee == AT_MOST_ONCE else ["refused"]
    lane.produce(OK)
    with contextlib.suppress(TransientError):
        lane.run()
    seen.append(lane.world.committed[GROUP, TP])
    lane.perform(TurnKind.RESET)
    seen.append(lane.world.committed[GROUP, TP])
    lane.produce(OK)
    lane.plan()
    void_open_turn(lane.adapters(), open_turn(lane.adapters()).plan.turn, "a test")
    seen += [lane.world.committed[GROUP, TP], Committed(0, own(lane, 0))]
    assert len(set(seen)) == (5 if guarantee == AT_MOST_ONCE else 4)
    for commit in seen:
        lane.world.committed[GROUP, TP] = commit
        lane.run()
    assert lane.committed() == 3


@pytest.mark.parametrize("rescues", [False, True])
def test_s89_a_new_ledger_says_where_the_copies_are_of_what_the_lost_one_had_released(rescues: bool) -> None:
    lane = lost_ledger()
    if rescues:
        lane.create("rescue")
        lane.settings["rescue"] = {"topic": "rescue", "release": True}
    text = adoption_text(prepare_adoption(lane.adapters(), "lost"), done=False)
    sentence = "are pending nowhere now: their copies are in rescue."
    assert (sentence in text) is rescues
