"""The README's first pipeline and the tutorials, word for word: their files are written and their commands executed."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ackline.local import broker
from ackline.local.processes import wait_until
from ackline.tables.lease import ProcessIdentity
from tests.e2e.commands import ROOT, run_here, run_in_session
from tests.e2e.documents import blocks, section, write

SECONDS = 560
ACTIVATE = (
    f'export PATH="{Path(sys.executable).parent}:$PATH" PYTHONPATH="$PWD/include" ACKLINE_SPARK_MASTER="local[2]"\n'
)


class Checkout:
    """A clone of the project, set up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "include", folder / "include", ignore=shutil.ignore_patterns("__pycache__"))
        # What `make setup` makes is there already; tests/project/test_setup.py tests it.
        (folder / ".venv" / "bin").mkdir(parents=True)
        (folder / ".venv" / "bin" / "activate").write_text(ACTIVATE)
        (folder / "Makefile").write_text("setup:\n")

    def shell(self, commands: str) -> str:
        """Executes commands as a user types them, each of which must succeed; returns what they print."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("ACKLINE_P", "AIRFLOW_CONN"))
        }
        environment.pop("ACKLINE_AUDIT", None)
        command = ["bash", "-e", "-c", f". .venv/bin/activate\n{commands}"]
        done = run_in_session(command, environment, self.folder, SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def rows(self, *arguments: str) -> Any:
        """Returns what a command prints about the tables as JSON. It runs in this process."""
        tables = {
            "ACKLINE_PIPELINES": str(self.folder / "include" / "pipelines"),
            "ACKLINE_AUDIT": str(self.folder / ".ackline" / "audit"),
        }
        done = run_here((*arguments, "--json"), tables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    made = Checkout(tmp_path / "ackline")
    yield made
    broker.stop_running(made.folder / ".ackline" / "dev")


def test_a_shell_whose_time_is_up_leaves_no_process_behind(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    file = checkout.folder / "pid"

    def time_is_up(process: "subprocess.Popen[str]", timeout: float) -> None:
        """The time is up as soon as the shell has started another process."""
        assert wait_until(file.exists, seconds=240)
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", time_is_up)
    with pytest.raises(subprocess.TimeoutExpired):
        checkout.shell("sleep 600 & echo $! >pid.new; mv pid.new pid; wait")
    assert ProcessIdentity.of(int(file.read_text())) is None


def first_pipeline() -> str:
    return section("README.md", "## A first pipeline of your own").partition("**5. Intervene.**")[0]


def follow(checkout: Checkout, text: str) -> list[str]:
    """Writes the files of a document and executes its commands, each of which prints the output that the document
    shows behind it. Returns what each block of commands printed."""
    printed: list[str] = []
    for block in blocks(text):
        if block.language == "sh":
            printed.append(checkout.shell(confirmed(block.text)))
        elif block.language == "text":
            assert stable(block.text) in stable(printed[-1])
        else:
            write(checkout.folder, block)
    return printed


def stable(output: str) -> str:
    """Returns what commands print, without what each run has anew: times, the end of its name, the hash of its code."""
    output = re.sub(r"\d{4}-\d\d-\d\d( at |[ T])\d\d:\d\d:\d\d|files:\w{12}", "TIME", output)
    return "\n".join(re.sub(r"__\w{4}$", "", line.rstrip()) for line in output.splitlines())


def confirmed(commands: str) -> str:
    """Returns the commands with `--yes` behind those that ask at a terminal, where a test has none."""
    return re.sub(r"^(ackline (?:retry|pause|resume|skip|reset) [^#\n]*)", r"\1 --yes ", commands, flags=re.MULTILINE)


@pytest.mark.timeout(900)  # it starts Spark three times, with eight other commands
@pytest.mark.slow
@pytest.mark.real
def test_the_first_pipeline_works_word_for_word_and_shows_skip_dead_and_retries(checkout: Checkout) -> None:
    produced, printed = follow(checkout, first_pipeline())
    assert "produced 1,000 records to orders" in produced
    for text in ("flaky", "malformed"):
        assert text in produced
    rows = checkout.rows("audit", "first")
    words = {(row["outcome"], row["error_class"]) for row in rows}
    assert {("skipped", "Skip"), ("skipped", "Tombstone"), ("failed", "TimeoutError"), ("failed", "JSONDecodeError"),
            ("failed", "Dead"), ("acked", None)} <= words  # fmt: skip
    assert [row for row in rows if row["outcome"] == "acked" and row["attempt"] == 2], "a payment succeeds when retried"
    # The story of one record, as the comment of a command tells it.
    commands = blocks(first_pipeline())[3].text.splitlines()
    last = next(line for line in commands if "--offsets" in line)
    story = checkout.rows(*last.partition("#")[0].split()[1:])
    assert [row["outcome"] for row in story] == ["failed", "failed", "failed", "dead"]
    status = json.loads(checkout.shell("ackline status first --json"))
    assert [sum(part["pending"].values()) + part["lag"] for part in status["partitions"]] == [0] * 4
    assert "no exchange rate" in printed, "the reason is not masked"


@pytest.mark.deep
@pytest.mark.timeout(1200)  # it starts Spark six times
@pytest.mark.real
def test_the_tutorial_prints_what_it_shows_and_ends_with_a_pipeline_that_is_up_to_date(checkout: Checkout) -> None:
    follow(checkout, first_pipeline())
    *_, last, stopped = follow(checkout, (ROOT / "docs/tutorial.md").read_text())
    assert "up to date" in last
    assert "Stopped." in stopped
    actions = checkout.rows("history", "first", "--actions")["turns"]
    assert [action["kind"] for action in actions] == ["reset", "resume", "skip", "pause", "retry"]


@pytest.mark.deep
@pytest.mark.timeout(900)  # it starts Spark three times
@pytest.mark.real
def test_the_shop_has_the_total_of_each_acked_order_and_in_the_end_each_order_is_acked(checkout: Checkout) -> None:
    tutorial = (ROOT / "docs/steps.md").read_text()
    pipeline, handler = blocks(tutorial)[:2]
    for shown in (pipeline, handler):
        assert shown.path is not None
        assert shown.text in (ROOT / shown.path).read_text()
    follow(checkout, tutorial.partition(handler.text)[2])
    rows = checkout.rows("audit", "shop", "--lane", "live")
    assert Counter(row["outcome"] for row in rows) == {"acked": 2, "failed": 3, "dead": 1}


@pytest.mark.deep
@pytest.mark.real
def test_the_local_broker_takes_a_file_prints_it_again_and_is_wiped(checkout: Checkout) -> None:
    (checkout.folder / "payments.jsonl").write_text(
        '{"value": {"id": 1}, "key": "a", "headers": {"h": "x"}, "partition": 2}\n{"id": 2}\n'
    )
    checkout.shell("ackline dev up && ackline dev produce payments --file payments.jsonl")
    lines = [json.loads(line) for line in checkout.shell("ackline dev consume payments").splitlines()]
    assert sorted(line["value"] for line in lines) == ['{"id": 2}', '{"id":1}']
    [keyed] = [line for line in lines if line["key"] == "a"]
    assert (keyed["partition"], keyed["headers"]) == (2, [["h", "x"]])
    dev = checkout.folder / ".ackline" / "dev"
    assert "Nothing was changed" in checkout.shell("ackline dev wipe --dry-run")
    assert dev.is_dir()
    assert "Removed." in checkout.shell("ackline dev wipe --yes")
    assert not dev.exists()
    assert "There was none." in checkout.shell("ackline dev wipe --yes")
