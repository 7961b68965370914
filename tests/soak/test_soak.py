"""A few minutes of `make soak`: each kind of pipeline, and each thing that breaks, at least once."""

from pathlib import Path

import pytest

from tests.soak import run
from tests.soak.fleet import KINDS, SHARES, Member, kinds_of
from tests.soak.rounds import STRIKES

SEED = 20_240_506


@pytest.mark.deep
@pytest.mark.real
def test_pipelines_run_while_everything_breaks_and_each_record_has_its_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pipeline of each kind in five rounds. What grows is judged by an hour of `make soak`, not here."""
    monkeypatch.delenv("ACKLINE_SPARK_MASTER", raising=False)
    said: list[str] = []
    verdict = run.soak(tmp_path, 2, len(KINDS), SEED, rate=60, every=24, say=said.append)
    assert verdict.wrong == [], "\n".join([*said, *verdict.lines])
    assert verdict.delivered > 500
    assert set(STRIKES) - set(verdict.tally.strikes) == set(), verdict.tally.strikes
    assert {"acked", "failed", "dead", "skipped", "expired"} <= set(verdict.tally.outcomes)
    assert len(verdict.growths) > 10


def test_a_fleet_of_fifty_has_each_kind_and_a_smaller_one_begins_with_one_of_each() -> None:
    assert tuple(kinds_of(9)) == KINDS
    fifty = kinds_of(50)
    assert {kind: fifty.count(kind) for kind in KINDS} == SHARES


@pytest.mark.parametrize("kind", KINDS)
def test_the_pipeline_file_of_each_kind_is_accepted(kind: str, tmp_path: Path) -> None:
    member = Member(f"p-{kind}", kind, tmp_path)
    member.write("127.0.0.1:9092")
    assert member.load().name == member.name
