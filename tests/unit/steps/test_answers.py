"""Records in flight: answers from outside, deadlines, and what ends an attempt. On tables and a broker in memory."""

import base64
from dataclasses import replace
from datetime import timedelta

import pytest

from ackline.answers import Answer, parse_answer
from ackline.errors import ConfigError, RetentionPassed, TooFarBehind
from ackline.ledger import PendingKind
from ackline.offsets import OffsetRange, TopicPartition
from ackline.outcome import ErrorClass, Outcome
from ackline.planning import IN_FLIGHT, IN_FLIGHT_FULL
from ackline.setting_warnings import TopicPolicy
from ackline.steps import decide_answers
from ackline.steps.answer import send_answer
from ackline.steps.replay import job_of
from ackline.token import parse_token
from ackline.turns import TurnKind
from tests.memory_answers import ACKS, NOON, OK, TP, WAITS, AnsweredLane
from tests.memory_backfill import MemoryBackfill
from tests.memory_lane import DEAD


def in_flight(lane: AnsweredLane) -> int:
    return lane.state().pending_by_kind()[PendingKind.IN_FLIGHT]


def test_a_record_in_flight_holds_the_floor_until_it_is_acked() -> None:
    lane = AnsweredLane(OK, WAITS, OK)
    lane.run()
    assert (lane.floor(), lane.committed(), lane.state().next_due) == (1, 1, NOON + timedelta(seconds=10))
    lane.at(5).run()
    assert (lane.floor(), lane.offsets()) == (1, [0, 1, 2])
    assert lane.newest().turn.n == 2
    lane.answer(1)
    lane.at(9).run()
    assert (lane.floor(), lane.committed(), lane.state().next_due) == (3, 3, None)
    assert lane.outcomes() == [(0, 1, "acked"), (1, 1, "in_flight"), (1, 1, "acked"), (2, 1, "acked")]
    assert lane.offsets() == [0, 1, 2]


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
    lane = AnsweredLane(WAITS, WAITS, WAITS, WAITS)
    lane.run()
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
    lane = AnsweredLane(WAITS, timeout="none")
    lane.run()
    lane.at(10**9).run()
    assert (in_flight(lane), lane.state().next_due) == (1, None)


def test_s65_a_renewed_record_stays_in_flight_and_an_ordinary_ack_renews_nothing() -> None:
    lane = AnsweredLane(WAITS, WAITS)
    lane.run()
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


def test_s65_an_answer_that_the_late_run_finds_counts_although_the_deadline_has_passed() -> None:
    lane = AnsweredLane(WAITS)
    lane.run()
    lane.answer(0)
    lane.at(1000).run()
    assert (lane.floor(), lane.answered()) == (1, {"acked": 1})


def test_s69_answers_of_every_wrong_kind_are_counted_and_change_nothing() -> None:
    lane = AnsweredLane(WAITS, WAITS)
    lane.run()
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
    lane = AnsweredLane(WAITS)
    lane.run()
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
    lane = AnsweredLane(WAITS)
    lane.run()
    lane.answer(0, times=8)
    lane.run()
    assert lane.outcomes() == [(0, 1, "in_flight"), (0, 1, "acked")]
    assert lane.answered() == {"acked": 1, "repeated": 7}


def test_the_first_answer_that_ends_an_attempt_counts_and_the_last_renewal() -> None:
    lane = AnsweredLane(WAITS, WAITS)
    lane.run()
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


def test_i6_the_letter_of_an_attempt_that_an_answer_fails_is_sent_by_the_next_turn() -> None:
    lane = AnsweredLane(WAITS, retry={"max_retries": 0})
    lane.run()
    lane.answer(0, "fail broken")
    lane.run()
    assert (lane.letters(), lane.state().pending_by_kind()[PendingKind.DEAD_LETTER]) == ([], 1)
    lane.run()
    (letter,) = lane.letters()
    assert letter.headers["ackline.error_class"] == "AckFailed"
    assert letter.headers["ackline.error_message"] == "broken"
    assert lane.floor() == 1


def test_i11_a_repeated_settle_takes_the_end_of_the_answers_from_the_stored_decisions() -> None:
    lane = AnsweredLane(WAITS, WAITS)
    lane.run()
    lane.answer(0)
    lane.plan()
    lane.replay()
    lane.strike("decisions", lambda: (_ for _ in ()).throw(KeyboardInterrupt()), "after")
    with pytest.raises(KeyboardInterrupt):
        lane.settle()
    lane.answer(1)
    lane.at(60)
    lane.settle()
    assert (lane.next_answer(), in_flight(lane), lane.answered()) == (1, 1, {"acked": 1})
    lane.run()
    assert (lane.floor(), lane.next_answer()) == (2, 2)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", ["plan", "outcomes", "decisions", "settlement", "commit"])
def test_s69_a_run_killed_at_any_write_leaves_one_outcome_a_record(operation: str, when: str) -> None:
    lane = AnsweredLane(WAITS, WAITS, OK)
    lane.early = lambda record: lane.answer(record.offset) if record.offset == 0 else None
    deaths = 0
    for second in (0, 1, 11):
        lane.at(second).strike(operation, lambda: (_ for _ in ()).throw(KeyboardInterrupt()), when)
        try:
            lane.run()
        except KeyboardInterrupt:
            deaths += 1
    assert deaths >= 2  # where the strike comes after the write, the run that adopts the turn writes nothing there
    lane.spare()
    lane.run()
    lane.run()
    lane.run()
    lane.answer(1, attempt=max(attempt for offset, attempt in lane.tokens if offset == 1))
    lane.run()
    terminal = [(offset, outcome) for offset, _, outcome in lane.outcomes() if outcome not in ("in_flight", "failed")]
    assert terminal == [(0, "acked"), (1, "acked"), (2, "acked")]
    assert (lane.floor(), lane.committed()) == (3, 3)


def test_a_run_with_nothing_but_answers_to_read_starts_no_spark() -> None:
    lane = AnsweredLane(WAITS)
    lane.run()
    lane.answer(0)

    def refuse(*_: object) -> None:
        raise AssertionError("a Spark job")

    ran = lane.run(lane.parts(run_job=refuse))
    assert (ran.calls, ran.outcomes, lane.floor()) == (0, {"acked": 1}, 1)
    assert ran.plans[0].partitions[TP].why == IN_FLIGHT


def test_in_flight_max_bounds_fresh_reads() -> None:
    lane = AnsweredLane(*[WAITS] * 5, in_flight={"max": 2})
    assert lane.run().plans[0].partitions[TP].fresh == OffsetRange(0, 2)
    assert lane.run().plans[0].partitions[TP].why == IN_FLIGHT_FULL
    lane.answer(0)
    lane.run()
    lane.run()
    assert (in_flight(lane), lane.state().complete_to) == (2, 3)


def test_the_ack_topic_created_again_is_named_and_read_from_its_start(caplog: pytest.LogCaptureFixture) -> None:
    lane = AnsweredLane(WAITS)
    lane.answer_with("x", "ack")
    lane.run()
    lane.create("acks")
    lane.answer(0)
    ran = lane.run()
    assert (lane.floor(), lane.next_answer()) == (1, 1)
    assert "the ack topic acks was created again" in ran.warnings[0]
    assert "the ack topic acks was created again" in caplog.text


def test_answers_that_retention_took_are_named_with_their_range_and_the_lane_goes_on() -> None:
    lane = AnsweredLane(WAITS)
    lane.run()
    lane.answer(0, times=3)
    lane.log(ACKS).expire(2)
    ran = lane.run()
    assert ran.warnings == ["answers [0, 2) of the ack topic acks[0] are lost: retention took them"]
    assert (lane.floor(), lane.next_answer(), lane.answered()) == (1, 3, {"acked": 1})


def test_an_ack_topic_whose_log_was_truncated_is_named() -> None:
    lane = AnsweredLane(WAITS)
    lane.run()
    lane.answer_with("x", "ack")
    lane.answer_with("x", "ack")
    lane.run()
    lane.log(ACKS).elect(1)
    ran = lane.run()
    assert ran.warnings == ["answers of the ack topic acks[0] from 1 on are lost: its log was truncated from 2"]
    lane.answer(0)
    lane.run()
    assert lane.floor() == 1


def test_an_ack_topic_that_is_missing_or_compacted_is_refused_before_anything_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lane = AnsweredLane(WAITS)
    lane.world.delete_topic("acks")
    lane.run_fails(ConfigError, r"the ack topic acks of pipeline lane does not exist")
    lane.create("acks")
    parts = lane.parts()
    monkeypatch.setattr(type(parts.cluster), "policies", lambda *_: {"acks": TopicPolicy(None, True)})
    lane.run_fails(ConfigError, r"is compacted")
    assert lane.world.tables.plans == {}


def test_the_ack_topic_may_change_only_while_nothing_is_in_flight() -> None:
    lane = AnsweredLane(WAITS)
    lane.run()
    lane.create("others")
    lane.settings["ack_topic"] = "others"
    assert lane.run_fails(ConfigError, "ack_topic was changed from acks to others").__class__ is ConfigError
    lane.settings["ack_topic"] = "acks"
    lane.answer(0)
    lane.run()
    lane.settings["ack_topic"] = "others"
    lane.produce(WAITS)
    lane.run()
    lane.log(TopicPartition("others", 0)).append(b"ack", NOON, key=lane.tokens[1, 1].encode())
    lane.run()
    assert lane.floor() == 2


def test_a_skip_ends_the_attempt_and_later_answers_are_stale() -> None:
    lane = AnsweredLane(WAITS, OK)
    lane.run()
    lane.perform(TurnKind.SKIP, {TP: 1})
    assert (in_flight(lane), lane.floor()) == (0, 2)
    lane.answer(0)
    lane.run()
    assert lane.answered() == {"stale": 1}


def test_a_reset_ends_the_attempt_and_later_answers_are_stale() -> None:
    lane = AnsweredLane(WAITS)
    lane.run()
    old = lane.tokens[0, 1]
    lane.perform(TurnKind.RESET, {TP: 0})
    lane.run()
    assert (in_flight(lane), lane.newest().turn.epoch) == (1, 1)
    lane.answer_with(old, "ack")
    lane.run()
    assert (in_flight(lane), lane.answered()) == (1, {"stale": 1})
    lane.answer(0)
    lane.run()
    assert lane.floor() == 1


def test_a_retry_changes_nothing_of_what_is_in_flight_and_a_paused_partition_takes_answers() -> None:
    lane = AnsweredLane(WAITS, b'{"fail": 1}', retry={"initial_delay": "1h"})
    lane.run()
    lane.perform(TurnKind.RETRY, whole=True)
    lane.perform(TurnKind.PAUSE)
    lane.answer(0)
    lane.run()
    assert lane.pending() == [(1, 2)]


def test_a_void_turn_gives_its_answers_back_and_its_tokens_are_stale() -> None:
    lane = AnsweredLane(WAITS, breaker={"failure_ratio": 0.5, "min_records": 2})
    lane.run()
    lane.produce(WAITS, b'{"fail": 1}', b'{"fail": 1}', b'{"fail": 1}')
    lane.answer(0)
    with pytest.raises(Exception, match="too many failures"):
        lane.run()
    void = lane.tokens[1, 1]
    assert (lane.next_answer(), in_flight(lane)) == (0, 1)
    lane.settings.pop("breaker")
    lane.answer_with(void, "ack")
    lane.run()
    assert (lane.floor(), in_flight(lane), lane.answered()) == (1, 1, {"acked": 1, "stale": 1})


def test_a_backfill_lane_reads_its_own_answers_and_leaves_those_of_the_live_lane_alone() -> None:
    live = AnsweredLane(WAITS, WAITS)
    live.run()
    of_live = dict(live.tokens)
    lane = MemoryBackfill(live, "b", "orders")
    account = lane.run()
    assert (account.pending["in_flight"], account.next_due) == (2, NOON + timedelta(seconds=10))
    assert lane.run() == account, "nothing is overdue, and there is no answer: no turn is taken"
    live.answer_with(of_live[0, 1], "ack")
    live.answer(1)
    account = lane.run()
    assert (account.pending["in_flight"], account.outcomes) == (1, {"acked": 1})
    assert live.floor() == 0
    live.run()
    assert live.floor() == 1
    live.at(11)
    account = lane.run()
    assert (account.pending["retry"] + account.pending["in_flight"], account.balanced) == (1, True)
    live.answer(0, attempt=max(attempt for offset, attempt in live.tokens if offset == 0))
    assert lane.run().settled


def test_a_cancelled_backfill_ends_what_is_in_flight() -> None:
    live = AnsweredLane(WAITS)
    lane = MemoryBackfill(live, "b", "orders")
    lane.run()
    assert lane.cancel().outcomes == {"skipped": 1}
    assert lane.ended() == {0: "skipped"}


def test_a_key_behind_a_new_one_still_verifies_its_tokens_and_a_removed_one_does_not() -> None:
    lane = AnsweredLane(WAITS, WAITS)
    lane.run()
    (old,) = lane.parts().token_keys or ()
    lane.answer(0)
    lane.run(lane.parts(token_keys=(b"a new key of the tests", old)))
    assert lane.floor() == 1
    lane.answer(1)
    lane.run(lane.parts(token_keys=(b"a new key of the tests",)))
    assert (lane.floor(), lane.answered()) == (1, {"acked": 1, "unsigned": 1})


def test_a_process_that_settles_late_after_another_one_reads_no_answer_twice() -> None:
    lane = AnsweredLane(WAITS, WAITS)
    lane.run()
    lane.plan_and_replay()
    lane.answer(0)

    def other_settles() -> None:
        lane.settle(lane.parts("other"))
        lane.answer(1)

    lane.strike("decisions", other_settles, "before")
    lane.settle(lane.parts("late"))
    assert (lane.next_answer(), in_flight(lane), lane.answered()) == (1, 1, {"acked": 1})
    lane.run()
    assert (lane.floor(), lane.answered()) == (2, {"acked": 2})


def test_s69_the_value_of_an_answer_without_a_signed_token_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = AnsweredLane(WAITS)
    lane.run()
    parsed: list[bytes | str | None] = []

    def parse(value: bytes | str | None) -> Answer | None:
        parsed.append(value)
        return parse_answer(value)

    monkeypatch.setattr(decide_answers, "parse_answer", parse)
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
    parts = lane.parts()
    signer = job_of(parts, plan).settings.tokens
    assert signer is not None
    token = parse_token(signer.token(*TP, 0, 1))
    assert token is not None
    assert token.is_signed(parts.token_keys or (), parts.store.ledger_id(), plan.partitions[TP].topic_id)


def test_an_open_transaction_in_the_ack_topic_hides_answers_so_nothing_times_out() -> None:
    lane = AnsweredLane(WAITS, WAITS)
    lane.run()
    lane.answer(0)
    lane.log(ACKS).append(b"ack", lane.world.now, key=b"of another producer", open_=True)
    lane.answer(1)
    ran = lane.at(11).run()
    assert ran.warnings == [
        "an open transaction hides answers of the ack topic acks[0] from 1 on: nothing times out in this turn"
    ]
    assert (lane.floor(), in_flight(lane), lane.answered()) == (1, 1, {"acked": 1})
    lane.log(ACKS).end_transaction(commit=False)
    assert lane.at(12).run().warnings == []
    assert (lane.floor(), lane.answered()) == (2, {"acked": 2})


def test_an_answer_that_comes_after_the_range_was_determined_is_not_overtaken_by_its_deadline() -> None:
    lane = AnsweredLane(WAITS, DEAD)
    lane.plan_and_replay()

    def others_wait() -> None:
        lane.answer(0)
        lane.at(11)

    lane.at(9).strike("letter", others_wait)
    lane.settle()
    assert in_flight(lane) == 1
    lane.run()
    assert (lane.floor(), lane.answered()) == (2, {"acked": 1})


def test_i6_a_settle_that_cannot_read_the_ack_topic_sends_no_letter() -> None:
    lane = AnsweredLane(WAITS, DEAD)
    lane.plan_and_replay()
    lane.world.delete_topic("acks")
    for _ in range(2):
        with pytest.raises(ConfigError, match="does not exist any more"):
            lane.settle()
    lane.create("acks")
    del lane.settings["ack_topic"], lane.settings["in_flight"]
    with pytest.raises(ConfigError, match="ack_topic was removed"):
        lane.settle()
    assert lane.letters() == []
    lane.settings["ack_topic"] = "acks"
    lane.settle()
    assert len(lane.letters()) == 1


def test_a_backfill_takes_no_turn_for_what_is_overdue_while_answers_are_hidden() -> None:
    live = AnsweredLane(WAITS)
    lane = MemoryBackfill(live, "b", "orders")
    lane.run()
    live.log(ACKS).append(b"ack", NOON, key=b"of another producer", open_=True)
    live.at(11)
    turns = len(live.world.tables.plans)
    assert (lane.run().pending["in_flight"], len(live.world.tables.plans)) == (1, turns)
    live.log(ACKS).end_transaction(commit=False)
    assert lane.run().pending["in_flight"] == 1  # the second attempt
    assert live.offsets() == [0, 0]


@pytest.mark.parametrize("topic", [None, "others"])
def test_an_open_plan_is_not_handed_out_without_its_ack_topic(topic: str | None) -> None:
    lane = AnsweredLane(WAITS, in_flight={"timeout": "10s"})
    lane.create("others")
    lane.plan()
    block = lane.settings.pop("in_flight")
    lane.settings["ack_topic"] = topic
    with pytest.raises(ConfigError, match=f"ack_topic was changed from acks to {topic} while") as refused:
        lane.replay()
    assert (refused.value.key, lane.calls()) == ("ack_topic", [])
    lane.settings |= {"ack_topic": "acks", "in_flight": block}
    lane.replay()
    lane.settle()
    assert in_flight(lane) == 1


@pytest.mark.parametrize("is_open", [False, True])
def test_an_answer_is_not_sent_to_a_topic_that_the_lane_does_not_read(is_open: bool) -> None:
    lane = AnsweredLane(WAITS)
    lane.run()
    if is_open:
        lane.plan()
    lane.create("others")
    token = parse_token(lane.tokens[0, 1])
    assert token is not None
    lane.settings["ack_topic"] = "others"
    with pytest.raises(ConfigError, match=r"reads its answers in acks, .*put acks back"):
        send_answer(lane.parts(), [token], "ack")
    assert lane.log(TopicPartition("others", 0)).end == 0
    lane.settings["ack_topic"] = "acks"
    assert send_answer(lane.parts(), [token], "ack") == "acks"


def test_a_record_in_flight_that_retention_took_counts_as_expired_only_once_it_is_to_be_retried() -> None:
    lane = AnsweredLane(WAITS, WAITS, OK, on_expired="fail")
    lane.run()
    lane.log().expire(2)
    lane.answer(0)
    lane.run()
    assert (lane.floor(), in_flight(lane)) == (1, 1)
    lane.at(11).run()
    lane.run_fails(RetentionPassed, r"orders\[0\] \[1, 2\)")


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_a_record_in_flight_is_not_too_far_behind_and_its_answer_is_read(policy: str) -> None:
    lane = AnsweredLane(WAITS, *[OK] * 9)
    lane.run()
    lane.settings["max_offset_behind"] = {"offsets": 5, "policy": policy}
    lane.run()
    assert (in_flight(lane), lane.floor(), TurnKind.SKIP in lane.kinds()) == (1, 0, False)
    lane.answer(0)
    lane.run()
    assert (lane.floor(), lane.answered()) == (10, {"acked": 1})


def test_a_skip_of_what_is_too_far_behind_ends_below_the_first_record_in_flight() -> None:
    lane = AnsweredLane(b'{"fail": -1}', OK, WAITS, OK, retry={"initial_delay": "1h"})
    lane.run()
    lane.produce(*[OK] * 10)
    lane.settings["max_offset_behind"] = {"offsets": 5, "policy": "skip"}
    lane.run()
    assert (lane.ranges(Outcome.SKIPPED), lane.floor(), in_flight(lane)) == ([(0, 1)], 2, 1)
    lane.answer(2)
    lane.run()
    assert lane.floor() == 14


def test_what_is_unread_behind_a_record_in_flight_may_still_be_too_far_behind() -> None:
    lane = AnsweredLane(WAITS, OK, timeout="none")
    lane.run()
    lane.produce(*[OK] * 10)
    lane.settings["max_offset_behind"] = {"offsets": 5, "policy": "fail"}
    error = lane.run_fails(TooFarBehind, r"the first offset that is not in flight, 2 is 10 offsets behind")
    assert error.offset == 2
