"""Which turns an output table holds: an older copy of it or of the ledger is found, and a table made anew is none."""

import re

import pytest

from ackline.ledger.turns import TurnId, number_of
from ackline.pipeline.outputs import OutputsOfTurn, TableOfTurn, earlier_after, published_after, without_effect
from ackline.tables.published import Published, application_of, older_copy

TURN = TurnId("shop", "live", 2, 5)


def of(epoch: int, ledger: str = "ledger", lane: str = "live", pipeline: str = "shop") -> str:
    return application_of(ledger, TurnId(pipeline, lane, epoch, 1))


def at(n: int, identity: int = 7) -> int:
    return number_of(TURN._replace(n=n), identity)


OLDER_TABLE, OLDER_LEDGER = "the table is an older copy", "ACKLINE_AUDIT is an older copy"


@pytest.mark.parametrize(
    ("held", "published", "why"),
    [
        ({of(2): at(5)}, Published(at(5)), None),
        ({of(2): at(4)}, Published(at(5)), f"holds turn 4 of .* epoch 2, .* published turn 5 there: {OLDER_TABLE}"),
        ({of(2): at(6)}, Published(at(5)), f"holds turn 6 of .* epoch 2, .*{OLDER_LEDGER}"),
        ({of(2): at(5, 8)}, Published(at(5)), f"holds turn 5 of .* epoch 2, .*{OLDER_LEDGER}"),
        ({of(2): at(6)}, Published(at(5), [at(6)]), None),
        # nothing of this epoch: a table that was made anew, or a copy from before the epoch
        ({}, Published(at(5)), None),
        ({of(1): at(9)}, Published(at(5)), f"holds no turn of .* epoch 2, .* published turn 5 there: {OLDER_TABLE}"),
        ({of(0): at(9)}, Published(at(5), (), (of(1), at(9))), OLDER_TABLE),
        ({of(0, lane="backfill-b"): at(9)}, Published(at(5)), None),
        ({of(0, pipeline="other"): at(9)}, Published(at(5)), None),
        ({of(0, ledger="of another root"): at(9)}, Published(at(5)), None),
        # an epoch that has published nothing yet
        ({of(1): at(9)}, Published(None, (), (of(1), at(9))), None),
        ({of(1): at(8)}, Published(None, (), (of(1), at(9))), f"published turn 9 there: {OLDER_TABLE}"),
        ({of(0): at(3)}, Published(None, (), (of(1), at(9))), OLDER_TABLE),
        ({}, Published(None, (), (of(1), at(9))), None),
        ({of(2): at(3)}, Published(None, (), (of(1), at(9))), OLDER_LEDGER),
        # a ledger from before a reset, which a later epoch has followed
        ({of(3): at(1), of(2): at(5)}, Published(at(5)), f"holds turn 1 of .* epoch 3, .*{OLDER_LEDGER}"),
        ({of(3, "other"): at(1), of(2): at(5)}, Published(at(5)), None),
        ({of(3, lane="backfill-b"): at(1), of(2): at(5)}, Published(at(5)), None),
        # a ledger that has another id since it was adopted
        ({of(2, "old"): at(8)}, Published(None, (), (of(2, "old"), at(9))), OLDER_TABLE),
        ({of(2, "old"): at(12)}, Published(None, (), (of(2, "old"), at(9))), None),
    ],
)
def test_an_older_copy_of_a_table_or_a_ledger_is_found_and_a_table_made_anew_is_none(
    held: dict[str, int], published: Published, why: str | None
) -> None:
    found = older_copy(TURN, "totals", held, of(2), published)
    assert (found is None) == (why is None), found
    assert why is None or re.search(why, found or ""), found


def test_what_a_lane_has_published_last_is_known_over_epochs_ids_of_the_ledger_and_void_turns() -> None:
    outputs = OutputsOfTurn(of(0), at(4), 1, {"a": TableOfTurn(at(3), 1, ()), "b": TableOfTurn(None, 1, ())})
    assert earlier_after(outputs, of(0)) == {}
    assert earlier_after(outputs, of(1), ["b"]) == {"a": (of(0), at(4))}
    new = OutputsOfTurn(of(1), at(2), 1, {"a": TableOfTurn(None, 1, ())}, earlier=earlier_after(outputs, of(1)))
    assert OutputsOfTurn.decode(new.encode()).earlier == {"a": (of(0), at(4)), "b": (of(0), at(4))}
    void = OutputsOfTurn.decode(without_effect(new.encode()))
    assert (published_after(void), earlier_after(void, of(1))) == ({"a": at(2)}, dict(new.earlier))
    assert earlier_after(void, of(1, "new")) == {"a": (of(1), at(2)), "b": (of(0), at(4))}
