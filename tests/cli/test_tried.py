"""`ackline try`: single records by the code of today, without a trace in tables, topics or output."""

import json
import tempfile
from pathlib import Path

import pytest

from ackline.ledger.offsets import TopicPartition
from tests.cli.memory_command import MemoryCommand
from tests.support.memory_lane import DEAD, FAILS, OK, TP, MemoryLane

SECRET = b'{"card": "4711-0815"}'
HANDLERS = "tests.support.tried_handlers"


@pytest.fixture
def lane() -> MemoryLane:
    """A lane whose pending and dead records have errors of two classes; its file names a handler that fails them."""
    return MemoryLane(OK, DEAD, FAILS, SECRET, b'{"price": 3}', handler=f"{HANDLERS}:price").after_run()


def test_records_are_handled_and_nothing_is_stored(
    lane: MemoryLane, ackline: MemoryCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    history, pending = len(lane.world.history), lane.pending()
    done = ackline("try", "lane", "orders", "0", "3", "4", "--json")
    failed, acked = json.loads(done.output)
    assert list(failed) == [
        "topic", "partition", "offset", "outcome", "error_class", "error_place", "emitted", "traceback",
    ]  # fmt: skip
    assert (failed["topic"], failed["partition"], failed["offset"]) == ("orders", 0, 3)
    assert (failed["outcome"], failed["error_class"]) == ("failed", "ValueError")
    assert failed["error_place"].startswith("tests/support/tried_handlers.py:")
    assert failed["traceback"].splitlines()[0] == failed["error_place"]
    assert (acked["outcome"], acked["error_class"], acked["emitted"], acked["traceback"]) == ("acked", None, [], None)
    assert "priced 3" in done.errors
    assert "4711" not in done.output + done.errors
    assert (len(lane.world.history), lane.pending()) == (history, pending)
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_person_is_shown_outcome_lines_and_error(ackline: MemoryCommand) -> None:
    done = ackline("try", "lane", "orders", "0", "3")
    first, frame, error = done.output.splitlines()
    assert first.startswith("orders/0 offset 3: failed, ValueError at tests/support/tried_handlers.py:")
    assert frame.endswith(" in price")
    assert error.startswith("  ValueError: no price in ")
    assert (done.status, "4711" in done.output) == (0, False)


def test_a_payload_needs_a_terminal(ackline: MemoryCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    for option in ("--show-values", "--pdb"):
        refused = ackline("try", "lane", "orders", "0", "3", option)
        assert (refused.status, refused.output) == (2, "")
        assert f"{option} shows the payload" in refused.errors
    monkeypatch.setattr("ackline.cli.dead.is_terminal", lambda: True)
    shown = ackline("try", "lane", "orders", "0", "3", "--show-values")
    assert '  value: {"card": "4711-0815"}' in shown.output
    assert 'ValueError: no price in {"card": "4711-0815"}' in shown.output


def test_the_debugger_opens_where_a_record_fails(ackline: MemoryCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def post_mortem(trace: object) -> None:
        while trace.tb_next is not None:  # type: ignore[attr-defined]
            trace = trace.tb_next  # type: ignore[attr-defined]
        opened.append(trace.tb_frame.f_code.co_name)  # type: ignore[attr-defined]

    monkeypatch.setattr("ackline.cli.dead.is_terminal", lambda: True)
    monkeypatch.setattr("ackline.cli.tried.pdb.post_mortem", post_mortem)
    assert ackline("try", "lane", "orders", "0", "3", "4", "--pdb").status == 0
    assert opened == ["price"]


def offsets(ackline: MemoryCommand, *arguments: str) -> list[int]:
    done = ackline("try", "lane", *arguments)
    assert done.status == 0, done.errors
    lines = [line for line in done.output.splitlines() if line.startswith("orders/0 offset")]
    return [int(line.split()[2].rstrip(":")) for line in lines]


def test_failing_records_are_those_that_are_pending_or_dead(ackline: MemoryCommand) -> None:
    assert offsets(ackline, "--failing") == [1, 2]
    assert offsets(ackline, "--failing", "1") == [2]
    assert offsets(ackline, "--failing", "--error-class", "Dead") == [1]
    none = ackline("try", "lane", "--failing", "--error-class", "KeyError")
    assert none.output == "No record of the live lane is failing with KeyError.\n"


def test_a_pending_record_is_given_its_next_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = MemoryLane(OK, FAILS, handler=f"{HANDLERS}:quote_attempt").after_run()
    done = MemoryCommand(lane, tmp_path, monkeypatch)("try", "lane", "orders", "0", "0", "1", "1", "--json")
    assert [each["traceback"].splitlines()[-1] for each in json.loads(done.output)] == [
        "RuntimeError: attempt 1", "RuntimeError: attempt 2",
    ]  # fmt: skip


def test_a_record_that_the_log_no_longer_holds_is_an_answer(lane: MemoryLane, ackline: MemoryCommand) -> None:
    lane.log().start = 2
    done = ackline("try", "lane", "orders", "0", "1", "4")
    assert done.output.splitlines() == ["orders/0 offset 1: expired", "orders/0 offset 4: acked"]


@pytest.mark.parametrize(("arguments", "problem"), [
    ([], "name records"),
    (["orders", "0"], "name records"),
    (["orders", "zero", "1"], "zero is not an offset"),
    (["orders", "0", "9"], "offset 9 is not in the log, which ends at 5"),
    (["orders", "0", "1", "--failing"], "--failing chooses"),
    (["orders", "0", "1", "--error-class", "Dead"], "add --failing"),
    (["--failing", "many"], "many is not an offset"),
    (["--failing", "0"], "0 records can't be tried"),
])  # fmt: skip
def test_other_arguments_are_refused(ackline: MemoryCommand, arguments: list[str], problem: str) -> None:
    done = ackline("try", "lane", *arguments)
    assert (done.status, done.output) == (2, "")
    assert problem in done.errors


def test_steps_and_outputs_take_what_is_emitted_and_nothing_is_published(
    lane: MemoryLane, ackline: MemoryCommand
) -> None:
    lane.settings |= {
        "handler": f"{HANDLERS}:split",
        "steps": [
            {"name": "total", "handler": f"{HANDLERS}:total", "input": "source.items", "group_by": "key", "join": True},
            {"name": "ten", "handler": f"{HANDLERS}:at_least_ten", "input": "total"},
        ],
        "outputs": [{"from": "total", "topic": "totals"}],
    }
    lane.create("totals")
    lane.produce(b'{"items": [4, 7]}', b'{"items": [4, 5]}')
    enough, few = json.loads(ackline("try", "lane", "orders", "0", "5", "6", "--json").output)
    emitted = [{"step": "source", "stream": "items"}] * 2 + [{"step": "total", "stream": "default"}]
    assert (enough["outcome"], enough["emitted"]) == ("acked", emitted)
    assert (few["outcome"], few["error_class"], few["emitted"]) == ("failed", "LookupError", emitted)
    assert few["error_place"].endswith(" in at_least_ten")
    assert few["traceback"].splitlines()[-1] == "LookupError: step ten: too few; 0 siblings acked"
    assert lane.log(TopicPartition("totals", 0)).written == {}


def test_a_record_in_flight_has_a_token_that_no_lane_takes(lane: MemoryLane, ackline: MemoryCommand) -> None:
    lane.create("acks")
    lane.settings |= {"handler": f"{HANDLERS}:hand_on", "ack_topic": "acks"}
    written = len(lane.world.history)
    assert ackline("try", "lane", "orders", "0", "3").output == "orders/0 offset 3: in_flight\n"
    assert len(lane.world.history) == written


def test_a_handler_that_needs_a_process_of_its_own_or_spark_is_refused(
    lane: MemoryLane, ackline: MemoryCommand
) -> None:
    lane.settings["handler_isolation"] = "process"
    assert "a process of its own" in ackline("try", "lane", "orders", "0", "0").errors
    del lane.settings["handler_isolation"]
    lane.settings["handler"] = f"{HANDLERS}:column"
    assert "a column handler runs in Spark" in ackline("try", "lane", "orders", "0", "0").errors
    assert lane.offsets(TP) == [0, 1, 2, 3, 4]
