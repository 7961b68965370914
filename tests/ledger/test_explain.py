"""Why a floor is where it is, in words: what holds it, what retention takes next, and the story of a tree of tuples."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from ackline.ledger.answers import SKIPPED_IN_TREE
from ackline.ledger.explain import (
    Event,
    HeldBy,
    OffsetEvidence,
    PartitionEvidence,
    StepStory,
    attempt_sentence,
    decode_story,
    encode_story,
    explain_offset,
    explain_partition,
    held_by,
    pending_at,
    span,
    story_json,
    story_text,
)
from ackline.ledger.fold import PartitionState, Pending, PendingKind
from ackline.ledger.offsets import TopicPartition, ValuedRange
from ackline.ledger.outcomes import Outcome

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
IDLE = PartitionEvidence(TopicPartition("orders", 3), 41, None, 10, 41, None, NOON)
RETRY = HeldBy(41, PendingKind.RETRY, 2, NOON + 4 * MINUTE, "HTTPError")


@pytest.mark.parametrize(("held", "sentence"), [
    (RETRY, "offset 41 failed 2 times with HTTPError and waits for attempt 3, due at 2026-03-01 12:04:00 UTC (in 4 "),
    (replace(RETRY, due=NOON - 5 * MINUTE), "due since 2026-03-01 11:55:00 UTC (5 minutes ago): the next run makes"),
    (replace(RETRY, due=NOON), "due since 2026-03-01 12:00:00 UTC"),
    (replace(RETRY, attempts=0, due=None), "offset 41 waits for its first attempt, which the next run makes."),
    (HeldBy(41, PendingKind.DEAD_LETTER, 4, None, "HTTPError"), "no attempt left after 4 attempts with HTTPError"),
    (HeldBy(41, PendingKind.IN_FLIGHT, 1, NOON, None), "offset 41 is in flight and waits for its answer until 2026"),
])  # fmt: skip
def test_the_sentence_names_the_record_that_holds_the_floor_and_what_it_waits_for(held: HeldBy, sentence: str) -> None:
    explained = explain_partition(replace(IDLE, held_by=held, log_end=100))
    assert explained.sentence.startswith("The floor of orders[3] is 41, because offset 41 ")
    assert sentence in explained.sentence
    assert explained.held_by == held


@pytest.mark.parametrize(("changes", "sentence"), [
    ({}, "Every record of orders[3] below its log end 41 is settled; nothing holds the floor."),
    ({"log_end": 90}, "Nothing is pending in orders[3]; its floor is 41, and [41, 90) is not read yet."),
    ({"log_end": None, "log_start": None}, "The end of its log is not known."),
    ({"log_end": 90, "why": "paused"}, "Runs do not read the partition: paused."),
])  # fmt: skip
def test_without_a_pending_record_the_sentence_names_what_is_left_to_read(
    changes: dict[str, object], sentence: str
) -> None:
    assert sentence in explain_partition(replace(IDLE, **changes)).sentence  # type: ignore[arg-type]


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"next_expiry": NOON + 50 * MINUTE}, "Retention may take offset 41 from 2026-03-01 12:50:00 UTC (in 50 minutes)"),
    ({"next_expiry": NOON - MINUTE}, "Retention may take offset 41 at any moment"),
    ({}, "no time is known at which retention takes offset 41"),
    ({"log_start": 60}, "The log starts at 60: the next run settles what is gone below it as expired."),
])  # fmt: skip
def test_the_sentence_names_what_retention_takes_next(changes: dict[str, object], sentence: str) -> None:
    explained = explain_partition(replace(IDLE, log_end=90, **changes))  # type: ignore[arg-type]
    assert sentence in explained.sentence
    assert (explained.retention.log_start, explained.retention.eta) == (
        changes.get("log_start", 10),
        changes.get("next_expiry"),
    )


def test_the_lowest_pending_offset_holds_the_floor_and_each_one_is_found() -> None:
    runs = [ValuedRange(s, s + 2, Pending(PendingKind.RETRY, s, None, None)) for s in range(0, 40, 4)]
    state = PartitionState(50, tuple(runs))
    assert [pending_at(state, offset) for offset in range(40)] == [
        runs[offset // 4].value if offset % 4 < 2 else None for offset in range(40)
    ]
    holder = held_by(state)
    assert holder is not None
    assert (holder.offset, held_by(PartitionState(50))) == (0, None)


def test_a_duration_is_shown_in_its_largest_unit() -> None:
    spans = [span(timedelta(seconds=seconds)) for seconds in (1, 90, 130, 7200, 200_000)]
    assert spans == ["1 second", "90 seconds", "2 minutes", "2 hours", "2 days"]


STORY = {"price": StepStory(3, 1, 1), "total": StepStory(2, 0, 0)}


def test_only_the_steps_that_a_tuple_has_reached_are_stored() -> None:
    text = encode_story([*STORY.items(), ("never", StepStory(0, 0, 0))])
    assert text == '{"price":{"acked":3,"failed":1,"missing":1},"total":{"acked":2,"failed":0,"missing":0}}'
    assert decode_story(text) == STORY
    assert story_json(decode_story(text)) == {
        "price": {"acked": 3, "failed": 1, "missing": 1},
        "total": {"acked": 2, "failed": 0, "missing": 0},
    }


@pytest.mark.parametrize("text", [None, "", "[]", "no json", '{"price": 3}', '{"price": {"acked": 1}}'])
def test_a_row_without_a_story_has_none(text: str | None) -> None:
    assert decode_story(text) is None
    assert story_json(decode_story(text)) is None


@pytest.mark.parametrize(("step", "text"), [
    (StepStory(3, 1, 1), "of its 5 tuples at price 3 were acked, 1 failed, 1 is missing"),
    (StepStory(1, 0, 2), "of its 3 tuples at price 1 was acked, 2 are missing"),
    (StepStory(4, 0, 0), "all of its 4 tuples at price were acked"),
    (StepStory(1, 0, 0), "its tuple at price was acked"),
    (StepStory(0, 1, 0), "its tuple at price failed"),
    (StepStory(0, 0, 1), "its tuple at price is missing"),
])  # fmt: skip
def test_the_tuples_of_a_step_are_one_clause(step: StepStory, text: str) -> None:
    assert story_text({"price": step}) == text


def event(outcome: Outcome, **more: Any) -> Event:
    values = {"error_class": None, "error_message": None, "tree": None, "attempt": 1} | more
    at = datetime(2026, 3, 1, tzinfo=UTC)
    return Event(0, 1, values["attempt"], outcome, values["error_class"], values["error_message"], at, "run", None,
                 values["tree"])  # fmt: skip


@pytest.mark.parametrize(("happened", "sentence"), [
    (
        event(
            Outcome.FAILED, error_class="HTTPError", error_message="step price: 503; 3 siblings acked", tree=STORY
        ),
        "Attempt 1 failed in step price: HTTPError; of its 5 tuples at price 3 were acked, 1 failed, 1 is missing; "
        "all of its 2 tuples at total were acked.",
    ),
    (event(Outcome.FAILED, error_class="KeyError"), "Attempt 1 failed in step source: KeyError."),
    (
        event(Outcome.FAILED, error_class="UnknownStream", error_message="step source: x", tree={}),
        "Attempt 1 failed in step source: UnknownStream; no step got a tuple of it.",
    ),
    (event(Outcome.ACKED, attempt=2), "Attempt 2 was acked: all of its tuples were."),
    (
        event(Outcome.ACKED, tree={"price": StepStory(3, 0, 0), "total": StepStory(1, 0, 0)}),
        "Attempt 1 was acked; all of its 3 tuples at price were acked; its tuple at total was acked.",
    ),
    (event(Outcome.FAILED, error_class="AckTimeout"), "Attempt 1 failed: AckTimeout."),
    (event(Outcome.IN_FLIGHT), "Attempt 1 is in flight."),
    (
        event(Outcome.IN_FLIGHT, error_class="Skip", error_message="step price: unwanted", tree=STORY),
        "Attempt 1 is in flight, and was skipped in step price: Skip; of its 5 tuples at price 3 were acked, 1 "
        "failed, 1 is missing; all of its 2 tuples at total were acked.",
    ),
    (event(Outcome.SKIPPED, error_class="Skip", error_message=SKIPPED_IN_TREE), "Attempt 1 was skipped: Skip."),
    (event(Outcome.DEAD, attempt=0, error_class="HTTPError"), ""),
])  # fmt: skip
def test_an_attempt_is_one_sentence(happened: Event, sentence: str) -> None:
    assert attempt_sentence(happened) == sentence


def held_back_behind(head: Pending | None, keys: list[int] | None) -> PartitionState:
    """A partition in which 57 is held back; 41, if it is pending, and 50 of another key come before it."""
    other, held = Pending(PendingKind.RETRY, 1, NOON, "KeyError"), Pending(PendingKind.HELD_BACK, 0, NOON, None)
    runs = [ValuedRange(41, 42, head)] if head is not None else []
    pending_keys = None if keys is None else np.array(keys[1 - len(runs) :])
    return PartitionState(60, [*runs, ValuedRange(50, 51, other), ValuedRange(57, 58, held)], (), pending_keys)


def explained_57(state: PartitionState) -> str:
    tp = TopicPartition("orders", 3)
    return explain_offset(OffsetEvidence(tp, 57, "live", 0, state, (), None, None, 0), NOON).sentence


@pytest.mark.parametrize(("head", "keys", "sentence"), [
    (Pending(PendingKind.RETRY, 2, NOON + MINUTE, "HTTPError"), [7, 8, 7],
     "Offset 57 of orders[3] waits behind offset 41 of the same key, which failed 2 times with HTTPError and waits for "
     "attempt 3, due at 2026-03-01 12:01:00 UTC (in 60 seconds)."),
    (Pending(PendingKind.RETRY, 2, NOON, "HTTPError"), None, "waits behind offset 41 of the partition, which failed"),
    (Pending(PendingKind.DEAD_LETTER, 2, None, "Dead"), [7, 8, 7], "of the same key, which has no attempt left"),
    (Pending(PendingKind.IN_FLIGHT, 1, None, None), [7, 8, 7], "which is in flight and waits for its answer."),
    (None, [7, 8, 7], "Offset 57 of orders[3] was held back by a lower one that is settled now; the next run reads it"),
])  # fmt: skip
def test_a_record_that_is_held_back_names_what_it_waits_for(
    head: Pending | None, keys: list[int] | None, sentence: str
) -> None:
    assert sentence in explained_57(held_back_behind(head, keys))


def test_a_record_that_was_held_back_and_holds_the_floor_is_read_by_the_next_run() -> None:
    held = Pending(PendingKind.HELD_BACK, 0, NOON, None)
    holder = held_by(PartitionState(60, [ValuedRange(41, 43, held)], (), np.array([7])))
    assert holder is not None
    assert (holder.kind, holder.behind) == (PendingKind.HELD_BACK, None)
    text = explain_partition(replace(IDLE, held_by=holder, log_end=100)).sentence
    assert "because offset 41 was held back by a lower one that is settled now; the next run reads it." in text
