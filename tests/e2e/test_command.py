"""The command: the JSON that programs read, exit statuses, and errors without a traceback."""

import json

import typer.main
from typer.testing import CliRunner

from ackline.cli.app import app
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab

STATUS = ["lane", "epoch", "topic", "partition", "log_start", "log_end", "committed", "floor", "complete_to", "pending",
          "next_due", "lag", "lag_seconds", "read", "due", "oldest_pending_offset", "oldest_pending_at", "acked",
          "failed", "skipped", "dropped", "dead", "expired", "compacted", "lost", "retries", "fetches",
          "fetch_seconds_mean", "fetch_seconds_max", "state", "failing_share", "retention_eta", "high_watermark",
          "open_transaction", "rescued", "released", "why"]  # fmt: skip
AUDIT = {"pipeline", "lane", "epoch", "turn", "run_id", "topic", "partition", "offset", "end_offset", "attempt",
         "outcome", "error_class", "error_message", "record_timestamp", "handled_at"}  # fmt: skip


def test_run_ends_with_one_line_of_json_and_the_other_commands_agree_with_it(lab: MakeLab) -> None:
    """Status before, plan, run, status, audit, the retry, and a run that has nothing to do."""
    lane = lab(retry={"initial_delay": "1m"})
    lane.produce_records(6, {1: {"fail": 1}, 4: {"skip": True}})
    before = lane.ackline_json("status", lane.name)
    assert before["pipeline"] == lane.name
    [partition] = before["partitions"]
    assert list(partition) == STATUS
    assert (partition["committed"], partition["floor"], partition["lag"], partition["log_end"]) == (None, 0, 6, 6)
    planned = lane.ackline_json("plan", lane.name)
    assert (planned["turn"], planned["partitions"][0]["start"], planned["partitions"][0]["end"]) == (1, 0, 6)
    assert lane.table("plans") == lane.table("settlements") == []

    done = lane.ackline("-v", "run", lane.name, "--json", "--now", lane.now.isoformat())
    assert done.returncode == 0, done.stderr
    assert f"ackline: settings in force: name={lane.name} " in done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert {"turn", "records", "outcomes", "partitions"} <= result.keys()
    assert (result["turn"], result["records"]) == (1, 6)
    assert result["outcomes"] == {"acked": 4, "failed": 1, "skipped": 1}
    assert result["partitions"][0]["committed"] == lane.committed() == 1
    assert {row["handled_at"] for row in lane.table("outcomes")} == {lane.now}

    [partition] = lane.ackline_json("status", lane.name)["partitions"]
    assert partition["pending"] == {"retry": 1, "dead_letter": 0, "in_flight": 0, "held_back": 0}
    assert (partition["floor"], partition["committed"], partition["complete_to"], partition["lag"]) == (1, 1, 6, 5)
    assert partition["lag_seconds"] >= 0
    lane.advance_clock(60)
    assert partition["next_due"].startswith(lane.now.strftime("%Y-%m-%dT%H:%M:%S"))
    _check_audit(lane)

    now = lane.now.isoformat().replace("+00:00", "Z")
    retried = lane.ackline_json("run", lane.name, "--now", now)
    assert retried["outcomes"] == {"acked": 1}
    for command, text in (("run", "0 handler calls"), ("status", lane.topic)):
        idle = lane.ackline(command, lane.name, "--now", now)
        assert idle.returncode == 0, idle.stderr
        assert text in idle.stdout
        assert "\x1b" not in idle.stdout + idle.stderr
    lane.judge(settled=True)


def _check_audit(lane: Lab) -> None:
    def audit(*options: str) -> list[int]:
        return [row["offset"] for row in lane.ackline_json("audit", lane.name, *options)]

    assert lane.ackline_json("audit", lane.name)[0].keys() >= AUDIT
    assert audit() == list(range(6))
    assert audit("--offsets", "1:5", "--outcome", "failed") == [1]
    assert audit("--offsets", "4") == [4]
    assert audit("--offsets", "4:") == [4, 5]
    assert audit("--run", "another") == []
    assert audit("--turn", "2", "--all") == []
    assert len(audit("--limit", "2", "--topic", lane.topic, "--partition", "0")) == 2
    text = lane.ackline("audit", lane.name)
    assert text.returncode == 0
    assert "\x1b" not in text.stdout
    assert "skipped" in text.stdout


def test_doctor_names_each_check_and_what_has_failed(lab: MakeLab) -> None:
    lane = lab()
    checks = lane.ackline_json("doctor", lane.name)
    assert all(check["ok"] for check in checks), checks
    assert {"java", "jars", "handler", "broker", f"topic {lane.topic}", f"topic {lane.dead_letter_topic}"} <= {
        check["check"] for check in checks
    }
    missing = f"{lane.dead_letter_topic}-not"
    lane.configure(handler="handlers.missing:handle", dead_letter={"topic": missing})
    done = lane.ackline("doctor", lane.name, "--json")
    assert done.returncode == 1
    assert {"handler", f"topic {missing}"} <= {check["check"] for check in json.loads(done.stdout) if not check["ok"]}


def test_a_process_exits_with_1_or_2_and_a_reason_on_standard_error_without_a_traceback(lab: MakeLab) -> None:
    """Each status once; tests/e2e/test_bad_input.py has the errors themselves, in this process."""
    lane = lab()
    lane.run()
    lane.move_group(0, "another client's")
    before = (lane.now.replace(year=2020)).isoformat()
    for status, reason, arguments in (
        (1, "another client moved the group", ("run", lane.name)),
        (2, "before the last turn", ("run", lane.name, "--now", before)),
        (2, "--such-an-option", ("run", lane.name, "--such-an-option")),
    ):
        done = lane.ackline_process(*arguments)
        assert (done.returncode, done.stdout) == (status, ""), done.stderr
        assert "Traceback" not in done.stderr
        assert reason in done.stderr
    assert len(lane.table("plans")) == 1


def test_the_help_of_each_command_names_an_example() -> None:
    for name in typer.main.get_group(app).commands.keys() - {"dev"}:  # a group of commands of its own
        shown = CliRunner().invoke(app, [name, "--help"])
        assert f"ackline {name}" in shown.stdout.partition("Example")[2], name
