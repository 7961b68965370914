"""What a turn counts: each offset of a range, and the worst of many partitions beside the totals."""

import json
from io import StringIO

from rich.console import Console

from ackline.airflow.metrics import add_counters
from ackline.airflow.results import planned_summary, settled_summary
from ackline.answers.status import status
from ackline.cli.tables import print_turn
from ackline.errors import AcklineError
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import Settlement, TurnKind
from ackline.steps.plan import Planned
from ackline.ui.readings import TurnReading
from tests.support.memory import BEFORE
from tests.support.memory_lane import AT_MOST_ONCE, FAILS, OK, TP, MemoryLane


def counters(settlement: Settlement) -> dict[str, float]:
    """What the settle task adds to the counters of the topic."""
    sent: dict[str, float] = {}
    add_counters(lambda name, value, _: sent.update({name: value}), settlement)
    return {name.removeprefix("ackline.topic."): value for name, value in sent.items() if ".topic." in name}


def shown(settlement: Settlement) -> object:
    """What the page shows of a turn."""
    return TurnReading(settlement.turn, None, settlement, {}).outcomes


def nonzero(totals: object) -> dict[str, int]:
    assert isinstance(totals, dict)
    return {word: number for word, number in totals.items() if number}


def test_s41_900_records_that_retention_took_count_as_900_although_they_are_one_row() -> None:
    lane = MemoryLane(start="earliest").after_run()
    lane.produce(*[OK] * 903)
    lane.log().expire(900)
    ran = lane.run()
    counts = {"expired": 900, "acked": 3}
    assert lane.ranges(Outcome.EXPIRED) == [(0, 900)]
    assert ran.outcomes == lane.settled().counts == counters(lane.newest()) == shown(lane.newest()) == counts
    assert (nonzero(lane.settled().totals), lane.settled().gaps) == (counts, 0)
    assert (nonzero(status(lane.adapters())[0].totals), lane.metrics()["expired_in_ranges"]) == (counts, 900)


def test_a_skip_counts_every_offset_that_it_settles() -> None:
    lane = MemoryLane(FAILS, OK, OK, retry={"initial_delay": "1h"}).after_run()
    lane.produce(*[OK] * 10)
    lane.perform(TurnKind.SKIP, {TP: 11})
    assert lane.ranges(Outcome.SKIPPED) == [(0, 1), (3, 11)]
    assert lane.settled().counts == counters(lane.newest()) == {"skipped": 9}


def test_s50_records_that_were_lost_count_as_so_many_and_not_as_gaps() -> None:
    lane = MemoryLane(*[OK] * 30, guarantee=AT_MOST_ONCE, dead_letter="none", lost_after="0s")
    lane.world.faults.jobs.append("failed")
    lane.run_fails(AcklineError)
    assert lane.run().outcomes == lane.settled().counts == {"lost": 30}
    assert (lane.settled().gaps, nonzero(lane.settled().totals)) == (0, {"lost": 30})


def test_offsets_that_retention_took_after_the_claim_are_no_gaps() -> None:
    lane = MemoryLane(*[OK] * 4, guarantee=AT_MOST_ONCE, dead_letter="none", lost_after="0s")
    lane.strike("start", lambda: lane.log().expire(2), BEFORE)
    lane.run()
    assert (sum(lane.settled().counts.values()), lane.settled().gaps) == (4, 0)


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
        "pending": {"retry": 50, "dead_letter": 0, "in_flight": 0, "held_back": 0},
        "outcomes": {"acked": 290, "failed": 50},
        "committed": 300,
    }
    for summary in (planned, settled):
        assert [TopicPartition(row["topic"], row["partition"]) for row in summary["partitions"]] == WORST
        assert len(json.dumps(summary)) < 4_000
    plan, printed = lane.adapters().store.plan(lane.newest().turn), StringIO()
    print_turn(Console(file=printed, width=200), plan, lane.newest(), result.committed)
    lines = printed.getvalue().splitlines()
    assert (len(lines), lines[-1].split()[:7]) == (1 + 1 + len(WORST) + 1, ["all", "–", "–", "290", "50", "0", "0"])
