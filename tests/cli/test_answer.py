"""`ackline ack`, `fail` and `renew`, and what a run shows of answers."""

from pathlib import Path

import pytest

from tests.cli.memory_command import MemoryCommand
from tests.support.memory_lane import WAITS, AnsweredLane


@pytest.fixture
def lane() -> AnsweredLane:
    """Three records in flight."""
    lane = AnsweredLane(WAITS, WAITS, WAITS)
    lane.run()
    return lane


@pytest.fixture
def ackline(lane: AnsweredLane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryCommand:
    """The command on that lane."""
    return MemoryCommand(lane, tmp_path, monkeypatch)


def test_answers_by_the_command_settle_records_in_the_next_run(lane: AnsweredLane, ackline: MemoryCommand) -> None:
    done = ackline("ack", lane.tokens[0, 1], lane.tokens[1, 1], "--json").json
    assert done == {"pipeline": "lane", "lane": "live", "topic": "acks", "answers": 2}
    failed = ackline("fail", lane.tokens[2, 1], "--reason", "no stock")
    assert failed.output == "1 answer is in acks; the next run of lane reads it.\n"
    ran = ackline("run", "lane", "--json").json
    assert (ran["answers"], ran["outcomes"]) == ({"acked": 2, "failed": 1}, {"acked": 2, "failed": 1})
    assert [row.reason for row in lane.effective_rows() if row.error_class] == ["no stock"]


def test_a_renewal_by_the_command_and_the_line_of_a_run(lane: AnsweredLane, ackline: MemoryCommand) -> None:
    assert ackline("renew", lane.tokens[0, 1], "1h").status == 0
    lane.answer_with("nonsense", "ack")
    lane.at(20)
    shown = ackline("run", "lane").output
    assert "Answers from outside: 1 renewed, 2 timed out; ignored: 1 malformed" in shown


def test_status_shows_what_is_in_flight_and_when_it_is_overdue(lane: AnsweredLane, ackline: MemoryCommand) -> None:
    status = ackline("status", "lane", "--json").json["partitions"][0]
    assert status["pending"] == {"retry": 0, "dead_letter": 0, "in_flight": 3}
    assert status["next_due"] == "2026-03-01T12:00:10+00:00"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["ack", "nonsense"], "that is no token"),
        (["renew", "TOKEN", "soon"], "soon is no duration above zero"),
        (["renew", "TOKEN", "0s"], "0s is no duration above zero"),
        (["ack", "TOKEN", "OTHER"], "of several pipelines or lanes"),
        (["ack", "NUL"], "that is no token"),
        (["ack", "PATH"], "that is no token"),
        (["ack", "BACKFILL_PATH"], "that is no token"),
        (["ack", "NO_NAME"], "that is no token"),
        (["ack", "FORGED"], "the token is not one of lane as it is here"),
    ],
)
def test_a_wrong_answer_is_refused_and_nothing_is_sent(
    lane: AnsweredLane, ackline: MemoryCommand, arguments: list[str], reason: str
) -> None:
    from ackline.ledger.answers import parse_token

    token = parse_token(lane.tokens[0, 1])
    assert token is not None
    texts = {
        "TOKEN": token.text,
        "OTHER": token._replace(turn=token.turn._replace(pipeline="shop")).text,
        "NUL": token._replace(turn=token.turn._replace(lane="live\0")).text,
        "PATH": token._replace(turn=token.turn._replace(lane="../..")).text,
        "BACKFILL_PATH": token._replace(turn=token.turn._replace(lane="backfill-../live")).text,
        "NO_NAME": token._replace(turn=token.turn._replace(pipeline="../lane\n")).text,
        "FORGED": token._replace(offset=2).text,
    }
    done = ackline(*(texts.get(argument, argument) for argument in arguments))
    assert (done.status, reason in done.errors) == (2, True), done.errors
    ran = lane.run()
    assert ran.answers == {}


def test_without_an_ack_topic_the_error_names_the_key(lane: AnsweredLane, ackline: MemoryCommand) -> None:
    del lane.settings["ack_topic"], lane.settings["in_flight"]
    done = ackline("ack", lane.tokens[0, 1])
    assert (done.status, "has no `ack_topic`" in done.errors) == (2, True)
