"""`ackline dead`: the dead records by error class, and their redrive."""

from pathlib import Path

import pytest

from ackline.actions.dead import MOST_BYTES, text_of
from ackline.cli.dead import printable
from ackline.ledger.turns import TurnKind
from tests.cli.memory_command import MemoryCommand
from tests.support.memory_lane import DEAD, FAILS, OK, TP, MemoryBackfill, MemoryLane


@pytest.fixture
def lane() -> MemoryLane:
    """A lane with one record that its handler declared dead, and two whose retries are used up."""
    return MemoryLane(OK, DEAD, FAILS, FAILS, OK, retry={"max_retries": 0}).after_run()


@pytest.fixture
def ackline(lane: MemoryLane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryCommand:
    """The command on that lane."""
    return MemoryCommand(lane, tmp_path, monkeypatch)


def test_dead_records_are_listed_by_error_class_with_first_and_last_time(
    lane: MemoryLane, ackline: MemoryCommand
) -> None:
    found = ackline("dead", "lane", "--json").json
    noon = lane.world.now.isoformat()
    assert found == {
        "pipeline": "lane",
        "lane": "live",
        "dead": [
            {"error_class": "ValueError", "count": 2, "first": noon, "last": noon},
            {"error_class": "Dead", "count": 1, "first": noon, "last": noon},
        ],
        "total": 3,
    }
    assert ackline("dead", "lane", "--error-class", "Dead", "--json").json["total"] == 1
    assert "ValueError" in ackline("dead", "lane").output
    assert "No record is dead." in ackline("dead", "lane", "--error-class", "KeyError").output


def test_a_record_that_a_later_epoch_has_settled_otherwise_is_not_dead(
    lane: MemoryLane, ackline: MemoryCommand
) -> None:
    lane.perform(TurnKind.RESET, {TP: 2})
    lane.world.handle = lambda record: None
    lane.run()
    assert [(each["error_class"], each["count"]) for each in ackline("dead", "lane", "--json").json["dead"]] == [
        ("Dead", 1)
    ]


def test_s72_a_redrive_is_a_backfill_of_the_dead_records_and_a_dry_run_until_it_is_confirmed(
    lane: MemoryLane, ackline: MemoryCommand
) -> None:
    written = len(lane.world.history)
    redrive = ["dead", "lane", "--redrive", "--error-class", "ValueError", "--id", "again"]
    assert ackline(*redrive, "--json").error["key"] == "--yes"
    assert ackline(*redrive, "--dry-run", "--json").json["asked"]["offsets"] == 2
    assert len(lane.world.history) == written
    lane.world.handle = lambda record: None
    done = ackline(*redrive, "--yes", "--json").json
    assert (done["settled"], done["outcomes"]) == (True, {"acked": 2})
    assert sorted(MemoryBackfill(lane, "again").ended()) == [2, 3]
    assert ackline("backfill", "lane", "--id", "again", "--json").json == done


def test_what_chooses_a_redrive_is_refused_without_it(ackline: MemoryCommand) -> None:
    assert ackline("dead", "lane", "orders:0", "--json").error["key"] == "--redrive"
    assert ackline("dead", "lane", "--from", "2h ago", "--json").error["key"] == "--redrive"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"plain \xc3\xbc", "plain ü"),
        (b"\x1b[2Jgone\r\x07", "\\x1b[2Jgone\\r\\x07"),
        ("\u202egnihton".encode(), "\\u202egnihton"),
        (b"\xff\xfe", "0xfffe"),
        (b"", ""),
        (None, "null"),
        (b"x" * (MOST_BYTES + 2), "x" * MOST_BYTES + " … and 2 more bytes"),
        (b"\xc3\xbc" * MOST_BYTES, "ü" * (MOST_BYTES // 2) + f" … and {MOST_BYTES:,} more bytes"),
    ],
)
def test_a_payload_on_a_terminal_gives_it_no_orders_and_has_a_limit(content: bytes | None, text: str) -> None:
    assert printable(text_of(content)) == text


def test_only_a_value_has_several_lines_on_a_terminal() -> None:
    """A header is chosen by the producer, and must not look like a line of the command."""
    assert (printable("a\n  b"), printable("a\n  b", lines=True)) == ("a\\n  b", "a\n  b")
