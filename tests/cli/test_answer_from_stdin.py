"""Tokens on standard input: `ackline ack -`, so that they are not among the arguments of a process."""

from pathlib import Path

import pytest

from tests.cli.memory_command import MemoryCommand
from tests.support.memory_lane import WAITS, AnsweredLane


@pytest.fixture
def lane() -> AnsweredLane:
    """Two records in flight."""
    lane = AnsweredLane(WAITS, WAITS)
    lane.run()
    return lane


@pytest.fixture
def ackline(lane: AnsweredLane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryCommand:
    """The command on that lane."""
    return MemoryCommand(lane, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("command", "answers"),
    [(["ack", "-"], {"acked": 2}), (["fail", "-"], {"failed": 2}), (["renew", "-", "5m"], {"renewed": 2})],
)
def test_each_token_on_standard_input_gets_the_answer(
    lane: AnsweredLane,
    ackline: MemoryCommand,
    command: list[str],
    answers: dict[str, int],
) -> None:
    piped = f"{lane.tokens[0, 1]}\n{lane.tokens[1, 1]}\n"
    assert ackline(*command, "--json", piped=piped).json["answers"] == 2
    assert lane.run().answers == answers


def test_tokens_of_both_are_answered(
    lane: AnsweredLane, ackline: MemoryCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ackline("ack", lane.tokens[0, 1], "-", "--json", piped=lane.tokens[1, 1]).json["answers"] == 2
    assert lane.run().answers == {"acked": 2}


def test_standard_input_without_a_token_is_an_error(ackline: MemoryCommand) -> None:
    done = ackline("ack", "-", piped=" \n")
    assert (done.status, "standard input holds no token" in done.errors) == (2, True)
