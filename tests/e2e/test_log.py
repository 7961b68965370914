"""What the log may do (S41–S44): retention, another topic of the same name, transactions, records of every kind."""

import random

import pytest

from ackline.errors import FatalError, TopicChanged
from tests.e2e import wire
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Row, encoded, fails
from tests.support.journal import REASON

MINUTE = {"initial_delay": "1m", "period": "1m", "multiplier": 1}


def test_s3_s41_nothing_acked_leaves_the_floor_and_pending_offsets_that_retention_has_deleted_are_expired(
    lab: MakeLab,
) -> None:
    """Fault 17. 5 failed, expired, one new record acked → the commit is its offset + 1."""
    lane = lab(retry=MINUTE)
    lane.produce_records(5, fails(range(5), -1))
    lane.run()
    assert (lane.committed(), lane.pending()) == (0, [0, 1, 2, 3, 4])
    lane.expire(5)
    lane.produce_records(1)
    lane.advance_clock(60)
    result = lane.run()
    assert lane.new_offsets() == [0, 1, 2, 3, 4, 5]
    assert lane.outcomes() == {"failed": 5, "expired": 5, "acked": 1}
    assert result.outcomes == lane.settled().counts == {"expired": 5, "acked": 1}
    assert lane.committed() == 6
    lane.judge(settled=True)


@pytest.mark.parametrize("release", [False, True])
def test_s88_pending_records_that_are_rescued_outlive_the_retention_of_their_topic(release: bool, lab: MakeLab) -> None:
    """Fault 44. What retention deletes is read from the copies, by retries and dead letters. With `release` these
    records do not hold the floor (S89)."""
    lane = lab(retry=MINUTE | {"max_retries": 1})
    rescue = f"{lane.topic}.rescue"
    lane.broker.create_topic(rescue, config={"retention.ms": "-1"})
    lane.configure(rescue={"topic": rescue, "before": "3650d", "release": release})
    lane.produce_records(5, fails(range(4), 1) | fails([4], -1))
    lane.run()
    [copies] = lane.settled().state.copies
    assert (copies.start, copies.end, copies.log.topic, copies.first) == (0, 5, rescue, 0)
    assert lane.committed() == (5 if release else 0)
    lane.judge()
    lane.expire(5)
    lane.produce_records(1)
    lane.advance_clock(60)
    lane.run()
    assert lane.outcomes() == {"failed": 6, "acked": 5, "dead": 1}
    [letter] = lane.letters()
    assert dict(letter.headers)["ackline.offset"] == b"4"
    assert (lane.committed(), len(lane.settled().state.copies)) == (6, 0)
    lane.judge(settled=True)


def test_s42_a_topic_that_is_deleted_and_created_again_stops_the_run_until_a_reset(lab: MakeLab) -> None:
    """Fault 20. The floor and the offsets of the old topic mean nothing in the new one."""
    lane = lab()
    lane.produce_records(3)
    lane.run()
    wire.delete_topic(lane.broker.bootstrap, lane.topic)
    with pytest.raises(TopicChanged, match=lane.topic):
        lane.run()
    lane.broker.create_topic(lane.topic)
    advice = f"ackline reset {lane.name} --topic {lane.topic} --to earliest"
    with pytest.raises(TopicChanged, match=f"created again.*{advice}"):
        lane.run()
    lane.produce_records(5)
    committed = lane.committed()
    with pytest.raises(TopicChanged, match="created again"):
        lane.run()
    assert (lane.new_offsets(), lane.committed()) == ([0, 1, 2], committed)
    done = lane.ackline(*advice.split()[1:], "--reason", "new", "--yes", "--now", lane.now.isoformat())
    assert done.returncode == 0, done.stderr
    lane.run()
    assert lane.new_offsets() == [0, 1, 2, 3, 4]
    assert lane.committed() == 5
    lane.judged = True  # the log that the checker would need is deleted


def test_s76_a_deleted_topic_is_let_go_and_the_other_one_goes_on_until_it_is_there_again(lab: MakeLab) -> None:
    lane = lab(topics=2)
    gone = lane.topics[1]
    lane.produce_records(2)
    lane.produce({}, {"fail": -1}, topic=gone)
    lane.run()
    wire.delete_topic(lane.broker.bootstrap, gone)
    command = ["ackline", "skip", lane.name, "--topic", gone, "--partition", "0", "--gone"]
    with pytest.raises(TopicChanged, match=f"is gone.*{' '.join(command)} --reason"):
        lane.run()
    done = lane.ackline(*command[1:], "--reason", "closed", "--yes", "--now", lane.now.isoformat())
    assert done.returncode == 0, done.stderr
    lane.produce_records(1)
    lane.run()
    assert (lane.new_offsets(), lane.committed()) == ([0, 1, 2], 3)
    assert [row for row in lane.rows(topic=gone) if row.outcome == "skipped"] == [Row(1, 0, "skipped", 2)]
    lane.broker.create_topic(gone)
    lane.produce({}, topic=gone)
    lane.run()
    assert (lane.committed(topic=gone), lane.committed(), lane.settlement().turn.epoch) == (1, 3, 1)
    lane.judged = True  # the log that the checker would need is deleted


HEADERS = (("trace", b"\x00\xff"), ("trace", None), ("ackline.offset", b"of an earlier letter"))
ALWAYS_FAILS = wire.Write(b'{"fail": -1}', b"\xffkey", HEADERS, timestamp=1_700_000_000_123)
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
    ALWAYS_FAILS,
    wire.Write(f'{{"fail": -1, "pad": "{random.Random(1).randbytes(30_000).hex()}"}}'.encode()),
]


def test_s44_each_record_has_an_outcome_and_each_dead_letter_the_original_record(lab: MakeLab) -> None:
    """Neither tombstones, null keys, empty values, undecodable bytes, 900 KB nor odd headers disturb a neighbour. Fault
    28: a record that is too large for the dead-letter topic goes with its headers only, and the floor passes it."""
    lane = lab(retry={"max_retries": 0}, create=False)
    lane.broker.create_topic(lane.topic)
    lane.broker.create_topic(lane.dead_letter_topic, config={"max.message.bytes": "20000"})
    wire.produce(lane.broker.bootstrap, lane.topic, STRANGE)
    lane.run()
    final = {row.offset: row.outcome for row in lane.rows() if row.outcome != "failed"}
    skipped, dead = dict.fromkeys((1, 2), "skipped"), dict.fromkeys((3, 4, 6, 9, 10), "dead")
    assert final == dict.fromkeys((0, 5, 7, 8), "acked") | skipped | dead
    assert lane.committed() == len(STRANGE)
    letters = {int(letter.ackline_headers["offset"]): letter for letter in lane.letters()}
    assert {offset: letters[offset].value for offset in letters} == {
        offset: STRANGE[offset].value if offset < 10 else None for offset in (3, 4, 6, 9, 10)
    }
    assert "omitted" in letters[10].ackline_headers["payload"]
    letter = letters[9]
    assert (letter.key, tuple(letter.headers[:3])) == (ALWAYS_FAILS.key, HEADERS)
    assert letter.ackline_headers == {
        "pipeline": lane.name,
        "lane": "live",
        "epoch": "0",
        "topic": lane.topic,
        "partition": "0",
        "offset": "9",
        "timestamp": "1700000000123",
        "attempts": "1",
        "error_class": "ValueError",
        "error_message": f"attempt 1 fails, {REASON}",
        "failed_at": lane.now.isoformat(timespec="milliseconds"),
        "turn": "1",
    }
    lane.judge(settled=True)


def test_s44_a_header_whose_name_is_not_text_stops_no_run(spark_lab: MakeLab) -> None:
    """Java's client can read it for the first attempt; the client of retries and dead letters cannot."""
    lane, value = spark_lab(retry={"max_retries": 1, "initial_delay": "1m"}), b'{"fail": -1}'
    lane.journalled = False
    good = wire.Write(value, headers=(("h", b"1"),))
    wire.produce(lane.broker.bootstrap, lane.topic, [good] * 50)  # the interpreter calls differently once it is warm
    wire.produce_raw_headers(lane.broker.bootstrap, lane.topic, [(value, [(b"\xff\xfeh", b"1")])])
    wire.produce(lane.broker.bootstrap, lane.topic, [good])
    lane.run()
    lane.advance_clock(60)
    lane.run()
    assert lane.outcomes() == {"failed": 104, "dead": 52}
    second = {row["offset"]: row["error_class"] for row in lane.table("outcomes") if row["attempt"] == 2}
    assert [offset for offset, error_class in second.items() if error_class == "Undecodable"] == [50]
    letters = [(letter.value, letter.headers[0]) for letter in lane.letters()]
    omitted = (value, ("ackline.headers", b"omitted: a name is not UTF-8"))
    assert sorted(letters, key=str) == sorted([(value, ("h", b"1"))] * 51 + [omitted], key=str)
    assert lane.committed() == 52
    lane.judge(settled=True)


NOT_TIMES = [1_700_000_000_000_000, 1_700_000_000_000_000_000, 2**63 - 1, -62_135_596_800_000, -1]
"""Microseconds and nanoseconds where Kafka means milliseconds, the largest number, the year 1, and no timestamp."""


def test_s44_a_timestamp_that_is_no_time_stops_no_run(spark_lab: MakeLab, caplog: pytest.LogCaptureFixture) -> None:
    """The record has no timestamp for the handler, the tables and the lag. Its dead letter has the number."""
    takes_any = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
    lane = spark_lab(topic_config=takes_any, retry={"max_retries": 1, "initial_delay": "1m"})
    poison = encoded({"fail": -1}).value
    wire.produce(lane.broker.bootstrap, lane.topic, [wire.Write(poison, timestamp=number) for number in NOT_TIMES])
    lane.produce_records(2)
    assert lane.run().outcomes == {"failed": 5, "acked": 2}
    assert caplog.text.count("4 records whose timestamp is no time") == 1
    timed = [row["offset"] for row in lane.table("outcomes") if row["record_timestamp"] is not None]
    assert sorted(timed) == [5, 6]
    assert "lag_seconds" not in (lane.settled().metrics or {})
    status = lane.ackline_json("status", lane.name)["partitions"][0]
    assert (status["floor"], status["lag"], status["lag_seconds"]) == (0, 7, None)
    lane.advance_clock(60)
    assert lane.run().outcomes == {"failed": 5, "dead": 5}
    headers = [letter.ackline_headers for letter in lane.letters()]
    assert sorted(int(named["timestamp"]) for named in headers) == sorted(NOT_TIMES)
    assert lane.committed() == 7
    lane.judge(settled=True)


@pytest.mark.parametrize("by_retry", [False, pytest.param(True, marks=pytest.mark.deep)], ids=["fresh", "retry"])
def test_a_batch_that_is_damaged_on_the_broker_stops_the_run_and_nothing_is_settled_past_it(
    spark_lab: MakeLab, by_retry: bool
) -> None:
    """Spark's client reads it fresh, librdkafka as a retry. What the operator deletes is `expired`."""
    lane = spark_lab(retry={"initial_delay": "1m"})
    for value in ({}, {"fail": 1, "pad": "damaged"}, {}):
        lane.produce(value)
    if by_retry:
        lane.run()
        lane.advance_clock(60)
    segment = next((lane.broker.directory / "data" / f"{lane.topic}-0").glob("*.log"))
    with segment.open("r+b") as file:
        file.seek(segment.read_bytes().index(b"damaged"))
        file.write(b"DAMAGED")
    for _ in range(2):
        with pytest.raises(
            FatalError, match=rf"^{lane.topic}\[0\]: the batch of records at offset 1 is damaged .*replica"
        ):
            lane.run()
        assert lane.committed() == (1 if by_retry else None)
    lane.expire(2)
    lane.run()
    lane.run()
    assert lane.outcomes()["expired"] == 1
    assert lane.committed() == 3
    lane.judge(settled=True)
