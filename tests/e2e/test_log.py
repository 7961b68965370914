"""What the log may do (S41–S44): retention, another topic of the same name, transactions, records of every kind."""

import random
from collections import Counter

import pytest

from ackline.errors import ConfigError, TopicChanged
from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Row, all_of, encoded, fails

ALWAYS = {"fail": -1}
MINUTE = {"initial_delay": "1m", "period": "1m", "multiplier": 1}


def test_s41_retention_passed_pending_offsets(lab: MakeLab) -> None:
    """Fault 17. 5 failed, expired, one new record acked → the commit is its offset + 1."""
    one = lab(retry=MINUTE)
    one.records(5, fails(range(5), -1))
    one.run()
    one.expire(5)
    one.records(1)
    one.wait(60)
    ran = one.run()
    assert one.offsets()[-1] == 5
    assert one.outcomes() == {"failed": 5, "expired": 5, "acked": 1}
    assert ran.outcomes == {"expired": 5, "acked": 1}  # counted, and reported
    assert one.settled().counts == {"expired": 5, "acked": 1}
    assert one.committed() == 6
    one.judge(settled=True)


def test_s41_retention_passed_complete_to_and_the_lost_range_is_one_row(lab: MakeLab) -> None:
    one = lab()
    one.records(3)
    one.run()
    one.records(6)
    one.expire(7)
    one.run()
    assert one.rows()[3:] == [Row(3, 0, "expired", 7), *all_of("acked", (7, 8))]
    assert one.committed() == 9
    one.judge(settled=True)


def test_s41_everything_unread_expired(lab: MakeLab) -> None:
    one = lab()
    one.records(3)
    one.run()
    one.records(4)
    one.expire(7)
    one.run()
    assert one.rows()[3:] == [Row(3, 0, "expired", 7)]
    assert one.committed() == 7
    one.judge(settled=True)


def test_s41_retention_passes_between_plan_and_replay_the_turn_is_void_and_planned_again(lab: MakeLab) -> None:
    one = lab()
    one.records(6)
    one.plan()
    one.expire(4)
    one.run()
    assert Counter(row["kind"] for row in one.table("settlements")) == {"genesis": 1, "void": 1, "run": 1}
    assert one.rows() == [Row(0, 0, "expired", 4), *all_of("acked", (4, 5))]
    assert one.committed() == 6
    one.judge(settled=True)


def test_s41_retention_passes_a_record_before_its_dead_letter_is_sent(lab: MakeLab) -> None:
    """It has one terminal outcome, and it is not `dead`: no letter is there to prove that (I6)."""
    one = lab(retry={"max_retries": 0})
    one.records(3, {0: ALWAYS})
    one.plan()
    one.replay()
    one.expire(2)
    one.settle()
    assert one.rows() == [Row(0, 0, "expired"), Row(0, 1, "failed"), *all_of("acked", (1, 2))]
    assert one.letters() == []
    one.judge(settled=True)


def test_s42_a_topic_that_was_created_again_stops_the_run(lab: MakeLab) -> None:
    """Fault 20. Also where the new topic is as long as the old one: it is not "caught up"."""
    one = lab()
    one.records(3)
    one.run()
    wire.delete_topic(one.broker.bootstrap, one.topic)
    one.broker.create_topic(one.topic)
    one.records(5)
    before = one.committed()
    with pytest.raises(
        TopicChanged, match=rf"created again.*ackline reset {one.name} --topic {one.topic} --to earliest"
    ):
        one.run()
    assert one.offsets() == [0, 1, 2]
    assert one.committed() == before
    done = one.command("reset", one.name, "--topic", one.topic, "--to", "earliest", "--now", one.now.isoformat())
    assert done.returncode == 0, done.stderr
    one.run()
    assert one.offsets() == [0, 1, 2, 3, 4]
    assert one.committed() == 5
    one.judged = True  # the log that the checker would need is gone


def test_s42_a_topic_created_again_under_an_open_plan_makes_its_turn_void(lab: MakeLab) -> None:
    one = lab()
    one.records(3)
    one.plan()
    wire.delete_topic(one.broker.bootstrap, one.topic)
    one.broker.create_topic(one.topic)
    one.records(3)
    with pytest.raises(TopicChanged):
        one.run()
    one.judged = True
    assert (one.rows(), one.offsets(), one.committed()) == ([], [], None)
    with pytest.raises(TopicChanged):
        one.run()
    one.judged = True


def test_s42_a_topic_created_again_before_its_dead_letters_are_sent_buries_no_stranger(lab: MakeLab) -> None:
    """What is at the offset now is another record; it must not go to the dead-letter topic, nor be called dead."""
    one = lab(retry={"max_retries": 0})
    one.records(1, {0: ALWAYS})
    one.plan()
    one.replay()
    wire.delete_topic(one.broker.bootstrap, one.topic)
    one.broker.create_topic(one.topic)
    one.produce({"a": "stranger"})
    one.settle()
    with pytest.raises(TopicChanged):
        one.run()
    assert one.letters() == []
    assert "dead" not in one.outcomes()
    assert one.committed() is None
    one.judged = True


def test_s42_a_deleted_topic_stops_the_run_and_is_named(lab: MakeLab) -> None:
    one = lab()
    one.records(3)
    one.run()
    wire.delete_topic(one.broker.bootstrap, one.topic)
    with pytest.raises(TopicChanged, match=one.topic):
        one.run()
    one.broker.create_topic(one.topic)  # empty: the floor is beyond its end, and that is not "caught up"
    with pytest.raises(TopicChanged, match="created again"):
        one.run()
    one.judged = True


def test_s43_nothing_above_the_last_stable_offset_and_no_aborted_record_is_handled(lab: MakeLab) -> None:
    one = lab()
    one.records(2)
    open_ended = wire.transaction(one.broker.bootstrap, one.topic, map(encoded, [{"a": 2}, {"a": 3}]))
    one.records(2)  # 4 and 5: they wait behind the open transaction
    one.run()
    assert one.offsets() == [0, 1]
    assert one.committed() == 2
    open_ended.abort_transaction(30)
    wire.stable(one.broker.bootstrap, one.topic)
    wire.committed(one.broker.bootstrap, one.topic, map(encoded, [{}, {}]))
    one.run()
    assert one.offsets() == [4, 5, 7, 8]
    assert one.committed() == 10
    one.judge(settled=True)


def test_s43_a_retry_amid_transactions_is_read_exactly(lab: MakeLab) -> None:
    one = lab()
    bootstrap = one.broker.bootstrap
    wire.aborted(bootstrap, one.topic, map(encoded, [{}] * 3))
    wire.committed(bootstrap, one.topic, map(encoded, [{}, {"fail": 1}, {}]))
    wire.aborted(bootstrap, one.topic, map(encoded, [{}] * 3))
    one.run()
    one.offsets()
    one.run()
    assert one.handled() == [(5, 2)]
    one.judge(settled=True)


def test_read_uncommitted_reads_open_and_aborted_records(lab: MakeLab) -> None:
    one = lab(kafka={"isolation": "read_uncommitted"})
    open_ended = wire.transaction(one.broker.bootstrap, one.topic, map(encoded, [{}, {}]))
    one.run()
    assert one.offsets() == [0, 1]
    open_ended.abort_transaction(30)
    wire.stable(one.broker.bootstrap, one.topic)
    one.judged = False
    one.run()
    assert one.committed() == 3


STRANGE = [
    wire.Write(b"{}", b"key", (("h", b"1"), ("h", None), ("\u00fc", b"\xff\x00"))),
    wire.Write(None, b"gone"),
    wire.Write(None, None),
    wire.Write(b"", b""),
    wire.Write(b"\xff\xfe\x00", b"\xff"),
    wire.Write(b'{"pad": "' + b"x" * 900_000 + b'"}', None),
    wire.Write(b"[" * 20_000 + b"]" * 20_000, b"deep"),
    wire.Write(b'{"x": "<script>\\u0000"}', b"<script>"),
    wire.Write(b"{}", b"k", timestamp=1),
]


def test_s44_each_record_has_an_outcome_whatever_it_holds(lab: MakeLab) -> None:
    """Neither tombstones, null keys, empty values, undecodable bytes, 900 KB nor odd headers disturb a neighbour."""
    one = lab(retry={"max_retries": 0})
    wire.produce(one.broker.bootstrap, one.topic, STRANGE)
    one.run()
    ends = {row.offset: row.outcome for row in one.rows() if row.outcome != "failed"}
    skipped, dead = dict.fromkeys((1, 2), "skipped"), dict.fromkeys((3, 4, 6), "dead")
    assert ends == {0: "acked", **skipped, **dead, 5: "acked", 7: "acked", 8: "acked"}
    assert one.committed() == len(STRANGE)
    one.judge(settled=True)


@pytest.mark.parametrize(
    ("handler", "value"),
    [("ackline.testing.journal:handle", b'{"fail": -1}'), ("tests.spark.handlers:column_words", b"failed")],
)
def test_s44_a_header_whose_name_is_no_text_stops_nobody(lab: MakeLab, handler: str, value: bytes) -> None:
    """Java's client reads it somehow, for the first attempt; the client of retries and dead letters can't."""
    one = lab(handler=handler, retry={"max_retries": 1, "initial_delay": "1m"})
    one.journalled = False
    good = wire.Write(value, headers=(("h", b"1"),))
    wire.produce(one.broker.bootstrap, one.topic, [good] * 50)  # the interpreter calls differently once it is warm
    wire.produce_header(one.broker.bootstrap, one.topic, value, b"\xff\xfeh")
    wire.produce(one.broker.bootstrap, one.topic, [good])
    one.run()
    one.wait(60)
    one.run()
    assert one.outcomes() == {"failed": 104, "dead": 52}
    again = {row["offset"]: row["error_class"] for row in one.table("outcomes") if row["attempt"] == 2}
    assert [offset for offset, error_class in again.items() if error_class == "Undecodable"] == [50]
    letters = [(letter.value, letter.headers[0]) for letter in one.letters()]
    omitted = (value, ("ackline.headers", b"omitted: a name is not UTF-8"))
    assert sorted(letters, key=str) == sorted([(value, ("h", b"1"))] * 51 + [omitted], key=str)
    assert one.committed() == 52
    one.judge(settled=True)


def test_s44_a_dead_letter_has_the_original_key_value_and_headers_and_says_where_from(lab: MakeLab) -> None:
    one = lab(retry={"max_retries": 1})
    headers = (("trace", b"\x00\xff"), ("trace", None), ("ackline.offset", b"an earlier life"))
    record = wire.Write(b'{"fail": -1}', b"\xffkey", headers, timestamp=1_700_000_000_123)
    wire.produce(one.broker.bootstrap, one.topic, [wire.Write(b"{}"), record])
    one.run()
    one.wait(60)
    one.run()
    [letter] = one.letters()
    assert (letter.key, letter.value) == (record.key, record.value)
    assert tuple(letter.headers[:3]) == headers
    assert letter.said() == {
        "pipeline": one.name,
        "lane": "live",
        "epoch": "0",
        "topic": one.topic,
        "partition": "0",
        "offset": "1",
        "timestamp": "1700000000123",
        "attempts": "2",
        "error_class": "ValueError",
        "turn": "2",
    }
    one.judge(settled=True)


def test_s44_tombstones_reach_a_handler_that_wants_them(lab: MakeLab) -> None:
    one = lab(tombstones="deliver")
    one.produce({}, None)
    one.run()
    assert one.rows() == all_of("acked", (0, 1))
    assert one.offsets() == [0, 1]
    one.judge(settled=True)


def test_a_record_too_large_for_the_dead_letter_topic_goes_as_headers_only_and_says_so(lab: MakeLab) -> None:
    """Fault 28: the floor passes it; its neighbours in the same batch go whole."""
    one = lab(retry={"max_retries": 0}, create=False)
    one.broker.create_topic(one.topic)
    one.broker.create_topic(one.dead, config={"max.message.bytes": "20000"})
    one.produce({"fail": -1}, {"fail": -1, "pad": random.Random(1).randbytes(30_000).hex()}, {"fail": -1})
    one.run()
    letters = one.letters()
    assert [letter.said()["offset"] for letter in sorted(letters, key=lambda one: one.said()["offset"])] == [
        "0",
        "1",
        "2",
    ]
    [bare] = [letter for letter in letters if letter.said()["offset"] == "1"]
    assert bare.value is None
    assert "omitted" in bare.said()["payload"]
    assert one.committed() == 3
    one.judge(settled=True)


def test_a_missing_dead_letter_topic_is_an_error_of_the_plan_and_nothing_is_touched(lab: MakeLab) -> None:
    one = lab(create=False)
    one.broker.create_topic(one.topic)
    one.records(2)
    with pytest.raises(ConfigError, match=one.dead):
        one.run()
    assert one.calls() == []
    assert one.committed() is None
    one.broker.create_topic(one.dead)
    one.run()
    one.judge(settled=True)
