"""A handler that kills or hangs its process: the record fails, its neighbours are not harmed (faults 11 and 12)."""

import pytest

from ackline.errors import TransientError
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab, Row, Value, all_of

DEADLY = "tests.chaos.handlers:deadly"


def classes(one: Lab) -> dict[tuple[int, int], str]:
    """The error class of each attempt that has one."""
    found = one.table("outcomes")
    return {(row["offset"], row["attempt"]): row["error_class"] for row in found if row["error_class"]}


def test_a_segfault_and_a_hang_fail_their_records_and_are_tried_again(lab: MakeLab) -> None:
    """Faults 11 and 12, S14: the next run handles exactly those that failed (I5)."""
    one = lab(handler=DEADLY, handler_isolation="process", record_timeout="2s", retry={"initial_delay": "1m"})
    values: list[Value] = [{}, {"kill": 1}, None, {"hang": 1}, {"fail": 1}, {}]
    one.produce(*values)
    one.run()
    assert one.rows() == [
        Row(offset, 1, {0: "acked", 2: "skipped", 5: "acked"}.get(offset, "failed")) for offset in range(6)
    ]
    assert classes(one) == {(1, 1): "WorkerLost", (2, 1): "Tombstone", (3, 1): "Timeout", (4, 1): "ValueError"}
    assert one.handled() == [(offset, 1) for offset in (0, 1, 3, 4, 5)]
    assert (one.committed(), one.pending()) == (1, [1, 3, 4])
    one.run()
    assert one.handled() == []
    one.wait(61)
    one.run()
    assert one.handled() == [(1, 2), (3, 2), (4, 2)]
    assert one.committed() == 6
    one.judge(settled=True)


def test_a_pipeline_without_isolation_gets_through_by_itself(lab: MakeLab, caplog: pytest.LogCaptureFixture) -> None:
    """Three starts without outcomes, the fourth finds the record; its retry is isolated from the first start on."""
    one = lab(handler=DEADLY, retry={"initial_delay": "0s", "max_retries": 1})
    one.records(6, {2: {"kill": -1}})
    for _ in range(3):
        with pytest.raises(TransientError):
            one.run()
        assert (one.table("outcomes"), one.committed()) == ([], None)
    assert "process of its own" not in caplog.text
    one.run()
    assert "started 3 times without outcomes; a process of its own runs the handler" in caplog.text
    assert one.rows() == sorted([*all_of("acked", [0, 1, 3, 4, 5]), Row(2, 1, "failed")])
    assert classes(one) == {(2, 1): "WorkerLost"}
    assert one.committed() == 2
    one.handled()
    one.records(2)
    one.run()
    assert one.handled() == [(2, 2), (6, 1), (7, 1)]
    assert [row for row in one.rows() if row.offset == 2] == [
        Row(2, 0, "dead"),
        Row(2, 1, "failed"),
        Row(2, 2, "failed"),
    ]
    assert {row["turn"] for row in one.table("plans")} == {1, 2}
    assert one.committed() == 8
    one.judge(settled=True)


def test_i7_under_at_most_once_nothing_is_called_twice_for_it(lab: MakeLab) -> None:
    one = lab(handler=DEADLY, guarantee="at_most_once", handler_isolation="process", dead_letter="none")
    one.records(5, {1: {"kill": -1}, 3: {"kill": -1}})
    one.run()
    assert one.handled() == [(offset, 1) for offset in range(5)]
    assert one.outcomes() == {"acked": 3, "dropped": 2}
    assert one.committed() == 5
    one.judge()
