"""I18: each state of the table "What a lane stands still for" names what ends it, and that ends it.

A test gets into the state by a fault, takes the command from the error, runs it as the user would, and settles a turn.
The states of output tables need real tables: `STATES` names their tests.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ackline.answers.standstill import what_stands_still
from ackline.answers.status import status
from ackline.errors import (
    AcklineError,
    ConfigError,
    FatalError,
    GroupBusy,
    GroupMoved,
    GroupTaken,
    LedgerError,
    MissingRights,
    NewerCommit,
    OffsetsPending,
    RetentionPassed,
    TooFarBehind,
    TooManyFailures,
    TopicChanged,
    command_of,
)
from ackline.ledger.commit_rule import CommitMetadata
from ackline.ledger.fold import PendingKind
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import TurnKind
from tests.cli.memory_command import MemoryCommand
from tests.e2e.documents import section
from tests.support.memory_lane import DEAD, FAILS, GROUP, NOON, OK, TP, TP1, MemoryBackfill, MemoryLane, lose_a_file

LATER = {"initial_delay": "1h", "period": "1h"}
COMMAND = re.compile(r"`ackline ([^`]+)`")


class Operator:
    """Does what an error tells."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch

    def does(self, lane: MemoryLane, advice: AcklineError | str, name: str) -> None:
        """Runs the command of this name that the advice has between backquotes."""
        [line] = {line for line in COMMAND.findall(str(advice)) if line.split()[0] == name}
        line = line.replace("…", "test")
        done = MemoryCommand(lane, self._folder, self._monkeypatch)(
            *line.split(), *([] if "--yes" in line else ["--yes"])
        )
        assert done.status == 0, f"{line}: {done.errors}"


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Operator:
    return Operator(tmp_path, monkeypatch)


def stops(lane: MemoryLane, error: type[AcklineError], match: str | None = None) -> AcklineError:
    """The error with which each run stops, which changes nothing: the second one has the same text."""
    first = lane.run_fails(error, match)
    assert str(lane.run_fails(error, match)) == str(first)
    standing = what_stands_still(lane.adapters())
    assert standing is not None
    assert standing.command == command_of(first, "lane")
    assert standing.sentence == str(first) or lane.world.tables.lost_files
    return first


def goes_on(lane: MemoryLane) -> None:
    """A new record is handled, and the group passes it."""
    lane.produce(OK)
    lane.run()
    assert lane.committed() == lane.floor() == lane.log().end
    assert what_stands_still(lane.adapters()) is None


def test_i18_an_open_turn_that_can_not_be_carried_out_is_voided(operator: Operator) -> None:
    lane = MemoryLane(OK).after_plan()
    lane.settings["guarantee"] = "no_guarantee"
    operator.does(lane, stops(lane, ConfigError, "is open"), "void")
    goes_on(lane)
    assert lane.offsets() == [0, 1]


def test_i18_an_open_turn_whose_outcomes_are_lost_is_voided(operator: Operator) -> None:
    lane = MemoryLane(OK)
    lose_a_file(lane)
    operator.does(lane, stops(lane, FatalError), "void")
    goes_on(lane)
    assert lane.offsets() == [0, 0, 1]


@pytest.mark.parametrize("setting", [{"guarantee": "no_guarantee"}, {"kafka": {"isolation": "read_uncommitted"}}])
def test_i18_a_setting_that_was_changed_under_pending_records_is_taken_by_a_reset(
    operator: Operator, setting: dict[str, Any]
) -> None:
    lane = MemoryLane(OK, FAILS, OK, retry=LATER).after_run()
    lane.settings.update(setting)
    operator.does(lane, stops(lane, ConfigError, "while records are pending"), "reset")
    lane.produce(OK)
    lane.run()
    assert lane.offsets() == [0, 1, 2, 1, 2, 3]


@pytest.mark.parametrize("policy", ["follow", "restore"])
def test_i18_a_group_that_another_client_has_moved_is_followed_or_restored(policy: str) -> None:
    lane = MemoryLane(OK, OK, OK).after_run()
    lane.move_group(TP, 1)
    error = stops(lane, GroupMoved, "on_external_reset")
    assert policy in str(error)
    lane.settings["on_external_reset"] = policy
    goes_on(lane)


def test_i18_a_group_with_live_members_is_committed_once_they_are_stopped() -> None:
    lane = MemoryLane(OK)
    lane.world.members = ["consumer-1 (10.0.0.1)"]
    lane.run_fails(GroupBusy, "consumer-1 .*[Ss]top")
    lane.world.members = []
    goes_on(lane)
    assert lane.offsets() == [0, 1]


OTHERS = ["a share group or a Kafka Streams group", "a group of the protocol connect"]


@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.parametrize("begun", [False, True], ids=["first run", "later"])
def test_i18_a_group_id_of_another_type_is_refused_before_a_plan_and_another_id_ends_it(what: str, begun: bool) -> None:
    lane = MemoryLane(OK)
    if begun:
        lane.after_run().produce(OK)
    calls, plans = len(lane.offsets()), dict(lane.world.tables.plans)
    lane.world.taken = what
    stops(lane, GroupTaken, f"that of {what}.* a group_id of its own")
    assert (len(lane.offsets()), lane.world.tables.plans) == (calls, plans), "nothing is planned or handled"
    lane.world.taken = None
    goes_on(lane)


def test_i18_a_commit_of_another_ledger_is_adopted(operator: Operator) -> None:
    lane = MemoryLane(OK, OK).after_run()
    lane.move_group(TP, 1, CommitMetadata("another", "lane", 0, 77).encode())
    operator.does(lane, stops(lane, NewerCommit), "adopt-ledger")
    goes_on(lane)


def test_i18_a_topic_with_fewer_partitions_is_reset_and_what_is_gone_is_let_go(operator: Operator) -> None:
    lane = MemoryLane(OK, partitions=2, retry=LATER)
    lane.produce(FAILS, tp=TP1)
    lane.run()
    lane.create("orders", records=1)
    operator.does(lane, stops(lane, TopicChanged, "created again"), "reset")
    operator.does(lane, stops(lane, TopicChanged, "is gone"), "skip")
    goes_on(lane)
    assert lane.ranges(Outcome.SKIPPED, TP1) == [(0, 1)]


@pytest.mark.parametrize(
    "fault", [lambda lane: lane.create("orders", records=1), lambda lane: lane.truncate(1, OK, OK)]
)
def test_i18_a_topic_that_is_another_one_or_was_truncated_is_reset(
    operator: Operator, fault: Callable[[MemoryLane], None]
) -> None:
    lane = MemoryLane(OK, OK).after_run()
    fault(lane)
    operator.does(lane, stops(lane, TopicChanged), "reset")
    goes_on(lane)


def test_i18_records_that_retention_took_are_skipped(operator: Operator) -> None:
    lane = MemoryLane(OK, on_expired="fail").after_run()
    lane.produce(OK, OK, OK)
    lane.log().expire(3)
    operator.does(lane, stops(lane, RetentionPassed), "skip")
    goes_on(lane)
    assert lane.ranges(Outcome.SKIPPED) == [(1, 3)]


def test_i18_s45_a_partition_that_is_too_far_behind_is_skipped(operator: Operator) -> None:
    lane = MemoryLane(OK, max_offset_behind={"offsets": 2, "policy": "fail"}).after_run()
    lane.produce(OK, OK, OK, OK)
    operator.does(lane, stops(lane, TooFarBehind), "skip")
    lane.run()
    goes_on(lane)
    assert lane.ranges(Outcome.SKIPPED) == [(1, 3)]


def test_i18_records_that_the_breaker_holds_back_are_let_through() -> None:
    lane = MemoryLane(*[FAILS] * 4, retry={"max_retries": 0}, breaker={"failure_ratio": 0.5, "min_records": 2})
    for _ in range(2):
        lane.run_fails(TooManyFailures, "--no-breaker")
    lane.run(lane.adapters(no_breaker=True))
    assert (lane.floor(), len(lane.letters())) == (4, 4)
    goes_on(lane)


def test_i18_dead_letters_that_are_not_acknowledged_are_sent_again() -> None:
    lane = MemoryLane(DEAD, OK)
    lane.world.faults.letters += ["refused", "refused"]
    for _ in range(2):
        lane.run()
        assert lane.state().pending_by_kind()[PendingKind.DEAD_LETTER] == 1
    goes_on(lane)


def test_i18_a_partition_without_a_leader_is_left_out_until_it_has_one() -> None:
    lane = MemoryLane(OK, partitions=2).after_run()
    lane.log(TP1).has_leader = False
    lane.produce(OK, tp=TP1)
    lane.produce(OK)
    lane.run()
    assert (lane.floor(), lane.floor(TP1)) == (2, 0)
    lane.log(TP1).has_leader = True
    goes_on(lane)
    assert lane.floor(TP1) == 1


def test_i18_a_paused_partition_is_resumed(operator: Operator) -> None:
    lane = MemoryLane(OK).after_run()
    lane.perform(TurnKind.PAUSE)
    lane.produce(OK)
    lane.run()
    assert lane.floor() == 1
    standing = what_stands_still(lane.adapters())
    assert standing is not None
    operator.does(lane, standing.line, "resume")
    goes_on(lane)


def test_i18_a_right_that_the_login_lacks_is_granted() -> None:
    lane = MemoryLane(OK)
    lane.world.denied = {("READ", "topic", "orders"), ("READ", "group", GROUP)}
    with pytest.raises(MissingRights, match="Read on topic orders, Read on group") as caught:
        lane.run()
    assert "Nothing was planned. Grant each" in str(caught.value)
    assert lane.adapters().store.newest() is None
    lane.world.denied.clear()
    goes_on(lane)


def test_a_right_to_a_topic_of_the_lane_that_the_broker_hides_from_a_pattern_is_named() -> None:
    """The broker lists no topic that the login may not describe."""
    lane = MemoryLane(OK, kafka={"topics": None, "pattern": "orders.*"}).after_run()
    lane.world.denied = {("READ", "topic", "orders"), ("DESCRIBE", "topic", "orders")}
    with pytest.raises(MissingRights, match="Read on topic orders"):
        lane.run()
    lane.world.denied.clear()
    goes_on(lane)


def test_a_right_to_read_a_topic_is_not_needed_while_the_topic_is_paused(operator: Operator) -> None:
    lane = MemoryLane(OK, topics=("orders", "payments"))
    lane.create("payments", records=1)
    lane.run()
    lane.world.denied = {("READ", "topic", "payments")}
    with pytest.raises(MissingRights, match="Read on topic payments"):
        lane.run()
    operator.does(lane, "`ackline pause lane --topic payments --reason test`", "pause")
    lane.produce(OK)
    assert lane.run().calls == 1


def test_i18_a_commit_of_the_tables_that_is_missing_is_restored() -> None:
    lane = MemoryLane(OK).after_run()
    newest = lane.newest()
    del lane.world.tables.settlements[newest.turn]
    stops(lane, LedgerError, r"settlement of turn 1 .* Restore the folder of the table")
    lane.world.tables.settlements[newest.turn] = newest
    goes_on(lane)


def test_i18_a_clock_that_is_behind_the_last_turn_is_corrected() -> None:
    lane = MemoryLane(OK).after_run()
    before = list(lane.world.history)
    with pytest.raises(ConfigError, match=r"--now .* is before the last turn, of "):
        lane.run(lane.adapters(fixed_now=NOON - timedelta(hours=1)))
    assert lane.world.history == before
    goes_on(lane)


def test_i18_a_backfill_whose_topic_was_made_again_is_cancelled(operator: Operator) -> None:
    lane = MemoryLane(OK, OK).after_run()
    backfill = MemoryBackfill(lane, "b", "orders")
    backfill.begin()
    lane.create("orders", records=2)
    with pytest.raises(TopicChanged) as caught:
        backfill.run()
    operator.does(lane, caught.value, "backfill")
    assert backfill.ended() == {0: "skipped", 1: "skipped"}
    again = MemoryBackfill(lane, "c", "orders")
    again.run()
    assert again.ended() == {0: "acked", 1: "acked"}


OUTPUTS = "tests/outputs/test_ways_out.py::test_"


def test_i18_offsets_of_the_group_in_a_transaction_are_named_until_it_ends() -> None:
    """Members and rights are checked meanwhile, and the status shows what was committed before."""
    lane = MemoryLane(OK, OK).after_run()
    lane.produce(OK)
    lane.world.offsets_pending = True
    stops(lane, OffsetsPending, "kafka-transactions.sh")
    adapters = lane.adapters()
    assert (adapters.group.members(), [found.committed for found in status(adapters)]) == ([], [2])
    lane.world.offsets_pending = False
    assert what_stands_still(lane.adapters()) is None
    lane.run()
    assert (lane.floor(), lane.committed()) == (3, 3)


STATES = {
    "an open turn can't be carried out": test_i18_an_open_turn_that_can_not_be_carried_out_is_voided,
    "files of an open turn's outcomes, or its staged rows, are lost": (
        test_i18_an_open_turn_whose_outcomes_are_lost_is_voided
    ),
    "rows of a settled turn can't be published": (
        f"{OUTPUTS}a_damaged_staged_file_of_a_settled_turn_is_named_with_the_command_that_gives_the_rows_up"
    ),
    "an output table or the ledger is an older copy": (
        f"{OUTPUTS}an_older_copy_of_a_table_under_an_unpublished_turn_is_told_to_give_the_rows_up_before_the_reset"
    ),
    "an output table does not exist any more": (
        "tests/outputs/test_turn.py::test_a_table_that_is_gone_stops_each_run_until_one_states_that_it_is_gone"
    ),
    "rows that wait for records in flight are lost": (
        "tests/outputs/test_keep.py::"
        "test_no_turn_but_one_that_drops_what_waits_is_planned_while_rows_that_wait_are_gone"
    ),
    "an open skip can't be settled": "tests/actions/test_void.py::test_an_open_skip_that_can_not_be_settled_is_void",
    "guarantee, isolation level or ack topic changed under pending records": (
        test_i18_a_setting_that_was_changed_under_pending_records_is_taken_by_a_reset
    ),
    "the group was moved by another client": test_i18_a_group_that_another_client_has_moved_is_followed_or_restored,
    "the group has live members": test_i18_a_group_with_live_members_is_committed_once_they_are_stopped,
    "offsets of the group are in a transaction that has not ended": (
        test_i18_offsets_of_the_group_in_a_transaction_are_named_until_it_ends
    ),
    "the group's id is that of another type of group": (
        test_i18_a_group_id_of_another_type_is_refused_before_a_plan_and_another_id_ends_it
    ),
    "the login lacks a right": test_i18_a_right_that_the_login_lacks_is_granted,
    "another ledger, or a newer copy of this one, has committed": test_i18_a_commit_of_another_ledger_is_adopted,
    "a topic was deleted, or made again with fewer partitions": (
        test_i18_a_topic_with_fewer_partitions_is_reset_and_what_is_gone_is_let_go
    ),
    "a topic was deleted and made again, or truncated": (
        test_i18_a_topic_that_is_another_one_or_was_truncated_is_reset
    ),
    "retention took unsettled records under `on_expired: fail`": test_i18_records_that_retention_took_are_skipped,
    "a partition is too far behind under the policy `fail`": test_i18_s45_a_partition_that_is_too_far_behind_is_skipped,
    "too many new records fail": test_i18_records_that_the_breaker_holds_back_are_let_through,
    "dead letters are not acknowledged": test_i18_dead_letters_that_are_not_acknowledged_are_sent_again,
    "a partition has no leader": test_i18_a_partition_without_a_leader_is_left_out_until_it_has_one,
    "a partition is paused": test_i18_a_paused_partition_is_resumed,
    "a commit of the tables is missing": test_i18_a_commit_of_the_tables_that_is_missing_is_restored,
    "the clock is behind the last turn": test_i18_a_clock_that_is_behind_the_last_turn_is_corrected,
    "a backfill's topic was made again, or its rows are lost": (
        test_i18_a_backfill_whose_topic_was_made_again_is_cancelled
    ),
}
"""Each state of the table, with the test of this file, or the name of another one."""


def test_i18_each_state_of_the_table_has_a_test_that_gets_into_it_and_out_of_it() -> None:
    text = section("docs/semantics.md", "## What a lane stands still for")
    rows = [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines() if line.startswith("| ")]
    assert rows[1:] == list(STATES)
    root = Path(__file__).parents[2]
    for test in STATES.values():
        if isinstance(test, str):
            path, name = test.split("::")
            assert f"def {name}(" in (root / path).read_text()
