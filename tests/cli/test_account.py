"""How `ackline run` ends: one sentence of what was handled, one of what was settled, each adding up, and the errors."""

import re
from datetime import timedelta
from pathlib import Path

import pytest

from ackline.cli.account import account_lines
from ackline.ledger.turns import TurnId, TurnKind
from ackline.steps.run import RunResult
from ackline.tables.layout import LaneTables, noted_stop, stopped_run
from ackline.tables.store import LedgerStore
from ackline.tables.turn_outcomes import FailedClass, commonest_failures
from tests.audit.story import begin_story
from tests.cli.memory_command import MemoryCommand
from tests.support.memory_lane import DEAD, FAILS, OK, TP, MemoryLane


@pytest.fixture
def lane() -> MemoryLane:
    """Two records that are acked, a tombstone, two that fail, and one that is dead at once."""
    return MemoryLane(OK, OK, None, FAILS, FAILS, DEAD, retry={"initial_delay": "1h"})


def add_up(line: str) -> bool:
    """Whether the numbers in brackets add up to the first number of the line."""
    total, counts = re.fullmatch(r"\w+: ([\d,]+) [a-z ]+ \((.*)\).*", line).groups()  # type: ignore[union-attr]
    numbers = [int(part.split()[0].replace(",", "")) for part in counts.split(", ")]
    return sum(numbers) == int(total.replace(",", ""))


def test_what_was_handled_and_what_was_settled_add_up(ackline: MemoryCommand) -> None:
    lines = ackline("run", "lane").output.splitlines()
    handled, settled = (next(line for line in lines if line.startswith(word)) for word in ("Handled", "Settled"))
    assert handled == "Handled: 5 handler calls (2 acked, 3 failed); 1 skipped without a call."
    assert settled == "Settled: 4 offsets (2 acked, 1 dead, 1 skipped); 2 are pending."
    assert add_up(handled)
    assert add_up(settled)


def failures(ackline: MemoryCommand) -> list[str]:
    return [line for line in ackline("run", "lane").output.splitlines() if line.startswith("Failures: ")]


def test_failures_of_new_records_and_of_retries_are_counted_apart(ackline: MemoryCommand, lane: MemoryLane) -> None:
    assert failures(ackline) == ["Failures: 3 of 6 new records (50.0%)."]
    lane.world.now += timedelta(hours=2)
    lane.produce(OK, FAILS)
    assert failures(ackline) == ["Failures: 1 of 2 new records (50.0%), 2 retries."]
    assert failures(ackline) == []


def test_a_run_that_settles_what_another_has_handled_says_so(ackline: MemoryCommand, lane: MemoryLane) -> None:
    lane.plan_and_replay()
    text = ackline("run", "lane").output
    assert "Handled: 0 handler calls; another run had handled what was settled." in text


def test_i18_a_run_that_stops_notes_why_for_the_page(
    ackline: MemoryCommand, lane: MemoryLane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane.run()
    lane.move_group(TP, 1)
    here = LaneTables(str(tmp_path), "lane", "live")  # the tables of a lane in memory have no folder
    Path(here.folder).mkdir()
    monkeypatch.setattr("ackline.tables.layout.noted_stop", lambda _, *about: noted_stop(here, *about))
    ended = ackline("run", "lane")
    note = stopped_run(here)
    assert note is not None
    assert (ended.status, note.reason) == (1, "GroupMoved")
    assert note.sentence in ended.errors


def test_a_run_with_nothing_to_read_tells_what_is_pending(ackline: MemoryCommand, lane: MemoryLane) -> None:
    lane.run()
    lines = ackline("run", "lane").output.splitlines()
    assert lines[-2:] == ["Handled: 0 handler calls.", "Settled: 0 offsets; 2 are pending."]


def test_one_is_not_written_as_many() -> None:
    ran = RunResult(calls=1)
    ran.outcomes["acked"] = 1
    assert account_lines(ran, None) == [
        "Handled: 1 handler call (1 acked).", "Settled: 1 offset (1 acked); nothing is pending.",
    ]  # fmt: skip


def test_the_commonest_errors_are_shown_with_a_message_and_the_command_that_shows_more(
    ackline: MemoryCommand,
) -> None:
    lines = ackline("run", "lane").output.splitlines()
    assert lines[-4:-1] == ["Failed:", *sorted(lines[-3:-1], key=lambda line: -int(line.split()[0]))]
    assert lines[-3].startswith("  2 ValueError")
    assert lines[-2].startswith("  1 Dead")
    assert lines[-1] == "`ackline audit lane --outcome failed --turn 1` shows each of them."


def test_after_a_run_of_several_turns_the_command_shows_the_attempts_of_that_run(ackline: MemoryCommand) -> None:
    """A run takes the next turn at once while its last one met no record."""
    lane = ackline.lane = MemoryLane(max_uncommitted=10, retry={"initial_delay": "1h"})
    lane.log().add_gap(10)
    lane.produce(FAILS)
    lines = ackline("run", "lane").output.splitlines()
    assert [line for line in lines if line.startswith("Turn ")] == ["Turn 1: run", "Turn 2: run"]
    assert lines[-1] == "`ackline audit lane --outcome failed --run run` shows each of them."


def test_a_turn_after_a_reset_is_named_with_its_epoch(ackline: MemoryCommand, lane: MemoryLane) -> None:
    assert "Turn 1: run" in ackline("run", "lane").output
    lane.perform(TurnKind.RESET)
    text = ackline("run", "lane").output
    assert "Turn 1 of epoch 1: run" in text
    assert "--turn 1 --epoch 1` shows" in text


def test_classes_that_come_in_several_batches_are_added_up() -> None:
    found = [
        ("A", "a.py:1 in f", 2, None),
        ("B", None, 3, "b"),
        ("A", "a.py:1 in f", 2, "a"),
        ("A", "a.py:2 in f", 1, "c"),
    ]
    ordered = commonest_failures([FailedClass(*each) for each in found], 2)
    assert ordered == [FailedClass("A", "a.py:1 in f", 4, "a"), FailedClass("B", None, 3, "b")]


def test_failed_attempts_are_counted_from_the_stored_rows(store: LedgerStore) -> None:
    begin_story(store)
    turn = TurnId(store.pipeline, store.lane, 0, 1)
    assert list(store.failed_classes_of(turn)) == [FailedClass(None, None, 2, "503")]
    assert list(store.failed_classes_of(turn._replace(n=3))) == []
