"""at_most_once and no_guarantee (S50, S51), and the breaker (S46)."""

from typing import Any

import pytest

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
