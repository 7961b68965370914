"""The tables that commands print: whole in a narrow terminal, and with every text as it is."""

import re
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta, timezone
from io import StringIO

import pytest
from rich.console import Console

from ackline.cli import tables
from ackline.cli.audit import _print_table
from ackline.ledger.offsets import TopicPartition
from ackline.spark.progress import Handled
from tests.support.memory_lane import FAILS, OK, MemoryLane


class Terminal(StringIO):
    """An output that is a terminal."""

    def isatty(self) -> bool:
        return True


def lines_of(prints: Callable[[Console], object], stream: StringIO | None = None, width: int = 80) -> list[str]:
    """Returns the lines that a function prints to a terminal, or to another stream."""
    out = stream or Terminal()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        patch.setenv("COLUMNS", str(width))
        patch.setenv("LINES", "40")  # a width alone is ignored where the terminal is dumb
        patch.setenv("TERM", "dumb")
        prints(tables.console())
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_run_shows_its_figures_whole_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr("sys.stderr", out)
    for name, value in (("COLUMNS", "80"), ("LINES", "40"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    with tables.progress(quiet=False) as shown:
        for handled in (Handled(1_200_000, 4_000_000, 4_000.0), Handled(7, None, 1.0, "total"), Handled(0, 10)):
            shown(handled)
            shown._shown.refresh()
        shown.begin("starting Spark")
        shown._shown.refresh()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
    lines = [line.strip() for line in re.split(r"[\r\n]+", text)]
    for figures in ("1,200,000 of 4,000,000 records · 4,000/s · 11 min 40 s left", "step total: 7 tuples · 1/s"):
        assert any(line.startswith("replaying") and line.endswith(figures) for line in lines), lines
    assert any(line.startswith("starting Spark") and line.endswith("0:00:00") for line in lines), lines


def test_the_turn_of_a_run_names_its_partitions_in_80_columns() -> None:
    lane = MemoryLane(partitions=2, dead_letter="none", retry={"initial_delay": "1h"})
    for partition in range(2):
        lane.produce(*[OK] * 120, *[FAILS] * 7, tp=TopicPartition("orders", partition))
    plan = lane.plan()
    lane.replay()
    result = lane.settle()
    lines = lines_of(lambda out: tables.print_turn(out, plan, lane.newest(), result.committed))
    assert lines[0] == "Turn 1: run"
    assert lines[1].split() == [
        *("partition", "retries", "acked", "failed", "skipped", "dead", "pending", "floor", "committed", "lag"),
    ]
    assert [line.split()[:4] for line in lines[2:4]] == [[f"orders[{n}]", "0", "120", "7"] for n in range(2)]
    assert lines[4] == "Not shown in 80 columns: read, expired. A wider terminal shows more."
    assert max(map(len, lines)) <= 80


def test_audit_breaks_only_the_message_in_80_columns() -> None:
    row = {
        "lane": "live", "epoch": 0, "turn": 3, "topic": "orders", "partition": 0, "offset": 61, "end_offset": None,
        "attempt": 3, "outcome": "failed", "error_class": "JSONDecodeError",
        "error_place": None, "error_message": "Unterminated string starting at: line 1 column 147 (char 146)",
        "handled_at": datetime(2026, 11, 22, 13, 4, 27, 439000, UTC),
    }  # fmt: skip
    rows = [row, {**row, "attempt": 0, "outcome": "dead", "error_message": "after 3 attempts"}]
    lines = lines_of(lambda _: _print_table(rows, 5))
    assert lines[0].split() == ["partition", "offset", "attempt", "outcome", "error_class", "error_message"]
    assert lines[1].split()[:6] == ["0", "61", "3", "failed", "JSONDecodeError", "Unterminated"]
    (dead,) = (line.split() for line in lines if "dead" in line)
    assert dead == ["0", "61", "–", "dead", "JSONDecodeError", "after", "3", "attempts"]
    assert "Not shown in 80 columns: epoch, turn, topic, handled_at." in " ".join(lines)
    assert max(map(len, lines)) <= 80


def test_what_is_not_printed_to_a_terminal_has_all_columns() -> None:
    columns, row = [f"column_{n}" for n in range(40)], [10**12] * 40
    lines = lines_of(lambda out: tables.print_table(out, None, columns, [row]), StringIO())
    assert lines[0].split() == columns
    assert len(lines) == 2


@pytest.mark.parametrize("text", ["[bold]x[/bold]", "a[/b]", ":key: in the door", "[red]"])
def test_a_text_is_printed_as_it_is(text: str) -> None:
    """An error message comes from a record or a handler; a reason comes from an operator."""

    def prints(out: Console) -> None:
        tables.print_table(out, text, [text], [[text], [None]])
        out.print(text)

    assert lines_of(prints) == [text, text, text, "–", text]


def test_a_sentence_that_is_too_long_for_a_terminal_goes_on_indented() -> None:
    sentence = "  The floor of orders[0] is 0, because offset 0 failed once with ValueError. " + "It is retried. " * 5
    lines = lines_of(lambda out: tables.print_lines(out, ["Held by:", sentence.rstrip(), "Open: turn 2"]))
    assert (lines[0], lines[1][:6], lines[-1]) == ("Held by:", "  The ", "Open: turn 2")
    assert len(lines) > 3
    assert all(line.startswith("    ") and not line.startswith("     ") for line in lines[2:-1])
    assert max(map(len, lines)) <= 80
    assert lines_of(lambda out: tables.print_lines(out, [sentence.rstrip()]), StringIO()) == [sentence.rstrip()]


def test_times_are_printed_in_utc_to_the_second() -> None:
    at = datetime(2026, 3, 1, 12, 30, 15, 999_000, timezone(timedelta(hours=2)))
    lines = lines_of(lambda out: tables.print_table(out, None, ["at", "yes"], [[at, True]]))
    assert lines[1].split() == ["2026-03-01", "10:30:15", "True"]


def test_a_table_that_leaves_a_column_out_says_which() -> None:
    rows = [["orders[0]", 1_234_567, 89, None]]
    out = StringIO()
    shown = tables.fitting_table(None, ["partition", "floor", "dead", "why"], rows, ("partition", "floor"), 22)
    Console(file=out, width=80).print(shown)
    assert "dead" not in out.getvalue().splitlines()[0]
    assert " ".join(out.getvalue().split()).endswith("Not shown in 22 columns: dead. --json shows all.")
    assert tables.fitting_table(None, ["partition", "dead"], [["a", 1]], ("partition",), 80).caption is None
