"""`ackline run` as processes at a terminal: a second run waits for the first, Ctrl-C while Spark starts, and what
standard error shows."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from ackline.local.processes import wait_until
from tests.chaos import handlers
from tests.e2e.commands import ROOT
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, all_of

SECONDS = 240
STARTING = f"ackline: starting Spark on {os.environ['ACKLINE_SPARK_MASTER']} (ACKLINE_SPARK_MASTER) …"
STOPPED = "ackline: stopped. Nothing is lost: the next run goes on with the open turn."


class Command:
    """A command that runs in a session of its own, as at a terminal."""

    def __init__(self, lane: Lab, *arguments: str) -> None:
        lane.judged = False
        self.errors_file = Path(lane.folder) / f"errors-{len(list(Path(lane.folder).iterdir()))}"
        with self.errors_file.open("w") as errors:
            self.process = subprocess.Popen(
                [str(Path(sys.executable).parent / "ackline"), *arguments],
                env={**os.environ, **lane.environment, "PYTHONPATH": str(ROOT)},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )

    @property
    def errors(self) -> list[str]:
        return self.errors_file.read_text().splitlines()

    def interrupt(self) -> None:
        """Ctrl-C: the terminal sends the signal to each process of the group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> int:
        return self.process.wait(SECONDS)

    def processes(self) -> list[psutil.Process]:
        """Returns what still runs of the command: it began a session, which all that it has started are in."""
        return [each for each in psutil.process_iter(["name"]) if self._has_started(each)]

    def _has_started(self, process: psutil.Process) -> bool:
        try:
            return os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE
        except (OSError, psutil.NoSuchProcess):
            return False

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes():
            process.kill()
        self.process.wait(SECONDS)


@pytest.fixture
def lane(lab: MakeLab) -> Iterator[Lab]:
    """A lane of six records, whose handler waits in its first call until the gate is open."""
    lane = lab(handler="tests.chaos.handlers:gated")
    lane.produce_records(6)
    yield lane
    handlers.gate(lane.topic).unlink(missing_ok=True)


def open_gate(lane: Lab) -> None:
    handlers.gate(lane.topic).touch()


@pytest.mark.deep
def test_a_run_prints_nothing_on_standard_error_but_that_spark_starts(lane: Lab) -> None:
    """No warning of the JVM, of Spark or of its Kafka client may cross the progress bar."""
    open_gate(lane)
    with Command(lane, "run", lane.name) as run:
        assert run.end() == 0
    assert run.errors == [STARTING]
    with Command(lane, "-q", "run", lane.name) as quiet:
        assert quiet.end() == 0
    assert quiet.errors == []


def test_a_second_run_waits_for_the_first_and_no_record_is_handled_twice(lane: Lab) -> None:
    with ExitStack() as commands:
        first = commands.enter_context(Command(lane, "run", lane.name))
        assert wait_until(lambda: bool(lane.calls()), SECONDS), first.errors
        second = commands.enter_context(Command(lane, "run", lane.name))
        assert wait_until(lambda: bool(second.errors), SECONDS)
        [message] = second.errors
        assert "is being replayed by run cli__" in message
        assert f"(process {first.process.pid})" in message
        open_gate(lane)
        assert (first.end(), second.end()) == (0, 0)
        assert STARTING not in second.errors
    assert lane.new_offsets() == list(range(6))
    assert lane.rows() == all_of("acked", range(6))
    lane.judge(settled=True)


@pytest.mark.parametrize("jvm", [False, True], ids=["before the JVM", "while the JVM starts"])
def test_ctrl_c_while_spark_starts_prints_no_traceback_and_leaves_no_process(lane: Lab, jvm: bool) -> None:
    with Command(lane, "run", lane.name) as run:
        assert wait_until(lambda: run.errors == [STARTING], SECONDS)
        assert not jvm or wait_until(lambda: any(each.info["name"] == "java" for each in run.processes()), SECONDS)
        run.interrupt()
        assert run.end() == 130, run.errors
        assert wait_until(lambda: not run.processes(), SECONDS), "a JVM is left"
    assert run.errors == [STARTING, STOPPED]


def test_ctrl_c_in_the_middle_of_a_job_prints_no_traceback_and_the_next_run_goes_on(lane: Lab) -> None:
    with Command(lane, "run", lane.name) as run:
        assert wait_until(lambda: bool(lane.calls()), SECONDS), run.errors
        run.interrupt()
        assert run.end() == 130, run.errors
        assert wait_until(lambda: not run.processes(), SECONDS), "a process of Spark is left"
    assert run.errors == [STARTING, STOPPED]
    open_gate(lane)
    second = lane.ackline("run", lane.name)
    assert second.returncode == 0, second.stderr
    assert lane.rows() == all_of("acked", range(6))
    lane.judge(settled=True)
