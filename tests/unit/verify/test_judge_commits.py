"""Rules on the committed offsets of the group."""

import pytest

from tests.unit.verify.fabricated import Change, assert_found, at_most_once, plan, violation


@pytest.mark.parametrize(("change", "sentences"), [
    violation(lambda h: setattr(h, "committed", 11),
              "I1 orders[0] offset 11: is committed, above the floor 10 of the turn that its metadata names"),
    violation(lambda h: setattr(h, "committed", 9),
              "I1 orders[0] offset 9: is committed, below the floor 10 of the turn that its metadata names"),
    violation(lambda h: setattr(h, "turn", 3),
              "I1 orders[0] offset 10: is committed for turn 3 of epoch 0, which is not settled"),
    violation(lambda h: setattr(h, "ledger", "another"),
              "I1 orders[0] offset 10: is committed by another ledger of this pipeline"),
    violation(lambda h: h.records.insert(6, 6),
              "I2 orders[0] offset 6: is below the committed offset, but has no terminal outcome"),
])  # fmt: skip
def test_each_violation_is_named(change: Change, sentences: tuple[str, ...]) -> None:
    assert_found(change, sentences)


def test_at_most_once_a_claim_is_committed_before_its_turn_is_settled_i1() -> None:
    history = at_most_once(settled=False)
    assert history.violations(settled=False) == []
    history.committed = 9
    assert any(line.startswith("I1") for line in history.violations(settled=False))
    history.committed, history.plans = 10, [plan(1, 0, 10)]
    found = history.violations(settled=False)
    assert "I1 orders[0] offset 10: is committed for turn 1 of epoch 0, which is not settled" in found
    assert "I2 orders[0] offset 0: is below the committed offset, but has no terminal outcome" in found
