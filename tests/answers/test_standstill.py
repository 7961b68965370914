"""Whatever stands still is found without a run, and is the first line of status, explain and doctor."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ackline.answers.standstill import what_stands_still
from ackline.errors import AcklineError, LedgerError, NewerCommit, TooManyFailures
from ackline.lane.ways_out import StandsStill
from ackline.ledger.commit_rule import CommitMetadata, Committed
from ackline.ledger.outcomes import Outcome
from ackline.ledger.published import OutputsOfTurn, TableOfTurn
from ackline.ledger.turns import TurnKind
from ackline.outputs.publish import lacks_rows, publish_settled
from tests.cli.memory_command import MemoryCommand
from tests.e2e.documents import section
from tests.outputs.kept_lane import NOW, TABLE, Lane, lane_with_rows, table_of_a_user
from tests.support.actor import Killed
from tests.support.memory import BEFORE
from tests.support.memory_lane import (
    DEAD,
    FAILS,
    GROUP,
    NOON,
    OK,
    TP,
    TP1,
    MemoryBackfill,
    MemoryLane,
    lose_a_file,
)


def found(lane: MemoryLane) -> StandsStill:
    standing = what_stands_still(lane.adapters())
    assert standing is not None
    return standing


def committed_by_another_ledger(lane: MemoryLane) -> MemoryLane:
    metadata = CommitMetadata("another", "lane", 0, 9)
    lane.world.committed[GROUP, TP] = Committed(9, metadata.encode())
    return lane


def denied(lane: MemoryLane) -> MemoryLane:
    lane.world.denied = {("READ", "group", GROUP)}
    return lane


def recreated(lane: MemoryLane) -> MemoryLane:
    lane.create("orders")
    return lane


def test_a_lane_whose_next_run_goes_on_stands_still_for_nothing() -> None:
    assert what_stands_still(MemoryLane(OK, FAILS).adapters()) is None
    assert what_stands_still(MemoryLane(OK, FAILS).after_plan().adapters()) is None
    assert what_stands_still(MemoryLane(OK, FAILS).after_replay().adapters()) is None
    assert what_stands_still(MemoryLane(OK, FAILS).after_run().adapters()) is None


@pytest.mark.parametrize("open_turn", [False, True])
def test_it_is_the_error_with_which_the_run_stops(open_turn: bool) -> None:
    lane = committed_by_another_ledger(MemoryLane(OK, OK).after_run())
    if open_turn:
        lane = MemoryLane(OK, OK).after_replay()
        committed_by_another_ledger(lane)
    standing = found(lane)
    error = lane.run_fails(NewerCommit)
    assert standing.reason == "NewerCommit"
    assert standing.command == "ackline adopt-ledger lane --reason …"
    assert str(error).startswith(standing.sentence[:60])


def test_a_turn_that_another_process_ends_meanwhile_is_nothing_that_the_lane_stands_still_for() -> None:
    """Its files are removed once it is settled, which looks as if they were lost."""
    lane, looks = MemoryLane(OK).after_replay(), list[int]()

    def check(_: object) -> None:
        looks.append(1)
        if len(looks) == 1:
            lane.settle()
            raise LedgerError("files of the turn are gone")

    assert what_stands_still(lane.adapters(), check) is None
    assert len(looks) == 2


# ---- a settled turn that can't be published -------------------------------------------------------------------------


def plans_again(_: Any) -> None:
    """The checks of a next plan that nothing refuses."""


def adapters_of(lane: Lane) -> tuple[Any, Any]:
    newest = SimpleNamespace(
        turn=lane.turn,
        outputs=lane.store.settlements[lane.turn],
        partitions={},
        kind=TurnKind.RUN,
        reason="",
        settled_at=NOW,
    )
    store: Any = lane.store
    store.newest, store.lane = lambda: newest, "live"
    group = SimpleNamespace(check_no_members=lambda: None)
    adapters = SimpleNamespace(
        store=store, pipeline=SimpleNamespace(name="shop"), actor="ada", run_id="cli", now=lambda: NOW, group=group,
        commits=True, newest_and_open_plan=lambda: (newest, None), is_subscribed=lambda _: True, fixed_now=None,
        cluster=SimpleNamespace(topics=lambda _: {}),
    )  # fmt: skip
    return adapters, newest


def test_a_settled_turn_that_can_not_be_published_is_what_the_lane_stands_still_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = lane_with_rows(tmp_path, Outcome.ACKED)
    table_of_a_user(lane)
    adapters, newest = adapters_of(lane)
    standing = what_stands_still(adapters, plans_again)
    with pytest.raises(AcklineError) as refused:
        publish_settled(adapters, newest)
    assert standing is not None
    assert (standing.sentence, standing.reason) == (str(refused.value), type(refused.value).__name__)
    assert standing.command == "ackline void shop --give-up totals --reason …"


def test_a_settled_turn_that_the_next_run_publishes_is_told_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = lane_with_rows(tmp_path, Outcome.ACKED)
    adapters, newest = adapters_of(lane)
    before = sorted(tmp_path.rglob("*"))
    standing = what_stands_still(adapters, plans_again)
    assert standing is not None
    assert (standing.reason, standing.command) == ("Unpublished", "ackline run shop")
    assert lacks_rows(adapters, newest), "the gauge"
    assert sorted(tmp_path.rglob("*")) == before
    publish_settled(adapters, newest)
    assert what_stands_still(adapters, plans_again) is None
    assert not lacks_rows(adapters, newest)


def test_rows_that_are_lost_before_they_are_published_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = lane_with_rows(tmp_path, Outcome.ACKED)
    outputs = OutputsOfTurn.decode(lane.store.settlements[lane.turn])
    without = {place: TableOfTurn(table.rows, None) for place, table in outputs.tables.items()}
    lane.store.settlements[lane.turn] = replace(outputs, tables=without).encode()
    for file in tmp_path.rglob("0-*.parquet"):
        file.unlink()
    standing = what_stands_still(adapters_of(lane)[0], plans_again)
    assert standing is not None
    assert standing.reason == "LedgerError"
    assert TABLE in standing.sentence
    assert "are gone" in standing.sentence


# ---- the command ----------------------------------------------------------------------------------------------------


Patch = pytest.MonkeyPatch
LATER = {"initial_delay": "1h", "period": "1h"}


def changed(lane: MemoryLane, **settings: Any) -> MemoryLane:
    lane.settings.update(settings)
    return lane


def refused_by(check: str, text: str, lane: MemoryLane, patch: Patch) -> MemoryLane:
    """A lane whose output tables are damaged. Tests of real tables, here and in tests/outputs, find that."""

    def refuses(*_: object) -> list[str]:
        raise LedgerError(text)

    patch.setattr(f"ackline.answers.standstill.{check}", refuses)
    return lane


def with_open_skip(lane: MemoryLane, patch: Patch) -> MemoryLane:
    lane.after_run()
    lane.die("decisions", BEFORE)
    with pytest.raises(Killed):
        lane.perform(TurnKind.SKIP, {TP: 2})
    return refused_by("check_open_skip", "damaged. Close it with `ackline void lane --reason …`", lane, patch)


def without_rows(lane: MemoryLane) -> MemoryLane:
    lane.after_run()
    del lane.world.tables.settlements[lane.newest().turn]
    return lane


def with_a_refused_letter() -> MemoryLane:
    lane = MemoryLane(DEAD, OK)
    lane.world.faults.letters += ["refused"]
    return lane.after_run()


def without_a_leader() -> MemoryLane:
    lane = MemoryLane(OK, partitions=2).after_run()
    lane.log(TP1).has_leader = False
    return lane


def paused(partitions: int) -> MemoryLane:
    lane = MemoryLane(OK, partitions=partitions).after_run()
    lane.perform(TurnKind.PAUSE, {TP: 1})
    return lane


def with_members() -> MemoryLane:
    lane = MemoryLane(OK).after_run()
    lane.world.members = ["consumer-1 (10.0.0.1)"]
    return lane


def with_a_taken_id() -> MemoryLane:
    lane = MemoryLane(OK).after_run()
    lane.world.taken = "a share group"
    return lane


def expired(**settings: Any) -> MemoryLane:
    lane = MemoryLane(OK, **settings).after_run()
    lane.produce(OK, OK, OK, OK)
    if "on_expired" in settings:
        lane.log().expire(3)
    return lane


def with_a_backfill() -> MemoryLane:
    lane = MemoryLane(OK, OK).after_run()
    MemoryBackfill(lane, "b", "orders").begin()
    lane.create("orders", records=2)
    lane.perform(TurnKind.RESET, {TP: 0})
    return lane


def stopped_by_the_breaker() -> MemoryLane:
    lane = MemoryLane(*[FAILS] * 4, breaker={"failure_ratio": 0.5, "min_records": 2})
    lane.run_fails(TooManyFailures)
    return lane


def deleted(lane: MemoryLane) -> MemoryLane:
    del lane.world.topics["orders"]
    return lane


def moved(lane: MemoryLane) -> MemoryLane:
    lane.move_group(TP, 1)
    return lane


def with_pending_offsets() -> MemoryLane:
    lane = MemoryLane(OK).after_run()
    lane.world.offsets_pending = True
    return lane


def lost(lane: MemoryLane) -> MemoryLane:
    lose_a_file(lane)
    return lane


NEXT = "the next run"
OLDER = "the table is an older copy. Begin a new epoch with `ackline reset lane --to OFFSET --reason …`"
KEPT = "files of rows that wait are gone. Use `ackline reset lane --to floor --reason …`"
GONE = "the table does not exist any more. Make it anew with `ackline run lane --table-gone T`"
GIVE_UP = "no table. Give the rows up with `ackline void lane --give-up totals --reason …`"
STATES: dict[str, tuple[Callable[[Patch], MemoryLane], str, str | None]] = {
    "an open turn can't be carried out": (
        lambda _: changed(MemoryLane(OK).after_plan(), guarantee="no_guarantee"), "ConfigError", "void lane --reason …"
    ),
    "files of an open turn's outcomes, or its staged rows, are lost": (
        lambda _: lost(MemoryLane(OK)), "LedgerError", "void lane --reason …"
    ),
    "rows of a settled turn can't be published": (
        lambda patch: refused_by("check_publishable", GIVE_UP, MemoryLane(OK).after_run(), patch),
        "LedgerError", "void lane --give-up totals --reason …",
    ),
    "an output table or the ledger is an older copy": (
        lambda patch: refused_by("check_publishable", OLDER, MemoryLane(OK).after_run(), patch),
        "LedgerError", "reset lane --to OFFSET --reason …",
    ),
    "an output table does not exist any more": (
        lambda patch: refused_by("check_publishable", GONE, MemoryLane(OK).after_run(), patch),
        "LedgerError", "run lane --table-gone T",
    ),
    "rows that wait for records in flight are lost": (
        lambda patch: refused_by("check_publishable", KEPT, MemoryLane(OK).after_run(), patch),
        "LedgerError", "reset lane --to floor --reason …",
    ),
    "an open skip can't be settled": (
        lambda patch: with_open_skip(MemoryLane(OK, FAILS, retry=LATER), patch), "LedgerError", "void lane --reason …"
    ),
    "guarantee, isolation level or ack topic changed under pending records": (
        lambda _: changed(MemoryLane(FAILS, retry=LATER).after_run(), guarantee="no_guarantee"),
        "ConfigError", "reset lane --to floor --reason …",
    ),
    "the group was moved by another client": (
        lambda _: moved(MemoryLane(OK, OK, OK).after_run()), "GroupMoved", "doctor lane"
    ),
    "the group has live members": (lambda _: with_members(), "GroupBusy", "doctor lane"),
    "offsets of the group are in a transaction that has not ended": (
        lambda _: with_pending_offsets(), "OffsetsPending", "doctor lane"
    ),
    "the group's id is that of another type of group": (lambda _: with_a_taken_id(), "GroupTaken", "doctor lane"),
    "the login lacks a right": (lambda _: denied(MemoryLane(OK).after_run()), "MissingRights", "doctor lane"),
    "another ledger, or a newer copy of this one, has committed": (
        lambda _: committed_by_another_ledger(MemoryLane(OK).after_run()),
        "NewerCommit", "adopt-ledger lane --reason …",
    ),
    "a topic was deleted, or made again with fewer partitions": (
        lambda _: deleted(MemoryLane(OK).after_run()),
        "TopicChanged", "skip lane --topic orders --partition 0 --gone --reason …",
    ),
    "a topic was deleted and made again, or truncated": (
        lambda _: recreated(MemoryLane(OK, OK).after_run()),
        "TopicChanged", "reset lane --topic orders --to earliest --reason …",
    ),
    "retention took unsettled records under `on_expired: fail`": (
        lambda _: expired(on_expired="fail"),
        "RetentionPassed", "skip lane --topic orders --partition 0 --to earliest --reason …",
    ),
    "a partition is too far behind under the policy `fail`": (
        lambda _: expired(max_offset_behind={"offsets": 2, "policy": "fail"}), "TooFarBehind", "skip lane"
    ),
    "too many new records fail": (
        lambda _: stopped_by_the_breaker(), "TooManyFailures", "run lane --no-breaker"
    ),
    "dead letters are not acknowledged": (lambda _: with_a_refused_letter(), "DeadLetters", "doctor lane"),
    "a partition has no leader": (lambda _: without_a_leader(), "NoLeader", None),
    "a partition is paused": (lambda _: paused(2), "Paused", "resume lane"),
    "a commit of the tables is missing": (
        lambda _: without_rows(MemoryLane(OK)), "LedgerError", "doctor lane"
    ),
    "the clock is behind the last turn": (lambda _: MemoryLane(OK).after_run(), "ConfigError", "doctor lane"),
    "a backfill's topic was made again, or its rows are lost": (
        lambda _: with_a_backfill(), "TopicChanged", "backfill lane --cancel b --yes"
    ),
}  # fmt: skip
"""By state: a lane in it, the reason that is shown, and the command that ends it, or that leads on."""
PARTIAL = {"DeadLetters", "NoLeader", "Paused"}


@pytest.fixture
def ackline(tmp_path: Path, monkeypatch: Patch) -> MemoryCommand:
    lane = MemoryLane(OK, FAILS, retry={"initial_delay": "0s"}).after_run()
    return MemoryCommand(committed_by_another_ledger(lane), tmp_path, monkeypatch)


def test_each_state_of_the_table_is_tested_here() -> None:
    text = section("docs/semantics.md", "## What a lane stands still for")
    rows = [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines() if line.startswith("| ")]
    assert rows[1:] == list(STATES)


@pytest.mark.parametrize("state", STATES)
def test_i18_what_stands_still_is_the_first_line_of_each_command_that_shows_a_lane(
    state: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    build, reason, wanted = STATES[state]
    ackline = MemoryCommand(build(monkeypatch), tmp_path, monkeypatch)
    options = ["--lane", "backfill-b"] if "backfill" in state else []
    if "clock" in state:
        options = ["--now", (NOON - timedelta(hours=1)).isoformat()]
    begins = f"{'A part of the' if reason in PARTIAL else 'The'} lane stands still ({reason}): "
    commands = [["status", "lane", *options], ["explain", "lane", *options]]
    if not options:
        commands += [["status"], ["doctor", "lane"]]
    elif "clock" in state:
        commands += [["status", *options]]
    else:
        commands += [["doctor", "lane"]]
    unreadable = "missing" in state
    for command in commands:
        shown = ackline(*command)
        if unreadable and not shown.output:  # there is no lane to show: the reason is an error as any other
            assert shown.errors.startswith("ackline: settlement of turn 1 "), command
            continue
        first = shown.output.splitlines()[0]
        assert begins in first, command
        assert wanted is None or f"ackline {wanted}" in first or wanted == "doctor lane", command
    if not unreadable:
        standing = ackline("status", "lane", *options, "--json").json["stands_still"]
        assert (standing["reason"], standing["partial"]) == (reason, reason in PARTIAL)
        assert str(standing["command"]).startswith("None" if wanted is None else f"ackline {wanted}")
    else:
        assert ackline("status", "lane", "--json").error["kind"] == reason


@pytest.mark.parametrize("command", [["status", "lane"], ["explain", "lane"], ["explain", "lane", "orders", "0", "1"]])
def test_nothing_is_promised_of_the_next_run_of_a_lane_that_stands_still(
    ackline: MemoryCommand, command: list[str]
) -> None:
    text = ackline(*command).output
    assert "the first run that is not refused makes it" in text
    assert NEXT not in text


def test_without_a_stand_still_explain_tells_what_the_next_run_does(ackline: MemoryCommand) -> None:
    ackline.lane = MemoryLane(OK, FAILS, retry={"initial_delay": "0s"}).after_run()
    assert "the next run makes it" in ackline("explain", "lane").output
    assert ackline("status", "lane", "--json").json["stands_still"] is None


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("offset", [[], ["orders", "0", "0"]])
def test_the_retry_of_a_paused_partition_is_made_by_the_first_run_after_the_pause(
    ackline: MemoryCommand, partitions: int, offset: list[str]
) -> None:
    lane = ackline.lane = MemoryLane(FAILS, partitions=partitions, retry={"initial_delay": "0s"}).after_run()
    lane.perform(TurnKind.PAUSE, {TP: 0})
    text = ackline("explain", "lane", *offset).output
    assert "the first run after `ackline resume lane` makes it" in text
    assert NEXT not in text


def test_the_overview_calls_a_pipeline_stopped_whose_every_run_stops(ackline: MemoryCommand) -> None:
    (pipeline,) = ackline("status", "--json").json["pipelines"]
    assert pipeline["state"] == "stuck"
    assert "adopt-ledger" in pipeline["problem"]
    ackline.lane = with_a_refused_letter()
    (pipeline,) = ackline("status", "--json").json["pipelines"]
    assert (pipeline["state"], pipeline["stands_still"]["reason"]) == ("stuck", "DeadLetters")
