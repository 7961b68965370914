"""The processes of a soak: runners that may be killed and start again, and what they use of the machine."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.commands import ROOT

RUN_SECONDS = 300
"""How long a run may take before the soak calls it hung."""
MOST_STARTS = 3
"""How often a process is started that a strike kills while it starts."""


class Hung(Exception):
    """A runner has not answered for RUN_SECONDS."""


class Process:
    """A runner of `tests.soak.runner`, started again when it has died."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.tmp = folder / "tmp" / name
        self.tmp.mkdir()
        self.log = folder / f"{name}.log"
        self.left: list[psutil.Process] = []
        """Processes below runners that were killed. All of them must end."""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Starts the process, and waits until its Spark is up. Starts it again if a strike kills it meanwhile."""
        for _ in range(MOST_STARTS):
            self._spawn()
            if self._answer() is not None:
                return
        raise RuntimeError(f"the runner {self.name} did not start; see {self.log}")

    def _spawn(self) -> None:
        environment = {**os.environ, "ACKLINE_SPARK_MASTER": "local[2,4]", "TMPDIR": str(self.tmp)}
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.runner", str(self.folder)], cwd=ROOT, env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip

    def ask(self, order: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the answer to an order; None if the process has died, and then it is started again.

        Raises Hung.
        """
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            answer = self._answer()
        except OSError:
            answer = None
        if answer is None:
            process.wait(30)
            self.start()
        return answer

    def _answer(self) -> dict[str, Any] | None:
        process, hung = self._process, threading.Event()
        assert process is not None
        assert process.stdout is not None

        def end() -> None:
            hung.set()
            process.kill()

        timer = threading.Timer(RUN_SECONDS, end)
        timer.start()
        try:
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if hung.is_set():
            raise Hung(f"the runner {self.name} has not answered for {RUN_SECONDS} s; see {self.log}")
        answer: dict[str, Any] | None = json.loads(line) if line else None
        return answer

    def restart(self) -> None:
        self.kill()
        assert self._process is not None
        self._process.wait(30)
        self.start()

    def kill(self) -> None:
        """Kills the process. What it has started ends by itself."""
        self.left += self.below()
        if self._process is not None:
            self._process.kill()

    def kill_worker(self, number: int) -> bool:
        """Kills one of the Python workers of Spark. Returns whether there was one."""
        workers = [process for process in self.below() if "spark.daemon" in " ".join(_arguments(process))]
        workers = [process for process in workers if process.ppid() in {worker.pid for worker in workers}] or workers
        if not workers:
            return False
        with suppress(psutil.NoSuchProcess):
            workers[number % len(workers)].send_signal(signal.SIGKILL)
        return True

    def kill_jvm(self) -> bool:
        """Kills the JVM, and with it the Spark context. Returns whether there was one."""
        jvm = self.jvm()
        if jvm is not None:
            jvm.kill()
        return jvm is not None

    def jvm(self) -> psutil.Process | None:
        return next((process for process in self.below() if process.name() == "java"), None)

    def below(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self._pid).children(recursive=True)
        return []

    @property
    def _pid(self) -> int:
        return self._process.pid if self._process is not None else -1

    def cpu_seconds(self) -> float:
        """Returns the CPU time of the process and of all below it, of ended ones too."""
        total = 0.0
        for pid in [self._pid, *(process.pid for process in self.below())]:
            with suppress(psutil.NoSuchProcess):
                total += sum(psutil.Process(pid).cpu_times()[:4])
        return total

    def figures(self) -> dict[str, float]:
        """Returns memory, open files and threads of the process and its JVM, and its temporary files."""
        # `os.walk` leaves out what is removed meanwhile, where `Path.rglob` raises.
        temporary = sum(len(folders) + len(files) for _, folders, files in os.walk(self.tmp))
        found: dict[str, float] = {"temporary": temporary}
        for name, process in (("driver", psutil.Process(self._pid)), ("jvm", self.jvm())):
            if process is not None:
                with suppress(psutil.NoSuchProcess):
                    found |= {f"{name}_rss": process.memory_info().rss, f"{name}_fds": process.num_fds(),
                              f"{name}_threads": process.num_threads()}  # fmt: skip
        return found

    def stop(self) -> None:
        """Lets the process end, and kills it and all below it if it does not."""
        below = self.below()
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
        process.stdout.close()
        for each in [*below, *self.left]:
            with suppress(psutil.NoSuchProcess):
                each.kill()

    def orphans(self) -> list[str]:
        """Returns the command lines of processes that outlive a runner that was killed."""
        return [" ".join(_arguments(process))[:120] for process in self.left if process.is_running()]


def _arguments(process: psutil.Process) -> list[str]:
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return list(process.cmdline())
    return []
