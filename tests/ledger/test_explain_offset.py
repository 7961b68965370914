"""The story of a tree: which steps the tuples of an attempt reached, and what became of them, in words."""

from datetime import UTC, datetime
from typing import Any

import pytest

from ackline.ledger.answers import SKIPPED_IN_TREE
from ackline.ledger.explain_offset import Event, StepStory, attempt_sentence, decode, encode, story_json, story_text
from ackline.ledger.outcomes import Outcome

STORY = {"price": StepStory(3, 1, 1), "total": StepStory(2, 0, 0)}


def test_only_the_steps_that_a_tuple_has_reached_are_stored() -> None:
    text = encode([*STORY.items(), ("never", StepStory(0, 0, 0))])
    assert text == '{"price":{"acked":3,"failed":1,"missing":1},"total":{"acked":2,"failed":0,"missing":0}}'
    assert decode(text) == STORY
    assert story_json(decode(text)) == {
        "price": {"acked": 3, "failed": 1, "missing": 1},
        "total": {"acked": 2, "failed": 0, "missing": 0},
    }


@pytest.mark.parametrize("text", [None, "", "[]", "no json", '{"price": 3}', '{"price": {"acked": 1}}'])
def test_a_row_without_a_story_has_none(text: str | None) -> None:
    assert decode(text) is None
    assert story_json(decode(text)) is None


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (StepStory(3, 1, 1), "of its 5 tuples at price 3 were acked, 1 failed, 1 is missing"),
        (StepStory(1, 0, 2), "of its 3 tuples at price 1 was acked, 2 are missing"),
        (StepStory(4, 0, 0), "all of its 4 tuples at price were acked"),
        (StepStory(1, 0, 0), "its tuple at price was acked"),
        (StepStory(0, 1, 0), "its tuple at price failed"),
        (StepStory(0, 0, 1), "its tuple at price is missing"),
    ],
)
def test_the_tuples_of_a_step_are_one_clause(step: StepStory, text: str) -> None:
    assert story_text({"price": step}) == text


def event(outcome: Outcome, **more: Any) -> Event:
    values = {"error_class": None, "error_message": None, "tree": None, "attempt": 1} | more
    at = datetime(2026, 3, 1, tzinfo=UTC)
    return Event(0, 1, values["attempt"], outcome, values["error_class"], values["error_message"], at, "run", None,
                 values["tree"])  # fmt: skip


@pytest.mark.parametrize(
    ("happened", "sentence"),
    [
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
        (
            event(Outcome.SKIPPED, error_class="Skip", error_message=SKIPPED_IN_TREE),
            "Attempt 1 was skipped: Skip.",
        ),
        (event(Outcome.DEAD, attempt=0, error_class="HTTPError"), ""),
    ],
)
def test_an_attempt_is_one_sentence(happened: Event, sentence: str) -> None:
    assert attempt_sentence(happened) == sentence
