"""at_most_once and no_guarantee (S50, S51), the breaker (S46), and turns that keep counts instead of rows."""

from typing import Any

import pytest
from deltalake import DeltaTable

from ackline.errors import TooManyFailures
from ackline.spark import job
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Row, all_of, fails


def test_s51_without_a_guarantee_the_group_moves_to_the_end_although_records_failed(lab: MakeLab) -> None:
    lane = lab(guarantee="no_guarantee", max_uncommitted=1)
    lane.produce_records(4, fails([1, 2], -1))
    lane.run()
    assert lane.rows() == sorted([*all_of("acked", [0, 3]), *all_of("dropped", [1, 2])])
    assert lane.committed() == 4
    assert lane.run().calls == 0


def test_s50_at_most_once_the_group_has_moved_before_the_first_call(
    lab: MakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S51: this guarantee ignores the window as well."""
    lane = lab(guarantee="at_most_once", max_uncommitted=1)
    lane.produce_records(3, fails([1], -1))
    committed_before_the_job: list[int | None] = []
    run_replay = job.run_replay

    def spy(*arguments: Any) -> Any:
        committed_before_the_job.append(lane.committed())
        return run_replay(*arguments)

    monkeypatch.setattr(job, "run_replay", spy)
    lane.run()
    assert committed_before_the_job == [3]
    assert lane.rows() == sorted([*all_of("acked", [0, 2]), Row(1, 1, "dropped")])
    assert lane.committed() == 3
    assert lane.run().calls == 0


def test_s46_too_many_failures_void_the_turn_until_a_run_overrides_the_breaker(lab: MakeLab) -> None:
    """Dropped records count as failures too."""
    lane = lab(guarantee="no_guarantee", breaker={"failure_ratio": 0.5, "min_records": 4})
    lane.produce_records(4, fails([0, 1, 2], -1))
    with pytest.raises(TooManyFailures, match="too many failures: 3 of 4"):
        lane.run()
    assert (lane.rows(), lane.committed(), lane.settlement().kind) == ([], None, "void")
    assert lane.ackline("run", lane.name, "--no-breaker").returncode == 0
    assert lane.outcomes() == {"acked": 1, "dropped": 3}
    assert lane.committed() == 4


def test_without_rows_the_counts_are_stored_and_the_checker_judges_by_them(lab: MakeLab) -> None:
    """`record_outcomes: false`: one commit of outcomes a turn, with no file in it."""
    lane = lab(guarantee="at_most_once", record_outcomes=False, partitions=2)
    lane.produce_records(6, fails([1, 4], -1) | {3: None})
    lane.produce_records(2, partition=1)
    lane.run()
    assert lane.table("outcomes") == []
    assert DeltaTable(f"{lane.tables}/outcomes").file_uris() == []
    assert (lane.settled().counts, lane.settled(1).counts) == ({"acked": 3, "dropped": 2, "skipped": 1}, {"acked": 2})
    totals = lane.settled().totals or {}
    assert {name: count for name, count in totals.items() if count} == {"acked": 3, "dropped": 2, "skipped": 1}
    assert (lane.settled().gaps, lane.committed()) == (0, 6)
    assert lane.run().calls == 0
    lane.judge(settled=True)
    assert "record_outcomes: false" in lane.ackline("audit", lane.name).stdout
