"""A row of a range counts as all its offsets: in settlements, totals, metrics, counters, the status and a run."""

import pytest

from ackline.actions.status import status
from ackline.airflow.results import add_counters
from ackline.errors import AcklineError
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import Settlement, TurnKind
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
    assert nonzero(status(lane.adapters())[0].totals) == counts
    assert lane.metrics()["expired_in_ranges"] == 900


def test_a_skip_counts_every_offset_that_it_settles() -> None:
    lane = MemoryLane(FAILS, OK, OK, retry={"initial_delay": "1h"}).after_run()
    lane.produce(*[OK] * 10)
    lane.perform(TurnKind.SKIP, {TP: 11})
    assert lane.ranges(Outcome.SKIPPED) == [(0, 1), (3, 11)]
    assert lane.settled().counts == counters(lane.newest()) == {"skipped": 9}


def test_s50_records_that_were_lost_count_as_so_many_and_not_as_gaps() -> None:
    lane = MemoryLane(*[OK] * 30, guarantee=AT_MOST_ONCE, dead_letter="none", lost_after="0s")
    lane.world.faults.jobs.append("failed")
    with pytest.raises(AcklineError):
        lane.run()
    assert lane.run().outcomes == lane.settled().counts == {"lost": 30}
    assert (lane.settled().gaps, nonzero(lane.settled().totals)) == (0, {"lost": 30})


def test_offsets_that_retention_took_after_the_claim_are_no_gaps() -> None:
    lane = MemoryLane(*[OK] * 4, guarantee=AT_MOST_ONCE, dead_letter="none", lost_after="0s")
    lane.strike("start", lambda: lane.log().expire(2), BEFORE)
    lane.run()
    assert sum(lane.settled().counts.values()) == 4
    assert lane.settled().gaps == 0
