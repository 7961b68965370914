"""The command lines that documents and errors print, and the make targets: each exists with its arguments, and a test
runs it.

The README's first pipeline, the shop of docs/steps.md and the runbook are executed word for word by
tests/e2e/test_readme.py and tests/e2e/test_runbook.py, the queries of the cookbook by tests/cli/test_cookbook.py, what
ends a stand-still by tests/steps/test_stands_still.py. Here all lines are parsed.
"""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from ackline.cli.app import Command, app
from ackline.lane.ways_out import LaneName, Way
from tests.chaos import run as chaos
from tests.e2e.documents import blocks, comments_removed

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")))
INLINE = re.compile(r"`((?:ackline|make) [^`\n]+)`")

TARGETS = {
    "help": "tests/project/test_setup.py",
    "setup": "tests/project/test_setup.py",
    "bench": "tests/bench/test_bench.py",
    "chaos": "tests/project/test_command_lines.py",
    "docs": "tests/project/test_site.py",
    "soak": "tests/soak/test_soak.py",
    "screenshots": "tests/ui/test_browser.py",
    "test": "it is this suite",
    "test-deep": "it is this suite",
    "test-release": "it is this suite",
    "test-unit": "it is a part of this suite",
    "check": ".ci/run runs it before the suite",
    "format": "it changes the sources; `make check` runs the same programs",
    "demo": "tests/e2e/test_demo.py",
    "up": "it is the demo, left running",
    "down": "it is `ackline dev down`, which tests/e2e/test_readme.py executes",
    "lock": "it asks the package registries for newer versions",
    "clean": "it removes the environment in which the suite runs",
}
"""The file that runs a target of the Makefile, or the reason why none does."""


def printed(document: str, program: str) -> Iterator[tuple[bool, list[str]]]:
    """Yields each line of a document that calls a program: whether it is in a shell block, and its words."""
    text = (ROOT / document).read_text(encoding="utf-8")
    shell = [line for block in blocks(text) if block.language == "sh" for line in comments_removed(block.text)]
    for whole, line in [*((True, line) for line in shell), *((False, line) for line in INLINE.findall(text))]:
        for part in map(str.strip, line.split("&&")):
            if part.startswith(f"{program} ") and not part.startswith("ackline COMMAND"):
                yield whole, shlex.split(re.sub(r"[…\[\]]", "", part))[1:]


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """Returns the command that a line calls, and its arguments."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        command, words = command.commands[words[0]], words[1:]
        command = command.loaded() if isinstance(command, Command) else command
    return command, words


@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_command_line_that_a_document_prints_can_be_parsed(document: str) -> None:
    """A sentence may leave arguments out, so there only the command and the names of its options must exist."""
    problems = []
    for whole, words in printed(document, "ackline"):
        try:
            command, rest = command_of(words)
            if whole:
                command.make_context("ackline", [*rest]).close()
            else:
                options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
                unknown = {word for word in rest if word.startswith("--")} - options - {"--help"}
                assert not unknown, f"no such option: {', '.join(sorted(unknown))}"
        except Exception as error:
            problems.append(f"{document}: ackline {shlex.join(words)}: {type(error).__name__} {error}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("lane", ["live", "backfill-b"])
@pytest.mark.parametrize("way", Way)
def test_i18_each_command_that_ends_a_stand_still_can_be_parsed(way: Way, lane: str) -> None:
    of = LaneName("orders", lane)
    more = {Way.RUN: ["--no-breaker"], Way.GO_ON: ["--no-breaker", "--yes"], Way.CANCEL: ["--yes"]}
    for where in ((), ("orders-fr",), ("orders-fr", 3)):
        _, *words = [*shlex.split(way.of(of, *where, to=41, table="totals")), *more.get(way, [])]
        command, rest = command_of(words)
        context = command.make_context("ackline", [*rest])
        assert (context.params["name"], context.params.get("lane", lane)) == ("orders", lane)
        context.close()


def test_no_other_module_spells_such_a_command() -> None:
    command = re.compile(r"ackline [a-z-]+ \{[^`]* --(cancel|give-up|gone|id|lane|no-breaker|reason|to)\b")
    for path in (ROOT / "include" / "ackline").rglob("*.py"):
        texts = (ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.JoinedStr))
        assert path.name == "ways_out.py" or not list(filter(command.search, texts)), path
    assert command.search("f'go on with `ackline void {name} --reason …`'")


def test_each_make_target_runs_in_a_test_or_has_a_reason() -> None:
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sorted(targets) == sorted(TARGETS)
    missing = [file for file in TARGETS.values() if file.endswith(".py") and not (ROOT / file).is_file()]
    assert not missing, missing
    unknown = {words[0] for document in DOCUMENTS for _, words in printed(document, "make") if words[0] not in TARGETS}
    assert not unknown, f"the documents name targets that the Makefile does not have: {unknown}"


def test_make_chaos_takes_its_steps_and_prints_its_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("logging.disable", lambda level: None)
    assert chaos.main(["--steps", "50", "--seed", "1"]) == 0
    seed, held, drawn = capsys.readouterr().out.splitlines()
    assert seed == "seed 1"
    assert re.fullmatch(r"\d+ steps, and 500 of tables, in \d+ s: every invariant held", held)
    assert "entries: " in drawn
