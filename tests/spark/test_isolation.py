"""Faults 11 and 12 on real Spark: a handler in processes of its own, beside Spark's Python workers."""

import pytest

from ackline.errors import ConfigError
from ackline.ledger.offsets import TopicPartition
from ackline.pipeline.streams import Stream, Translation
from tests.conftest import MakeTopic
from tests.kafka.kafka_log import put
from tests.spark.lab import Lab


@pytest.mark.parametrize("handler", ["by_deed", "arrow_by_deed"])
def test_what_kills_or_hangs_its_process_fails_alone(lab: Lab, handler: str) -> None:
    """Fresh records of one partition and retries of another, in one job."""
    name = lab.topic(2)
    words = [b"ok", b"segfault", None, b"ok", b"hang", b"ok"]
    for partition in range(2):
        put(lab.broker, name, [(b"k", word) for word in words], partition)
    fresh, retries = TopicPartition(name, 0), TopicPartition(name, 1)
    job = lab.job(handler, {fresh: (0, 6)}, {retries: dict.fromkeys(range(1, 6), 2)}, isolated=True, record_timeout=3.0)
    result = lab.run(job)
    expected: list[tuple[int, str, str | None]] = [
        (0, "acked", None), (1, "failed", "WorkerLost"), (2, "skipped", "Tombstone"), (3, "acked", None),
        (4, "failed", "Timeout"), (5, "acked", None),
    ]  # fmt: skip
    assert (lab.outcomes(job), result.calls) == (expected + expected[1:], 9)


PATH = "tests.spark.stream_handlers:{}".format
NOTES = Translation((Stream("notes", PATH("notes"), PATH("any_note"), value="utf8"),))


@pytest.mark.parametrize(
    ("handler", "translation", "reason"),
    [("column_words", None, r"is a column handler.*record_timeout"), ("arrow_words", NOTES, "Arrow handler")],
)
def test_a_handler_that_can_not_be_isolated_is_refused_only_if_its_pipeline_asks_for_that(
    lab: Lab,
    topic: MakeTopic,
    caplog: pytest.LogCaptureFixture,
    handler: str,
    translation: Translation | None,
    reason: str,
) -> None:
    """A column handler stays in the JVM; an Arrow handler behind a filter is called in the midst of other records."""
    tp = lab.put(b"acked")
    fresh = {tp: (0, 1)}
    with pytest.raises(ConfigError, match=reason):
        lab.run(lab.job(handler, fresh, isolated=True, translation=translation))
    unasked = "started 3 times without outcomes"
    job = lab.ran(handler, fresh, isolated=True, isolation_reason=unasked, translation=translation)
    assert lab.outcomes(job) == [(0, "acked", None)]
    assert "process of its own" not in caplog.text
