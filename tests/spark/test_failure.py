"""What an error of Spark becomes: what to do next, and never its text, which may quote a payload."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from ackline.errors import AcklineError, FatalError, RangeGone, TransientError
from ackline.ledger.offsets import OffsetRange, TopicPartition
from ackline.spark.failure import error_of_spark, error_of_start

UNAVAILABLE: Any = SimpleNamespace(name="UNAVAILABLE")
INTERNAL: Any = SimpleNamespace(name="INTERNAL")
"""Statuses of gRPC, which has no types to check."""
LOST_SHUFFLE = (
    "Job aborted due to stage failure: ShuffleMapStage 4 (mapInArrow at chain.py:24) has failed the maximum allowable "
    "number of times: 1. Most recent failure reason:\norg.apache.spark.shuffle.FetchFailedException: secret payload"
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (LOST_SHUFFLE, TransientError),
        ("ExecutorLostFailure (executor 1 exited): secret payload", TransientError),
        ("OffsetOutOfRangeException: secret payload", RangeGone),
        ("java.io.IOException: No space left on device: secret payload", FatalError),
        ("java.lang.IllegalStateException: secret payload", FatalError),
        ("ackline.errors.ConfigError: the handler does not import\nsecret payload", AcklineError),
    ],
)
def test_an_error_of_spark_becomes_one_that_says_whether_to_try_again_and_quotes_nothing(
    text: str, kind: type[AcklineError]
) -> None:
    error = error_of_spark(RuntimeError(text))
    assert isinstance(error, kind)
    assert "secret" not in str(error)


A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
RANGES = {A: OffsetRange(0, 20), B: OffsetRange(10, 30)}


@pytest.mark.parametrize(("offset", "named", "tp"), [
    (5, "orders[0]", ("orders", 0)), (15, "orders[0] or orders[1]", (None, None)),
    (99, "one of 2 partitions", (None, None)),
])  # fmt: skip
def test_a_record_that_does_not_come_is_named_with_what_was_waited_for(
    offset: int, named: str, tp: tuple[str | None, int | None]
) -> None:
    text = f"java.util.concurrent.TimeoutException: Cannot fetch record for offset {offset} in 120000 milliseconds"
    error = error_of_spark(RuntimeError(text), RANGES)
    assert isinstance(error, TransientError)
    assert str(error).startswith(f"{named}: no record came to Spark's Kafka source for 120 s from offset {offset} on.")
    assert ("consumer_byte_rate" in str(error), "spark.network.timeout" in str(error)) == (True, True)
    assert ((error.topic, error.partition), error.offset) == (tp, offset)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (SparkConnectGrpcException("secret payload", grpc_status_code=UNAVAILABLE), TransientError),
        (SparkConnectGrpcException("secret", errorClass="INVALID_HANDLE.SESSION_CHANGED"), TransientError),
        (SparkConnectGrpcException("secret", errorClass="NO_ACTIVE_SESSION"), TransientError),
        (SparkConnectGrpcException("secret", errorClass="RESPONSE_ALREADY_RECEIVED"), TransientError),
        (SparkConnectGrpcException("secret payload", grpc_status_code=INTERNAL), FatalError),
    ],
)
def test_a_server_that_is_lost_while_it_runs_a_job_is_tried_again(error: Exception, kind: type[AcklineError]) -> None:
    raised = error_of_spark(error)
    assert type(raised) is kind
    assert ("Spark Connect server was lost" in str(raised)) is (kind is TransientError)
    assert "secret" not in str(raised)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("java.io.IOException: No space left on device", "Spark's temporary files is full"),
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.", "what Java has printed"),
        ("java.lang.IllegalStateException: secret payload", r"local\[\*\] \(IllegalStateException\)"),
    ],
)
def test_a_spark_that_does_not_start_on_this_machine_is_no_matter_of_a_master(text: str, said: str) -> None:
    error = error_of_start(RuntimeError(text), "local[*]")
    assert re.search(said, str(error))
    assert "check that the master runs" not in str(error)
    assert "secret" not in str(error)
