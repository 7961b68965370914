"""What an error of Spark becomes: what to do next, and never its text, which may quote a payload."""

import pytest

from ackline.errors import AcklineError, FatalError, RangeGone, TransientError
from ackline.spark.failure import error_of_spark

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
