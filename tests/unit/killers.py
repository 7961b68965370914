"""Handlers that kill, hang or disturb their process, as the record's value says."""

import ctypes
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from ackline import Dead, Record, Skip, arrow_handler

FOLDER = "KILLERS_FOLDER"
"""The environment variable that names a folder for what a handler leaves behind."""


def note(name: str, text: object) -> None:
    """Append a line to a file of the folder, in one write."""
    with (Path(os.environ[FOLDER]) / name).open("a") as file:
        file.write(f"{text}\n")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def spin() -> None:
    while True:
        pass


def child() -> None:
    note("pids", subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid)


def fail() -> None:
    raise ValueError("can't digest 'fail'")


def skip() -> None:
    raise Skip("asked for")


def dead() -> None:
    raise Dead("asked for")


def chatter() -> None:
    print("x" * 100_000, flush=True)
    os.write(2, b"y" * 1000)


HOARD: list[bytearray] = []


def hoard() -> None:
    """Take all the memory there is, and keep it."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (64 << 20), resource.RLIM_INFINITY))
    while True:
        HOARD.append(bytearray(1 << 20))


DEEDS: dict[str, Callable[[], object]] = {
    "kill": kill,
    "segfault": lambda: ctypes.string_at(0),
    "exit3": lambda: os._exit(3),
    "group": lambda: os.killpg(0, signal.SIGKILL),
    "spin": spin,
    "sleep in C": lambda: ctypes.PyDLL(None).sleep(600),  # holds the interpreter's lock meanwhile
    "regex": lambda: re.match(r"(a+)+$", "a" * 60 + "b"),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "shut": lambda: os.closerange(3, 1000),
    "late exit": lambda: threading.Timer(0.2, os._exit, [4]).start(),
    "child": child,
    "hoard": hoard,
    "fail": fail,
    "skip": skip,
    "dead": dead,
    "exit": lambda: sys.exit(7),
    "print": chatter,
}
"""What a value may ask for."""


def obey(word: str) -> None:
    """Do what the word says, if it says anything."""
    DEEDS.get(word, lambda: None)()


def handle(record: Record) -> None:
    """Write the call down, then obey."""
    note("calls", f"{record.offset} {os.getpid()}")
    obey((record.value or b"")[:40].decode())


def quiet(record: Record) -> None:
    """Obey."""
    obey(record.value.decode())


def tenth(record: Record) -> None:
    """Takes a tenth of a second."""
    time.sleep(0.1)


@arrow_handler
def arrow(batch: pa.RecordBatch) -> list[str]:
    """Write each record of the call down, then obey each."""
    for offset in batch.column("offset").to_pylist():
        note("calls", f"{offset} {os.getpid()}")
    for value in batch.column("value").cast(pa.string()).to_pylist():
        obey(value)
    return ["acked"] * batch.num_rows


def handle_text(record: Record) -> None:
    """The same for a value that was decoded."""
    note("calls", f"{record.offset} {os.getpid()}")
    obey(record.value["do"])


def wants(record: Record) -> bool:
    """A filter that obeys as well: it may kill or hang its process, too."""
    obey(record.value.get("filter", ""))
    return bool(record.value["do"] != "nobody")
