"""Operators' acts, and groups that are followed or restored: each is one audited turn (S36, S45)."""

import json

import pytest

from ackline.errors import ConfigError, FatalError, TooFarBehind
from ackline.offsets import TopicPartition
from ackline.steps.action_plans import Targets
from ackline.steps.operator_actions import perform_action
from ackline.turns import Settlement, TurnKind
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row, all_of, fails


def do(one: Lab, kind: TurnKind, to: int | None = None) -> None:
    def choose(newest: Settlement) -> Targets:
        return {tp: newest.partitions[tp].state.floor if to is None else to for tp in newest.partitions}

    with one.parts() as parts:
        perform_action(parts, kind, choose, "a test's reason")


def audited(one: Lab) -> list[str]:
    """The kinds of the turns that were no runs; each is one plan and one settlement, which say who and why."""
    plans = [row for row in one.table("plans") if row["kind"] not in ("run", "genesis")]
    settled = [row for row in one.table("settlements") if row["kind"] not in ("run", "genesis")]
    assert [row["turn"] for row in plans] == [row["turn"] for row in settled]
    assert all(row["actor"] == "test" and row["reason"] for row in settled)
    return [row["kind"] for row in plans]


def test_s36_a_group_moved_back_is_followed_into_a_new_epoch(lab: MakeLab) -> None:
    one = lab(on_external_reset="follow")
    one.records(6)
    one.run()
    one.offsets()
    one.commit(2)
    one.run()
    assert one.offsets() == [2, 3, 4, 5]
    assert one.committed() == 6
    assert one.settlement().turn.epoch == 1
    assert one.table("plans")[-1]["kind"] == "run"
    assert audited(one) == ["reset"]


def test_s36_a_group_moved_forward_is_followed_and_the_range_is_recorded_as_skipped(lab: MakeLab) -> None:
    one = lab(on_external_reset="follow", max_uncommitted=2)
    one.records(6)
    one.run()
    one.commit(5)
    one.run()
    assert one.offsets() == [0, 1, 5]
    assert one.rows() == [*all_of("acked", [0, 1]), Row(2, 0, "skipped", 5), Row(5, 1, "acked")]
    assert one.committed() == 6
    assert audited(one) == ["skip"]


def test_s36_each_move_is_followed_once(lab: MakeLab) -> None:
    one = lab(on_external_reset="follow")
    one.records(3)
    one.run()
    one.commit(1)
    one.run()
    one.run()
    assert one.settlement().turn.epoch == 1
    assert one.offsets() == [0, 1, 1, 2, 2]


def test_s36_a_moved_group_is_restored_where_the_file_says_so(lab: MakeLab) -> None:
    one = lab(on_external_reset="restore")
    one.records(4)
    one.run()
    one.commit(1)
    assert one.run().calls == 0
    assert one.committed() == 4


def test_a_skip_settles_what_is_pending_and_what_was_not_read(lab: MakeLab) -> None:
    one = lab(max_uncommitted=4, retry={"period": "1h", "initial_delay": "1h"})
    one.records(8, fails([1, 2], -1))
    one.run()
    do(one, TurnKind.SKIP, 6)
    assert one.rows() == [
        Row(0, 1, "acked"),
        Row(1, 0, "skipped", 3),
        *all_of("failed", [1, 2]),
        Row(3, 1, "acked"),
        Row(4, 0, "skipped", 6),
    ]
    assert one.committed() == 6
    one.run()
    assert one.offsets() == [0, 1, 2, 3, 6, 7]


def test_a_reset_replays_in_a_new_epoch_with_nothing_pending(lab: MakeLab) -> None:
    one = lab(retry={"period": "1h", "initial_delay": "1h"})
    one.records(4, fails([1], 1))
    one.run()
    do(one, TurnKind.RESET, 0)
    assert one.committed() == 0
    assert one.pending() == []
    one.run()
    assert [call.offset for call in one.calls()] == [0, 1, 2, 3, 0, 1, 2, 3]


def why(one: Lab) -> str | None:
    """Why runs leave the partition alone, by `ackline status --json`."""
    shown = json.loads(one.command("status", one.name, "--json").stdout)
    found: str | None = shown["partitions"][0]["why"]
    return found


def test_a_paused_partition_gets_nothing_until_it_is_resumed(lab: MakeLab) -> None:
    one = lab()
    one.records(2)
    one.run()
    do(one, TurnKind.PAUSE)
    one.records(2)
    assert one.run().plans[0].partitions[TopicPartition(one.topic, 0)].why == "paused"
    assert one.offsets() == [0, 1]
    assert why(one) == "paused"
    do(one, TurnKind.RESUME)
    assert why(one) is None
    one.run()
    assert one.offsets() == [2, 3]


def test_an_act_is_refused_while_a_turn_is_open(lab: MakeLab) -> None:
    one = lab()
    one.records(2)
    one.plan()
    with pytest.raises(FatalError, match="is open"):
        do(one, TurnKind.SKIP, 1)
    one.run()
    assert one.offsets() == [0, 1]


def test_an_act_beyond_the_log_is_refused(lab: MakeLab) -> None:
    one = lab()
    one.records(2)
    one.run()
    with pytest.raises(ConfigError, match="outside the log"):
        do(one, TurnKind.SKIP, 3)


def test_s45_too_far_behind_is_skipped_as_one_range_or_refused(lab: MakeLab) -> None:
    one = lab(max_uncommitted=2, max_offset_behind={"offsets": 5, "policy": "skip"})
    one.records(4)
    one.run()
    one.records(6)
    one.run()
    assert one.rows() == [*all_of("acked", [0, 1]), Row(2, 0, "skipped", 5), *all_of("acked", [5, 6])]
    one.define(max_offset_behind={"offsets": 1, "policy": "fail"})
    with pytest.raises(TooFarBehind, match="3 offsets behind"):
        one.run()
