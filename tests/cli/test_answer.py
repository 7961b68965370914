"""`ackline ack`, `fail` and `renew`, by arguments or standard input; what commands show of answers and in flight."""

from pathlib import Path

import pytest

from tests.cli.memory_command import MemoryCommand
from tests.support.memory_lane import OK, WAITS, AnsweredLane


@pytest.fixture
def lane() -> AnsweredLane:
    """Three records in flight."""
    lane = AnsweredLane(WAITS, WAITS, WAITS)
    lane.run()
    return lane


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


@pytest.mark.parametrize(("arguments", "reason"), [
    (["ack", "nonsense"], "that is no token"),
    (["renew", "TOKEN", "soon"], "soon is no duration above zero"),
    (["renew", "TOKEN", "0s"], "0s is no duration above zero"),
    (["ack", "TOKEN", "OTHER"], "of several pipelines or lanes"),
    (["ack", "NUL"], "that is no token"),
    (["ack", "PATH"], "that is no token"),
    (["ack", "BACKFILL_PATH"], "that is no token"),
    (["ack", "NO_NAME"], "that is no token"),
    (["ack", "FORGED"], "the token is not one of lane as it is here"),
])  # fmt: skip
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


def test_explain_and_status_name_the_record_that_holds_the_floor_and_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = AnsweredLane(OK, WAITS, WAITS)
    lane.run()
    lane.answer(2, "renew 1h")
    lane.at(2).run()
    ackline = MemoryCommand(lane, tmp_path, monkeypatch)
    found = ackline("explain", "lane", "orders", "0", "--json").json
    deadline = "2026-03-01T12:00:10+00:00"
    held = found["held_by"]
    assert (found["floor"], held["offset"], held["kind"], held["attempts"]) == (1, 1, "in_flight", 1)
    assert (held["due"], held["error_class"]) == (deadline, None)
    assert "offset 1 is in flight and waits for its answer until" in found["sentence"]
    status = ackline("status", "lane", "--json").json["partitions"][0]
    assert (status["pending"]["in_flight"], status["floor"], status["next_due"]) == (2, 1, deadline)
    lane.answer(1)
    lane.at(3).run()
    held = ackline("explain", "lane", "orders", "0", "--json").json["held_by"]
    assert (held["offset"], held["due"]) == (2, "2026-03-01T13:00:02+00:00")


def test_explain_names_no_deadline_where_nothing_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = AnsweredLane(WAITS, timeout="none")
    lane.run()
    found = MemoryCommand(lane, tmp_path, monkeypatch)("explain", "lane", "orders", "0", "--json").json
    assert found["held_by"]["due"] is None
    assert "offset 0 is in flight and waits for its answer." in found["sentence"]
