"""S73: every command that changes something is a dry run until it is confirmed, in the same words everywhere.

The commands are those of the real command line: each that has `--yes` is in CASES, or is tested where its folder is.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import typer

from ackline.cli.app import Command, app
from tests.cli.memory_command import MemoryCommand
from tests.support.memory import TableCommit
from tests.support.memory_lane import DEAD, FAILS, OK, TP, MemoryLane

LATER = {"initial_delay": "1h", "period": "1h"}
ELSEWHERE = {"maintain", "dev wipe"}
"""About files and not about a lane: tests/delta/test_repair.py, tests/local/test_dev.py."""
GOES_ON = {"run"}
"""Asks nothing: its `--yes` runs an open turn as it was planned. tests/cli/test_run.py."""
REASON = ("--reason", "a test")


def nothing(lane: MemoryLane, ackline: MemoryCommand) -> None:
    """The lane stays as it is."""


def opens(lane: MemoryLane, ackline: MemoryCommand) -> None:
    lane.plan()


def lost(lane: MemoryLane, ackline: MemoryCommand) -> None:
    lane.move_group(TP, 2, '{"ledger": "lost", "pipeline": "lane", "epoch": 0, "n": 9}')


def begins(lane: MemoryLane, ackline: MemoryCommand) -> None:
    ackline("backfill", "lane", "orders:0:0-4", "--id", "b", "--max-records", "1", "--yes")


@dataclass(frozen=True)
class Case:
    """A command that changes something, and the lane that it needs. `about` is what its dry run and itself share."""

    arguments: tuple[str, ...]
    begin: Callable[[MemoryLane, MemoryCommand], None] = nothing
    reason: bool = False
    about: tuple[str, ...] = ()
    preview: str = "→"
    """What its preview has in it, as a person reads it: for an action, before and after."""

    def __str__(self) -> str:
        return " ".join(self.arguments)


BACKFILL = ("id", "lane", "epoch", "asked")
CASES = [
    Case(("retry", "lane"), preview="2 of 3 pending due now"),
    Case(("retry", "lane", "--offsets", "1"), preview="1 of 3 pending due now"),
    Case(("skip", "lane", "--to", "4"), reason=True),
    Case(("skip", "lane", "--offsets", "1"), reason=True),
    Case(("skip", "lane", "--error-class", "ValueError"), reason=True),
    Case(("reset", "lane", "--to", "0"), reason=True),
    Case(("reset", "lane", "--to", "latest"), reason=True),
    Case(("reset", "lane", "--by", "-1"), reason=True),
    Case(("pause", "lane"), preview="read → paused"),
    Case(("resume", "lane"), preview="is read already"),
    Case(("void", "lane"), opens, reason=True, preview="It will be void"),
    Case(("void", "lane", "--pause"), opens, reason=True, preview="will be paused until `ackline resume`"),
    Case(("adopt-ledger", "lane"), lost, reason=True),
    Case(("backfill", "lane", "orders:0:0-2", "--id", "new"), about=BACKFILL, preview="orders[0] [0, 2)"),
    Case(("backfill", "lane", "--id", "b"), begins, about=BACKFILL, preview="Backfill b of lane"),
    Case(("backfill", "lane", "--cancel", "b"), begins, about=BACKFILL, preview="would be skipped"),
    Case(("dead", "lane", "--redrive", "--id", "new"), about=BACKFILL, preview="orders[0] [2, 3)"),
]


@pytest.fixture
def lane() -> MemoryLane:
    """A lane with two retries, an undelivered letter, a dead record and unread ones."""
    lane = MemoryLane(OK, FAILS, DEAD, FAILS, DEAD, retry=LATER)
    lane.world.faults.letters.extend(["", "lost"])
    lane.run()
    lane.produce(OK, OK, OK)
    return lane


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest, lane: MemoryLane, ackline: MemoryCommand) -> Case:
    """A command, on a lane that is ready for it."""
    case: Case = request.param
    case.begin(lane, ackline)
    return case


def command_line(case: Case) -> tuple[str, ...]:
    return case.arguments + (REASON if case.reason else ())


def stored(lane: MemoryLane) -> tuple[int, Any, Any]:
    """What a command could change: the tables and letters, their ids, and the group."""
    return len(lane.world.history), dict(lane.world.tables.ids), dict(lane.world.committed)


def commands() -> Iterator[tuple[str, Any]]:
    """The commands of the real command line by name."""

    def under(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        command = command.loaded() if isinstance(command, Command) else command
        inner = getattr(command, "commands", None)
        if inner is None:
            yield " ".join(path), command
        for name, each in (inner or {}).items():
            yield from under(each, (*path, name))

    yield from under(typer.main.get_command(app), ())


def options_of(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


def test_s73_every_command_with_yes_is_tested_here() -> None:
    confirmed = {name for name, command in commands() if "--yes" in options_of(command)}
    assert confirmed == {case.arguments[0] for case in CASES} | ELSEWHERE | GOES_ON


def test_s73_every_command_with_yes_has_the_same_options() -> None:
    for name, command in commands():
        if "--yes" in options_of(command) and name not in GOES_ON:
            wanted = {"--dry-run"} if name == "dev wipe" else {"--dry-run", "--json"}
            wanted |= set() if name in ELSEWHERE else {"--reason", "--now"}
            assert wanted <= options_of(command), name


def test_s73_without_yes_and_without_a_terminal_it_changes_nothing_and_exits_with_2(
    case: Case, lane: MemoryLane, ackline: MemoryCommand
) -> None:
    before = stored(lane)
    refused = ackline(*command_line(case))
    assert (refused.status, "give --yes or --dry-run" in refused.errors) == (2, True)
    error = ackline(*command_line(case), "--json").error
    assert (error["key"], error["kind"], error["exit_status"]) == ("--yes", "ConfigError", 2)
    assert stored(lane) == before


def test_s73_a_dry_run_wins_over_yes_shows_what_would_change_and_exits_with_0(
    case: Case, lane: MemoryLane, ackline: MemoryCommand
) -> None:
    before = stored(lane)
    for options in (["--dry-run"], ["--dry-run", "--yes"], ["--yes", "--dry-run"]):
        for arguments in (command_line(case), case.arguments):  # a dry run stores no reason, so it needs none
            shown = ackline(*arguments, *options)
            assert shown.status == 0, shown.errors
            assert shown.output.endswith("Nothing was changed.\n")
            assert case.preview in shown.output
            assert ackline(*arguments, *options, "--json").json["dry_run"] is True
    assert stored(lane) == before


def test_s73_the_object_of_the_dry_run_is_that_of_the_act_but_for_what_it_did(
    case: Case, lane: MemoryLane, ackline: MemoryCommand
) -> None:
    dry = ackline(*command_line(case), "--dry-run", "--json").json
    before = stored(lane)
    done = ackline(*command_line(case), "--yes", "--json").json
    assert stored(lane) != before
    assert done.get("dry_run", False) is False
    if case.about:
        assert {name: done[name] for name in case.about} == {name: dry[name] for name in case.about}
    else:
        assert {**done, "dry_run": True} == dry


@pytest.mark.parametrize("options", [[], ["--yes"]], ids=["before the question", "after it is done"])
def test_a_change_is_printed_once(options: list[str], case: Case, ackline: MemoryCommand) -> None:
    ackline.answers = [True]
    printed = [line for line in ackline(*command_line(case), *options).output.splitlines() if line]
    assert options or any(case.preview in line for line in printed)
    assert printed
    assert len(printed) == len(set(printed))


def test_s73_a_terminal_is_asked_and_no_changes_nothing(case: Case, lane: MemoryLane, ackline: MemoryCommand) -> None:
    before = stored(lane)
    ackline.answers = [False]
    refused = ackline(*command_line(case))
    assert (refused.status, refused.output.endswith("Nothing was changed.\n")) == (0, True), refused
    assert (case.preview in refused.output, stored(lane)) == (True, before)
    ackline.answers = [True]
    assert ackline(*command_line(case)).status == 0
    assert stored(lane) != before


def test_s73_a_reason_is_required_where_an_act_settles_or_moves_records(
    case: Case, lane: MemoryLane, ackline: MemoryCommand
) -> None:
    before = stored(lane)
    if case.reason:
        for reason in ((), ("--reason", ""), ("--reason", " \t")):
            for yes in ((), ("--yes",)):
                refused = ackline(*case.arguments, *reason, *yes)
                assert (refused.status, "--reason" in refused.errors, refused.output) == (2, True, "")
            assert "--reason" in ackline(*case.arguments, *reason, "--yes", "--json").error["error"]
        assert stored(lane) == before
    assert ackline(*case.arguments, "--reason", "why so", "--yes").status == 0
    commits = [event.value for event in lane.world.history[before[0] :] if isinstance(event, TableCommit)]
    resumes = case.arguments[0] == "backfill" and case.begin is begins and "--cancel" not in case.arguments
    assert resumes or "why so" in {getattr(value, "reason", "") for value in commits}


def test_s73_an_unknown_pipeline_is_one_json_object_and_exits_with_2(case: Case, ackline: MemoryCommand) -> None:
    name, _, *rest = command_line(case)
    error = ackline(name, "nowhere", *rest, "--yes", "--json").error
    assert (error["kind"], error["exit_status"]) == ("ConfigError", 2)
    assert "nowhere" in error["error"]
