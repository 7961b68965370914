"""`on_expired: fail` on the real parts: retention on the broker, the command, and the way on that it names (S41)."""

from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Row, fails


def test_s41_the_run_stops_names_what_retention_took_and_goes_on_after_the_skip_that_it_names(lab: MakeLab) -> None:
    one = lab(on_expired="fail", retry={"initial_delay": "1h"})
    one.records(4, fails([1], 1))
    one.run()
    one.records(4)
    one.expire(6)
    plans, settlements = one.table("plans"), one.table("settlements")

    said = ""
    for command in ("run", "plan", "run"):
        done = one.command(command, one.name, "--now", one.now.isoformat())
        assert (done.returncode, done.stdout) == (1, "")
        assert f"{one.topic}[0] [1, 2), [4, 6)" in done.stderr
        assert "Traceback" not in done.stderr
        said = done.stderr
    assert (one.table("plans"), one.table("settlements")) == (plans, settlements)
    assert one.committed() == 1

    _, _, way_on = said.partition("Go on with `ackline ")
    skipped = one.command(*way_on.partition("`")[0].split(), "--now", one.now.isoformat())
    assert skipped.returncode == 0, skipped.stderr
    one.run()
    gone = [Row(1, 0, "skipped", 2), Row(1, 1, "failed"), Row(4, 0, "skipped", 6)]
    assert [row for row in one.rows() if row.outcome != "acked"] == gone
    assert one.handled() == [(0, 1), (1, 1), (2, 1), (3, 1), (6, 1), (7, 1)]
    assert one.committed() == 8


def test_s45_retention_that_passed_the_point_to_skip_to_is_no_error(lab: MakeLab) -> None:
    """Too far behind by the floor alone: what is gone is `expired`, what is there is read."""
    one = lab(max_offset_behind={"offsets": 5, "policy": "skip"})
    one.records(1)
    one.run()
    one.records(9)
    one.expire(8)
    one.run()
    assert one.rows() == [Row(0, 1, "acked"), Row(1, 0, "expired", 8), Row(8, 1, "acked"), Row(9, 1, "acked")]
