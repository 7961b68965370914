"""The command lines and make targets that the documents print: each exists with its arguments, and a test runs it.

The README's first pipeline, its shop and the runbook are executed word for word by tests/e2e/test_readme.py and
tests/e2e/test_runbook.py, the queries of the cookbook by tests/cli/test_cookbook.py. Here all lines are parsed.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from ackline.cli.app import Command, app
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


@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_command_line_that_a_document_prints_can_be_parsed(document: str) -> None:
    """A sentence may leave arguments out, so there only the command and the names of its options must exist."""
    problems = []
    for whole, words in printed(document, "ackline"):
        command, context, rest = typer.main.get_command(app), None, words
        try:
            while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
                command, rest = command.commands[rest[0]], rest[1:]
                command = command.loaded() if isinstance(command, Command) else command
            if whole:
                context = command.make_context("ackline", [*rest])
            else:
                options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
                unknown = {word for word in rest if word.startswith("--")} - options - {"--help"}
                assert not unknown, f"no such option: {', '.join(sorted(unknown))}"
        except Exception as error:
            problems.append(f"{document}: ackline {shlex.join(words)}: {type(error).__name__} {error}")
        finally:
            if context is not None:
                context.close()
    assert not problems, "\n".join(problems)


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
    seed, held = capsys.readouterr().out.splitlines()
    assert seed == "seed 1"
    assert re.fullmatch(r"\d+ steps in \d+ s: every invariant held", held)
