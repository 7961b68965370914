"""Handlers that kill, hang or disturb their process: the value of a record names what they do."""

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
"""The environment variable with the folder in which handlers leave files behind."""


def note(name: str, text: object) -> None:
    """Append a line to a file of the folder, in one write."""
    with (Path(os.environ[FOLDER]) / name).open("a") as file:
        file.write(f"{text}\n")


def spin() -> None:
    while True:
        pass


def child() -> None:
    note("pids", subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid)


def daemon() -> None:
    """Fork a process that keeps this one's socket and survives it, and end soon after."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(600)
        os._exit(0)
    note("pids", pid)
    exit_later()


def exit_later() -> None:
    threading.Timer(0.2, os._exit, [4]).start()


def fail(error: Exception) -> None:
    raise error


def print_much() -> None:
    print("x" * 100_000, flush=True)
    os.write(2, b"y" * 1000)


HOARD: list[bytearray] = []


def hoard() -> None:
    """Take all memory that the process may have, and keep it."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (64 << 20), resource.RLIM_INFINITY))
    while True:
        HOARD.append(bytearray(1 << 20))


DEEDS: dict[str, Callable[[], object]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "exit3": lambda: os._exit(3),
    "group": lambda: os.killpg(0, signal.SIGKILL),
    "spin": spin,
    "sleep in C": lambda: ctypes.PyDLL(None).sleep(600),  # holds the interpreter's lock meanwhile
    "regex": lambda: re.match(r"(a+)+$", "a" * 60 + "b"),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "shut": lambda: os.closerange(3, 1000),
    "late exit": exit_later,
    "daemon": daemon,
    "child": child,
    "hoard": hoard,
    "fail": lambda: fail(ValueError("can't digest 'fail'")),
    "skip": lambda: fail(Skip("the value names it")),
    "dead": lambda: fail(Dead("the value names it")),
    "exit": lambda: sys.exit(7),
    "print": print_much,
}


def do(deed: str) -> None:
    """Do a deed; any other word does nothing."""
    if deed.startswith("refuse "):
        raise ValueError(f"unknown currency {deed.removeprefix('refuse ')}")
    DEEDS.get(deed, lambda: None)()


def handle(record: Record) -> None:
    note("calls", f"{record.offset} {os.getpid()}")
    do((record.value or b"")[:40].decode())


def quiet(record: Record) -> None:
    do(record.value.decode())


def take_a_tenth(record: Record) -> None:
    time.sleep(0.1)


@arrow_handler
def arrow(batch: pa.RecordBatch) -> list[str]:
    """Note each record of the call, then do the deed of each."""
    for offset in batch.column("offset").to_pylist():
        note("calls", f"{offset} {os.getpid()}")
    for value in batch.column("value").cast(pa.string()).to_pylist():
        do(value)
    return ["acked"] * batch.num_rows


def handle_text(record: Record) -> None:
    note("calls", f"{record.offset} {os.getpid()}")
    do(record.value["do"])


def wants(record: Record) -> bool:
    """A filter that does a deed, so it may kill or hang its process, too."""
    do(record.value.get("filter", ""))
    return bool(record.value["do"] != "unwanted")
