"""Handlers whose answer is invalid: the whole batch fails, and nothing of it is acked (fault 13)."""

from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Row, all_of

INVALID = ["one_too_few", "one_too_many", "nulls", "foreign_offsets"]


def test_fault_13_an_answer_that_is_not_one_outcome_a_row_acks_nothing(lab: MakeLab) -> None:
    """Neither fresh records nor retries are acked; the handler gets all of them again once it is repaired."""
    lane = lab(retry={"initial_delay": "0s", "period": "0s", "max_retries": len(INVALID)})
    lane.produce_records(4)
    lane.journalled = False
    for handler in INVALID:
        lane.configure(handler=f"tests.chaos.handlers:{handler}")
        lane.run()
        assert lane.committed() == 0
        assert lane.outcomes().keys() == {"failed"}
    wanted = [Row(offset, attempt, "failed") for offset in range(4) for attempt in range(1, len(INVALID) + 1)]
    assert lane.rows() == wanted
    assert {row["error_class"] for row in lane.table("outcomes")} == {"InvalidOutcome"}
    lane.judge()
    lane.configure(handler="tests.support.journal:handle")
    lane.run()
    assert lane.new_calls() == [(offset, len(INVALID) + 1) for offset in range(4)]
    assert lane.rows() == sorted([*wanted, *all_of("acked", range(4), len(INVALID) + 1)])
    assert lane.committed() == 4
    lane.judge(settled=True)
