"""Restore drills: whatever is set back to an older copy, the lane goes on whole, or stops and names what decides.

`MATRIX` is the table in docs/runbook.md. A drill fails if a run goes on in silence with rows missing or doubled, if an
error names no command, or if the command that it names does not lead to the end of the log.
"""

import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ackline.outputs.expected import older_copies_of_backfills
from tests.chaos import drill_handlers
from tests.chaos.drill import Drill
from tests.support.memory_lane import FAILS_ONCE, OK

WHOLE, MISSING, TWICE = "each row once", "rows are missing", "rows are there twice"
ADOPT, RESET = ("adopt-ledger",), ("reset",)
MATRIX: dict[tuple[str, ...], tuple[tuple[str, ...], set[str]]] = {
    ("audit",): (ADOPT, {WHOLE}),
    ("outputs",): (RESET, {MISSING}),
    ("topics",): (RESET, {WHOLE}),
    ("made again",): (RESET, {TWICE}),
    ("group",): ((), {WHOLE}),
    ("file",): ((), {WHOLE}),
    ("audit", "outputs"): (ADOPT, {WHOLE}),
    ("audit", "topics"): (ADOPT, {WHOLE}),
    ("audit", "made again"): ((*RESET, *ADOPT), {TWICE}),
    ("audit", "group"): (RESET, {WHOLE}),
    ("audit", "file"): (ADOPT, {WHOLE}),
    ("outputs", "topics"): (RESET, {MISSING}),
    ("outputs", "made again"): (RESET, {MISSING, TWICE}),
    ("outputs", "group"): (RESET, {MISSING}),
    ("outputs", "file"): (RESET, {MISSING}),
    ("topics", "group"): (RESET, {WHOLE}),
    ("topics", "file"): (RESET, {WHOLE}),
    ("made again", "group"): (RESET, {TWICE}),
    ("made again", "file"): (RESET, {TWICE}),
    ("group", "file"): ((), {WHOLE}),
}
"""By what is set back: the commands that the errors advise, and what the output table holds at the end. To Kafka, a
topic that was made again has other records, also where these are copies of the old ones: rows of both stay."""


QUICK = [parts for parts in MATRIX if len(parts) == 1 or parts in (("audit", "outputs"), ("audit", "group"))]
DRILLS = [
    pytest.param(parts, marks=[pytest.mark.release] * (parts not in QUICK), id=" and ".join(parts)) for parts in MATRIX
]
MakeDrill = Callable[..., Drill]


@pytest.fixture(scope="module")
def stories() -> dict[str, Drill]:
    """The drills that have told their story, by its moment and its options."""
    return {}


@pytest.fixture
def drill(
    stories: dict[str, Drill], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> MakeDrill:
    """Returns a drill that was copied at a moment and, unless `on` is false, has gone on."""

    def make(moment: str = "between turns", on: bool = True, **options: Any) -> Drill:
        key = f"{moment} {on} {options}"
        if key not in stories:
            with pytest.MonkeyPatch.context() as patch:
                story = Drill(tmp_path_factory.mktemp("story"), patch, **options).until(moment)
                stories[key] = story.goes_on() if on else story
        return stories[key].copied(tmp_path, monkeypatch)

    return make


def rows_of(drill: Drill) -> set[str]:
    """What the output table holds of the acked records of the live lane."""
    rows = drill.rows()
    found = {MISSING} if drill.acked() - set(rows) else set()
    return (found | ({TWICE} if any(number > 1 for number in rows.values()) else set())) or {WHOLE}


def is_whole(drill: Drill, rows: set[str]) -> None:
    """Each record has its one terminal outcome, and the table what is expected."""
    assert rows_of(drill) == rows
    unpublished = r"I16.* (is not in|output table totals has no turn)"
    violations = [line for line in drill.violations() if MISSING not in rows or not re.match(unpublished, line)]
    assert violations == []


@pytest.mark.parametrize("parts", DRILLS)
def test_what_is_set_back_goes_on_or_is_decided_by_the_command_that_the_error_names(
    parts: tuple[str, ...], drill: MakeDrill
) -> None:
    commands, rows = MATRIX[parts]
    done = drill().restore(*parts).recover()
    assert tuple(done.commands) == commands
    is_whole(done, rows)
    backfills = older_copies_of_backfills(done.lane.adapters().store)
    assert list(backfills) == (["backfill-b"] if ("audit" in parts) != ("outputs" in parts) else [])
    ended = "settled" if "audit" not in parts or "outputs" in parts else "cancelled"
    assert done.end_backfill() == ended
    assert done.violations("backfill-b") == [] or "outputs" in parts


@pytest.mark.deep
@pytest.mark.parametrize(
    ("moment", "parts"),
    [
        ("planned", ("audit",)),
        ("replayed", ("audit", "outputs")),
        ("replayed", ("audit", "group")),
        ("settled", ("outputs",)),
    ],
)
def test_a_copy_from_the_middle_of_a_turn_takes_one_more_command_at_most(
    moment: str, parts: tuple[str, ...], drill: MakeDrill
) -> None:
    commands, rows = MATRIX[parts]
    done = drill(moment).restore(*parts).recover()
    assert done.commands in (list(commands), ["void", *commands])
    is_whole(done, rows)


@pytest.mark.parametrize(
    ("moment", "parts", "commands", "rows"),
    [
        ("between turns", ("audit",), ADOPT, {WHOLE}),
        ("claimed", ("audit",), ("void", *ADOPT), {WHOLE}),
        *(
            pytest.param(*case, marks=pytest.mark.deep)
            for case in [
                ("settled", ("audit",), ("void", *ADOPT), {WHOLE}),
                ("between turns", ("outputs",), RESET, {MISSING}),
                ("claimed", ("audit", "outputs"), ADOPT, {WHOLE}),
            ]
        ),
    ],
)
def test_i7_at_most_once_no_record_is_handed_out_again_by_what_was_set_back(
    moment: str, parts: tuple[str, ...], commands: tuple[str, ...], rows: set[str], drill: MakeDrill
) -> None:
    done = drill(moment, once=True).restore(*parts).recover()
    assert tuple(done.commands) == commands
    is_whole(done, rows)
    live = Counter(offset for _, offset, _ in drill_handlers.CALLS)
    of_backfill = 1
    assert [offset for offset, calls in live.items() if calls > 1 + (offset < 5) * of_backfill] == []


def test_an_older_copy_of_a_table_is_found_although_an_epoch_has_begun_since(drill: MakeDrill) -> None:
    done = drill(on=False).goes_on(reset=8).restore("outputs").recover()
    assert done.commands == ["reset"]
    assert "holds turn 2 of lane live, epoch 0, and the ledger has published turn" in done.told[-2]
    done.lane.produce(OK)
    done.recover()
    assert done.commands == ["reset"], "the reset has taken the table as it is"


def test_a_copy_that_lacks_only_the_newest_turn_of_a_table_is_found(drill: MakeDrill) -> None:
    done = drill(on=False).goes_on(turns=0).restore("outputs").recover()
    assert done.commands == ["reset"]


def test_an_older_copy_of_a_table_is_found_behind_the_adoption_of_a_copy_that_is_less_old(drill: MakeDrill) -> None:
    done = drill(on=False)
    shutil.copytree(done.live / "outputs", done.folder / "outputs")
    done.lane.run()
    done.take_copy().goes_on().restore("audit")
    shutil.rmtree(done.live / "outputs")
    shutil.copytree(done.folder / "outputs", done.live / "outputs")
    done.recover()
    assert done.commands == ["adopt-ledger", "reset"]


def test_an_older_copy_of_a_table_is_found_although_the_ledger_was_adopted_and_has_published_since(
    drill: MakeDrill,
) -> None:
    done = drill().until("between turns").goes_on().restore("audit").recover()
    assert done.commands == ["adopt-ledger"]
    done.restore("outputs").recover()
    done.lane.produce(OK)
    done.recover()
    assert done.commands == ["adopt-ledger", "reset"], "the reset has taken the table as it is"
    assert "older ones of the lane, and the ledger has published turn" in "".join(done.told)


def test_a_reset_that_another_error_has_advised_names_the_table_that_is_an_older_copy(drill: MakeDrill) -> None:
    done = drill().restore("outputs", "topics").recover()
    assert "--partition 0 --to" in done.told[-2]
    assert (
        "The output table totals holds turn 2 of lane live, epoch 0, and the ledger has published turn" in done.told[-1]
    )
    assert "Records that are handled again publish their rows there again" in done.told[-1]


def test_a_reset_to_the_floor_of_the_copy_publishes_the_rows_again_that_the_older_table_lacks(drill: MakeDrill) -> None:
    floor = drill(on=False).lane.floor()
    done = drill().restore("outputs").recover(str(floor))
    assert done.acked() <= set(done.rows())


OLDER_FILES: dict[str, tuple[dict[str, Any], tuple[str, ...], set[str]]] = {
    "another table": ({"outputs": [{"from": "source", "table": "more"}]}, (), {MISSING}),
    "another guarantee": ({"guarantee": "no_guarantee", "ack_topic": None, "in_flight": None}, RESET, {WHOLE}),
}


@pytest.mark.parametrize("older", OLDER_FILES)
def test_an_older_file_is_refused_where_it_would_drop_what_is_pending_and_otherwise_does_what_it_says(
    older: str, drill: MakeDrill
) -> None:
    settings, commands, rows = OLDER_FILES[older]
    done = drill(older=settings)
    done.lane.produce(FAILS_ONCE)
    done.lane.run()
    done.restore("file").recover()
    assert (tuple(done.commands), rows_of(done)) == (commands, rows)
