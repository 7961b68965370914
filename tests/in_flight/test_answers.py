"""Which answer for a record in flight counts, and when an attempt times out. On tables and a broker in memory."""

import base64
import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count

import numpy as np
import pyarrow as pa
import pytest

from ackline.in_flight import decide
from ackline.in_flight.ack_topic import range_to_read
from ackline.in_flight.decide import NOT_MASKED, decide_answers
from ackline.ledger.answers import Answer, parse_answer, parse_token
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import ErrorClass, Outcome
from ackline.ledger.pending import PendingKind, PendingRuns, PendingState, microseconds
from ackline.steps.replay import job_of
from ackline.tables.schemas import decision_rows
from tests.support.actor import Killed
from tests.support.memory_lane import NOON, OK, TP, WAITS, AnsweredLane, MemoryBackfill, in_flight


def test_s64_an_answer_before_the_outcomes_are_stored_counts() -> None:
    lane = AnsweredLane(WAITS, WAITS)
    lane.early = lambda record: lane.answer(record.offset, "ack" if record.offset else "fail")
    ran = lane.run()
    assert ran.answers == {"acked": 1, "failed": 1}
    assert lane.outcomes() == [(0, 1, "in_flight"), (0, 1, "failed"), (1, 1, "in_flight"), (1, 1, "acked")]
    assert [run.value.kind for run in lane.state().pending] == [PendingKind.RETRY]


def test_s64_an_answer_to_the_first_turn_ever_counts_however_early_it_comes() -> None:
    lane = AnsweredLane(WAITS)
    for _ in range(3):
        lane.answer_with("before the lane", "ack")
    lane.plan()
    lane.early = lambda record: lane.answer(record.offset)
    lane.replay()
    lane.settle()
    assert (lane.floor(), lane.answered(), lane.next_answer()) == (1, {"acked": 1}, 4)


def test_s65_every_other_of_four_acked_in_time_and_the_others_fail_with_their_deadline() -> None:
    lane = AnsweredLane(WAITS, WAITS, WAITS, WAITS).after_run()
    lane.answer(0)
    lane.answer(2)
    lane.at(9).run()
    assert (in_flight(lane), lane.pending(), lane.floor()) == (2, [(1, 2), (3, 4)], 1)
    lane.at(12).run()
    assert in_flight(lane) == 0
    failed = [run.value.error_class for run in lane.state().pending]
    assert failed == [ErrorClass.ACK_TIMEOUT, ErrorClass.ACK_TIMEOUT]
    assert lane.answered() == {"acked": 2, "timed_out": 2}
    lane.run()
    assert lane.calls()[4:] == [(1, 2), (3, 2)]


def test_s65_without_a_timeout_a_record_stays_in_flight() -> None:
    lane = AnsweredLane(WAITS, timeout="none").after_run()
    lane.at(10**9).run()
    assert (in_flight(lane), lane.state().next_due) == (1, None)


def test_s65_a_renewed_record_stays_in_flight_and_an_ordinary_ack_renews_nothing() -> None:
    lane = AnsweredLane(WAITS, WAITS).after_run()
    lane.answer(1)
    for second in (9, 18):
        lane.at(second)
        lane.answer(0, "renew 10s")
        lane.run()
    lane.at(20).run()
    assert (in_flight(lane), lane.state().next_due) == (1, NOON + timedelta(seconds=28))
    lane.answer(0)
    lane.at(21).run()
    assert (lane.floor(), lane.answered()) == (2, {"acked": 2, "renewed": 2})


def test_s65_a_renewal_or_a_timeout_beyond_the_calendar_ends_before_the_calendar_does() -> None:
    """Statistics of the audit table's files round a deadline up to a millisecond that must exist."""
    lane = AnsweredLane(WAITS).after_run()
    for renewal in ("renew 3000000d", "renew 999999999d"):
        lane.answer(0, renewal)
        lane.at(1).run()
        due = lane.state().next_due
        assert due is not None
        assert due <= datetime.max.replace(tzinfo=UTC) - timedelta(milliseconds=1)
    assert lane.answered() == {"renewed": 2}


def test_s65_an_answer_that_the_late_run_finds_counts_although_the_deadline_has_passed() -> None:
    lane = AnsweredLane(WAITS).after_run()
    lane.answer(0)
    lane.at(1000).run()
    assert (lane.floor(), lane.answered()) == (1, {"acked": 1})


def test_s69_answers_of_every_wrong_kind_are_counted_and_change_nothing() -> None:
    lane = AnsweredLane(WAITS, WAITS).after_run()
    lane.answer(0, times=2)
    lane.answer(0, "fail")
    lane.at(1).run()
    assert lane.answered() == {"acked": 1, "repeated": 2}
    lane.answer(0, "fail")
    token = lane.tokens[1, 1]
    content = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    wrong_mac = base64.urlsafe_b64encode(content[:-1] + bytes([content[-1] ^ 1])).decode().rstrip("=")
    other_lane = base64.urlsafe_b64encode(content.replace(b'"live"', b'"evil"')).decode().rstrip("=")
    for key, value in [
        (wrong_mac, "ack"), (other_lane, "ack"), (token, "acks"), (token, "renew soon"), (token, None), (None, "ack"),
        (b"\xff\xfe", "ack"), (token, b"\xff"), ("x" * 5000, "ack"), ("", ""),
    ]:  # fmt: skip
        lane.answer_with(key, value)
    lane.at(2).run()
    assert (in_flight(lane), lane.floor()) == (1, 1)
    assert lane.answered() == {
        "acked": 1, "repeated": 2, "stale": 1, "unsigned": 1, "foreign": 1, "malformed": 8,
    }  # fmt: skip


def test_s69_an_answer_to_an_older_attempt_or_after_the_timeout_is_stale() -> None:
    lane = AnsweredLane(WAITS).after_run()
    lane.at(11).run()
    lane.answer(0)
    lane.run()
    assert lane.calls() == [(0, 1), (0, 2)]
    lane.answer(0)
    lane.at(12).run()
    assert (in_flight(lane), lane.answered()) == (1, {"timed_out": 1, "stale": 2})
    lane.answer(0, attempt=2)
    lane.at(13).run()
    assert (lane.floor(), lane.answered()["acked"]) == (1, 1)


def test_s69_eight_answers_for_one_token_at_once_are_one_outcome() -> None:
    lane = AnsweredLane(WAITS).after_run()
    lane.answer(0, times=8)
    lane.run()
    assert lane.outcomes() == [(0, 1, "in_flight"), (0, 1, "acked")]
    assert lane.answered() == {"acked": 1, "repeated": 7}


def test_the_first_answer_that_ends_an_attempt_counts_and_the_last_renewal() -> None:
    lane = AnsweredLane(WAITS, WAITS).after_run()
    for value in ("renew 1h", "fail too slow: password=hunter2", "ack", "renew 2h"):
        lane.answer(0, value)
    lane.answer(1, "renew 1h")
    lane.answer(1, "renew 5s")
    lane.at(1).run()
    row = next(row for row in lane.effective_rows() if row.error_class == ErrorClass.ACK_FAILED)
    assert (row.offset, row.reason) == (0, "too slow: password=***")
    assert lane.answered() == {"renewed": 3, "failed": 1, "repeated": 2}
    assert [(run.start, run.value.kind, run.value.due) for run in lane.state().pending] == [
        (0, PendingKind.RETRY, NOON + timedelta(seconds=1)), (1, PendingKind.IN_FLIGHT, NOON + timedelta(seconds=6)),
    ]  # fmt: skip


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_i13_what_the_reason_of_a_fail_shares_with_its_record_is_masked(isolation: str) -> None:
    lane = AnsweredLane(kafka={"isolation": isolation})
    lane.log().append(WAITS, lane.world.now, key=b"Ada Lovelace", headers=[("card", b"4929-1234"), ("none", None)])
    lane.produce(WAITS)
    lane.run()
    lane.answer(0, "fail card 4929-1234 of ada LOVELACE is refused")
    lane.answer(1, "fail Ada Lovelace is not of this record")
    lane.at(1).run()
    reasons = {row.offset: row.reason for row in lane.effective_rows() if row.error_class == ErrorClass.ACK_FAILED}
    assert reasons == {0: "card ***-*** of *** *** is refused", 1: "Ada Lovelace is not of this record"}


@pytest.mark.parametrize("lost", ["retention", "truncation", "no leader", "created again", "while it is read"])
def test_i13_the_reason_of_a_fail_is_not_stored_if_its_record_can_not_be_read(lost: str) -> None:
    """A record that has taken the offset of another one must not decide what is masked."""
    lane = AnsweredLane(WAITS, WAITS).after_run()
    lane.plan_and_replay()
    lane.answer(0, "fail Ada Lovelace")
    lane.answer(1, "fail")

    def change() -> None:
        if lost == "retention":
            lane.log().start = 1
        elif lost == "truncation":
            lane.truncate(0, OK, OK)
        elif lost == "no leader":
            lane.log().has_leader = False
        else:
            lane.create("orders", records=2)

    if lost == "while it is read":  # two answers are fetched, and then the record
        lane.strike("fetch", lambda: lane.strike("fetch", lambda: lane.strike("fetch", change)))
    else:
        change()
    lane.settle()
    rows = [(row.offset, row.reason) for row in lane.effective_rows() if row.error_class == ErrorClass.ACK_FAILED]
    assert rows == [(0, NOT_MASKED), (1, None)]


def test_i6_the_letter_of_an_attempt_that_an_answer_fails_is_sent_by_the_next_turn() -> None:
    lane = AnsweredLane(WAITS, retry={"max_retries": 0}).after_run()
    lane.answer(0, "fail broken")
    lane.run()
    assert (lane.letters(), lane.state().pending_by_kind()[PendingKind.DEAD_LETTER]) == ([], 1)
    lane.run()
    (letter,) = lane.letters()
    assert letter.headers["ackline.error_class"] == "AckFailed"
    assert (letter.headers["ackline.error_message"], lane.floor()) == ("broken", 1)


@pytest.mark.parametrize(("answer", "error_class"), [("fail", ErrorClass.ACK_FAILED), (None, ErrorClass.ACK_TIMEOUT)])
def test_without_a_dead_letter_topic_a_record_is_dead_in_the_turn_whose_answer_or_deadline_fails_its_last_attempt(
    answer: str | None, error_class: ErrorClass
) -> None:
    lane = AnsweredLane(WAITS, WAITS, WAITS, dead_letter="none", retry={"max_retries": 1, "initial_delay": "0s"})
    lane.run()
    lane.answer(1)
    for attempt, second in ((1, 11), (2, 22)):
        lane.answer(2, "renew 1h")
        if answer is not None:
            lane.answer(0, answer, attempt)
        lane.at(second).run()
        assert [run.start for run in lane.state().pending] == ([0, 2] if attempt == 1 else [2])
        lane.run()
    rows = [(row.attempt, row.outcome, row.error_class, row.reason) for row in lane.effective_rows() if not row.offset]
    assert rows[0] == (0, Outcome.DEAD, error_class, "after 2 attempts")
    assert [row[:2] for row in rows[1:]] == [(n, word) for n in (1, 2) for word in (Outcome.IN_FLIGHT, Outcome.FAILED)]
    assert (lane.floor(), lane.committed(), in_flight(lane)) == (2, 2, 1)


def test_without_a_dead_letter_topic_an_answer_in_the_turn_of_the_only_attempt_makes_the_record_dead() -> None:
    lane = AnsweredLane(WAITS, dead_letter="none", retry={"max_retries": 0})
    lane.early = lambda record: lane.answer(record.offset, "fail")
    lane.run()
    assert (lane.outcomes(), lane.committed()) == ([(0, 0, "dead"), (0, 1, "in_flight"), (0, 1, "failed")], 1)


@pytest.mark.parametrize(("when", "outcome"), [("before", "acked"), ("after", "dead")])
def test_without_a_dead_letter_topic_an_ack_counts_until_the_decision_is_stored(when: str, outcome: str) -> None:
    lane = AnsweredLane(WAITS, dead_letter="none", retry={"max_retries": 0}).after_run()
    lane.at(11).die("decisions", when)
    with pytest.raises(Killed):
        lane.run()
    lane.answer(0)
    lane.run()
    lane.run()
    assert [row[2] for row in lane.outcomes() if Outcome(row[2]).terminal] == [outcome]
    assert (lane.floor(), lane.committed()) == (1, 1)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", ["plan", "outcomes", "decisions", "settlement", "commit"])
def test_s69_a_run_killed_at_any_write_leaves_one_outcome_a_record(operation: str, when: str) -> None:
    lane = AnsweredLane(WAITS, WAITS, OK)
    lane.early = lambda record: lane.answer(record.offset) if record.offset == 0 else None
    deaths = 0
    for second in (0, 1, 11):
        lane.at(second).die(operation, when)
        try:
            lane.run()
        except Killed:
            deaths += 1
    assert deaths >= 2  # where the strike comes after the write, the run that adopts the turn writes nothing there
    lane.spare()
    lane.run()
    lane.run()
    lane.run()
    lane.answer(1, attempt=max(attempt for offset, attempt in lane.tokens if offset == 1))
    lane.run()
    terminal = [(offset, outcome) for offset, _, outcome in lane.outcomes() if outcome not in ("in_flight", "failed")]
    assert (terminal, lane.floor(), lane.committed()) == ([(0, "acked"), (1, "acked"), (2, "acked")], 3, 3)


def test_a_key_behind_a_new_one_still_verifies_its_tokens_and_a_removed_one_does_not() -> None:
    lane = AnsweredLane(WAITS, WAITS).after_run()
    (old,) = lane.adapters().token_keys or ()
    lane.answer(0)
    lane.run(lane.adapters(token_keys=(b"a new key of the tests", old)))
    assert lane.floor() == 1
    lane.answer(1)
    lane.run(lane.adapters(token_keys=(b"a new key of the tests",)))
    assert (lane.floor(), lane.answered()) == (1, {"acked": 1, "unsigned": 1})


def test_s69_the_value_of_an_answer_without_a_signed_token_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = AnsweredLane(WAITS).after_run()
    parsed: list[bytes | str | None] = []

    def parse(value: bytes | str | None) -> Answer | None:
        parsed.append(value)
        return parse_answer(value)

    monkeypatch.setattr(decide, "parse_answer", parse)
    token = parse_token(lane.tokens[0, 1])
    assert token is not None
    lane.answer_with("nonsense", b"renew " + b"1" * 100)
    lane.answer_with(token._replace(offset=5).text, b"renew " + b"1" * 100)
    lane.answer(0, "renew " + "1" * 1_000_000)
    lane.run()
    assert [len(value or b"") for value in parsed] == [1_000_006]
    assert (in_flight(lane), lane.answered()) == (1, {"malformed": 2, "unsigned": 1})


def test_a_token_is_signed_with_the_topic_id_of_its_partition_beside_a_parked_one_of_an_older_topic() -> None:
    lane = AnsweredLane(WAITS, partitions=2)
    plan = lane.plan()
    parked = TopicPartition("orders", 1)
    plan = replace(
        plan, partitions={**plan.partitions, parked: replace(plan.partitions[parked], topic_id="an older topic")}
    )
    adapters = lane.adapters()
    signer = job_of(adapters, plan).settings.tokens
    assert signer is not None
    token = parse_token(signer.token(*TP, 0, 1))
    assert token is not None
    assert token.is_signed(adapters.token_keys or (), adapters.store.ledger_id(), plan.partitions[TP].topic_id)


RECORDS = 40_000
LIMIT = 300
"""Bytes of memory for each record, the Arrow table that is written included: with an object a row it was 1,150."""


def test_many_timeouts_take_less_than_300_bytes_each() -> None:
    lane = AnsweredLane()
    plan = lane.plan()
    adapters, before = lane.at(3600).adapters(), lane.newest()
    starts = np.arange(RECORDS)
    waiting = PendingState(PendingKind.IN_FLIGHT, 1, None)
    dues = microseconds(NOON + timedelta(seconds=10)) + starts * 1000  # each record was handled at a time of its own
    runs = PendingRuns(starts, starts + 1, np.zeros(RECORDS, np.int32), dues, [waiting])
    states = {TP: replace(before.partitions[TP].state, complete_to=RECORDS, pending=runs)}
    assert plan.ack_position is not None
    wanted = range_to_read(adapters, plan.ack_position)
    arrow = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        rows, report = decide_answers(adapters, plan, before, wanted, states)
        table = decision_rows(plan.turn, NOON.date(), "run", rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (table.num_rows, report.counts) == (RECORDS, {"timed_out": RECORDS})
    assert (peak + pa.total_allocated_bytes() - arrow) / RECORDS < LIMIT


TURNS = 20


def test_a_run_of_a_backfill_ends_while_answers_for_others_keep_coming() -> None:
    live = AnsweredLane(WAITS, WAITS)
    lane = MemoryBackfill(live, "b", "orders")
    lane.run()
    live.answer_with("for another lane", "ack")
    turns = count()

    def hook(operation: str, when: str) -> None:
        if (operation, when) == ("settlement", "after"):
            live.answer_with("for another lane", "ack")
            assert next(turns) < TURNS, "the run does not end"

    account = lane.run(lane.adapters(hook=hook))
    assert (account.pending["in_flight"], next(turns)) == (2, 1)
    live.answer(0)
    account = lane.run(lane.adapters(hook=hook))
    assert (account.pending["in_flight"], account.outcomes) == (1, {"acked": 1})
