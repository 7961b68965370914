"""When a handler is isolated: asked for, or after three starts of a plan without outcomes."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ackline.errors import ConfigError, TransientError
from ackline.pipeline import load
from ackline.steps.plan import plan
from ackline.steps.replay import replay
from ackline.steps.run import run
from ackline.testing.memory import World
from ackline.testing.memory_parts import MemoryParts, memory_parts, no_session
from tests.unit.pipeline_files import writer

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Bench:
    """A pipeline in a world with three records; `jobs` is what each start of a job was told of isolation."""

    def __init__(self, folder: Path, more: str = "") -> None:
        self.pipeline = load(writer(folder)(more=more))
        self.world = World(NOON)
        self.world.create_topic("orders.dead")
        self.world.create_topic("orders")
        self.jobs: list[tuple[bool, str, float | None]] = []
        self.produce(3)

    def produce(self, count: int) -> None:
        for _ in range(count):
            self.world.topics["orders"].logs[0].append(b"{}", NOON)

    def parts(self) -> MemoryParts:
        parts = memory_parts(self.world, self.pipeline, "run")

        def run_job(spark: Any, job: Any, on_progress: Any) -> Any:
            self.jobs.append((job.isolated, job.because, job.record_timeout))
            return parts.run_job(spark, job, on_progress)

        return replace(parts, run_job=run_job)

    def fail(self, times: int) -> None:
        """So many runs whose job does not come back."""
        self.world.faults.jobs.extend(["failed"] * times)
        for _ in range(times):
            with pytest.raises(TransientError):
                run(self.parts(), no_session)

    def tries(self) -> dict[str, int]:
        """The number that each start of a plan has last taken."""
        numbers = self.world.tables.numbers["plans"]
        return {name.rsplit("/", 1)[-1]: number for name, number in numbers.items() if "try" in name}


PLAIN = (False, "", None)


@pytest.mark.parametrize("guarantee", ["at_least_once", "no_guarantee"])
def test_the_fourth_start_without_outcomes_isolates_and_the_next_plan_does_not(tmp_path: Path, guarantee: str) -> None:
    bench = Bench(tmp_path, f"guarantee: {guarantee}\n")
    bench.fail(4)
    run(bench.parts(), no_session)
    isolated = (True, "started 3 times without outcomes", None)
    assert bench.jobs == [PLAIN] * 3 + [isolated] * 2
    bench.produce(1)
    run(bench.parts(), no_session)
    assert bench.jobs[5:] == [PLAIN]
    assert bench.tries() == {"try-1": 2, "try-2": 1, "try-3": 1}


def test_a_start_is_counted_before_it_is_made(tmp_path: Path) -> None:
    """A start that takes its process with it leaves nothing but its number."""
    bench = Bench(tmp_path)
    parts = bench.parts()
    plan(parts)

    def dies(spark: Any, job: Any, on_progress: Any) -> Any:
        raise SystemExit

    for number in (1, 2, 3):
        with pytest.raises(SystemExit):
            replay(replace(parts, run_job=dies), no_session)
        assert bench.tries()[f"try-{number}"] == 1
    replay(parts, no_session)
    assert bench.jobs[0][0]


def test_an_empty_plan_and_one_whose_outcomes_are_stored_are_not_started(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    plan(bench.parts())
    replay(bench.parts(), no_session)
    replay(bench.parts(), no_session)
    assert bench.tries() == {"try-1": 1}
    run(bench.parts(), no_session)
    run(bench.parts(), no_session)
    assert bench.tries() == {"try-1": 1}


def test_s50_a_claimed_plan_has_one_start_and_is_never_tried_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "guarantee: at_most_once\n")
    bench.fail(1)
    with pytest.raises(TransientError, match="handed out by another process"):
        run(bench.parts(), no_session)
    assert (bench.jobs, bench.tries()) == ([PLAIN], {})


@pytest.mark.parametrize("error", ["WorkerLost", "Timeout", "ValueError"])
def test_a_record_that_killed_or_hung_its_process_is_tried_again_in_isolation(
    tmp_path: Path, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, "retry: {initial_delay: 0s}\n")

    def handle(record: Any) -> None:
        if record.offset == 1:
            raise RuntimeError

    bench.world.handle = handle
    monkeypatch.setattr("ackline.testing.memory_parts.class_of", lambda _: error)
    run(bench.parts(), no_session)
    run(bench.parts(), no_session)
    because = "it tries a record again that has killed or hung its process"
    assert bench.jobs == [PLAIN, PLAIN if error == "ValueError" else (True, because, None)]


def test_s50_a_property_that_spark_can_not_be_told_is_refused_before_anything_is_handed_out(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "guarantee: at_most_once\n")
    with pytest.raises(ConfigError, match=r"no\.such\.property"):
        run(replace(bench.parts(), kafka={"bootstrap.servers": "memory", "no.such.property": "1"}), no_session)
    run(bench.parts(), no_session)
    assert len(bench.jobs) == 1, "it was handed out to nobody before"


@pytest.mark.parametrize(("more", "limit"), [("isolation: process\n", None), ("record_timeout: 1m30s\n", 90.0)])
def test_what_the_file_asks_for_holds_from_the_first_start(tmp_path: Path, more: str, limit: float | None) -> None:
    bench = Bench(tmp_path, more)
    bench.fail(4)
    assert bench.jobs == [(True, "", limit)] * 4
