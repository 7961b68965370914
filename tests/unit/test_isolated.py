"""Faults 11 and 12, without Spark: real processes of a handler die or hang, and the record that did it is found."""

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Protocol

import numpy as np
import psutil
import pyarrow as pa
import pytest

from ackline.errors import ConfigError, FatalError, TransientError
from ackline.handler import Tier, load_handler, tier_of
from ackline.local.processes import wait_until
from ackline.offsets import TopicPartition
from ackline.outcome import Outcome
from ackline.spark.handlers.answering import Work
from ackline.spark.handlers.call import Answers, answer
from ackline.spark.isolation.call_log import Head
from ackline.spark.isolation.handler_process import HandlerProcess
from ackline.spark.isolation.isolated import Isolated
from ackline.spark.output.outcome_files import Turn
from ackline.spark.records import Records
from tests.unit.killers import FOLDER

NOW = 1_700_000_000_000_000
ROOT = Path(__file__).parents[2]
Values = list[bytes | None]


class MakeIsolated(Protocol):
    """Makes a handler of `tests.unit.killers` run in a process of its own."""

    def __call__(
        self, handler: str = ..., *, limit: float | None = ..., once: bool = ..., deliver: bool = ...
    ) -> Isolated: ...


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where handlers leave things behind; what they leave running is ended."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    yield tmp_path
    left = {pid for name in ("calls", "pids") if (tmp_path / name).exists() for pid in pids(tmp_path, name)}
    for pid in left - {os.getpid()}:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()


def work_of(handler: str, limit: float | None = None, once: bool = False, deliver: bool = False) -> Work:
    path = handler if ":" in handler else f"tests.unit.killers:{handler}"
    tier = Tier.ARROW if handler == "arrow" else Tier.RECORD
    turn = Turn("", "orders", date(2024, 5, 6), "live", 0, 1, "run")
    return Work(turn, path, tier, None, deliver, Outcome.FAILED, None, once=once, isolated=True, record_timeout=limit)


@pytest.fixture
def isolated(folder: Path) -> Iterator[MakeIsolated]:
    """A factory; at the end no process and no descriptor is left."""
    gc.collect()  # what other tests have left is not let go of in between
    before = descriptors()
    made: list[Isolated] = []

    def make(
        handler: str = "handle", *, limit: float | None = None, once: bool = False, deliver: bool = False
    ) -> Isolated:
        made.append(Isolated(work_of(handler, limit, once, deliver), lambda: NOW))
        return made[-1]

    yield make
    for one in made:
        one.close()
    assert psutil.Process().children(recursive=True) == []
    assert descriptors() == before


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def rows_of(values: Values, start: int = 100) -> Records:
    count = len(values)
    return Records(
        TopicPartition("orders", 3),
        np.arange(start, start + 2 * count, 2, dtype=np.int64),
        np.full(count, 1_600_000_000_123_000, dtype=np.int64),
        pa.array([None] * count, pa.binary()),
        pa.array(values, pa.binary()),
        [(("trace", value),) for value in values],
        np.full(count, 2, dtype=np.int32),
    )


def outcomes(answers: Answers, count: int) -> list[str]:
    """The outcome of each row, or its error class."""
    assert [one.row for one in answers.unacked] == sorted({one.row for one in answers.unacked})
    assert len(answers.handled_at) == count
    unacked = {one.row: str(one.error_class) for one in answers.unacked}
    return [unacked.get(row, "acked") for row in range(count)]


def asked(one: Isolated, values: Values) -> list[str]:
    return outcomes(one(rows_of(values)), len(values))


def calls(folder: Path) -> list[int]:
    """The offsets of the handler's calls."""
    return [int(line.split()[0]) for line in (folder / "calls").read_text().splitlines()]


def pids(folder: Path, name: str = "calls") -> list[int]:
    return list(dict.fromkeys(int(line.split()[-1]) for line in (folder / name).read_text().splitlines()))


# ---- nothing happens ----------------------------------------------------------------------------------------------


def test_answers_are_those_of_the_same_handler_in_the_task_itself(isolated: MakeIsolated) -> None:
    values: Values = [b"a", b"fail", None, b"skip", b"dead", b"exit", b"print", None, b"z"]
    path = "tests.unit.killers:handle"
    for deliver in (False, True):
        rows = rows_of(values)
        there = isolated(deliver=deliver)(rows)
        here = answer(load_handler(path), tier_of(load_handler(path)), rows, lambda: NOW, deliver)
        told = [(one.row, one.outcome, one.error_class, one.error_message) for one in there.unacked]
        assert told == [(one.row, one.outcome, one.error_class, one.error_message) for one in here.unacked]
        assert there.calls == here.calls
        assert (there.handled_at >= NOW).all()


def test_one_process_answers_all_batches_of_a_task(isolated: MakeIsolated, folder: Path) -> None:
    one = isolated()
    for _ in range(3):
        assert asked(one, [b"a", b"b"]) == ["acked", "acked"]
    assert len(pids(folder)) == 1
    assert os.getpid() not in pids(folder)


def test_values_of_50_mb_and_batches_of_any_size_pass(isolated: MakeIsolated, folder: Path) -> None:
    one = isolated()
    assert asked(one, [b"-" * 50_000_000, b"kill", b"-" * 50_000_000]) == ["acked", "WorkerLost", "acked"]
    assert asked(one, [b"a"] * 20_000) == ["acked"] * 20_000
    assert len(calls(folder)) == 20_003


# ---- it dies ------------------------------------------------------------------------------------------------------


def test_records_that_kill_their_process_fail_and_no_record_is_handed_out_twice(
    isolated: MakeIsolated, folder: Path
) -> None:
    """Fault 11."""
    one = isolated(once=True)
    values: Values = [b"a", b"fail", None, b"kill", None, b"skip", b"segfault", b"exit3", b"group", b"b"]
    answers = one(rows_of(values))
    assert outcomes(answers, 10) == (
        ["acked", "ValueError", "Tombstone", "WorkerLost", "Tombstone", "Skip", *["WorkerLost"] * 3, "acked"]
    )
    assert answers.calls == 8
    assert calls(folder) == [100, 102, 106, 110, 112, 114, 116, 118]
    lost = [one for one in answers.unacked if one.error_class == "WorkerLost"]
    assert {(one.outcome, one.handled_at) for one in lost} == {(Outcome.FAILED, NOW)}
    assert [one.error_message for one in lost] == [
        "the handler's process was killed by SIGKILL",
        "the handler's process was killed by SIGSEGV",
        "the handler's process ended with exit status 3",
        "the handler's process was killed by SIGKILL",
    ]
    assert answers.unacked[0].error_message == "can't digest '***'"
    assert asked(one, [b"a"]) == ["acked"]


def test_a_process_that_has_closed_its_sockets_is_given_up(isolated: MakeIsolated, folder: Path) -> None:
    """Who was under way when that was seen is a matter of chance; every record has its one call and outcome."""
    found = asked(isolated(), [b"a", b"shut", b"b", b"c"])
    assert found.count("acked") >= 3
    assert set(found) <= {"acked", "WorkerLost"}
    began = calls(folder)  # the one under way may have been ended before it wrote that down
    assert began == sorted(set(began))
    assert {100 + 2 * row for row, outcome in enumerate(found) if outcome == "acked"} <= set(began)


def test_many_that_kill_are_found_one_by_one(isolated: MakeIsolated, folder: Path) -> None:
    one = isolated("quiet")
    values: Values = [b"kill" if row % 3 else b"fail" for row in range(200)]
    start = time.monotonic()
    memory = psutil.Process().memory_info().rss
    assert asked(one, values) == ["WorkerLost" if row % 3 else "ValueError" for row in range(200)]
    assert psutil.Process().memory_info().rss - memory < 100 << 20
    assert len(psutil.Process().children(recursive=True)) <= 2
    assert time.monotonic() - start < 120


def test_what_it_had_started_is_killed_with_it(isolated: MakeIsolated, folder: Path) -> None:
    assert asked(isolated(), [b"child", b"kill"]) == ["acked", "WorkerLost"]
    [child] = pids(folder, "pids")
    assert wait_until(lambda: not psutil.pid_exists(child), 10)


def test_a_process_that_has_kept_all_its_memory_gives_way_to_another(isolated: MakeIsolated, folder: Path) -> None:
    one = isolated()
    assert asked(one, [b"a", b"hoard"]) == ["acked", "MemoryError"]
    assert asked(one, [b"-" * 30_000_000, b"b"]) == ["acked", "acked"]
    assert (calls(folder), len(pids(folder))) == ([100, 102, 100, 102], 2)


def test_a_death_between_batches_is_no_records_doing(isolated: MakeIsolated, folder: Path) -> None:
    one = isolated()
    assert asked(one, [b"late exit"]) == ["acked"]
    assert wait_until(lambda: not psutil.pid_exists(pids(folder)[0]), 10)
    assert asked(one, [b"a", b"b"]) == ["acked", "acked"]
    assert calls(folder) == [100, 100, 102]


# ---- it hangs -----------------------------------------------------------------------------------------------------


def test_records_that_do_not_return_fail_after_the_limit(isolated: MakeIsolated, folder: Path) -> None:
    """Fault 12: in Python, in C with the interpreter's lock, in a regular expression, stopped from outside."""
    one = isolated(limit=0.4, once=True)
    start = time.monotonic()
    answers = one(rows_of([b"a", b"spin", b"b", b"sleep in C", b"regex", b"stop", b"fail"]))
    assert outcomes(answers, 7) == ["acked", "Timeout", "acked", "Timeout", "Timeout", "Timeout", "ValueError"]
    assert answers.unacked[0].error_message == "the handler did not return within 0.4 s"
    assert calls(folder) == list(range(100, 114, 2))
    assert 1.6 <= time.monotonic() - start < 120


def test_a_call_that_came_back_before_it_was_ended_is_not_ended(
    isolated: MakeIsolated, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between seeing a call overdue and ending it, it may return; the next one is not to blame."""
    monkeypatch.setattr(HandlerProcess, "_late", lambda *_: Head(1, 1))
    assert asked(isolated("tests.unit.killers:tenth", limit=0.05), [b"a"] * 3) == ["acked"] * 3


def test_the_limit_is_for_a_record_not_for_a_batch(isolated: MakeIsolated) -> None:
    assert asked(isolated("tests.unit.killers:tenth", limit=0.4), [b"a"] * 10) == ["acked"] * 10


# ---- arrow handlers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("word", "error"), [(b"segfault", "WorkerLost"), (b"spin", "Timeout")])
def test_a_batch_is_halved_until_the_culprit_is_alone(
    isolated: MakeIsolated, folder: Path, word: bytes, error: str
) -> None:
    """Faults 11 and 12: the limit is for one call."""
    values: Values = [b"a"] * 40
    values[7], values[8], values[23] = word, None, word
    wanted = ["acked"] * 40
    wanted[7], wanted[8], wanted[23] = error, "Tombstone", error
    answers = isolated("arrow", limit=0.3)(rows_of(values))
    assert outcomes(answers, 40) == wanted
    assert answers.calls == 39
    assert 116 not in calls(folder)


def test_where_nothing_may_be_called_twice_a_killed_batch_fails_whole(isolated: MakeIsolated, folder: Path) -> None:
    """I7."""
    answers = isolated("arrow", once=True)(rows_of([b"a", None, b"kill", b"b"]))
    assert outcomes(answers, 4) == ["WorkerLost", "Tombstone", "WorkerLost", "WorkerLost"]
    assert answers.unacked[0].error_message == "the handler's process was killed by SIGKILL in a batch of 3 records"
    assert calls(folder) == [100, 104, 106]


# ---- it does not come up ------------------------------------------------------------------------------------------

AT_IMPORT = "tests.unit.killers_at_import:handle"


def test_an_import_that_fails_is_the_same_error_as_in_the_task(
    isolated: MakeIsolated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILLERS_IMPORT", "missing")
    with pytest.raises(ConfigError, match="does not import: ModuleNotFoundError"):
        asked(isolated(AT_IMPORT), [b"a"])


def test_an_import_that_kills_is_no_records_doing_and_ends(
    isolated: MakeIsolated, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILLERS_IMPORT", "segfault")
    with pytest.raises(FatalError, match="SIGSEGV, 3 times before it was given a record"):
        asked(isolated(AT_IMPORT), [b"a"])
    assert len(pids(folder, "imports")) == 3


def test_a_handler_that_dies_once_before_its_first_record_goes_on(
    isolated: MakeIsolated, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILLERS_IMPORT", "exit once")
    assert asked(isolated(AT_IMPORT), [b"a"]) == ["acked"]
    assert len(pids(folder, "imports")) == 2


def test_a_forker_that_is_gone_is_worth_another_try_of_the_step(isolated: MakeIsolated) -> None:
    """It dies over a command that it has not read; the next one can't even be sent."""
    one = isolated()
    [forker] = psutil.Process().children()
    forker.suspend()
    threading.Timer(0.3, forker.kill).start()
    for _ in range(2):
        with pytest.raises(TransientError, match="the same step may succeed later"):
            asked(one, [b"a"])


# ---- its parent dies ----------------------------------------------------------------------------------------------

PARENT = """
import sys
from tests.unit.test_isolated import rows_of, work_of
from ackline.spark.isolation.isolated import Isolated
Isolated(work_of("handle"), lambda: 0)(rows_of([b"child", sys.argv[1].encode()]))
"""


@pytest.mark.parametrize(("victim", "word"), [("task", "sleep in C"), ("forker", "spin")])
def test_it_dies_with_the_task_and_so_does_what_it_started(folder: Path, victim: str, word: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, word], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: (folder / "calls").exists() and len(calls(folder)) == 2, 30)
        [handler] = pids(folder)
        [forker] = psutil.Process(parent.pid).children()
        (psutil.Process(parent.pid) if victim == "task" else forker).kill()
        assert wait_until(lambda: not psutil.pid_exists(handler), 10)
        assert wait_until(lambda: not psutil.pid_exists(forker.pid) or forker.status() == "zombie", 10)
        if victim == "task":
            assert wait_until(lambda: not psutil.pid_exists(pids(folder, "pids")[0]), 10)
    finally:
        parent.kill()
        parent.wait()
