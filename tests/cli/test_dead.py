"""`ackline dead`: the records that were given up by error class, one of them with its letter, and their redrive."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ackline.answers.dead import MOST_BYTES, text_of
from ackline.cli.dead import printable
from ackline.ledger.turns import TurnKind
from ackline.tables.store import LedgerStore
from tests.audit.story import begin_story
from tests.cli.memory_command import Finished, MemoryCommand
from tests.support.memory import ArrivedLetter
from tests.support.memory_adapters import MemoryAdapters
from tests.support.memory_lane import DEAD, FAILS, OK, TP, MemoryBackfill, MemoryLane
from tests.tables.lane_rows import NOON


@pytest.fixture
def lane() -> MemoryLane:
    """A lane with one record that its handler declared dead, and two whose retries are used up."""
    return MemoryLane(OK, DEAD, FAILS, FAILS, OK, retry={"max_retries": 0}).after_run()


def test_dead_records_are_listed_by_error_class_with_first_and_last_time(
    lane: MemoryLane, ackline: MemoryCommand
) -> None:
    found = ackline("dead", "lane", "--json").json
    noon = lane.world.now.isoformat()
    of_all = {"error_place": None, "first": noon, "last": noon}
    assert found == {
        "pipeline": "lane",
        "lane": "live",
        "dead": [
            {**of_all, "error_class": "ValueError", "count": 2, "epochs": {"0": 2}},
            {**of_all, "error_class": "Dead", "count": 1, "epochs": {"0": 1}},
        ],
        "total": 3,
    }
    assert ackline("dead", "lane", "--error-class", "Dead", "--json").json["total"] == 1
    assert "ValueError" in ackline("dead", "lane").output
    assert "No record is dead." in ackline("dead", "lane", "--error-class", "KeyError").output


def test_over_several_epochs_each_count_is_named_with_its_epoch(lane: MemoryLane, ackline: MemoryCommand) -> None:
    assert "by epoch" not in ackline("dead", "lane").output
    lane.perform(TurnKind.RESET, {TP: 3})
    lane.run()
    (values, dead) = ackline("dead", "lane", "--json").json["dead"]
    assert (values["count"], values["epochs"], dead["epochs"]) == (2, {"1": 1, "0": 1}, {"0": 1})
    lines = [line.split() for line in ackline("dead", "lane").output.splitlines()]
    assert lines[0][-2:] == ["by", "epoch"]
    assert [" ".join(line[-6:]) for line in lines[1:2]] == ["1 in 1, 1 in 0"]
    text = ackline("dead", "lane", "--redrive", "--dry-run").output
    assert "would read 3 offsets of 1 partition again:" in text
    assert "Chosen by the newest outcome that each offset has: 1 by that of epoch 1, 2 by that of epoch 0." in text
    dry = ackline("dead", "lane", "--redrive", "--dry-run", "--json").json
    assert (dry["asked"]["offsets"], dry["of_epochs"]) == (3, {"1": 1, "0": 2})


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


@pytest.mark.parametrize(("content", "text"), [
    (b"plain \xc3\xbc", "plain ü"),
    (b"\x1b[2Jgone\r\x07", "\\x1b[2Jgone\\r\\x07"),
    ("\u202egnihton".encode(), "\\u202egnihton"),
    (b"\xff\xfe", "0xfffe"),
    (b"", ""),
    (None, "null"),
    (b"x" * (MOST_BYTES + 2), "x" * MOST_BYTES + " … and 2 more bytes"),
    (b"\xc3\xbc" * MOST_BYTES, "ü" * (MOST_BYTES // 2) + f" … and {MOST_BYTES:,} more bytes"),
])  # fmt: skip
def test_a_payload_on_a_terminal_gives_it_no_orders_and_has_a_limit(content: bytes | None, text: str) -> None:
    assert printable(text_of(content)) == text


def test_only_a_value_has_several_lines_on_a_terminal() -> None:
    """A header is chosen by the producer, and must not look like a line of the command."""
    assert (printable("a\n  b"), printable("a\n  b", lines=True)) == ("a\\n  b", "a\n  b")


SECRET = b"card 4711"
LETTER = {
    "ackline.pipeline": "orders", "ackline.lane": "live", "ackline.epoch": "0", "ackline.turn": "2",
    "ackline.topic": "orders", "ackline.partition": "0", "ackline.offset": "16", "ackline.attempts": "2",
    "ackline.error_class": "HTTPError",
}  # fmt: skip
RECORD = ("orders", "0", "16")


class Dead:
    """The command on a lane with one dead record, 16, whose letter is in the topic `dead`."""

    def __init__(self, store: LedgerStore, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.lane = MemoryLane()
        self.lane.world.history.append(ArrivedLetter(SECRET, b"key 4711", LETTER, False, True))
        self.command = MemoryCommand(self.lane, folder, monkeypatch)
        self.opened = 0
        adapters = self.lane.adapters()
        pipeline = adapters.pipeline.model_copy(update={"name": "orders"})
        begin_story(store, **(settings or {"dead_letter": {"topic": "dead"}}))

        @contextmanager
        def opened(*_: Any, **__: Any) -> Iterator[MemoryAdapters]:
            self.opened += 1
            yield replace(adapters, store=store, pipeline=pipeline)

        monkeypatch.setattr("ackline.cli.dead.opened", opened)

    def __call__(self, *arguments: str) -> Finished:
        return self.command("dead", "orders", *arguments)


@pytest.fixture
def dead(store: LedgerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dead:
    return Dead(store, tmp_path, monkeypatch)


def test_a_dead_record_is_one_object_with_its_letter_and_without_its_payload(dead: Dead) -> None:
    found = dead(*RECORD, "--json").json
    letter = found.pop("letter")
    assert found == {
        "pipeline": "orders", "lane": "live", "topic": "orders", "partition": 0, "offset": 16, "epoch": 0, "turn": 2,
        "run_id": "run-2", "error_class": "HTTPError", "error_message": found["error_message"], "attempts": 2,
        "error_place": None,
        "failed_at": found["failed_at"], "dead_at": NOON.isoformat(), "letter_topic": "dead",
    }  # fmt: skip
    assert (letter["headers"], letter["source_headers"]) == (LETTER, ["trace", "trace"])
    assert (letter["key_bytes"], letter["value_bytes"], letter.keys() & {"key", "value"}) == (8, 9, set())


def test_i13_the_text_has_attempts_error_and_headers_and_nothing_of_the_record(dead: Dead) -> None:
    text = dead(*RECORD).output
    for words in (
        "Offset 16 of orders[0] is dead after 2 attempts (HTTPError)", "attempt 1: failed", "attempt 2: failed",
        "ackline.error_class: HTTPError", "headers of the record: trace, trace", "key: 8 bytes, value: 9 bytes",
    ):  # fmt: skip
        assert words in text
    assert "4711" not in text + dead(*RECORD, "--json").output
    assert "t-1" not in text + dead(*RECORD, "--json").output


def test_i13_the_payload_is_printed_at_a_terminal_alone(dead: Dead, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ((), ("--json",)):
        refused = dead(*RECORD, "--show-value", *options)
        assert (refused.status, refused.output, dead.opened) == (2, "", 0)
        assert "--show-value prints the payload of a record, so it needs a terminal" in refused.errors
    monkeypatch.setattr("ackline.cli.dead.is_terminal", lambda: True)
    shown = dead(*RECORD, "--show-value").output
    for words in ("value: card 4711", "key: key 4711", "trace (of the record): t-1", "trace (of the record): t-2"):
        assert words in shown
    letter = dead(*RECORD, "--show-value", "--json").json["letter"]
    assert (letter["value"], letter["source_headers"]) == ("card 4711", [["trace", "t-1"], ["trace", "t-2"]])
    assert dead("--show-value", "--json").error["key"] == "--show-value"
    assert dead("--redrive", "--show-value", "--json").error["key"] == "--show-value"


@pytest.mark.parametrize(("record", "words"), [
    (("orders", "0", "17"), "offset 17 is not dead in the lane live: Offset 17 of orders[0] was acked at attempt 1"),
    (("orders", "0", "15"), "offset 15 is not dead in the lane live: Offset 15 of orders[0] failed once"),
    (("orders", "0", "99"), "offset 99 is not dead"),
    (("orders", "7", "0"), "it does not have this partition"),
    (("orders", "x", "0"), "x is not an offset"),
    (("orders", "0", "-"), "name it as TOPIC PARTITION OFFSET"),
    (("a b", "0", "0"), "name it as TOPIC PARTITION OFFSET"),
    (("orders", str(2**31), "0"), "is not a partition"),
    (("orders", "0"), "name it as TOPIC PARTITION OFFSET"),
])  # fmt: skip
def test_what_is_no_dead_record_is_refused(record: tuple[str, ...], words: str, dead: Dead) -> None:
    error = dead(*record, "--json").error
    assert (error["exit_status"], words in error["error"]) == (2, True), error


def test_a_record_whose_letter_is_gone_is_shown_by_its_tables(dead: Dead) -> None:
    dead.lane.world.history.clear()
    body = dead(*RECORD, "--json").json
    assert (body["letter"], body["letter_topic"], body["attempts"]) == (None, "dead", 2)
    assert "The topic dead does not hold its letter any more." in dead(*RECORD).output


def test_a_record_without_a_letter_is_shown_by_its_tables(
    store: LedgerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = Dead(store, tmp_path, monkeypatch, dead_letter="none")
    assert json.loads(dead(*RECORD, "--json").output)["letter_topic"] is None
    assert "No letter was sent: the turn was planned under `dead_letter: none`." in dead(*RECORD).output
