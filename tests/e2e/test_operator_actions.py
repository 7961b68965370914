"""Operator actions, and a group that is followed or restored: each action is one audited turn (S36, S45)."""

from ackline.actions.actions import perform_action
from ackline.lane.plans import Targets
from ackline.ledger.turns import Settlement, TurnKind
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row, all_of, fails

LATER = {"initial_delay": "1h", "period": "1h"}


def perform(lane: Lab, kind: TurnKind, to: int | None = None) -> None:
    """Carry out an operator action on all partitions, to an offset or at their floor."""

    def choose(newest: Settlement) -> Targets:
        return {tp: partition.state.floor if to is None else to for tp, partition in newest.partitions.items()}

    with lane.adapters() as adapters:
        perform_action(adapters, kind, choose, "a test's reason")


def audited_kinds(lane: Lab) -> list[str]:
    """Returns the kinds of the actions' turns, in order; each has one plan and one settlement with actor and reason."""
    plans, settlements = (
        sorted((row["epoch"], row["turn"], row["kind"]) for row in lane.table(name) if row["kind"] not in RUNS)
        for name in ("plans", "settlements")
    )
    assert plans == settlements
    assert all(r["actor"] == "test" and r["reason"] for r in lane.table("settlements") if r["kind"] not in RUNS)
    return [kind for _, _, kind in plans]


RUNS = ("run", "genesis")


def test_s36_a_moved_group_is_followed_once_or_restored(lab: MakeLab) -> None:
    """A move forward is a range of skipped offsets, a move back a new epoch."""
    lane = lab(on_external_reset="follow", max_uncommitted=2)
    lane.produce_records(6)
    lane.run()
    lane.move_group(5)
    lane.run()
    assert lane.new_offsets() == [0, 1, 5]
    assert lane.rows() == [*all_of("acked", [0, 1]), Row(2, 0, "skipped", 5), Row(5, 1, "acked")]
    assert lane.committed() == 6
    lane.move_group(4)
    lane.run()
    assert lane.new_offsets() == [4, 5]
    assert (lane.run().calls, lane.committed(), lane.settlement().turn.epoch) == (0, 6, 1)
    assert audited_kinds(lane) == ["skip", "reset"]
    lane.configure(on_external_reset="restore")
    lane.move_group(1)
    assert (lane.run().calls, lane.committed(), lane.settlement().turn.epoch) == (0, 6, 1)


def test_i15_a_skip_settles_what_is_pending_or_unread_and_a_reset_reads_it_again_in_a_new_epoch(lab: MakeLab) -> None:
    lane = lab(max_uncommitted=4, retry=LATER)
    lane.produce_records(8, fails([1, 2, 7], -1))
    lane.run()
    perform(lane, TurnKind.SKIP, 6)
    assert lane.rows() == [
        Row(0, 1, "acked"),
        Row(1, 0, "skipped", 3),
        *all_of("failed", [1, 2]),
        Row(3, 1, "acked"),
        Row(4, 0, "skipped", 6),
    ]
    assert lane.committed() == 6
    lane.run()
    assert lane.new_offsets() == [0, 1, 2, 3, 6, 7]
    perform(lane, TurnKind.RESET, 0)
    assert (lane.committed(), lane.pending()) == (0, [])
    lane.run()
    assert lane.new_offsets() == [0, 1, 2, 3]


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
