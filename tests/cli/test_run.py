"""`ackline run` and `ackline plan` with less to read: the same words and values as the form of `replay__NAME`."""

import pytest

from ackline.forms.form import SETTING, RunRequest
from ackline.steps.plan import plan
from tests.cli.memory_command import MemoryCommand
from tests.support.memory_lane import FAILS, FAILS_ONCE, OK, PAYMENTS, TP, TP1, MemoryLane

NOW = {"initial_delay": "0s"}


@pytest.fixture
def lane() -> MemoryLane:
    """Two topics, one of two partitions, with three records a partition; the first of `orders[0]` fails once."""
    lane = MemoryLane(FAILS_ONCE, OK, OK, partitions=2, topics=("orders", "payments"), retry=NOW, start="earliest")
    lane.produce(OK, OK, OK, tp=TP1)
    lane.create(PAYMENTS.topic, records=3)
    return lane


@pytest.mark.parametrize(("options", "read"), [
    ([], {TP: 3, TP1: 3, PAYMENTS: 3}),
    (["--partition", "1"], {TP1: 3}),
    (["--topic", "payments"], {PAYMENTS: 3}),
    (["--topic", "orders", "--partition", "0"], {TP: 3}),
    (["--partition", "0"], {TP: 3, PAYMENTS: 3}),
    (["--partition", "0", "--partition", "1"], {TP: 3, TP1: 3, PAYMENTS: 3}),
    (["--topic", "payments", "--max-records", "2"], {PAYMENTS: 2}),
    (["--only-retries"], {}),
])  # fmt: skip
def test_a_run_reads_what_its_options_choose_and_plan_shows_it(
    options: list[str], read: dict[object, int], lane: MemoryLane, ackline: MemoryCommand
) -> None:
    """Also a first run: the partitions that join the lane in it can be chosen, and the others keep their start."""
    shown = ackline("plan", "lane", *options, "--json").json
    assert lane.world.history == []
    ranges = {(row["topic"], row["partition"]): row["end"] - row["start"] for row in shown["partitions"]}
    assert {tp: size for tp, size in ranges.items() if size} == read
    done = ackline("run", "lane", *options, "--json").json
    assert done["records"] == sum(read.values())
    assert {tp: len(lane.calls(tp)) for tp in (TP, TP1, PAYMENTS) if lane.calls(tp)} == read
    assert {tp: lane.floor(tp) for tp in (TP1, PAYMENTS)} == {tp: read.get(tp, 0) for tp in (TP1, PAYMENTS)}


def test_the_failures_of_new_records_are_apart_from_those_of_retries(lane: MemoryLane, ackline: MemoryCommand) -> None:
    done = ackline("run", "lane", "--json").json
    assert (done["records"], done["new_records"], done["new_failed"], done["outcomes"]["failed"]) == (9, 9, 1, 1)
    lane.produce(FAILS, OK)
    done = ackline("run", "lane", "--json").json
    assert (done["records"], done["new_records"], done["new_failed"], done["outcomes"]["failed"]) == (3, 2, 1, 1)
    done = ackline("run", "lane", "--only-retries", "--json").json
    assert (done["records"], done["new_records"], done["new_failed"], done["outcomes"]["failed"]) == (1, 0, 0, 1)


def test_only_the_retries_of_the_chosen_partitions_are_read(lane: MemoryLane, ackline: MemoryCommand) -> None:
    lane.run()
    lane.produce(OK)
    assert ackline("run", "lane", "--partition", "1", "--only-retries", "--json").json["records"] == 0
    assert ackline("run", "lane", "--topic", "orders", "--only-retries", "--json").json["records"] == 1
    assert (lane.calls()[3:], lane.floor()) == ([(0, 2)], 3)
    stored = lane.adapters().store.plan(lane.newest().turn).settings[SETTING]
    assert stored == {"only_retries": True, "partitions": ["orders[0]", "orders[1]"]}


@pytest.mark.parametrize(("options", "shown"), [
    (["--max-records", "2"], "--max-records 2"),
    (["--only-retries"], "--only-retries"),
    (["--partition", "1"], "--topic orders --partition 1"),
    (["--topic", "payments"], "--topic payments --partition 0"),
])  # fmt: skip
def test_limits_that_cannot_apply_to_an_open_turn_are_refused_without_yes(
    options: list[str], shown: str, lane: MemoryLane, ackline: MemoryCommand
) -> None:
    lane.plan()
    stored = list(lane.world.history)
    error = ackline("run", "lane", *options, "--json").error
    assert (error["exit_status"], error["key"]) == (2, shown.split()[0])
    assert (
        f"turn 1 (lane live, epoch 0) of lane is open, and {shown} can't apply to it: it was planned at "
        in error["error"]
    )
    assert (
        "for 9 offsets of 3 partitions, without limits. Run the turn as it was planned: give --yes." in error["error"]
    )
    assert "close it with `ackline void lane --reason …`" in error["error"]
    assert (lane.world.history, lane.calls()) == (stored, [])
    assert f"{shown} does not apply to turn 1 " in ackline("plan", "lane", *options).errors
    assert ackline("run", "lane", *options, "--yes", "--json").json["records"] == 9


def test_an_open_turn_is_run_without_a_question_by_the_limits_that_it_was_planned_for(
    lane: MemoryLane, ackline: MemoryCommand
) -> None:
    plan(lane.adapters(request=RunRequest(max_records=2)))
    assert "with --max-records 2. Run" in ackline("run", "lane", "--only-retries", "--json").error["error"]
    assert ackline("run", "lane", "--max-records", "2", "--json").json["records"] == 2
    lane.plan()
    assert ackline("run", "lane", "--json").json["records"] == 8  # with the retry


@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize(("options", "words"), [
    (["--partition", "7"], "lane has no partition with --partition 7"),
    (["--topic", "nowhere"], "lane has no partition with --topic nowhere"),
    (["--topic", "a b"], "--topic"),
    (["--partition", "-1"], "--partition"),
    (["--max-records", "0"], "--max-records"),
    (["--max-records", "5000001"], "--max-records 5000001: not valid; write a whole number from 1 to 5,000,000"),
])  # fmt: skip
def test_an_option_that_chooses_nothing_is_refused_before_anything_is_stored(
    command: str, options: list[str], words: str, lane: MemoryLane, ackline: MemoryCommand
) -> None:
    error = ackline(command, "lane", *options, "--json").error
    assert (error["exit_status"], words in error["error"]) == (2, True), error
    assert lane.world.history == []


def test_a_partition_that_the_file_does_not_name_any_more_cannot_be_chosen(
    lane: MemoryLane, ackline: MemoryCommand
) -> None:
    lane.run()
    lane.topics = ["orders"]
    assert "--topic payments" in ackline("run", "lane", "--topic", "payments", "--json").error["error"]
