"""`ackline dead` groups dead records by error class and by the line that raised, in one pipeline and in all of them."""

from pathlib import Path

import pytest

from ackline.tables import chosen
from tests.cli.memory_command import Finished
from tests.support.command import run_main
from tests.tables.lane_rows import NOON
from tests.tables.lanes import PRICE, TAX, begin_dead_lane, pipeline_file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pipelines `shop` with three dead records, `mail` with one, and `idle`, which has not run."""
    monkeypatch.setenv("ACKLINE_PIPELINES", str(tmp_path))
    monkeypatch.setenv("ACKLINE_AUDIT", str(tmp_path / "audit"))
    begin_dead_lane(tmp_path, "shop", {2: PRICE, 3: TAX, 4: PRICE})
    begin_dead_lane(tmp_path, "mail", {7: TAX})
    pipeline_file(tmp_path, "idle")
    return tmp_path


def command(*arguments: str) -> Finished:
    return Finished(*run_main(("dead", *arguments)))


def groups(found: Finished) -> list[tuple[str | None, int]]:
    return [(each["error_place"], each["count"]) for each in found.json["dead"]]


def test_a_group_is_a_class_at_the_place_of_the_last_failed_attempt(folder: Path) -> None:
    assert groups(command("shop", "--json")) == [(PRICE, 2), (TAX, 1)]
    lines = command("shop").output.splitlines()
    assert lines[0].split() == ["error", "class", "place", "records", "first", "last"]
    assert [PRICE in lines[1], TAX in lines[2]] == [True, True]


def test_beyond_the_limit_of_a_read_the_place_of_older_records_is_not_known(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen, "MOST_PLACES", 0)
    assert groups(command("shop", "--json")) == [(None, 3)]


def test_all_lists_the_groups_of_every_pipeline_together(folder: Path) -> None:
    noon = NOON.isoformat()
    same = {"error_class": "KeyError", "count": 2, "first": noon, "last": noon}
    assert command("--all", "--json").json == {
        "dead": [
            {**same, "error_place": PRICE, "pipelines": ["shop"]},
            {**same, "error_place": TAX, "pipelines": ["mail", "shop"]},
        ],
        "total": 4, "unreadable": [],
    }  # fmt: skip
    assert "mail, shop" in command("--all").output
    assert command("--all", "--error-class", "ValueError", "--json").json["total"] == 0
    assert command("--all", "--error-class", "ValueError").output == "No record is dead.\n"


def test_a_pipeline_that_cannot_be_read_is_named_and_hides_no_other(folder: Path) -> None:
    (folder / "broken.yaml").write_text("name: broken\nhandlr: x\n")
    for log in (folder / "audit" / "mail").rglob("_delta_log/*.json"):
        log.write_text("{torn")
    found = command("--all")
    assert found.status == 1
    assert ("broken can't be read: " in found.output, "mail can't be read: " in found.output) == (True, True)
    assert PRICE in found.output
    as_json = command("--all", "--json")
    assert (as_json.status, '"pipeline": "broken"' in as_json.output, PRICE in as_json.output) == (1, True, True)


@pytest.mark.parametrize("arguments", [("shop", "--all"), ("--all", "--redrive"), ("--all", "--lane", "backfill-x"),
                                       ("--all", "--from", "2h ago"), ()])  # fmt: skip
def test_all_takes_no_name_and_nothing_that_is_about_one_pipeline(folder: Path, arguments: tuple[str, ...]) -> None:
    assert command(*arguments, "--json").error["key"] == ("--all" if arguments else "NAME")
