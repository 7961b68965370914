"""The command, as a process: the JSON that programs read, exit statuses, and reasons without a traceback."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab

STATUS = ["lane", "epoch", "topic", "partition", "log_start", "log_end", "committed", "floor", "complete_to", "pending",
          "next_due", "lag", "lag_seconds", "read", "due", "oldest_pending_offset", "oldest_pending_at", "acked",
          "failed", "skipped", "dropped", "dead", "expired", "compacted", "lost", "retries", "fetches",
          "fetch_seconds_mean", "fetch_seconds_max", "why"]  # fmt: skip
AUDIT = {"pipeline", "lane", "epoch", "turn", "run_id", "topic", "partition", "offset", "end_offset", "attempt",
         "outcome", "error_class", "error_message", "record_timestamp", "handled_at"}  # fmt: skip


def told(one: Lab, *arguments: str) -> Any:
    """What a command says in JSON; it succeeds, and says nothing else."""
    done = one.command(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_run_ends_with_one_line_of_json_and_the_other_commands_agree_with_it(lab: MakeLab) -> None:
    """One story: status before, plan, run, status, audit, and a run that has nothing to do."""
    one = lab(retry={"initial_delay": "1m"})
    one.records(6, {1: {"fail": 1}, 4: {"skip": True}})
    before = told(one, "status", one.name)
    assert before["pipeline"] == one.name
    [partition] = before["partitions"]
    assert list(partition) == STATUS
    assert (partition["committed"], partition["floor"], partition["lag"], partition["log_end"]) == (None, 0, 6, 6)
    planned = told(one, "plan", one.name)
    assert (planned["turn"], planned["partitions"][0]["start"], planned["partitions"][0]["end"]) == (1, 0, 6)
    assert one.table("plans") == []
    assert one.table("settlements") == []

    done = one.command("run", one.name, "--json", "--now", one.now.isoformat())
    assert done.returncode == 0, done.stderr
    assert f"settings in force: name={one.name} " in done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert {"turn", "records", "outcomes", "partitions"} <= said.keys()
    assert (said["turn"], said["records"]) == (1, 6)
    assert said["outcomes"] == {"acked": 4, "failed": 1, "skipped": 1}
    assert said["partitions"][0]["committed"] == 1
    assert one.committed() == 1
    assert {row["handled_at"] for row in one.table("outcomes")} == {one.now}

    [partition] = told(one, "status", one.name)["partitions"]
    assert partition["pending"] == {"retry": 1, "dead_letter": 0, "in_flight": 0}
    assert (partition["floor"], partition["committed"], partition["complete_to"], partition["lag"]) == (1, 1, 6, 5)
    assert partition["lag_seconds"] >= 0
    one.wait(60)
    assert partition["next_due"].startswith(one.now.strftime("%Y-%m-%dT%H:%M:%S"))
    _audit_says(one)

    idle = one.command(
        "run", one.name, "--json", "--now", one.now.replace(microsecond=0).isoformat().replace("+00:00", "Z")
    )
    assert json.loads(idle.stdout.splitlines()[-1])["outcomes"] == {"acked": 1}, idle.stderr
    one.judge(settled=True)


def _audit_says(one: Lab) -> None:
    rows = told(one, "audit", one.name)
    assert rows[0].keys() >= AUDIT
    assert [row["offset"] for row in rows] == list(range(6))
    assert [row["outcome"] for row in told(one, "audit", one.name, "--offsets", "1:5", "--outcome", "failed")] == [
        "failed"
    ]
    assert [row["offset"] for row in told(one, "audit", one.name, "--offsets", "4")] == [4]
    assert [row["offset"] for row in told(one, "audit", one.name, "--offsets", "4:")] == [4, 5]
    assert told(one, "audit", one.name, "--run", "nobody's") == []
    assert told(one, "audit", one.name, "--turn", "2", "--all") == []
    assert len(told(one, "audit", one.name, "--limit", "2", "--topic", one.topic, "--partition", "0")) == 2
    text = one.command("audit", one.name)
    assert text.returncode == 0
    assert "\x1b" not in text.stdout
    assert "skipped" in text.stdout


def test_audit_shows_an_open_turn_only_when_asked_for_all(lab: MakeLab) -> None:
    one = lab()
    one.records(2)
    one.plan()
    one.replay()
    assert told(one, "audit", one.name) == []
    assert [row["effective"] for row in told(one, "audit", one.name, "--all")] == [False, False]
    one.settle()
    assert len(told(one, "audit", one.name)) == 2


def test_an_idle_run_is_plain_when_piped_and_needs_no_spark(lab: MakeLab) -> None:
    one = lab()
    done = one.command("run", one.name)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "0 handler calls" in done.stdout
    status = one.command("status", one.name)
    assert one.topic in status.stdout
    assert "\x1b" not in status.stdout


def test_doctor_says_what_it_looked_at(lab: MakeLab) -> None:
    one = lab()
    found = told(one, "doctor", one.name)
    assert all(entry["ok"] for entry in found), found
    assert {"java", "jars", "handler", "broker", f"topic {one.topic}", f"topic {one.dead}"} <= {
        e["check"] for e in found
    }
    one.define(handler="handlers.missing:handle", dead_letter={"topic": f"{one.dead}-not"})
    done = one.command("doctor", one.name, "--json")
    assert done.returncode == 1
    failed = {entry["check"] for entry in json.loads(done.stdout) if not entry["ok"]}
    assert {"handler", f"topic {one.dead}-not"} <= failed


def refused(one: Lab, status: int, *arguments: str) -> str:
    """What a command says that fails: on standard error alone, without a traceback."""
    done = one.command(*arguments)
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()
    return done.stderr


def test_bad_usage_and_configuration_exit_2_and_name_what_is_wrong(lab: MakeLab) -> None:
    one = lab()
    file = Path(one.folder, "pipelines", f"{one.name}.yaml")
    assert "nobody" in refused(one, 2, "run", "nobody")
    refused(one, 2, "run")
    refused(one, 2, "run", one.name, "--such-an-option")
    refused(one, 2, "nonsense")
    assert "time zone" in refused(one, 2, "run", one.name, "--now", "2026-01-31T12:00:00")
    assert "--now" in refused(one, 2, "run", one.name, "--now", "yesterday")
    for offsets in ("5:1", "-3:4", "a:b", "1:2:3"):
        assert "--offsets" in refused(one, 2, "audit", one.name, "--offsets", offsets)
    assert "--outcome" in refused(one, 2, "audit", one.name, "--outcome", "eaten")
    good = file.read_text()
    file.write_text(good + "max_uncommited: 5\n")
    said = refused(one, 2, "run", one.name)
    assert f"{file}:{len(good.splitlines()) + 1}" in said
    assert "max_uncommited" in said
    file.write_text(good + "  : [")
    assert file.name in refused(one, 2, "status", one.name)
    file.write_text(good.replace("ackline.testing.journal:handle", "handlers.nowhere:handle"))
    assert "handlers.nowhere:handle" in refused(one, 2, "run", one.name)
    assert one.table("settlements") == []
    one.judged = True


def test_now_before_the_last_turn_exits_2_and_changes_nothing(lab: MakeLab) -> None:
    one = lab()
    one.run()
    one.wait(-1)
    turns = one.table("plans")
    assert "before the last turn" in refused(one, 2, "run", one.name, "--now", one.now.isoformat())
    assert one.table("plans") == turns


def test_a_run_that_fails_exits_1_and_says_why(lab: MakeLab) -> None:
    one = lab()
    one.run()
    one.commit(0, "somebody's")
    assert "another client moved the group" in refused(one, 1, "run", one.name)
    one.define(kafka={**one.settings["kafka"], "bootstrap_servers": "127.0.0.1:1"})
    assert "127.0.0.1:1" in refused(one, 1, "status", one.name)


@pytest.mark.parametrize("damage", ["torn", "missing"])
def test_unreadable_tables_exit_1_and_are_named(lab: MakeLab, damage: str) -> None:
    one = lab()
    one.run()
    log = sorted(Path(one.audit, "settlements", "_delta_log").glob("*.json"))
    if damage == "torn":
        log[-1].write_text(log[-1].read_text()[:40])
    else:
        log[0].unlink()
    assert "settlements" in refused(one, 1, "run", one.name)
    one.judged = True  # there is nothing left to judge by


CANARY = "canary7f3c9e"


def test_i13_no_payload_key_header_or_secret_is_in_a_table_or_said(lab: MakeLab) -> None:
    """The handler's exceptions quote the record; what is kept of them does not."""
    from tests.e2e import wire

    one = lab(retry={"max_retries": 0}, handler="tests.e2e.handlers:blabs")
    one.define(kafka={**one.settings["kafka"], "properties": {"sasl.password": f"{CANARY}-password"}})
    record = wire.Write(f'{{"card": "{CANARY}"}}'.encode(), f"{CANARY}-key".encode(), (("h", f"{CANARY}-h".encode()),))
    wire.produce(one.broker.bootstrap, one.topic, [record, wire.Write(f"{CANARY} broken".encode()), record])
    done = one.command("run", one.name, "--json", env={"PYTHONPATH": str(Path(__file__).parents[2])})
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    for command in (["status"], ["audit"], ["audit", "--json"], ["plan", "--json"], ["doctor"]):
        told_too = one.command(command[0], one.name, *command[1:])
        said += told_too.stdout + told_too.stderr
    assert CANARY not in said
    assert one.outcomes() == {"failed": 3, "dead": 3}
    hits = [path for path in Path(one.audit).rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    assert hits == []
    assert not any(CANARY in str(row) for name in ("plans", "outcomes", "settlements") for row in one.table(name))
    assert all(CANARY.encode() in (letter.value or b"") for letter in one.letters())
