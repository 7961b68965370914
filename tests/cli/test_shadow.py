"""A look before it counts, as commands: a shadow, what it makes of the rows, and its promotion (S87)."""

import json
import os
import shlex
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.backfill.shadow_lane import FILE, SECOND, order, rows_of, shop
from tests.cli.disk_command import DiskCommand
from tests.e2e.documents import blocks, section
from tests.support.memory_lane import NOON
from tests.worker.disk_lane import DiskLane, lane_of

BEGIN = ["backfill", "lane", "orders", "--handler", SECOND, "--shadow", "--id", "v2"]
DIFF = ["diff", "lane", "live", "backfill-v2", "--rows", "prices"]


@pytest.fixture
def ackline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DiskCommand]:
    """The command, over a live lane that has handled all orders."""
    with shop() as lane:
        yield DiskCommand(lane, tmp_path, monkeypatch, FILE)


def test_a_dry_run_says_that_it_is_a_shadow_and_which_tables_get_rows(ackline: DiskCommand) -> None:
    assert "It is a shadow: rows go to prices__v2 beside prices" in ackline(*BEGIN, "--dry-run").output
    assert ackline(*BEGIN, "--dry-run", "--json").json["shadow_tables"] == ["prices__v2"]
    done = ackline(*BEGIN, "--yes", "--json").json
    assert (done["settled"], done["outcomes"]) == (True, {"acked": 3, "dead": 1, "skipped": 1})
    [listed] = ackline("backfill", "lane", "--list", "--json").json["backfills"]
    assert listed["arguments"] == f"orders --handler {SECOND} --shadow"
    assert ackline(*BEGIN, "--yes", "--json").json == done, "a resume with the same arguments"
    other = ackline(*BEGIN[:-3], "--id", "v2", "--yes", "--json").error
    assert (other["key"], other["exit_status"]) == ("--shadow", 2)


def test_s87_the_diff_of_rows_is_one_object_for_a_program_and_shows_no_value(ackline: DiskCommand) -> None:
    ackline(*BEGIN, "--yes")
    assert ackline(*DIFF, "--json").json == {
        "same": 1,
        "changed": 2,
        "only": {"live": 2, "backfill-v2": 0},
        "columns": {"price": 2},
        "examples": [
            {"topic": "orders", "partition": 0, "offset": 0, "columns": ["price"]},
            {"topic": "orders", "partition": 0, "offset": 2, "columns": ["price"]},
        ],
    }
    text = ackline(*DIFF).output
    assert "1 record has the same rows in both lanes, 2 other ones." in text
    assert "2 have rows in live only, 0 in backfill-v2 only." in text
    assert "orders[0] 2: price" in text
    assert "3.99" not in text


def test_values_are_shown_at_a_terminal_alone(ackline: DiskCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    ackline(*BEGIN, "--yes")
    for arguments in ([*DIFF, "--show-values"], [*DIFF, "--show-values", "--json"]):
        refused = ackline(*arguments)
        assert (refused.status, "needs a terminal" in refused.errors) == (2, True)
    monkeypatch.setattr("ackline.cli.dead.is_terminal", lambda: True)
    assert ackline(*DIFF, "--show-values", "--json").status == 2
    text = ackline(*DIFF, "--show-values").output
    assert "  live: price=Decimal('3.99" in text
    assert "  backfill-v2: price=Decimal('4.00" in text


@pytest.mark.parametrize(("arguments", "key"), [
    (["--rows", "price"], "--rows"), (["--rows", "prices", "--records"], "--records"),
    (["--show-values"], "--show-values"),
])  # fmt: skip
def test_what_can_not_be_compared_is_refused_by_its_option(
    arguments: list[str], key: str, ackline: DiskCommand
) -> None:
    ackline(*BEGIN, "--yes")
    error = ackline("diff", "lane", "live", "backfill-v2", *arguments, "--json").error
    assert (error["key"], error["exit_status"]) == (key, 2)


def test_a_shadow_leaves_the_real_rows(ackline: DiskCommand) -> None:
    before = rows_of(ackline.lane, "prices")
    ackline(*BEGIN, "--yes")
    assert rows_of(ackline.lane, "prices") == before


def test_s87_a_promotion_is_a_dry_run_until_it_is_confirmed_and_both_lanes_are_listed_with_it(
    ackline: DiskCommand,
) -> None:
    ackline("backfill", "lane", "orders", "--shadow", "--id", "v2", "--yes")
    promote = ["backfill", "lane", "--id", "v2", "--promote"]
    dry = ackline(*promote, "--dry-run")
    assert "Backfill v2-promoted of lane would read 5 offsets of 1 partition again:" in dry.output
    assert "It promotes backfill-v2" in dry.output
    assert ackline(*promote, "--json").error["key"] == "--yes"
    assert ackline("backfill", "lane", "--id", "v2-promoted", "--yes", "--json").error["key"] == "--id", "not begun"
    done = ackline(*promote, "--yes", "--json").json
    assert (done["lane"], done["settled"], done["outcomes"]) == ("backfill-v2-promoted", True, {"acked": 5})
    assert done["tables"] == {"prices": {"before": 1, "after": 2}}
    assert ackline(*promote, "--yes", "--json").json == done
    of_both = {each["id"]: each for each in ackline("backfill", "lane", "--list", "--json").json["backfills"]}
    assert (of_both["v2"]["promoted_by"], of_both["v2-promoted"]["promotes"]) == ("v2-promoted", "v2")
    assert "orders --shadow (promoted by v2-promoted)" in " ".join(ackline("backfill", "lane", "--list").output.split())
    found = ackline("diff", "lane", "backfill-v2", "backfill-v2-promoted", "--rows", "prices", "--json").json
    assert (found["same"], found["changed"]) == (5, 0)


def test_the_tables_of_a_shadow_are_named_until_their_folders_are_removed_and_nothing_needs_them_then(
    ackline: DiskCommand,
) -> None:
    folder = ackline.lane.root / "lane" / "outputs" / "prices__v2"
    named = f"Tables of the shadow v2 stay until you remove their folders: {folder}. Only"
    begin = ["backfill", "lane", "orders", "--shadow", "--id", "v2", "--yes"]
    promote = ["backfill", "lane", "--id", "v2", "--promote", "--yes"]
    assert named not in ackline(*begin, "--max-records", "2").output, "it is not settled"
    assert named in ackline(*begin).output
    assert named in ackline(*promote).output
    shutil.rmtree(folder)
    for arguments in (begin, promote):
        again = ackline(*arguments)
        assert (again.status, "shadow v2" in again.output) == (0, False)
    assert ackline("backfill", "lane", "orders", "--id", "other", "--yes").status == 0
    ackline.lane.produce(order(5, "6.00"))
    ackline.lane.run()
    ackline("backfill", "lane", "orders", "--shadow", "--id", "v3", "--yes")
    shutil.rmtree(ackline.lane.root / "lane" / "outputs" / "prices__v3")
    assert ackline("backfill", "lane", "--id", "v3", "--promote", "--yes").status == 0, "it needs none"


def test_a_promotion_of_many_offsets_is_above_the_limit_as_a_backfill_is(ackline: DiskCommand) -> None:
    ackline("backfill", "lane", "orders", "--shadow", "--id", "v2", "--yes")
    file = Path(os.environ["ACKLINE_PIPELINES"], "lane.yaml")
    whole = json.loads(file.read_text())
    file.write_text(json.dumps(whole | {"backfill": {"confirm_above": 4}}))
    assert (
        "more than `backfill.confirm_above` (4)"
        in ackline("backfill", "lane", "--id", "v2", "--promote", "--dry-run").output
    )


def sum_of_prices(lane: DiskLane) -> float:
    return sum(float(price) for _, price, _ in rows_of(lane, "prices"))


def test_s85_s87_a_wrong_price_of_two_hours_is_corrected_as_the_documents_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comment in the block is a line of the command's output. Of eight orders, those from 10:00 on are wrong."""
    wrong, mended = "tests.backfill.prices:charges_more", "tests.backfill.prices:mended"
    file = {"handler": mended, "outputs": FILE["outputs"][:1], "backfill": {"handlers": [mended]}}
    with lane_of(file) as lane:
        for handler, hours in ((mended, (8, 9)), (wrong, (10, 10.5, 11, 11.5)), (mended, (12, 12))):
            lane.settings["handler"] = handler
            for hour in hours:
                lane.produce(order(1, "20.00"), time=NOON + timedelta(hours=hour - 12))
            lane.run()
        ackline, sums = DiskCommand(lane, tmp_path, monkeypatch, file), [sum_of_prices(lane)]
        [block] = blocks(section("docs/semantics.md", "### Correct a table by replaying it"))
        for line in block.text.splitlines():
            command, _, comment = line.replace(" orders ", " lane ").partition("  # ")
            done = ackline(*shlex.split(command.replace("handlers.prices", "tests.backfill.prices"))[1:])
            assert (done.status, comment.strip() in done.output + done.errors) == (0, True), (line, done)
            sums.append(sum_of_prices(lane))
        assert sums == [200, 200, 200, 200, 160]
        assert [row[2] for row in rows_of(lane, "prices")] == [*["backfill-price-promoted"] * 4, *["live"] * 4]
