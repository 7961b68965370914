"""Runs the command `ackline`, in this process or as one of its own."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from ackline.local.processes import end
from ackline.tables.lease import ProcessIdentity
from tests.airflow.project import processes
from tests.support.command import run_main

ROOT = Path(__file__).parents[2]
Finished = subprocess.CompletedProcess[str]


def run_here(arguments: tuple[str, ...], environment: Mapping[str, str]) -> Finished:
    """Run the command in this process; a run uses the Spark session of this process."""
    with patch.dict(os.environ, environment):
        ended = run_main(arguments)
    return Finished(arguments, ended.status, ended.output, ended.errors)


def run_as_process(arguments: tuple[str, ...], environment: Mapping[str, str]) -> Finished:
    """Run the command as a process, with pipes and no terminal."""
    command = [str(Path(sys.executable).parent / "ackline"), *arguments]
    return run_in_session(command, {**os.environ, **environment}, ROOT, seconds=400)


def run_in_session(command: Sequence[str], environment: Mapping[str, str], folder: Path, seconds: float) -> Finished:
    """Run a command in a session of its own, with pipes and no terminal. Raises TimeoutExpired after `seconds`.

    Nothing that the command has started outlives the test: if the time is up or the test is interrupted, the whole
    session is killed. `subprocess.run` would kill the command alone, and a driver of Spark below it would go on.
    """
    with subprocess.Popen(
        command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    ) as process:  # fmt: skip
        leader = ProcessIdentity.of(process.pid) or ProcessIdentity(process.pid, started=-1)  # None if it has died
        try:
            output, errors = process.communicate(timeout=seconds)
        except BaseException:
            end([leader], grace_seconds=0)
            raise
    return Finished(command, process.returncode, output, errors)


@contextmanager
def watched_arguments() -> Iterator[dict[int, str]]:
    """Collects the command lines of all processes that appear while the block runs, by process id."""
    arguments: dict[int, str] = {}
    before = {os.getpid(), *(pid for pid, _, _ in processes())}

    def look() -> None:
        arguments.update({pid: argv for pid, argv, _ in processes() if pid not in before})

    with repeated(look, 0.2):
        yield arguments


@contextmanager
def repeated(look: Callable[[], object], seconds: float) -> Iterator[None]:
    """Calls a function every so many seconds, in a thread, while the block runs."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(seconds):
            look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
