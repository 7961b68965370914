"""Makes isolated handlers, and checks at the end that no process and no descriptor of them is left."""

import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest

from ackline.handler import Tier
from ackline.local.processes import wait_until
from ackline.worker.isolation.handler_process import IsolatedHandler
from tests.worker.batches import NOW
from tests.worker.isolation.killers import FOLDER
from tests.worker.isolation.lab import pids, settings_of


class MakeIsolated(Protocol):
    """Makes an isolated handler; takes what `settings_of` takes."""

    def __call__(self, handler: str = ..., *, tier: Tier = ..., **settings: Any) -> IsolatedHandler: ...


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where handlers leave files behind. At the end the processes that these name are killed."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    yield tmp_path
    left = {pid for name in ("calls", "pids") if (tmp_path / name).exists() for pid in pids(tmp_path, name)}
    for pid in left - {os.getpid()}:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()


@pytest.fixture
def isolated(folder: Path) -> Iterator[MakeIsolated]:
    # Earlier tests may have left a broker or Spark running, whose clients open and close connections of their own.
    gc.collect()  # now, so that descriptors of earlier tests are not closed during this one
    processes, before = children(), descriptors()
    made: list[IsolatedHandler] = []

    def make(handler: str = "handle", *, tier: Tier = Tier.RECORD, **settings: Any) -> IsolatedHandler:
        made.append(IsolatedHandler(settings_of(handler, **settings), tier, lambda: NOW))
        return made[-1]

    yield make
    for handler in made:
        handler.close()
    assert children() - processes == set()
    assert wait_until(lambda: descriptors() <= before, 10)


def children() -> set[psutil.Process]:
    """Returns the processes that this one has started. What those have started ends with them; an Airflow that an
    earlier test has left running goes on to start some."""
    return set(psutil.Process().children())


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
