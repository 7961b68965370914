"""Handlers whose answer can't be trusted: the batch is refused, nothing of it is acked (fault 13)."""

from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Row, all_of

RUBBISH = ["one_too_few", "one_too_many", "nulls", "foreign_offsets"]


def test_fault_13_an_answer_that_is_not_one_outcome_a_row_acks_nothing(lab: MakeLab) -> None:
    """Neither of new records nor of retries; once the handler is mended, it meets all of them again."""
    one = lab(retry={"initial_delay": "0s", "period": "0s", "max_retries": len(RUBBISH)})
    one.records(4)
    one.journalled = False
    for handler in RUBBISH:
        one.define(handler=f"tests.chaos.handlers:{handler}")
        one.run()
        assert one.committed() == 0
        assert one.outcomes().keys() == {"failed"}
    wanted = [Row(offset, attempt, "failed") for offset in range(4) for attempt in range(1, len(RUBBISH) + 1)]
    assert one.rows() == wanted
    assert {row["error_class"] for row in one.table("outcomes")} == {"InvalidOutcome"}
    one.judge()
    one.define(handler="ackline.testing.journal:handle")
    one.run()
    assert one.handled() == [(offset, len(RUBBISH) + 1) for offset in range(4)]
    assert one.rows() == sorted([*wanted, *all_of("acked", range(4), len(RUBBISH) + 1)])
    assert one.committed() == 4
    one.judge(settled=True)
