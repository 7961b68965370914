"""The commands of an operator: a dry run until it is confirmed, and the same words and objects everywhere."""

import os
import pwd
from pathlib import Path

import pytest

from ackline.cli.options import actor
from ackline.ledger.commit_rule import CommitMetadata
from tests.cli.memory_command import MemoryCommand
from tests.support.memory_lane import FAILS, OK, TP, TP1, MemoryLane

LATER = {"initial_delay": "1h", "period": "1h"}


@pytest.fixture
def lane() -> MemoryLane:
    """A lane with two pending records and three unread ones."""
    lane = MemoryLane(OK, FAILS, OK, FAILS, retry=LATER).after_run()
    lane.produce(OK, OK, OK)
    return lane


def test_it_shows_before_and_after_what_is_never_handled_and_what_is_handled_again(ackline: MemoryCommand) -> None:
    dry = ackline("reset", "lane", "--to", "latest", "--reason", "drop it", "--dry-run").output
    assert "orders[0]: floor 1 → 7, pending 2 → 0, 5 skipped" in dry
    assert "5 records would be skipped, and never handled." in dry
    back = ackline("reset", "lane", "--by", "-1", "--reason", "again", "--yes").output
    assert "orders[0]: floor 1 → 0, pending 2 → 0, 4 handled again" in back
    assert "4 records are handled again." in back


def test_the_object_of_a_skip_has_every_count_before_and_after(ackline: MemoryCommand) -> None:
    body = ackline("skip", "lane", "--to", "6", "--reason", "poison", "--yes", "--json").json
    assert body == {
        "pipeline": "lane", "lane": "live", "epoch": 0, "turn": 2, "kind": "skip", "reason": "poison", "actor": actor(),
        "skipped": 4, "handled_again": 0, "due_now": 0, "dry_run": False, "not_committed": None,
        "partitions": [{
            "topic": "orders", "partition": 0, "floor": {"before": 1, "after": 6},
            "complete_to": {"before": 4, "after": 6}, "pending": {"before": 2, "after": 0},
            "paused": {"before": False, "after": False}, "skipped": 4, "handled_again": 0, "due_now": 0,
        }],
    }  # fmt: skip


def test_s37_an_act_that_only_the_commit_refuses_is_stored_and_exits_0(
    lane: MemoryLane, ackline: MemoryCommand
) -> None:
    lane.strike("settlement", lambda: lane.world.members.append("consumer-1 (10.0.0.1)"), "after")
    done = ackline("skip", "lane", "--to", "6", "--reason", "poison", "--yes")
    assert done.status == 0
    assert done.output.endswith(
        "It is stored; the group is committed when its members are gone: consumer-1 (10.0.0.1)\n"
    )
    lane.world.members = ["consumer-1 (10.0.0.1)"]
    refused = ackline("reset", "lane", "--to", "0", "--reason", "again", "--yes")
    assert (refused.status, "consumer-1" in refused.errors, lane.kinds()[-1]) == (1, True, "skip")


@pytest.mark.parametrize(("arguments", "kind", "words"), [
    (["skip", "lane", "--to", "0", "--reason", "x", "--yes"], "ConfigError", "below the floor"),
    (["reset", "lane", "--to", "x", "--reason", "x", "--yes"], "ConfigError", "--to x: give an offset"),
    (["reset", "lane", "--by", "3", "--reason", "x", "--yes"], "ConfigError", "--by 3: give a number"),
    (["reset", "lane", "--nonsense"], "UsageError", "--nonsense"),
    (["status", "nowhere"], "ConfigError", "nowhere"),
    (["nonsense"], "UsageError", "nonsense"),
    (["retry", "lane", "--partition", "7"], "ConfigError", "no partition with --partition 7"),
])  # fmt: skip
def test_an_error_under_json_is_one_object_on_standard_error(
    arguments: list[str], kind: str, words: str, ackline: MemoryCommand
) -> None:
    error = ackline(*arguments, "--json").error
    assert (error["kind"], error["exit_status"]) == (kind, 2)
    assert words in error["error"]


def test_an_error_that_is_about_a_partition_names_it_in_its_object(lane: MemoryLane, ackline: MemoryCommand) -> None:
    lane.create("orders", records=9)
    error = ackline("skip", "lane", "--to", "6", "--reason", "x", "--yes", "--json").error
    assert (error["kind"], error["exit_status"]) == ("TopicChanged", 1)
    assert (error["topic"], error["partition"]) == ("orders", 0)


def test_options_may_be_given_several_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = MemoryLane(OK, partitions=3).after_run()
    ackline = MemoryCommand(lane, tmp_path, monkeypatch)
    ackline("pause", "lane", "--partition", "0", "--partition", "1", "--yes")
    assert [settled.paused for _, settled in sorted(lane.newest().partitions.items())] == [True, True, False]
    body = ackline("resume", "lane", "--topic", "orders", "--partition", "1", "--yes", "--json").json
    assert [partition["partition"] for partition in body["partitions"]] == [1]
    assert (lane.settled(TP).paused, lane.settled(TP1).paused) == (True, False)


def test_the_actor_is_the_user_of_the_environment_or_else_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    assert actor() == pwd.getpwuid(os.getuid()).pw_name
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    assert actor() == f"uid-{os.getuid()}"
    monkeypatch.setenv("USER", "ada")
    assert actor() == "ada"


def test_s30_adopt_ledger_shows_what_begins_and_is_refused_once_nothing_is_to_adopt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = MemoryLane(OK, OK, OK)
    lane.move_group(TP, 2, '{"ledger": "lost", "pipeline": "lane", "epoch": 0, "n": 9}')
    ackline = MemoryCommand(lane, tmp_path, monkeypatch)
    command = ["adopt-ledger", "lane", "--reason", "the folder is lost"]
    assert "orders[0]: at 2 (this pipeline's own commit)" in ackline(*command, "--dry-run").output
    done = ackline(*command, "--yes", "--json").json
    assert (done["ledgers"], done["begins"][0]["floor"], done["older_copy"]) == (["lost"], 2, False)
    assert lane.newest().reason == "the folder is lost"
    assert ackline(*command, "--yes", "--json").error["kind"] == "ConfigError"


def test_s36_adopt_ledger_names_an_older_copy(lane: MemoryLane, ackline: MemoryCommand) -> None:
    ledger = lane.adapters().store.ledger_id()
    lane.move_group(TP, 4, CommitMetadata(ledger, "lane", 0, 9).encode())
    command = ["adopt-ledger", "lane", "--reason", "restored"]
    shown = ackline(*command, "--dry-run").output
    assert "ACKLINE_AUDIT holds an older copy of this ledger." in shown
    assert "orders[0]: floor 1 → 1, pending 2 → 2" in shown
    done = ackline(*command, "--yes", "--json").json
    assert (done["ledgers"], done["older_copy"], done["skipped"], done["handled_again"]) == ([ledger], True, 0, 0)
