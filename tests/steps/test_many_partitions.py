"""A turn of many partitions: the tables hold all of them, and XCom, logs and the printed table the worst ten."""

import json
from io import StringIO

from rich.console import Console

from ackline.airflow.results import planned_summary, settled_summary
from ackline.cli.tables import print_turn
from ackline.ledger.offsets import TopicPartition
from ackline.steps.plan import Planned
from tests.support.memory_lane import FAILS, OK, MemoryLane

PARTITIONS, WORST = 300, [TopicPartition("orders", partition) for partition in range(0, 300, 30)]


def test_xcom_log_and_printed_table_hold_totals_and_the_ten_worst_partitions() -> None:
    lane = MemoryLane(partitions=PARTITIONS, max_records_per_run=10_000)
    for partition in range(PARTITIONS):
        tp = TopicPartition("orders", partition)
        lane.produce(*([FAILS] * 5 if tp in WORST else [OK]), tp=tp)
    planned = planned_summary(Planned(lane.plan(), adopted=False))
    lane.replay()
    result = lane.settle()
    settled = settled_summary(result)
    assert planned["totals"] == {"partitions": 300, "fresh": 340, "retries": 0, "unread": 340}
    assert settled["totals"] == {
        "partitions": 300,
        "pending": {"retry": 50, "dead_letter": 0, "in_flight": 0},
        "outcomes": {"acked": 290, "failed": 50},
        "committed": 300,
    }
    for summary in (planned, settled):
        assert [TopicPartition(row["topic"], row["partition"]) for row in summary["partitions"]] == WORST
        assert len(json.dumps(summary)) < 4_000
    plan, printed = lane.adapters().store.plan(lane.newest().turn), StringIO()
    print_turn(Console(file=printed, width=200), plan, lane.newest(), result.committed)
    lines = printed.getvalue().splitlines()
    assert len(lines) == 1 + 1 + len(WORST) + 1
    assert lines[-1].split()[:7] == ["all", "–", "–", "290", "50", "0", "0"]
