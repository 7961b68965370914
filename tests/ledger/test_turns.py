"""What each kind of turn is like."""

import pytest

from ackline.ledger.turns import Traits, TurnKind

TABLE = {
    "run": {"replays": True, "may_be_void": True},
    "genesis": {},
    "skip": {"is_action": True, "moves_floor": True, "may_be_void": True},
    "retry": {"is_action": True},
    "reset": {"is_action": True, "moves_floor": True, "opens_epoch": True},
    "pause": {"is_action": True, "pauses": True},
    "resume": {"is_action": True, "pauses": False},
    "void": {},
}
"""The traits of each kind that differ from those of a kind without any."""


@pytest.mark.parametrize("kind", TurnKind)
def test_each_kind_has_the_traits_of_its_row(kind: TurnKind) -> None:
    traits = {name: getattr(kind, name) for name in Traits._fields}
    assert traits == {**Traits._field_defaults, **TABLE[kind]}
