"""Runs of a pipeline with an `order`: what lets a key go on, and what it does not wait for. The checker judges each.

Records of the keys a and b alternate, so the even offsets are of a.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from ackline.actions.actions import perform_action
from ackline.actions.form import ActionRequest, check_request
from ackline.actions.perform import choose_targets
from ackline.airflow.backfill import is_due
from ackline.answers.status import status
from ackline.cli.tables import print_status
from ackline.errors import ConfigError
from ackline.ledger.explain import OffsetEvidence, explain_offset
from ackline.ledger.offsets import OffsetRange
from ackline.ledger.pending import PendingKind
from ackline.ledger.turns import TurnKind
from ackline.verify.check import judge
from tests.chaos.config import Config
from tests.chaos.evidence import evidence_of
from tests.support.actor import Killed
from tests.support.memory import BEFORE
from tests.support.memory_lane import DEAD, FAILS, FAILS_ONCE, GROUP, OK, TP, MemoryBackfill, MemoryLane, void

MINUTE = {"initial_delay": "1m", "period": "1m", "max_retries": 5}
FAILS_TWICE = b'{"fail": 2}'


def ordered(*values: bytes, **settings: Any) -> MemoryLane:
    """A lane of the keys a and b in turn, with `order: key`."""
    lane = MemoryLane(**{"order": "key", "audit": {"key_hash": True}, "retry": MINUTE, **settings})
    produce(lane, *values)
    return lane


def produce(lane: MemoryLane, *values: bytes) -> None:
    for value in values:
        lane.produce(value, key=b"ab"[lane.log().end % 2 :][:1])


def pending(lane: MemoryLane) -> dict[str, list[int]]:
    runs = [(run.value.kind.value, offset) for run in lane.state().pending for offset in range(run.start, run.end)]
    return {kind: [offset for of, offset in runs if of == kind] for kind, _ in runs}


def later(lane: MemoryLane, minutes: float = 5) -> MemoryLane:
    lane.world.now += timedelta(minutes=minutes)
    return lane.after_run()


def judged(lane: MemoryLane, of: str = "live") -> list[str]:
    rules = replace(Config().rules(), group=GROUP, dead_letter_topic="dead")
    return judge(evidence_of(lane.world, rules, of)).violations


@pytest.fixture
def failing() -> Iterator[MemoryLane]:
    """A lane whose first record of a fails twice; b is done after the first turn."""
    lane = ordered(FAILS_TWICE, OK, OK, OK, OK, OK).after_run()
    assert (lane.offsets(), pending(lane)) == ([0, 1, 3, 5], {"retry": [0], "held_back": [2, 4]})
    yield lane
    assert judged(lane) == []


def test_s81_what_follows_a_record_that_fails_is_called_once_after_it_and_in_order(failing: MemoryLane) -> None:
    assert later(later(failing)).calls()[4:] == [(0, 2), (0, 3)]
    assert pending(failing) == {"held_back": [2, 4]}
    produce(failing, OK)
    assert failing.after_run().calls()[6:] == [(2, 1), (4, 1), (6, 1)]
    assert failing.floor() == failing.committed() == 7


def test_s81_an_order_by_partition_holds_back_every_later_record() -> None:
    lane = ordered(FAILS_ONCE, OK, OK, order="partition").after_run()
    produce(lane, OK)
    assert lane.after_run().offsets() == [0]
    later(lane).after_run()
    assert (lane.calls(), lane.floor(), judged(lane)) == ([(0, 1), (0, 2), (1, 1), (2, 1), (3, 1)], 4, [])


@pytest.mark.parametrize("first", [DEAD, FAILS])
def test_s82_a_record_that_dies_lets_its_key_go_on(first: bytes) -> None:
    lane = ordered(first, OK, OK, retry={**MINUTE, "max_retries": 0}).after_run()
    assert (lane.offsets(), pending(lane)) == ([0, 1], {"held_back": [2]})
    assert (lane.after_run().offsets(), lane.floor(), judged(lane)) == ([0, 1, 2], 3, [])


def test_s82_a_dead_letter_that_is_not_acknowledged_holds_back_its_key() -> None:
    lane = ordered(DEAD, OK, OK)
    lane.world.faults.letters.extend(["refused"] * 2)
    lane.after_run().after_run()
    assert (lane.offsets(), pending(lane)) == ([0, 1], {"dead_letter": [0], "held_back": [2]})
    assert (lane.after_run().after_run().offsets(), judged(lane)) == ([0, 1, 2], [])


def test_s82_what_retention_took_lets_its_key_go_on(failing: MemoryLane) -> None:
    failing.log().expire(1)
    assert (later(failing).after_run().offsets()[4:], failing.floor()) == ([2, 4], 6)


def test_s82_a_record_that_an_operator_skips_lets_its_key_go_on(failing: MemoryLane) -> None:
    act(failing, TurnKind.SKIP, OffsetRange(0, 1))
    assert failing.after_run().offsets()[4:] == [2, 4]


def test_s82_a_record_that_is_held_back_can_be_skipped_alone(failing: MemoryLane) -> None:
    act(failing, TurnKind.SKIP, OffsetRange(2, 3))
    assert pending(failing) == {"retry": [0], "held_back": [4]}
    assert later(later(failing)).after_run().offsets()[4:] == [0, 0, 4]


def test_s82_a_void_turn_counts_as_no_call(failing: MemoryLane) -> None:
    failing.world.now += timedelta(minutes=5)
    failing.after_run()
    failing.world.now += timedelta(minutes=5)
    failing.die("outcomes", BEFORE)
    with pytest.raises(Killed):
        failing.run()
    void(failing)
    assert failing.calls()[4:] == [(0, 2), (0, 3)]
    assert later(failing).after_run().calls()[6:] == [(0, 3), (2, 1), (4, 1)]


def test_s82_a_file_without_an_order_lets_all_go_on_and_one_with_it_holds_back_what_is_pending_before(
    failing: MemoryLane,
) -> None:
    failing.settings["order"] = "none"
    produce(failing, FAILS_ONCE, OK)
    assert sorted(failing.after_run().offsets()[4:]) == [2, 4, 6, 7]
    failing.settings["order"] = "key"
    produce(failing, OK, OK)
    assert failing.after_run().offsets()[8:] == []  # the key of 6 is not known, so it may be of any record
    later(later(failing))
    assert (failing.after_run().offsets()[8:], failing.floor()) == ([0, 0, 6, 8, 9], 10)


def test_s82_a_reset_begins_with_nothing_held_back(failing: MemoryLane) -> None:
    failing.perform(TurnKind.RESET, {TP: 2})
    assert failing.after_run().offsets()[4:] == [2, 3, 4, 5]


def test_s82_a_backfill_has_an_order_of_its_own(failing: MemoryLane) -> None:
    backfill = MemoryBackfill(failing, "b", "orders:0:2-5")
    account = backfill.run()
    assert (account.settled, failing.offsets()[4:], judged(failing, backfill.lane)) == (True, [2, 3, 4], [])


def test_s82_a_backfill_whose_first_record_of_a_key_waits_for_its_retry_is_not_due_before() -> None:
    lane = ordered(FAILS_ONCE, OK, OK).after_run()
    backfill = MemoryBackfill(lane, "b", "orders:0:0-3")
    account = backfill.run()
    assert (dict(account.pending), is_due(account, lane.world.now)) == (
        {"retry": 1, "dead_letter": 0, "in_flight": 0, "held_back": 1, "unread": 0}, False)  # fmt: skip
    lane.world.now += timedelta(minutes=5)
    assert is_due(account, lane.world.now)
    assert (backfill.run().settled, judged(lane, backfill.lane)) == (True, [])


def test_at_most_once_nothing_is_held_back() -> None:
    lane = ordered(FAILS, OK, OK, guarantee="at_most_once").after_run()
    assert (lane.offsets(), lane.floor()) == ([0, 1, 2], 3)


def act(lane: MemoryLane, kind: TurnKind, offsets: OffsetRange) -> None:
    request = ActionRequest(kind, offsets=offsets)
    check_request(request)
    perform_action(lane.adapters(), kind, lambda newest: choose_targets(lane.adapters(), request, newest), "a test")


def test_a_retry_of_what_is_held_back_names_the_record_to_look_at(failing: MemoryLane) -> None:
    with pytest.raises(ConfigError, match=r"waits for a lower one.*ackline explain lane orders 0 2"):
        act(failing, TurnKind.RETRY, OffsetRange(2, 5))


def test_status_has_a_column_of_what_is_held_back_and_explain_names_what_it_waits_for(failing: MemoryLane) -> None:
    found, out = status(failing.adapters()), Console(width=200, record=True, file=StringIO())
    print_status(out, "lane", found)
    assert (found[0].pending[PendingKind.HELD_BACK], "held back" in out.export_text()) == (2, True)
    state = failing.state()
    text = explain_offset(OffsetEvidence(TP, 4, "live", 0, state, (), None, None, 0), failing.world.now).sentence
    assert "waits behind offset 0 of the same key, which failed once with ValueError and waits for attempt 2" in text


def test_the_breaker_and_the_signals_count_no_record_that_is_held_back(failing: MemoryLane) -> None:
    (metrics,) = [failing.settled().metrics]
    assert metrics is not None
    assert (metrics["new_records"], metrics["new_failed"], metrics["pending_held_back"]) == (4, 1, 2)
    assert failing.settled().gaps == 0
