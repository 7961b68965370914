"""S44: whatever a broker takes as a record, each record gets its outcome, and none stops its neighbours."""

from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

import pytest
from confluent_kafka import Message
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ackline.errors import FatalError, RangeGone
from ackline.kafka.cluster import Cluster
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import timestamp_of
from ackline.worker.settings import FIRST_UNREADABLE, ReplayJob
from tests.e2e import wire
from tests.e2e.wire import RawHeaders
from tests.kafka.kafka_log import aborted, config, delete_before, messages, producer, put
from tests.spark.handlers import is_failed
from tests.spark.lab import Lab

LIMIT = 2**63
ANY_TIME = {"message.timestamp.after.max.ms": str(LIMIT - 1), "max.message.bytes": "3000000", "retention.ms": "-1"}
"""Settings of a topic that takes any timestamp, and values of more than a mebibyte."""
NOW = 1_700_000_000_000
NEAR = [NOW, -1, -2, -62_135_596_800_000, 253_402_300_799_999, 253_402_300_800_000, NOW * 1000, FIRST_UNREADABLE - 1]
"""Timestamps that Spark's source can convert: usual, none, before 1970, year 1, the last of 9999, the next one,
microseconds, and the last that it can convert."""
FAR = [NOW * 1_000_000, FIRST_UNREADABLE, LIMIT - 1, -FIRST_UNREADABLE, -LIMIT]
"""Timestamps that it can't convert: nanoseconds, and the ends of 64 bits."""

Drawn = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Timestamp, key, value and headers of a record."""

near = st.sampled_from(NEAR) | st.integers(1 - FIRST_UNREADABLE, FIRST_UNREADABLE - 1)
far = st.sampled_from(FAR) | st.integers(-LIMIT, LIMIT - 1)
payloads = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(str.encode)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(["twice", ""])
headers = st.lists(st.tuples(names, payloads), max_size=6)
raw_headers = st.lists(st.tuples(st.binary(max_size=8) | names.map(str.encode), payloads), max_size=6)
"""Kafka takes any bytes as the name of a header."""


def records(timestamps: st.SearchStrategy[int]) -> st.SearchStrategy[list[Drawn]]:
    return st.lists(st.tuples(timestamps, payloads, payloads, headers), min_size=20, max_size=40)


def large() -> list[Drawn]:
    """Records of sizes that hypothesis does not draw."""
    many: list[tuple[str, bytes | None]] = [(f"name-{number % 7}", b"%d" % number) for number in range(1000)]
    return [(NOW, b"k" * 70_000, b"v" * (1 << 20), []), (NOW, None, b"\xff\x00" * (1 << 19), []), (NOW, b"", b"", many)]


def produce(lab: Lab, topic: str, drawn: Sequence[Drawn]) -> list[Message]:
    """Produces records to a new topic, and returns them as a plain consumer reads them."""
    client = producer(lab.broker, **{"message.max.bytes": 3_000_000, "linger.ms": 200})
    for timestamp, key, value, pairs in drawn:
        client.produce(topic, value, key, partition=0, timestamp=timestamp, headers=list(pairs))
    assert client.flush(60) == 0
    read = messages(lab.broker, topic)
    assert len(read) == len(drawn)
    return read


def expected(read: Iterable[Message], tier: str, attempt: int) -> list[tuple[int, int, str, Any]]:
    """Offset, attempt, outcome and stored timestamp of each record."""
    rows = []
    for message in read:
        time, key, value = timestamp_of(message.timestamp()[1]), message.key(), message.value()
        parts = (time, key, value, tuple(message.headers() or ()))
        failed = is_failed(parts) if tier != "column_by_digest" else crc32((key or b"") + (value or b"")) % 3 == 0
        rows.append((message.offset() or 0, attempt, "failed" if failed else "acked", time))
    return rows


def stored(lab: Lab, job: ReplayJob, tp: TopicPartition) -> list[tuple[int, int, str, Any]]:
    columns = ("offset", "attempt", "outcome", "record_timestamp")
    return [tuple(row[name] for name in columns) for row in lab.rows(job) if row["topic"] == tp.topic]


@pytest.mark.parametrize(
    "tier", ["by_digest", pytest.param("arrow_by_digest", marks=pytest.mark.deep), "column_by_digest"]
)
@settings(
    max_examples=3, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)  # fmt: skip
@given(convertible=records(near), any_time=records(far))
def test_s44_any_record_that_a_broker_takes_has_an_outcome(
    lab: Lab, tier: str, convertible: list[Drawn], any_time: list[Drawn]
) -> None:
    """Fresh from Spark's source, from exact reads, and as retries. The outcome follows from the whole record."""
    plain, odd = (TopicPartition(lab.topic(1, ANY_TIME), 0) for _ in range(2))
    read = {
        plain: produce(lab, plain.topic, [*convertible, *large()]),
        odd: produce(lab, odd.topic, [*any_time, (LIMIT - 1, b"k", b"v", [])]),
    }
    with Cluster(config(lab.broker), "read_committed") as cluster:
        exact_from = {
            tp: start for tp, start in cluster.offsets_since(read, FIRST_UNREADABLE).items() if start is not None
        }
    assert list(exact_from) == [odd]
    times = [message.timestamp()[1] for of_tp in read.values() for message in of_tp]
    for fresh, retried in ((plain, odd), (odd, plain)):
        retries = dict.fromkeys(range(len(read[retried])), 2)
        job = lab.job(
            tier, {fresh: (0, len(read[fresh]))}, {retried: retries}, deliver_tombstones=True, exact_from=exact_from
        )
        result = lab.run(job)
        assert stored(lab, job, fresh) == expected(read[fresh], tier, 1)
        assert stored(lab, job, retried) == expected(read[retried], tier, 2)
        assert result.calls == len(times)
        assert result.out_of_range == sum(time != -1 and timestamp_of(time) is None for time in times)


def is_text(headers: RawHeaders) -> bool:
    try:
        for name, _ in headers:
            name.decode()
    except UnicodeDecodeError:
        return False
    return True


def outcome_of(message: Message, headers: RawHeaders, tier: str) -> str:
    pairs = tuple((name.decode(), value) for name, value in headers)
    parts = (timestamp_of(message.timestamp()[1]), message.key(), message.value(), pairs)
    failed = crc32(message.value() or b"") % 3 == 0 if tier == "column_by_digest" else is_failed(parts)
    return "failed" if failed else "acked"


@pytest.mark.parametrize(
    "tier", ["by_digest", pytest.param("arrow_by_digest", marks=pytest.mark.deep), "column_by_digest"]
)
@settings(
    max_examples=3, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)  # fmt: skip
@given(drawn=st.lists(raw_headers, min_size=20, max_size=40))
def test_s44_headers_whose_names_are_any_bytes_have_an_outcome_and_stop_no_neighbour(
    lab: Lab, tier: str, drawn: list[RawHeaders]
) -> None:
    """Java's client replaces what is not UTF-8. The client of exact reads and retries can't return such a record, and
    cuts a name at a NUL."""
    drawn = [
        *drawn,
        [(b"\xff\xfe", b"1")],
        [(b"\xed\xa0\x80", None), (b"h", b"\xff")],
        [(b"", b"")],
        [(b"a\0b", b"\0")],
    ]
    tp = TopicPartition(lab.topic(1, ANY_TIME), 0)
    wire.produce_raw_headers(lab.broker.bootstrap, tp.topic, [(b"%d" % n, pairs) for n, pairs in enumerate(drawn)])
    read = {message.offset() or 0: message for message in messages(lab.broker, tp.topic)}
    headers = {offset: drawn[int(message.value() or b"")] for offset, message in read.items()}
    assert sorted(map(repr, headers.values())) == sorted(map(repr, drawn))
    cut = {offset: [(name.split(b"\0")[0], value) for name, value in pairs] for offset, pairs in headers.items()}
    every = range(len(drawn))
    fresh = lab.ran(tier, {tp: (0, len(drawn))})
    exact = lab.ran(tier, {tp: (0, len(drawn))}, exact_from={tp: 0})
    retried = lab.ran(tier, {}, {tp: dict.fromkeys(every, 2)})
    for job, attempt, names_of in ((fresh, 1, headers), (exact, 1, cut), (retried, 2, cut)):
        rows = {row["offset"]: row for row in lab.rows(job)}
        assert [(row["offset"], row["attempt"]) for row in lab.rows(job)] == [(offset, attempt) for offset in every]
        for offset, row in rows.items():
            if is_text(names_of[offset]):
                assert row["outcome"] == outcome_of(read[offset], names_of[offset], tier)
            elif job is fresh:
                assert row["outcome"] in ("acked", "failed")
            else:
                assert (row["outcome"], row["error_class"]) == ("failed", "Undecodable")


@pytest.mark.parametrize("tier", [pytest.param("ack", marks=pytest.mark.deep), "column_acks"])
def test_a_timestamp_far_before_1970_costs_a_second_start_and_no_record(
    lab: Lab, tier: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It can't be looked up before the job, and Spark's source fails the job for it."""
    tp = TopicPartition(lab.topic(1, ANY_TIME), 0)
    read = produce(lab, tp.topic, [(time, b"k", b"v", []) for time in (NOW, -LIMIT, NOW)])
    job = lab.job(tier, {tp: (0, 3)})
    lab.run(job)
    assert stored(lab, job, tp) == [(n, 1, "acked", timestamp_of(m.timestamp()[1])) for n, m in enumerate(read)]
    assert "the ranges are read exactly" in caplog.text
    assert caplog.text.count("handled 1 records whose timestamp is no time") == 1
    with pytest.raises(
        FatalError, match=r"\[0\]: Spark can't convert the timestamp of the record at offset 1"
    ) as raised:
        lab.run(lab.job(tier, {tp: (0, 3)}, once=True))
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == (*tp, 1)


def test_an_exact_read_of_a_fresh_range_passes_gaps_and_fails_for_what_retention_has_taken(lab: Lab) -> None:
    tp = lab.put(b"0", b"1")
    aborted(lab.broker, tp.topic, [b"2", b"3"])  # with a marker at 4
    put(lab.broker, tp.topic, [(None, b"5")])
    job = lab.ran("ack", {tp: (0, 6)}, exact_from={tp: 1})
    assert [(row["offset"], row["attempt"], row["outcome"]) for row in lab.rows(job)] == [
        (0, 1, "acked"), (1, 1, "acked"), (5, 1, "acked"),
    ]  # fmt: skip
    delete_before(lab.broker, tp.topic, 1)
    with pytest.raises(RangeGone, match=r"\[0\]: the log no longer holds offset 0"):
        lab.ran("ack", {tp: (0, 6)}, exact_from={tp: 0})
