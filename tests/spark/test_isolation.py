"""Faults 11 and 12 on real Spark: a handler in processes of its own, beside Spark's Python workers."""

import pytest

from ackline.errors import ConfigError
from ackline.offsets import TopicPartition
from ackline.translation import Stream, Translation
from tests.conftest import MakeTopic
from tests.contract.kafka_log import put
from tests.spark.bench import Bench


@pytest.mark.parametrize("handler", ["by_deed", "arrow_by_deed"])
def test_what_kills_or_hangs_its_process_fails_alone(bench: Bench, topic: MakeTopic, handler: str) -> None:
    """Fresh records and retries, on two partitions at once."""
    name = topic(2)
    words = [b"ok", b"segfault", None, b"ok", b"hang", b"ok"]
    put(bench.broker, name, [(b"k", word) for word in words])
    put(bench.broker, name, [(b"k", word) for word in words], partition=1)
    one, two = TopicPartition(name, 0), TopicPartition(name, 1)
    job = bench.job(handler, {one: (0, 6)}, {two: dict.fromkeys(range(1, 6), 2)}, isolated=True, record_timeout=3.0)
    result = bench.run(job)
    became = ["acked", "failed", "skipped", "acked", "failed", "acked"]
    classes = [None, "WorkerLost", "Tombstone", None, "Timeout", None]
    wanted = [(offset, became[offset], classes[offset]) for offset in range(6)]
    assert bench.outcomes(job) == wanted + wanted[1:]
    assert result.calls == 9


def test_an_isolated_handler_settles_each_record_as_it_does_in_the_task(bench: Bench, topic: MakeTopic) -> None:
    name = topic()
    words = [b"ok", b"fail", b"skip", b"dead", b"exit", b"interrupt", b"generator", None, b"ok"]
    put(bench.broker, name, [(b"customer-1", word) for word in words])
    place = {TopicPartition(name, 0): (0, 9)}
    here = bench.job("by_word", place)
    bench.run(here)
    there = bench.job("by_word", place, isolated=True)
    bench.run(there)
    names = ("offset", "outcome", "error_class", "error_message", "attempt", "record_timestamp")
    assert [[row[name] for name in names] for row in bench.rows(there)] == (
        [[row[name] for name in names] for row in bench.rows(here)]
    )


def test_a_column_handler_is_not_isolated(bench: Bench, topic: MakeTopic, caplog: pytest.LogCaptureFixture) -> None:
    """It stays in the JVM: asked for that is refused, by itself it stays as it is."""
    name = topic()
    put(bench.broker, name, [(None, b"acked")])
    place = {TopicPartition(name, 0): (0, 1)}
    with pytest.raises(ConfigError, match=r"is a column handler.*record_timeout"):
        bench.run(bench.job("column_words", place, isolated=True))
    job = bench.job("column_words", place, isolated=True, because="started 3 times without outcomes")
    bench.run(job)
    assert bench.outcomes(job) == [(0, "acked", None)]
    assert "process of its own" not in caplog.text


def test_streams_with_an_arrow_handler_behind_a_filter_are_not_isolated(bench: Bench, topic: MakeTopic) -> None:
    """Asked for it is refused before anything is read; by itself they stay as they are."""
    name = topic()
    put(bench.broker, name, [(None, b"skip"), (None, b"a")])
    place = {TopicPartition(name, 0): (0, 2)}
    notes = Translation(
        (Stream("notes", "tests.spark.translated:notes", "tests.spark.translated:any_note", value="utf8"),)
    )
    with pytest.raises(ConfigError, match="Arrow handler"):
        bench.run(bench.job("", place, isolated=True, translation=notes))
    job = bench.job("", place, isolated=True, because="started 3 times without outcomes", translation=notes)
    bench.run(job)
    assert bench.outcomes(job) == [(0, "skipped", "Skip"), (1, "acked", None)]
