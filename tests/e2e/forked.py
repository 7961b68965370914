"""Processes that are forked from a server which has imported the product and has done nothing else.

The imports take a process of its own a second or more. The server starts with the first fork, and ends with the tests.
"""

import itertools
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from ackline.cli.app import COMMANDS
from tests.e2e.commands import ROOT

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload([*(f"ackline.cli.{module}" for module, _ in COMMANDS.values()), "tests.chaos.victims"])


class ForkedProcess:
    """A process that calls `main`, whose result is its exit status; to the tests it is a `subprocess.Popen`.

    It runs in a session of its own, with the environment of this process. It may print 64 KiB on standard output before
    a test reads that, and anything on standard error.
    """

    def __init__(self, main: Callable[..., int | None], *arguments: Any) -> None:
        pipes = [FORKED.Pipe(duplex=False) for _ in range(3)]
        (stdin, to_stdin), (of_stdout, stdout), (of_stderr, stderr) = pipes
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = FORKED.Process(target=_child, args=((stdin, stdout, stderr), environment, main, arguments))
        self._process.start()
        self.stdin, self.stdout = os.fdopen(os.dup(to_stdin.fileno()), "w"), os.fdopen(os.dup(of_stdout.fileno()))
        self.stderr = os.fdopen(os.dup(of_stderr.fileno()))
        for end in itertools.chain(*pipes):
            end.close()
        self._errors = ThreadPoolExecutor(1).submit(self.stderr.read)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> None:
        """Waits for its end. Raises TimeoutExpired after so many seconds."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout)

    def communicate(self, text: str = "", timeout: float = 60) -> tuple[str, str]:
        """Writes to its standard input and waits for its end. Returns what it has printed, and its errors."""
        with suppress(BrokenPipeError), self.stdin:
            self.stdin.write(text)
        self.wait(timeout)
        return self.stdout.read(), self._errors.result(timeout)

    def close(self) -> None:
        """Kills the process if it runs, and closes its streams."""
        self._process.kill()
        self.wait(30)
        for stream in (self.stdin, self.stdout, self.stderr):
            with suppress(BrokenPipeError):
                stream.close()


def _child(
    streams: Iterable[Connection],
    environment: dict[str, str],
    main: Callable[..., int | None],
    arguments: Iterable[Any],
) -> None:
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = os.fdopen(0)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    sys.exit(main(*arguments))
