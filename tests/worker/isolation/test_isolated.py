"""Faults 11 and 12, without Spark: real processes of a handler die or hang, and the record that caused it is found."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from ackline.errors import ConfigError, FatalError, TransientError
from ackline.handler import Record, Tier, load_handler, tier_of
from ackline.ledger.outcomes import Outcome
from ackline.local.processes import wait_until
from ackline.worker.isolation.handler_process import HandlerProcess
from ackline.worker.isolation.serving import CallLog, CallState
from ackline.worker.streams import call_handler
from tests.worker.batches import NOW
from tests.worker.isolation.conftest import MakeIsolated, children
from tests.worker.isolation.lab import KILLERS, batch_of, call, calls, classes, pids

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("deliver", [False, True])
def test_outcomes_are_those_of_the_same_handler_in_the_spark_task(isolated: MakeIsolated, deliver: bool) -> None:
    batch = batch_of(
        [b"a", b"fail", None, b"skip", b"dead", b"exit", b"print", None, b"z", b"refuse Zorkmid currency 7712"]
    )
    handler = load_handler(f"{KILLERS}:handle")
    inside = isolated(deliver=deliver)(batch)
    outside = call_handler(handler, tier_of(handler), batch, lambda: NOW, deliver)
    fields = [
        [(row.row, row.outcome, row.error_class, row.error_message) for row in outcomes.not_acked]
        for outcomes in (inside, outside)
    ]
    assert (fields[0], inside.calls) == (fields[1], outside.calls)
    assert fields[0][-1][3] == "unknown currency *** currency ***", "the words of the source, and none of the record"
    assert (inside.handled_at >= NOW).all()


def test_one_process_handles_all_batches_of_a_task(isolated: MakeIsolated, folder: Path) -> None:
    handler = isolated()
    for _ in range(3):
        assert call(handler, [b"a", b"b"]) == ["acked", "acked"]
    assert len(pids(folder)) == 1
    assert os.getpid() not in pids(folder)


def test_values_of_50_mb_and_batches_of_any_size_pass(isolated: MakeIsolated, folder: Path) -> None:
    handler = isolated()
    assert call(handler, [b"-" * 50_000_000, b"kill", b"-" * 50_000_000]) == ["acked", "WorkerLost", "acked"]
    assert (call(handler, [b"a"] * 20_000), len(calls(folder))) == (["acked"] * 20_000, 20_003)


def test_records_that_kill_their_process_fail_and_no_record_is_handed_out_twice(
    isolated: MakeIsolated, folder: Path
) -> None:
    """Fault 11."""
    handler = isolated(once=True)
    outcomes = handler(batch_of([b"a", b"fail", None, b"kill", None, b"skip", b"segfault", b"exit3", b"group", b"b"]))
    assert classes(outcomes, 10) == (
        ["acked", "ValueError", "Tombstone", "WorkerLost", "Tombstone", "Skip", *["WorkerLost"] * 3, "acked"]
    )
    assert (outcomes.calls, calls(folder)) == (8, [100, 102, 106, 110, 112, 114, 116, 118])
    lost = [outcome for outcome in outcomes.not_acked if outcome.error_class == "WorkerLost"]
    assert {(outcome.outcome, outcome.handled_at) for outcome in lost} == {(Outcome.FAILED, NOW)}
    assert [outcome.error_message for outcome in lost] == [
        "the handler's process was killed by SIGKILL",
        "the handler's process was killed by SIGSEGV",
        "the handler's process ended with exit status 3",
        "the handler's process was killed by SIGKILL",
    ]
    # The value is a word of the handler's own source, and its message is a text there.
    assert (outcomes.not_acked[0].error_message, call(handler, [b"a"])) == ("can't digest 'fail'", ["acked"])


def test_a_process_whose_handler_closes_its_sockets_is_killed(isolated: MakeIsolated, folder: Path) -> None:
    """Chance decides which call is under way when the task notices it. Every record has one call and one outcome."""
    became = call(isolated(), [b"a", b"shut", b"b", b"c"])
    assert became.count("acked") >= 3
    assert set(became) <= {"acked", "WorkerLost"}
    begun = calls(folder)  # without the call under way, if it was ended before it was noted
    assert begun == sorted(set(begun))
    assert {100 + 2 * row for row, result in enumerate(became) if result == "acked"} <= set(begun)


def test_many_records_that_kill_are_found_one_by_one(isolated: MakeIsolated) -> None:
    before = children()
    handler = isolated("quiet")
    [fork_server] = children() - before
    start, memory = time.monotonic(), psutil.Process().memory_info().rss
    became = call(handler, [b"kill" if row % 3 else b"fail" for row in range(200)])
    assert became == ["WorkerLost" if row % 3 else "ValueError" for row in range(200)]
    assert psutil.Process().memory_info().rss - memory < 100 << 20
    assert len(fork_server.children(recursive=True)) <= 2
    assert time.monotonic() - start < 120


def test_what_a_handler_has_started_is_killed_with_its_process(isolated: MakeIsolated, folder: Path) -> None:
    assert call(isolated(), [b"child", b"kill"]) == ["acked", "WorkerLost"]
    [child] = pids(folder, "pids")
    assert wait_until(lambda: not psutil.pid_exists(child), 10)


def test_a_process_that_is_out_of_memory_is_replaced(isolated: MakeIsolated, folder: Path) -> None:
    handler = isolated()
    assert call(handler, [b"a", b"hoard"]) == ["acked", "MemoryError"]
    assert call(handler, [b"-" * 30_000_000, b"b"]) == ["acked", "acked"]
    assert (calls(folder), len(pids(folder))) == ([100, 102, 100, 102], 2)


@pytest.mark.parametrize(("deed", "value"), [(b"late exit", b"a"), (b"daemon", b"-" * 5_000_000)])
def test_a_death_between_batches_fails_no_record(
    isolated: MakeIsolated, folder: Path, deed: bytes, value: bytes
) -> None:
    """A daemon keeps the dead process's socket open, so the task could wait for ever for room to send the batch."""
    handler = isolated()
    assert call(handler, [deed]) == ["acked"]
    [process] = pids(folder)
    assert wait_until(lambda: not psutil.pid_exists(process), 10)
    assert (call(handler, [value, b"b"]), calls(folder)) == (["acked", "acked"], [100, 100, 102])


def test_records_that_do_not_return_fail_after_the_limit(isolated: MakeIsolated, folder: Path) -> None:
    """Fault 12: in Python, in C with the interpreter's lock, in a regular expression, stopped from outside."""
    start = time.monotonic()
    outcomes = isolated(limit=0.4, once=True)(
        batch_of([b"a", b"spin", b"b", b"sleep in C", b"regex", b"stop", b"fail"])
    )
    assert classes(outcomes, 7) == ["acked", "Timeout", "acked", "Timeout", "Timeout", "Timeout", "ValueError"]
    assert outcomes.not_acked[0].error_message == "the handler did not return within 0.4 s"
    assert calls(folder) == list(range(100, 114, 2))
    assert 1.6 <= time.monotonic() - start < 120


def test_a_call_that_returned_before_it_was_ended_is_not_ended(
    isolated: MakeIsolated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An overdue call may return before the fork server ends it; the next call is not to blame."""
    monkeypatch.setattr(HandlerProcess, "_overdue_call", lambda *_: CallState(1, 1))
    assert call(isolated("take_a_tenth", limit=0.05), [b"a"] * 3) == ["acked"] * 3


def test_the_limit_is_for_a_record_not_for_a_batch(isolated: MakeIsolated) -> None:
    assert call(isolated("take_a_tenth", limit=0.4), [b"a"] * 10) == ["acked"] * 10


@pytest.mark.parametrize(("deed", "error_class"), [(b"segfault", "WorkerLost"), (b"spin", "Timeout")])
def test_a_batch_is_halved_until_the_culprit_is_alone(
    isolated: MakeIsolated, folder: Path, deed: bytes, error_class: str
) -> None:
    """Faults 11 and 12: the limit is for one call."""
    values: list[bytes | None] = [b"a"] * 40
    values[7], values[8], values[23] = deed, None, deed
    expected = ["acked"] * 40
    expected[7], expected[8], expected[23] = error_class, "Tombstone", error_class
    outcomes = isolated("arrow", tier=Tier.ARROW, limit=0.3)(batch_of(values))
    assert (classes(outcomes, 40), outcomes.calls) == (expected, 39)
    assert 116 not in calls(folder)


def test_where_nothing_may_be_called_twice_a_killed_batch_fails_whole(isolated: MakeIsolated, folder: Path) -> None:
    """I7."""
    outcomes = isolated("arrow", tier=Tier.ARROW, once=True)(batch_of([b"a", None, b"kill", b"b"]))
    assert classes(outcomes, 4) == ["WorkerLost", "Tombstone", "WorkerLost", "WorkerLost"]
    message = "the handler's process was killed by SIGKILL in a batch of 3 records"
    assert (outcomes.not_acked[0].error_message, calls(folder)) == (message, [100, 104, 106])


AT_IMPORT = "tests.worker.isolation.killers_at_import:handle"


@pytest.mark.parametrize(("deed", "error", "imports"), [
    ("missing", pytest.raises(ConfigError, match="does not import: ModuleNotFoundError"), 1),
    ("segfault", pytest.raises(FatalError, match="SIGSEGV, 3 times while it had no record to handle"), 3),
])  # fmt: skip
def test_an_import_that_raises_or_kills_fails_the_task(
    isolated: MakeIsolated, folder: Path, monkeypatch: pytest.MonkeyPatch, deed: str, error: Any, imports: int
) -> None:
    """An import error is the same as in the Spark task. A death is no record's fault, and is not repeated for ever."""
    monkeypatch.setenv("KILLERS_IMPORT", deed)
    with error:
        call(isolated(AT_IMPORT), [b"a"])
    assert len(pids(folder, "imports")) == imports


def test_a_handler_that_dies_once_before_its_first_record_goes_on(
    isolated: MakeIsolated, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILLERS_IMPORT", "exit once")
    assert (call(isolated(AT_IMPORT), [b"a"]), len(pids(folder, "imports"))) == (["acked"], 2)


def test_the_death_of_the_fork_server_is_a_transient_error(isolated: MakeIsolated) -> None:
    """It dies before it reads the first command; the second can't even be sent."""
    before = children()
    handler = isolated()
    [fork_server] = children() - before
    fork_server.suspend()
    threading.Timer(0.3, fork_server.kill).start()
    for _ in range(2):
        with pytest.raises(TransientError, match="the same step may succeed later"):
            call(handler, [b"a"])


TASK = """
import sys
from ackline.handler import Tier
from ackline.worker.isolation.handler_process import IsolatedHandler
from tests.worker.isolation.lab import call, settings_of
call(IsolatedHandler(settings_of(), Tier.RECORD, lambda: 0), [b"child", sys.argv[1].encode()])
"""


@pytest.mark.parametrize(("victim", "deed"), [("task", "sleep in C"), ("fork server", "spin")])
def test_the_process_dies_with_its_task_and_so_does_what_it_started(folder: Path, victim: str, deed: str) -> None:
    task = subprocess.Popen([sys.executable, "-c", TASK, deed], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: (folder / "calls").exists() and len(calls(folder)) == 2, 30)
        [process] = pids(folder)
        [fork_server] = psutil.Process(task.pid).children()
        (psutil.Process(task.pid) if victim == "task" else fork_server).kill()
        assert wait_until(lambda: not psutil.pid_exists(process), 10)
        assert wait_until(lambda: not psutil.pid_exists(fork_server.pid) or fork_server.status() == "zombie", 10)
        if victim == "task":
            assert wait_until(lambda: not psutil.pid_exists(pids(folder, "pids")[0]), 10)
    finally:
        task.kill()
        task.wait()


def test_no_death_leaves_a_record_logged_as_given_while_no_call_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a record would pass for acked though its handler was never called (I2). A process may die at each write of
    the log; here it does while it reads the clock, where other threads may run."""
    log, states = CallLog.create(), []

    def clock() -> int:
        states.append((log.state().given, log.state().began_at))
        return 7

    monkeypatch.setattr("ackline.worker.isolation.serving.time.monotonic_ns", clock)
    log.begin_batch(2)
    called = log.wrap(lambda _: states.append((log.state().given, log.state().began_at)), Tier.RECORD)
    called(Record("orders", 3, 100, None, None, b"", (), 1))
    called(Record("orders", 3, 101, None, None, b"", (), 1))
    assert states == [(0, 0), (1, 7), (1, 7), (2, 7)]
    log.begin_batch(2)
    log.begin_call(0)
    log.begin_call(1)
    assert states[4:] == [(0, 0), (1, 7)]
    assert log.given().tolist() == [0, 1]
    log.close()
