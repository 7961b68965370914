"""`ackline backfill`: a dry run until it is confirmed, one object for a program, and a resume by its id."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.memory_command import MemoryCommand
from tests.support.memory_lane import DEAD, FAILS, OK, TP, MemoryLane

KEYS = ["id", "lane", "epoch", "settled", "asked", "outcomes", "gaps", "pending", "next_due"]


@pytest.fixture
def lane() -> MemoryLane:
    """A lane in which record 1 waits for its retry and record 2 is dead."""
    return MemoryLane(OK, FAILS, DEAD, OK, retry={"initial_delay": "1h", "max_retries": 1}).after_run()


def balances(found: Any) -> bool:
    """Whether each offset that was asked for is counted exactly once."""
    counted = sum(found["outcomes"].values()) + found["gaps"] + sum(found["pending"].values())
    return bool(found["asked"]["offsets"] == counted)


def test_s73_a_backfill_is_a_dry_run_until_it_is_confirmed(lane: MemoryLane, ackline: MemoryCommand) -> None:
    written = len(lane.world.history)
    asked = ["backfill", "lane", "orders:0:1-4", "--id", "b"]
    dry = ackline(*asked, "--dry-run", "--json").json
    assert len(lane.world.history) == written
    done = ackline(*asked, "--yes", "--json").json
    assert list(done) == KEYS
    assert list(dry) == [*KEYS, "dry_run", "gone", "open_end", "acked_before"]
    assert {name: dry[name] for name in ("id", "lane", "epoch", "asked")} == {
        "id": "b",
        "lane": "backfill-b",
        "epoch": 0,
        "asked": {"offsets": 3, "ranges": [{"topic": "orders", "partition": 0, "start": 1, "end": 4}]},
    }
    assert dry["pending"] == {"retry": 0, "dead_letter": 0, "in_flight": 0, "held_back": 0, "unread": 3}
    assert done["outcomes"] == {"acked": 1, "dead": 1}
    assert balances(dry)
    assert balances(done)


def test_s71_the_id_alone_resumes_and_other_arguments_are_refused(lane: MemoryLane, ackline: MemoryCommand) -> None:
    assert "no such backfill" in ackline("backfill", "lane", "--id", "b", "--yes").errors
    first = ackline("backfill", "lane", "orders:0:0-2", "--id", "b", "--yes", "--json").json
    assert (first["settled"], first["pending"]["retry"]) == (False, 1)
    written = len(lane.world.history)
    refused = ackline("backfill", "lane", "orders:0:0-3", "--id", "b", "--yes", "--json").error
    assert (refused["key"], len(lane.world.history)) == ("RANGE", written)
    assert ackline("backfill", "lane", "--id", "b", "--json").error["key"] == "--yes"
    lane.world.now += timedelta(hours=1)
    assert ackline("backfill", "lane", "--id", "b", "--yes", "--json").json["settled"]
    again = ackline("backfill", "lane", "orders:0:0-2", "--id", "b", "--json")
    assert again.json["settled"]
    assert "backfill b is settled since 20" in again.errors, "nothing was handled now"


def test_each_turn_is_stored_with_the_reason_of_the_run_that_planned_it(
    lane: MemoryLane, ackline: MemoryCommand
) -> None:
    ackline("backfill", "lane", "orders:0:0-2", "--id", "b", "--reason", "it was late", "--yes")
    lane.world.now += timedelta(hours=1)
    assert ackline("backfill", "lane", "--id", "b", "--reason", "try again", "--yes", "--json").json["settled"]
    reasons = ["it was late", "it was late", "try again"]
    tables = lane.world.tables
    settled = [stored.reason for turn, stored in tables.settlements.items() if turn.lane == "backfill-b"]
    planned = [stored.reason for turn, stored in tables.plans.items() if turn.lane == "backfill-b"]
    assert (settled, planned) == (reasons, reasons[1:])


def test_an_epoch_of_a_settled_backfill_is_begun_by_its_number_and_is_a_dry_run_until_it_is_confirmed(
    lane: MemoryLane, ackline: MemoryCommand
) -> None:
    asked = ["backfill", "lane", "orders:0:0-1", "--id", "b"]
    assert ackline(*asked, "--yes", "--json").json["settled"]
    again = ["backfill", "lane", "--id", "b", "--epoch", "1"]
    written = len(lane.world.history)
    assert ackline(*again, "--json").error["key"] == "--yes"
    dry = ackline(*again, "--dry-run", "--json").json
    assert (dry["epoch"], dry["dry_run"], dry["pending"]["unread"]) == (1, True, 1)
    assert "has no epoch 2" in ackline("backfill", "lane", "--id", "b", "--epoch", "3", "--yes").errors
    assert len(lane.world.history) == written
    done = ackline(*again, "--yes", "--json").json
    assert (done["epoch"], done["settled"], done["outcomes"]) == (1, True, {"acked": 1})
    assert ackline(*again, "--yes", "--json").json == done, "a repeat finds the epoch begun"
    assert lane.offsets().count(0) == 3


def test_without_an_id_each_backfill_is_a_new_one(ackline: MemoryCommand) -> None:
    ids = [ackline("backfill", "lane", "--all", "--yes", "--json").json["id"] for _ in range(2)]
    assert len(set(ids)) == 2
    listed = ackline("backfill", "lane", "--list", "--json").json["backfills"]
    assert {each["id"] for each in listed} == set(ids)
    assert [each["arguments"] for each in listed] == ["--all", "--all"]
    assert ids[0] in ackline("backfill", "lane", "--list").output


def test_a_dry_run_names_what_retention_took_and_what_was_acked_before(
    lane: MemoryLane, ackline: MemoryCommand
) -> None:
    ackline("backfill", "lane", "orders:0:3-4", "--yes")
    lane.log().expire(2)
    dry = ackline("backfill", "lane", "orders:0:1-4", "--dry-run", "--json").json
    assert dry["gone"] == [{"topic": "orders", "partition": 0, "start": 1, "end": 2, "why": "retention"}]
    assert dry["acked_before"] == 1
    text = ackline("backfill", "lane", "orders:0:1-4", "--dry-run").output
    assert "1 offset can't be read any more (orders[0], retention): [1, 2)" in text
    assert "1 of them was acked by an earlier backfill" in text


def test_where_nothing_matches_nothing_is_stored(lane: MemoryLane, ackline: MemoryCommand) -> None:
    written = len(lane.world.history)
    done = ackline("backfill", "lane", "--outcome", "expired", "--yes", "--json").json
    assert (done["asked"]["offsets"], done["settled"], len(lane.world.history)) == (0, True, written)


def test_the_id_of_no_backfill_can_not_be_cancelled(ackline: MemoryCommand) -> None:
    assert ackline("backfill", "lane", "--cancel", "x", "--yes", "--json").error["key"] == "--cancel"


def test_with_wait_it_sleeps_until_each_retry_is_due(
    lane: MemoryLane, ackline: MemoryCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        lane.world.now += timedelta(seconds=seconds)

    monkeypatch.setattr("ackline.cli.backfill.time", SimpleNamespace(sleep=sleep))  # other threads sleep, too
    done = ackline("backfill", "lane", "orders:0:0-2", "--wait", "--yes", "--json").json
    assert (done["settled"], done["outcomes"], slept) == (True, {"acked": 1, "dead": 1}, [3600.0])
    assert (
        ackline("backfill", "lane", "--all", "--wait", "--now", "2026-03-01T12:00:00Z", "--json").error["key"]
        == "--wait"
    )


def test_another_handler_must_be_in_the_allow_list(ackline: MemoryCommand) -> None:
    refused = ackline("backfill", "lane", "--all", "--handler", "os:system", "--yes", "--json").error
    assert (refused["key"], refused["exit_status"]) == ("--handler", 2)
    assert ackline("backfill", "lane", "--all", "--handler", "tests.support.journal:handle", "--yes").status == 0


def test_above_confirm_above_the_number_is_typed_at_a_terminal(
    lane: MemoryLane, ackline: MemoryCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane.produce(*[OK] * 10, tp=TP)
    typed = iter(["13", "14"])
    monkeypatch.setattr("ackline.cli.options.typer.prompt", lambda *_, **__: next(typed))
    ackline.answers = [True]
    assert "more than `backfill.confirm_above` (5)" in ackline("backfill", "lane", "--all", "--id", "b").output
    assert "no such backfill" in ackline("backfill", "lane", "--id", "b", "--yes").errors
    assert "14 offsets asked" in ackline("backfill", "lane", "--all", "--id", "b").output


@pytest.mark.parametrize(("arguments", "key"), [
    ([], "RANGE"),
    (["orders", "--all"], "--all"),
    (["orders:x"], "RANGE"),
    (["other"], "RANGE"),
    (["orders:0:0-9"], "RANGE"),
    (["--from", "yesterday"], "--from"),
    (["--outcome", "failed"], "--outcome"),
    (["--all", "--id", "A/b"], "--id"),
    (["--all", "--dead-letter", "orders"], "--dead-letter"),
    (["--all", "--where", "value.a ="], "--where"),
    (["--all", "--where", ""], "--where"),
    (["--where", "value.a = 1"], "RANGE"),
    (["--offsets", "1:4"], "--offsets"),
    (["--partition", "0", "--offsets", "1:"], "--offsets"),
])  # fmt: skip
def test_wrong_arguments_are_refused_by_name_and_nothing_is_stored(
    arguments: list[str], key: str, lane: MemoryLane, ackline: MemoryCommand
) -> None:
    written = len(lane.world.history)
    refused = ackline("backfill", "lane", *arguments, "--yes", "--json").error
    assert (refused["key"], refused["exit_status"], len(lane.world.history)) == (key, 2, written)


@pytest.mark.parametrize(("options", "offsets"), [
    (["--topic", "orders", "--partition", "0", "--offsets", "1:4"], 3),
    (["--partition", "0", "--offsets", "2"], 1),
    (["--topic", "orders"], 4),
    (["orders:0:0-1", "--partition", "0", "--offsets", "2:4"], 3),
])  # fmt: skip
def test_partitions_and_offsets_are_named_as_in_the_other_commands(
    options: list[str], offsets: int, ackline: MemoryCommand
) -> None:
    dry = ackline("backfill", "lane", *options, "--id", "b", "--dry-run", "--json").json
    assert dry["asked"]["offsets"] == offsets


def test_a_resume_may_name_the_same_offsets_in_either_way(ackline: MemoryCommand) -> None:
    options = ["--topic", "orders", "--partition", "0", "--offsets", "0:1"]
    assert ackline("backfill", "lane", *options, "--id", "b", "--yes", "--json").json["settled"]
    assert ackline("backfill", "lane", "orders:0:0-1", "--id", "b", "--json").json["settled"]


def test_a_resume_may_write_a_range_in_the_other_form(ackline: MemoryCommand) -> None:
    begun = ackline("backfill", "lane", "orders:0:0:2", "--id", "forms", "--yes", "--json").json
    assert begun["asked"]["ranges"] == [{"topic": "orders", "partition": 0, "start": 0, "end": 2}]
    assert ackline("backfill", "lane", "orders:0:0-2", "--id", "forms", "--yes", "--json").status == 0
    by_options = ("--topic", "orders", "--partition", "0", "--offsets", "0-2")
    assert ackline("backfill", "lane", *by_options, "--id", "forms", "--yes", "--json").status == 0
