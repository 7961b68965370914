"""What the log may hold (S1, S6, S40, S43, S44): everything that exists is handled once, exactly as it was produced."""

from contextlib import closing
from dataclasses import replace

import pytest

from ackline.errors import CopyGone
from ackline.kafka.cluster import Cluster
from ackline.kafka.copies import copy_of, rescue_topic
from ackline.kafka.exact import Found, read_exactly
from ackline.ledger.copies import Copies, CopyLog, CopyRun, Rescued
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import TurnId
from ackline.local.processes import wait_until
from tests.e2e import wire
from tests.kafka.kafka_log import COMPACTED, aborted, compact, config, delete_before, offsets, put
from tests.spark.handlers import by_word
from tests.spark.lab import Lab, each_runner

pytestmark = each_runner
TURN = TurnId("orders", "live", 0, 1)


def log_end(lab: Lab, tp: TopicPartition) -> int:
    with closing(Cluster(config(lab.broker), "read_uncommitted")) as cluster:
        return cluster.bounds([tp])[tp].end


def test_an_aborted_or_open_transaction_is_not_handled_under_read_committed(lab: Lab) -> None:
    """S6, S43, I14: markers and aborted records are gaps, at the end of the range, too."""
    tp = lab.put(b"a")
    aborted(lab.broker, tp.topic, [b"never", b"never"])
    put(lab.broker, tp.topic, [(None, b"b")])
    aborted(lab.broker, tp.topic, [b"never"])
    # The broker writes the markers, which have an offset each, some time after the transaction has ended.
    assert wait_until(lambda: log_end(lab, tp) == 7, 30)
    for isolation, count in (("read_committed", 2), ("read_uncommitted", 5)):
        job = lab.ran("ack", {tp: (0, 7)}, isolation_level=isolation)
        handled = [offset for offset, _, _ in lab.outcomes(job)]
        assert (handled, len(handled)) == (offsets(lab.broker, tp.topic, isolation), count)
    client = wire.open_transaction(lab.broker.bootstrap, tp.topic, [wire.Write(b"open")])
    assert lab.run(lab.job("ack", {tp: (0, 7)})).calls == 2
    client.abort_transaction(30)


def test_compacted_records_are_gaps_if_fresh_and_compacted_if_retried(lab: Lab) -> None:
    """S1, S40."""
    name = lab.topic(1, COMPACTED)
    put(lab.broker, name, [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"b", b"2")])
    compact(lab.broker, name, [0, 1])
    end = max(offsets(lab.broker, name)) + 1
    tp = TopicPartition(name, 0)
    fresh = lab.ran("ack", {tp: (0, end)})
    assert [offset for offset, _, _ in lab.outcomes(fresh)] == offsets(lab.broker, name)
    for handler in ("ack", "column_words") if lab.spark else ("ack",):
        retry = lab.job(handler, None, {tp: {0: 2, 1: 3, 3: 2}})
        result = lab.run(retry)
        rows = [(row["offset"], row["outcome"], row["attempt"], row["record_timestamp"]) for row in lab.rows(retry)]
        assert rows[:2] == [(0, "compacted", 0, None), (1, "compacted", 0, None)]
        assert (rows[2][:3], result.calls) == ((3, "acked" if handler == "ack" else "failed", 2), 1)


def test_retries_that_retention_has_deleted_are_expired(lab: Lab) -> None:
    """S41."""
    tp = lab.fill(20)
    delete_before(lab.broker, tp.topic, 8)
    job = lab.ran("ack", {tp: (18, 20)}, {tp: {3: 2, 4: 2, 9: 2}})
    rows = [(row["offset"], row["outcome"], row["attempt"]) for row in lab.rows(job)]
    assert rows == [(3, "expired", 0), (4, "expired", 0), (9, "acked", 2), (18, "acked", 1), (19, "acked", 1)]


def test_an_empty_range_in_a_gap_gives_no_rows_and_no_range_needs_no_job(lab: Lab) -> None:
    tp = lab.put(b"a")
    aborted(lab.broker, tp.topic, [b"never"] * 3)
    for job in (lab.job("ack", {tp: (1, 5)}), lab.job("ack")):
        result = lab.run(job)
        assert (result.files, result.counts, result.calls) == ((), {}, 0)
        assert result.fetched_for_retries <= (lab.spark is None), "in process, fresh records are read like retries"


def test_a_failure_is_stored_with_the_line_of_the_handlers_code(lab: Lab) -> None:
    tp = lab.put(b"fail", b"acked", b"generator")
    job = lab.ran("by_word", {tp: (0, 3)})
    line = by_word.__code__.co_firstlineno + 4
    places = {row["offset"]: row["error_place"] for row in lab.rows(job)}
    # What the handler returned is no outcome, which no line of the handler raised.
    assert places == {0: f"tests/spark/handlers.py:{line} in by_word", 1: None, 2: None}


@pytest.mark.parametrize("handler", ["ack", "column_words"])
def test_s88_a_retry_whose_record_is_gone_reads_the_copy_in_the_rescue_topic(lab: Lab, handler: str) -> None:
    if handler == "column_words" and lab.spark is None:
        pytest.skip("a column handler runs in Spark")
    tp, rescue = lab.fill(20), lab.topic()
    with closing(Cluster(config(lab.broker), "read_committed")) as cluster:
        ids = {name: info.topic_id for name, info in cluster.topics([tp.topic, rescue]).items()}
    log, wanted = CopyLog(rescue, ids[rescue], 0), {tp: [3, 4, 9]}
    found = list(read_exactly(config(lab.broker), "read_committed", wanted))
    rows = [copy_of(each, ids[tp.topic], log, TURN) for each in found if isinstance(each, Found)]
    with closing(rescue_topic(config(lab.broker))) as sender:
        assert sender.send(rows) == []
    copies = Copies.of([CopyRun(3, 5, log, 0), CopyRun(9, 10, log, 2)])
    job = lab.job(handler, {tp: (18, 20)}, {tp: {3: 2, 4: 2, 6: 2, 9: 2}})
    delete_before(lab.broker, tp.topic, 8)
    job = replace(job, kafka=replace(job.kafka, rescued={tp: Rescued(ids[tp.topic], copies)}))
    lab.run(job)
    outcome = "acked" if handler == "ack" else "failed"
    answers = [(row["offset"], row["outcome"], row["attempt"]) for row in lab.rows(job)]
    assert answers[:4] == [(3, outcome, 2), (4, outcome, 2), (6, "expired", 0), (9, outcome, 2)]
    delete_before(lab.broker, rescue, 2)
    with pytest.raises(CopyGone, match=rf"{tp.topic}\[0\]: the record at offset 3 is gone") as caught:
        lab.replayed(job)
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == (tp.topic, 0, 3)
