"""Faults 11 and 12 where many calls are under way at once: the record that caused the death is found, and what had
ended keeps its outcome."""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from ackline.pipeline.streams import PIPELINE_STREAM, Stream, Translation
from ackline.worker.gate import Gate
from tests.worker.isolation.conftest import MakeIsolated
from tests.worker.isolation.lab import batch_of, calls, classes

WAITING = "tests.worker.isolation.killers_that_wait"
VALUES = [b"ok", b"fail", b"meet", b"kill", None, b"meet", b"late", b"fail", b"late"]
BEFORE, LATE = ["acked", "ValueError"], ["acked", "ValueError", "acked"]


@pytest.mark.parametrize("handler", ["meet", "Meet"])
def test_calls_under_way_are_made_again_one_by_one_until_the_culprit_has_its_outcome(
    isolated: MakeIsolated, folder: Path, handler: str
) -> None:
    """The process dies twice: when three calls are under way, and when the culprit is called alone."""
    outcomes = isolated(f"{WAITING}:{handler}", concurrency=3)(batch_of(VALUES))
    assert classes(outcomes, 9) == [*BEFORE, "acked", "WorkerLost", "Tombstone", "acked", *LATE]
    assert [each.error_message for each in outcomes.not_acked if each.error_class == "WorkerLost"] == [
        "the handler's process was killed by SIGKILL"
    ]
    made = Counter((offset - 100) // 2 for offset in calls(folder))
    assert made == {0: 1, 1: 1, 2: 2, 3: 2, 5: 2, 6: 1, 7: 1, 8: 1}


@pytest.mark.parametrize("handler", ["meet", "Meet"])
def test_i7_at_most_once_each_call_under_way_fails_and_none_is_made_again(
    isolated: MakeIsolated, folder: Path, handler: str
) -> None:
    outcomes = isolated(f"{WAITING}:{handler}", concurrency=3, once=True)(batch_of(VALUES))
    lost = ["WorkerLost", "WorkerLost", "Tombstone", "WorkerLost"]
    assert classes(outcomes, 9) == [*BEFORE, *lost, *LATE]
    assert sorted(calls(folder)) == [100 + 2 * row for row, value in enumerate(VALUES) if value is not None]


def test_a_call_that_hangs_fails_alone(isolated: MakeIsolated) -> None:
    values = [b"ok"] * 5 + [b"hang"] + [b"ok"] * 5
    outcomes = isolated(f"{WAITING}:hang", concurrency=2, limit=0.4)(batch_of(values))
    assert classes(outcomes, 11) == ["acked"] * 5 + ["Timeout"] + ["acked"] * 5
    assert outcomes.not_acked[0].error_message == "the handler did not return within 0.4 s"


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("concurrency", [None, 3])
def test_what_a_class_has_kept_counts_only_once_it_is_closed(
    isolated: MakeIsolated, folder: Path, concurrency: int | None, once: bool
) -> None:
    """A process that dies loses what it has kept: at least once it gets those records again, at most once they fail."""
    values = [b"a", b"fail", b"b", b"kill", b"c"]
    outcomes = isolated(f"{WAITING}:Buffers", concurrency=concurrency, once=once)(batch_of(values))
    found = classes(outcomes, 5)
    written = [int(line) for line in (folder / "written").read_text().split()]
    assert sorted(set(written)) == [100 + 2 * row for row, outcome in enumerate(found) if outcome == "acked"]
    assert len(written) == len(set(written))
    assert found[3] == "WorkerLost"
    if not once:
        assert found == ["acked", "ValueError", "acked", "WorkerLost", "acked"]


@pytest.mark.parametrize("concurrency", [None, 3])
def test_a_filter_that_kills_or_hangs_fails_its_record_alone(isolated: MakeIsolated, concurrency: int | None) -> None:
    handler = f"{WAITING}:Meet" if concurrency is None else f"{WAITING}:meet"
    stream = Stream(PIPELINE_STREAM, handler, f"{WAITING}:choose")
    made = isolated(translation=Translation((stream,)), concurrency=concurrency, limit=1.0)
    values = [b"ok", b"kill", b"other", b"ok", b"hang", b"ok"]
    expected = ["acked", "WorkerLost", "Unmatched", "acked", "Timeout", "acked"]
    assert classes(made(batch_of(values)), 6) == expected


def test_s83_a_call_that_blocks_the_event_loop_fails_alone_and_not_the_one_that_began_before_it(
    isolated: MakeIsolated,
) -> None:
    """All that is under way is overdue then, and the first to begin was taken for the culprit."""
    outcomes = isolated(f"{WAITING}:block", limit=0.5)(batch_of([b"first", b"block", b"ok"]))
    assert classes(outcomes, 3) == ["acked", "Timeout", "acked"]


@pytest.mark.parametrize("concurrency", [None, 3])
def test_i19_what_is_called_again_after_a_death_comes_before_what_follows_it_in_the_order_of_its_key(
    isolated: MakeIsolated, folder: Path, concurrency: int | None
) -> None:
    """The first record was kept and not written, so it is called again, and with it the one of its key that has failed
    meanwhile."""
    records = replace(batch_of([b"a", b"fail", b"kill"]), order_keys=np.array([7, 7, 8]))
    made = isolated(f"{WAITING}:OnceKept", concurrency=concurrency)
    assert classes(made(records, Gate()), 3) == ["acked", "ValueError", "WorkerLost"]
    assert (folder / "written").read_text().split() == ["100"]
    made_calls = [int(line) for line in (folder / "calls").read_text().split()]
    assert made_calls[-3:] == [100, 102, 104] or made_calls[-2:] == [100, 102]


def test_a_process_that_ends_after_its_last_call_fails_no_record(isolated: MakeIsolated, folder: Path) -> None:
    made = isolated(f"{WAITING}:leave")
    assert classes(made(batch_of([b"a"])), 1) == ["acked"]
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int((folder / "process").read_text())).wait(20)
    made.close_handlers()
