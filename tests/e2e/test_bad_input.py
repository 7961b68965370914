"""Bad input of the command: each is refused with one error that names the file, key, record or table.

The status is 2 if the user has to change something, and 1 if a table or the broker has failed. There is no traceback,
and nothing is lost. tests/pipeline/test_refusals.py lists what a pipeline file may not hold, and
tests/test_handler.py what is not a handler; here is how the command reports it.
"""

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab


def refusal(lane: Lab, status: int, *arguments: str) -> str:
    """Returns what a command that fails prints on standard error; it prints nothing else."""
    done = lane.ackline(*arguments)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert "Traceback" not in done.stderr
    assert "ACKLINE_DEBUG" not in done.stderr, "an unexpected error"
    return done.stderr


@pytest.fixture
def lane(lab: MakeLab) -> Lab:
    """A pipeline without topics, which never runs."""
    lane = lab(create=False)
    lane.judged = True
    return lane


# ---- files ----------------------------------------------------------------------------------------------------------

FILES = [
    ("unknown key", "max_uncommited: 5\n", "max_uncommited: unknown key"),
    ("no rate", "max_rate: 0\n", "max_rate: not valid; write 1 or more"),
    ("no policy", "on_expired: skip\n", "on_expired: write record or fail, not 'skip'"),
    ("unsafe", "retry: {class: 'a:B', max_retries: 3}\n", "retry: `class` replaces all other keys; remove max_retries"),
    ("no calendar", "start: timestamp\nstart_timestamp: 9999-12-31T23:59:59-12:00\n", "start_timestamp: "),
    ("tab", "\tx: 1\n", "not YAML"),
    ("10 MB", "#" * 10_000_000, "10,0"),
    ("many keys", "".join(f"k{n}: 1\n" for n in range(1000)), "and 980 more"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "reason"), [case[1:] for case in FILES], ids=[case[0] for case in FILES])
def test_a_pipeline_file_that_is_not_valid(lane: Lab, more: str, reason: str) -> None:
    lane.file.write_text(lane.file.read_text() + more)
    error = refusal(lane, 2, "run", lane.name)
    assert error.startswith(f"ackline: {lane.file}:")
    assert reason in error


@pytest.mark.parametrize("content", [b"- a\n", b"name: \xff\n", None], ids=repr)
def test_a_file_that_is_not_a_pipeline_file(lane: Lab, content: bytes | None) -> None:
    if content is None:
        lane.file.unlink()
        lane.file.symlink_to("/dev/null")
    else:
        lane.file.write_bytes(content)
    assert refusal(lane, 2, "status", lane.name).startswith(f"ackline: {lane.file}: ")


KAFKA = [
    ("blank group", {"group_id": " "}, "kafka.group_id: not a group name"),
    ("group cut at a NUL", {"group_id": "orders\0replay"}, "kafka.group_id: not a group name"),
    ("large partition", {"partitions": {"orders": [2**31]}}, "kafka.partitions.orders.0"),
    ("partition twice", {"partitions": {"orders": [0, 0]}}, "a partition of orders is named twice"),
    ("NUL in a property", {"properties": {"client.id": "a\0b"}}, "kafka.properties.client.id: not valid: it has a NUL"),
    ("no broker", {"bootstrap_servers": " "}, "no broker is named"),
    ("no such property", {"properties": {"nonsense": 1}}, "Kafka property `nonsense` can't be used"),
    ("no certificate", {"properties": {"security.protocol": "SSL", "ssl.ca.location": "/no"}}, "ssl.ca.location"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "reason"), [case[1:] for case in KAFKA], ids=[case[0] for case in KAFKA])
def test_names_and_properties_that_kafka_refuses(lane: Lab, changed: dict[str, Any], reason: str) -> None:
    kafka = {**lane.settings["kafka"], **changed}
    if "partitions" in changed:
        del kafka["topics"]
    lane.file.write_text(yaml.safe_dump({**lane.settings, "kafka": kafka}))
    assert reason in refusal(lane, 2, "status", lane.name)


def test_code_that_does_not_import_or_has_the_wrong_shape(lane: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    handlers = {
        "syntax": ("def handle(:", "does not import: SyntaxError"),
        "exits": ("import sys; sys.exit(0)", "does not import: SystemExit"),
        "empty": ("", "has no attribute 'handle'"),
        "two": ("def handle(a, b): pass", "does not take exactly one argument"),
    }
    for name, (source, reason) in handlers.items():
        (lane.folder / f"bad_{name}.py").write_text(source + "\n")
        lane.configure(handler=f"bad_{name}:handle")
        error = refusal(lane, 2, "run", lane.name)
        assert f"handler bad_{name}:handle" in error
        assert reason in error
    lane.configure(handler="tests.support.journal:handle", listener="nowhere:X")
    assert "listener nowhere:X" in refusal(lane, 2, "run", lane.name)
    lane.configure(listener=None, retry={"class": "nowhere:X"})
    assert "retry class nowhere:X" in refusal(lane, 2, "run", lane.name)


def test_a_missing_dead_letter_topic_is_refused_before_anything_is_planned(lane: Lab) -> None:
    lane.broker.create_topic(lane.topic)
    lane.produce_records(2)
    assert lane.dead_letter_topic in refusal(lane, 2, "run", lane.name)
    assert (lane.calls(), lane.table("plans"), lane.committed()) == ([], [], None)


# ---- ranges and times -----------------------------------------------------------------------------------------------

TOS = ["-1", "11", "1", "99999999999999999999", "9" * 5000, "1.5", "", "abc", "0x1", "+1", "٣", "Latest"]
OFFSETS = ["5:1", "-3:4", "a:b", "1:2:3", ":", "", "1.5", "1_0:20", "٣", "9223372036854775808", "0:9223372036854775808",
           "9" * 5000]  # fmt: skip
SURE = ("--reason", "a test", "--yes")
USAGE = [
    ["--partition", "-1"], ["--partition", "99999999999"], ["--turn", "-1"], ["--turn", "9" * 30], ["--limit", "-1"],
    ["--limit", "9" * 30], ["--outcome", "eaten"], ["--topic", "o'rders"], ["--topic", "a/b"],
]  # fmt: skip


def test_targets_that_are_negative_or_outside_the_log_and_partitions_that_do_not_exist(lab: MakeLab) -> None:
    lane = lab()

    def stored() -> list[Any]:
        return [lane.table(name) for name in ("plans", "outcomes", "settlements")]

    for command in ("skip", "reset"):
        assert "has not run yet" in refusal(lane, 2, command, lane.name, "--to", "0", *SURE)
    lane.run()
    lane.produce(*({} for _ in range(10)))
    lane.expire(5)
    before = stored()
    for command in ("skip", "reset"):
        for to in TOS:
            error = refusal(lane, 2, command, lane.name, "--to", to, *SURE)
            assert f"--to {to}" in error or f"{lane.topic}[0]: offset {to} is outside the log [5, 10)" in error
        for partition in (["--topic", "nowhere"], ["--partition", "7"]):
            error = refusal(lane, 2, command, lane.name, "--to", "6", *partition, *SURE)
            assert f"no partition with {' '.join(partition)}" in error
        refusal(lane, 2, command, lane.name, *SURE)
    assert stored() == before
    assert lane.committed() == 0


def test_filters_of_the_audit_that_are_not_valid(lane: Lab) -> None:
    for offsets in OFFSETS:
        assert f"--offsets {offsets}: write A:B" in refusal(lane, 2, "audit", lane.name, "--offsets", offsets)
    for arguments in USAGE:
        assert arguments[0] in refusal(lane, 2, "audit", lane.name, *arguments)


@pytest.mark.parametrize(
    ("now", "reason"),
    [("2026-01-31T12:00:00", "has no time zone"), ("yesterday", "'yesterday' is not a time"), ("", "'' is not a time"),
     ("2026-13-01T00:00:00Z", "month must be in 1..12"), ("9999-12-31T23:59:59-12:00", "is not a time"),
     ("0001-01-01T00:00:00+14:00", "is not a time")],
)  # fmt: skip
def test_times_that_are_not_valid_or_have_no_zone(lane: Lab, now: str, reason: str) -> None:
    error = refusal(lane, 2, "run", lane.name, "--now", now)
    assert error.startswith("ackline: --now: ")
    assert reason in error


def test_a_partition_of_the_file_that_its_topic_does_not_have_is_named(lane: Lab) -> None:
    lane.broker.create_topic(lane.topic, 2)
    lane.broker.create_topic(lane.dead_letter_topic)
    kafka = {key: value for key, value in lane.settings["kafka"].items() if key != "topics"}
    lane.configure(kafka={**kafka, "partitions": {lane.topic: [0, 7]}})
    for command in ("plan", "run"):
        assert f"{lane.topic}[7]: no such topic or partition at" in refusal(lane, 2, command, lane.name)
    done = lane.ackline("doctor", lane.name)
    assert done.returncode == 1
    assert "partition 7 of the file is missing" in done.stdout
    lane.configure(missing_topics="wait")
    shown = lane.ackline("plan", lane.name).stdout
    assert f"The partition {lane.topic}[7] does not exist (yet)." in shown.replace("\n", "")
    assert lane.ackline("doctor", lane.name).returncode == 0


# ---- tables ---------------------------------------------------------------------------------------------------------


def _logs(table: Path) -> list[Path]:
    return sorted((table / "_delta_log").glob("*.json"))


def _files(table: Path) -> list[Path]:
    return [path for path in table.rglob("*.parquet") if "_delta_log" not in path.parts]


def torn_entry(table: Path) -> None:
    _logs(table)[-1].write_bytes(_logs(table)[-1].read_bytes()[:40])


def rubbish_in_an_entry(table: Path) -> None:
    _logs(table)[-1].write_bytes(b"\xff\0\xfe" * 100)


def missing_entry(table: Path) -> None:
    _logs(table)[0].unlink()


def missing_files(table: Path) -> None:
    for path in _files(table):
        path.unlink()


def torn_files(table: Path) -> None:
    for path in _files(table):
        path.write_bytes(path.read_bytes()[:50])


def another_table(table: Path) -> None:
    shutil.rmtree(table)
    write_deltalake(str(table), pa.table({"a": [1]}))


def file_in_place_of_the_folder(table: Path) -> None:
    shutil.rmtree(table)
    table.write_text("x")


DAMAGES = (
    torn_entry,
    rubbish_in_an_entry,
    missing_entry,
    missing_files,
    torn_files,
    another_table,
    file_in_place_of_the_folder,
)


def test_tables_that_can_not_be_read_are_named_and_stop_each_command_that_reads_them(lab: MakeLab) -> None:
    lane = lab(dead_letter="none", retry={"max_retries": 0})
    lane.produce({"dead": True}, {"fail": 1})
    lane.run()
    lane.produce({})
    assert lane.outcomes() == {"failed": 2, "dead": 2}
    committed, kept = lane.group_commit(), lane.folder / "kept"
    shutil.copytree(lane.audit, kept)
    commands: dict[str, Sequence[str]] = {"plans": ["status", "plan", "run"], "settlements": ["status", "audit", "run"],
                                          "outcomes": ["audit"]}  # fmt: skip
    for damage in DAMAGES:
        for name, affected in commands.items():
            shutil.rmtree(lane.audit)
            shutil.copytree(kept, lane.audit)
            damage(Path(lane.tables, name))
            # The log's statistics show that no turn is void, so `audit` opens no file of settlements.
            opened = damage not in (missing_files, torn_files) or name != "settlements"
            for command in affected if opened else [each for each in affected if each != "audit"]:
                error = refusal(lane, 1, command, lane.name)
                assert f"ackline: the table {name} at {lane.tables}/{name} " in error, (damage.__name__, command)
                assert "<unknown>" not in error
    assert lane.group_commit() == committed
    assert len(lane.calls()) == 2
    shutil.rmtree(lane.audit)
    shutil.copytree(kept, lane.audit)


def test_an_audit_root_that_can_not_be_used(lane: Lab) -> None:
    for topic in (lane.topic, lane.dead_letter_topic):
        lane.broker.create_topic(topic)
    Path(lane.audit).write_text("x")
    for command in ("status", "plan", "audit", "run"):
        assert f"{lane.audit} is not a folder" in refusal(lane, 1, command, lane.name)
    lane.audit = "nowhere://me:canary@bucket/x"
    for command in ("status", "plan", "audit", "run"):
        error = refusal(lane, 2, command, lane.name)
        assert "ACKLINE_AUDIT=nowhere://*** can't be used: it holds a login" in error
        assert "canary" not in error
    lane.audit = "/proc/nowhere"
    assert "/proc/nowhere" in refusal(lane, 1, "run", lane.name)
    assert lane.group_commit() is None


# ---- brokers --------------------------------------------------------------------------------------------------------

LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "u",
    "sasl.password": "canary",
}


@pytest.mark.parametrize(
    ("kafka", "command", "advice"),
    [
        ({"bootstrap_servers": "127.0.0.1:1"}, "run", "no broker answers at 127.0.0.1:1: Connect to"),
        ({"properties": LOGIN}, "plan", "check security.protocol, the login and the certificates of the connection"),
        ({"properties": {"security.protocol": "SSL"}}, "status", "SSL"),
    ],
    ids=["away", "login", "no SSL there"],
)
def test_a_broker_that_is_away_or_refuses_is_reported_within_seconds_in_one_line(
    lane: Lab, kafka: dict[str, Any], command: str, advice: str
) -> None:
    lane.configure(kafka={**lane.settings["kafka"], **kafka})
    started = time.monotonic()
    error = refusal(lane, 1, command, lane.name)
    assert time.monotonic() - started < 45  # a busy machine takes its time
    assert advice in error
    assert [line.startswith("ackline: ") for line in error.splitlines() if "settings in force" not in line] == [True]
    assert "canary" not in error
    assert not Path(lane.tables).exists()
