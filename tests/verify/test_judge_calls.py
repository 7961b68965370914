"""Rules on the journal of handler calls."""

import pytest

from tests.verify.fabricated import Change, assert_found, at_most_once, outcome, violation


@pytest.mark.parametrize(("change", "sentences"), [
    violation(lambda h: h.calls.remove((8, 1)),
              "I2 orders[0] offset 8: has the outcome of an attempt for which no handler was called"),
    violation(lambda h: h.calls.append((3, 3)),
              "I5 orders[0] offset 3: has a handler call of an attempt above the limit of 2 attempts",
              "I4 orders[0] offset 3: has a handler call, but no outcome of that attempt counts"),
    violation(lambda h: h.calls.append((3, 2**16 + 1)),  # is no call of attempt 1 at offset 4
              "I4 orders[0] offset 3: has a handler call, but no outcome of that attempt counts"),
])  # fmt: skip
def test_each_violation_is_named(change: Change, sentences: tuple[str, ...]) -> None:
    assert_found(change, sentences)


def test_at_most_once_a_call_that_was_never_reported_is_lost() -> None:
    assert at_most_once(outcome(1, 0, 0, "lost", end_offset=10)).violations() == []


def test_at_most_once_a_second_call_for_an_offset_is_found_i7() -> None:
    history = at_most_once(outcome(1, 0, 0, "lost", end_offset=10))
    history.calls.append((3, 1))
    assert history.violations() == [
        "I7 orders[0] offset 3: has more than one handler call, but was planned at most once"
    ]
    history.plans[0].update(settings=None)
    assert history.violations() == []
