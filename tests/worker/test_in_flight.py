"""What a record handler that answers InFlight gives: an outcome with a deadline, and a token."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ackline import InFlight, Record, arrow_handler
from ackline.errors import ConfigError
from ackline.handler import Tier, sign_tokens_with
from ackline.ledger.answers import TokenSigner, parse_token
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import ErrorClass, Outcome
from ackline.ledger.turns import TurnId
from ackline.pipeline.functions import check_functions
from ackline.pipeline.streams import Stream, Translation
from ackline.worker import streams
from ackline.worker.call import use_in_flight_settings
from ackline.worker.outcomes import Outcomes
from ackline.worker.settings import ReplaySettings
from ackline.worker.streams import load_call
from tests.worker.batches import records_of

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = 1_000_000


@pytest.fixture(autouse=True)
def _unsigned_afterwards() -> Iterator[None]:
    yield
    sign_tokens_with(None)


def called(code: Any, handler: Any, tokens: bool = True, **settings: Any) -> Outcomes:
    """The outcomes of two records; the timeout of the file is 30 seconds."""
    code.handle = handler
    path = f"{code.__name__}:handle"
    ids = {TopicPartition("orders", 3): "id"}
    signer = TokenSigner(b"k" * 16, "ledger", TurnId("shop", "live", 0, 1), ids) if tokens else None
    streams._load_once.cache_clear()
    replay = ReplaySettings(
        path, False, Outcome.FAILED, tokens=signer,
        **{"now": NOON, "in_flight_timeout": timedelta(seconds=30), **settings},
    )  # fmt: skip
    return load_call(replay, Tier.RECORD)(records_of([b"a", b"b"]))


def shown(outcomes: Outcomes) -> list[tuple[int, str, str | None, int | None]]:
    """Row, outcome, error class, and seconds from noon to the deadline of what is not acked."""
    noon = int(NOON.timestamp()) * SECOND
    return [
        (o.row, o.outcome.value, o.error_class, None if o.due is None else (o.due - noon) // SECOND)
        for o in outcomes.not_acked
    ]


def test_an_executor_whose_clock_is_behind_stamps_no_outcome_before_the_job_was_handed_out(code: Any) -> None:
    """Its deadline would be over before the handler was called."""
    handed_out = datetime.now(UTC) + timedelta(seconds=4)
    outcomes = called(code, lambda record: InFlight(), now=None, not_before=handed_out)
    least = int(handed_out.timestamp() * SECOND)
    assert all(least <= time < least + 2000 for time in outcomes.handled_at.tolist())
    assert [outcome.due for outcome in outcomes.not_acked] == [time + 30 * SECOND for time in outcomes.handled_at]


def test_a_returned_in_flight_has_the_timeout_of_the_file_or_its_own(code: Any) -> None:
    def handle(record: Record) -> InFlight:
        return InFlight(timedelta(seconds=5)) if record.value == b"b" else InFlight()

    assert shown(called(code, handle)) == [(0, "in_flight", None, 30), (1, "in_flight", None, 5)]
    assert shown(called(code, handle, in_flight_timeout=None))[0] == (0, "in_flight", None, None)


def test_a_generator_runs_to_its_end_and_may_yield_one_in_flight(code: Any) -> None:
    done = []

    def handle(record: Record) -> Iterator[InFlight]:
        if record.value == b"a":
            yield InFlight()
        done.append(record.value)

    outcomes = called(code, handle)
    assert (shown(outcomes), done, outcomes.calls) == ([(0, "in_flight", None, 30)], [b"a", b"b"], 2)


@pytest.mark.parametrize("yields", [[InFlight(), InFlight()], [InFlight(), 5], [None]])
def test_a_generator_that_yields_anything_else_fails_its_record(code: Any, yields: list[Any]) -> None:
    def handle(record: Record) -> Iterator[Any]:
        yield from yields if record.value == b"a" else ()

    assert shown(called(code, handle)) == [(0, "failed", ErrorClass.INVALID_OUTCOME, None)]


@pytest.mark.parametrize("result", [InFlight, [InFlight()], (InFlight(),), [InFlight]])
def test_an_in_flight_in_another_form_fails_its_record(code: Any, result: Any) -> None:
    assert {row[1:3] for row in shown(called(code, lambda _: result))} == {("failed", ErrorClass.INVALID_OUTCOME)}


def test_an_object_whose_call_is_a_generator_runs_to_its_end_too(code: Any) -> None:
    done = []

    class Handle:
        def __call__(self, record: Record) -> Iterator[InFlight]:
            yield InFlight()
            done.append(record.value)

    assert (shown(called(code, Handle()))[0], done) == ((0, "in_flight", None, 30), [b"a", b"b"])


def test_what_a_generator_raises_after_its_in_flight_is_the_outcome(code: Any) -> None:
    def handle(record: Record) -> Iterator[InFlight]:
        yield InFlight()
        raise KeyError(record.offset)

    assert [row[:3] for row in shown(called(code, handle))] == [(0, "failed", "KeyError"), (1, "failed", "KeyError")]


@pytest.mark.parametrize("timeout", [timedelta(), timedelta(seconds=-1), 30])
def test_a_timeout_that_is_no_time_above_zero_fails_the_record(code: Any, timeout: Any) -> None:
    outcomes = called(code, lambda _: InFlight(timeout))
    assert {row[1:3] for row in shown(outcomes)} == {("failed", ErrorClass.INVALID_OUTCOME)}


class Span(timedelta):
    def __floordiv__(self, other: Any) -> Any:
        return 0.5

    __le__ = __lt__ = __floordiv__


def test_i17_a_timeout_of_a_class_that_divides_otherwise_is_the_time_that_it_holds(code: Any) -> None:
    assert shown(called(code, lambda _: InFlight(Span(seconds=5)))) == [
        (0, "in_flight", None, 5), (1, "in_flight", None, 5)
    ]  # fmt: skip


def test_a_timeout_beyond_the_calendar_ends_before_the_calendar_does(code: Any) -> None:
    due = called(code, lambda _: InFlight(timedelta.max)).not_acked[0].due
    assert due is not None
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=due)
    assert (time.year, time + timedelta(milliseconds=1) > time) == (9999, True)


def test_without_an_ack_topic_in_flight_fails_the_record_and_there_is_no_token(code: Any) -> None:
    outcomes = called(code, lambda _: InFlight(), tokens=False)
    assert outcomes.not_acked[0].error_message == "InFlight needs `ack_topic` in the pipeline file"
    raising = called(code, lambda record: record.token, tokens=False)
    assert {row[2] for row in shown(raising)} == {"RuntimeError"}


def test_a_handler_reads_the_token_of_its_record_through_streams_and_filters_too(code: Any) -> None:
    tokens: list[str] = []
    code.handle = lambda record: tokens.append(record.token)
    code.wanted = lambda record: bool(record.token)
    called(code, code.handle)
    stream = Stream("a", f"{code.__name__}:handle", f"{code.__name__}:wanted", value="utf8")
    called(code, code.handle, translation=Translation((stream,)))
    parsed = [parse_token(text) for text in tokens]
    assert [(token.offset, token.attempt) if token else None for token in parsed[:2]] == [(100, 2), (102, 2)]
    assert parsed[:2] == parsed[2:]


def test_a_task_without_an_ack_topic_takes_the_tokens_of_the_task_before_away(code: Any) -> None:
    called(code, lambda _: InFlight())
    use_in_flight_settings(ReplaySettings("a:b", False, Outcome.FAILED, NOON))
    with pytest.raises(RuntimeError, match="ack_topic"):
        _ = next(iter(records_of([b"a"]))).token


def test_only_record_handlers_go_with_an_ack_topic(code: Any) -> None:
    code.arrow = arrow_handler(lambda batch: [])
    path = f"{code.__name__}:arrow"
    check_functions(path, None)
    with pytest.raises(ConfigError, match="only a record handler") as refused:
        check_functions(path, None, in_flight=True)
    assert refused.value.key == "ack_topic"
    code.rows = arrow_handler(lambda batch: (yield batch))
    with pytest.raises(ConfigError, match="only a record handler"):
        check_functions(f"{code.__name__}:rows", None, in_flight=True)
    with pytest.raises(ConfigError, match="only a record handler"):
        check_functions(None, Translation((Stream("a", path),)), in_flight=True)
