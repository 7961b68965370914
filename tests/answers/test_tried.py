"""`ackline.testing.try_record`: what a run would make of a record, in the test of a user, without broker or Spark."""

import pytest

from ackline import Dead, Record
from ackline.errors import ConfigError
from ackline.testing import try_record
from tests.support import tried_handlers as handlers

PATH = "tests.support.tried_handlers"
FILE = "tests/support/tried_handlers.py"


def test_a_record_that_its_handler_takes_is_acked() -> None:
    tried = try_record(f"{PATH}:price", value=b'{"price": 3}', topic="orders", offset=7)
    assert (tried.topic, tried.partition, tried.offset, tried.outcome) == ("orders", 0, 7, "acked")
    assert (tried.error_class, tried.error_place, tried.emitted, tried.traceback) == (None, None, (), None)


def test_a_failure_has_its_class_and_line_and_a_traceback_that_quotes_nothing_of_the_record() -> None:
    tried = try_record(handlers.price, value=b'{"card": "4711-0815"}')
    assert (tried.outcome, tried.error_class) == ("failed", "ValueError")
    assert tried.error_place is not None
    assert tried.error_place.startswith(f"{FILE}:")
    assert tried.error_place.endswith(" in price")
    assert tried.traceback is not None
    frame, error = tried.traceback.splitlines()
    assert (frame, error.split()[:4]) == (tried.error_place, ["ValueError:", "no", "price", "in"])
    assert "4711" not in repr(tried) + tried.traceback
    assert isinstance(tried.error, ValueError)
    assert "4711" in str(tried.error)


def test_a_traceback_goes_on_through_the_lines_of_libraries() -> None:
    tried = try_record(handlers.price, value=b"no JSON")
    assert tried.traceback is not None
    assert [line.rpartition(" in ")[2] for line in tried.traceback.splitlines()[:-1]] == [
        "price", "loads", "decode", "raw_decode",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "outcome", "error_class"),
    [("bury", "failed", "Dead"), ("pass_over", "skipped", "Skip"), ("hand_on", "in_flight", None),
     ("batch", "failed", None)],
)  # fmt: skip
def test_each_way_to_answer_has_its_outcome(name: str, outcome: str, error_class: str | None) -> None:
    tried = try_record(f"{PATH}:{name}", value=b"bad")
    assert (tried.outcome, tried.error_class) == (outcome, error_class)


def test_the_handler_gets_what_the_test_gives() -> None:
    tried = try_record(
        handlers.decoded, value={"n": 1}, key="k", headers={"trace": "t-1"}, topic="orders", offset=41, attempt=3
    )
    assert tried.outcome == "acked", tried.traceback


def test_what_a_generator_emits_is_in_the_order_of_its_calls() -> None:
    tried = try_record(handlers.split, value=b'{"items": [1, 2]}')
    assert tried.outcome == "acked"
    assert [(each.step, each.stream, each.value) for each in tried.emitted] == [
        ("source", "items", 1), ("source", "items", 2),
    ]  # fmt: skip


def test_a_function_that_no_path_names_can_be_tried_and_is_forgotten() -> None:
    limit = 3

    def refuse(record: Record) -> None:
        if len(record.value) > limit:
            raise Dead("too long")

    assert [try_record(refuse, value=value).outcome for value in (b"abc", b"abcd")] == ["acked", "failed"]


@pytest.mark.parametrize("name", ["column", "nothing"])
def test_a_handler_that_no_pipeline_could_call_here_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"column handler|does not import"):
        try_record(f"{PATH}:{name}", value=b"")
