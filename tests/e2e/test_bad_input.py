"""Bad input, by the command: each is refused with one clear sentence that names the file, key, record or table, with
status 2 where the user has to mend something, 1 where the world has failed, without a traceback; and nothing is lost.

What a pipeline file may hold is listed in tests/unit/test_pipeline_refusals.py; here is what the command makes of it.
"""

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from ackline.cli import app
from tests.e2e.fixtures import MakeLab
from tests.e2e.lab import Lab

Refused = Callable[..., str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs the command in this process: `refused(lab, status, *arguments)` is what it says on standard error."""

    def call(one: Lab, status: int, *arguments: str) -> str:
        for name, value in one.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["ackline", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app.main()
        said = capsys.readouterr()
        assert (ended.value.code, said.out) == (status, ""), said.err
        assert "Traceback" not in said.err
        assert "ACKLINE_DEBUG" not in said.err, "an error that nobody has foreseen"
        return said.err

    return call


def file_of(one: Lab) -> Path:
    return Path(one.folder, "pipelines", f"{one.name}.yaml")


def stored(one: Lab) -> list[Any]:
    return [one.table(name) for name in ("plans", "outcomes", "settlements")]


# ---- files ----------------------------------------------------------------------------------------------------------

FILES = [
    ("unknown key", "max_uncommited: 5\n", "max_uncommited: unknown key"),
    ("wrong type", "max_rate: fast\n", "max_rate: Input should be a valid integer"),
    ("no rate", "max_rate: 0\n", "max_rate: Input should be greater than or equal to 1"),
    ("no policy", "on_expired: skip\n", "on_expired: Input should be 'record' or 'fail', not 'skip'"),
    ("unsafe", "retry: {class: 'a:B', max_retries: 3}\n", "retry: `class` replaces all other keys; remove max_retries"),
    ("no zone", "start: timestamp\nstart_timestamp: 2026-01-31T12:00:00\n", "2026-01-31T12:00:00 has no time zone"),
    ("no time", "start: timestamp\nstart_timestamp: noon\n", "start_timestamp: 'noon' is not a time"),
    ("no calendar", "start: timestamp\nstart_timestamp: 9999-12-31T23:59:59-12:00\n", "start_timestamp: "),
    ("a key twice", "name: again\n", "name: this key appears twice"),
    ("tab", "\tx: 1\n", "not YAML"),
    ("NUL", "x: \0\n", "not YAML"),
    ("laughs", "a: &a [x]\n" + "".join(f"{n}: &{n} [*{p}, *{p}]\n" for p, n in ("ab", "bc", "cd")), "a: unknown key"),
    ("10 MB", "#" * 10_000_000, "10,0"),
    ("many keys", "".join(f"k{n}: 1\n" for n in range(1000)), "and 980 more"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "said"), [case[1:] for case in FILES], ids=[case[0] for case in FILES])
def test_a_file_that_does_not_hold(lab: MakeLab, refused: Refused, more: str, said: str) -> None:
    one = lab(create=False)
    file_of(one).write_text(file_of(one).read_text() + more)
    told = refused(one, 2, "run", one.name)
    assert told.startswith(f"ackline: {file_of(one)}:")
    assert said in told
    one.judged = True


@pytest.mark.parametrize("content", [b"", b"- a\n", b"5\n", b"name: \xff\n", None], ids=repr)
def test_a_file_that_is_no_pipeline_file(lab: MakeLab, refused: Refused, content: bytes | None) -> None:
    one = lab(create=False)
    file = file_of(one)
    if content is None:
        file.unlink()
        file.symlink_to("/dev/null")
    else:
        file.write_bytes(content)
    assert refused(one, 2, "status", one.name).startswith(f"ackline: {file}: ")
    one.judged = True


KAFKA = [
    ("blank group", {"group_id": " "}, "kafka.group_id: not a group name"),
    ("group cut at a NUL", {"group_id": "orders\0replay"}, "kafka.group_id: not a group name"),
    ("no group", {"group_id": ""}, "kafka.group_id: String should have at least 1 character"),
    ("long group", {"group_id": "g" * 256}, "kafka.group_id: String should have at most 255"),
    ("no topic", {"topics": [""]}, "kafka.topics.0: '' is not a topic name"),
    ("long topic", {"topics": ["x" * 250]}, "is not a topic name; write 1 to 249"),
    ("topic", {"topics": ["a/b"]}, "kafka.topics.0: 'a/b' is not a topic name"),
    ("partition", {"partitions": {"orders": [-1]}}, "kafka.partitions.orders.0"),
    ("large partition", {"partitions": {"orders": [2**31]}}, "kafka.partitions.orders.0"),
    ("partition twice", {"partitions": {"orders": [0, 0]}}, "a partition of orders is named twice"),
    ("NUL in a property", {"properties": {"client.id": "a\0b"}}, "kafka.properties.client.id: not valid: it has a NUL"),
    ("auto-commit", {"properties": {"enable.auto.commit": True}}, "`enable.auto.commit` is refused"),
    ("no broker", {"bootstrap_servers": " "}, "no broker is named"),
    ("no such property", {"properties": {"nonsense": 1}}, 'No such configuration property: "nonsense"'),
    ("no certificate", {"properties": {"security.protocol": "SSL", "ssl.ca.location": "/no"}}, "ssl.ca.location"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "said"), [case[1:] for case in KAFKA], ids=[case[0] for case in KAFKA])
def test_names_and_properties_that_kafka_refuses(
    lab: MakeLab, refused: Refused, changed: dict[str, Any], said: str
) -> None:
    one = lab(create=False)
    kafka = {**one.settings["kafka"], **changed}
    if "partitions" in changed:
        del kafka["topics"]
    text = file_of(one).read_text()
    file_of(one).write_text(yaml.safe_dump({**yaml.safe_load(text), "kafka": kafka}))
    assert said in refused(one, 2, "status", one.name)
    one.judged = True


HANDLERS = {
    "syntax": ("def handle(:", "does not import: SyntaxError"),
    "raises": ("raise ValueError('x')", "does not import: ValueError: x"),
    "exits": ("import sys; sys.exit(0)", "does not import: SystemExit"),
    "empty": ("", "has no attribute 'handle'"),
    "two": ("def handle(a, b): pass", "does not take exactly one argument"),
    "none": ("def handle(): pass", "does not take exactly one argument"),
    "later": ("async def handle(r): pass", "is asynchronous or a generator"),
    "yields": ("def handle(r):\n    yield r", "is asynchronous or a generator"),
    "number": ("handle = 5", "is not a function"),
    "made": ("class handle:\n    def __init__(self, r): pass", "is a class"),
}


def test_a_handler_that_does_not_import_or_has_the_wrong_shape(
    lab: MakeLab, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = lab(create=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, (source, said) in HANDLERS.items():
        (one.folder / f"bad_{name}.py").write_text(source + "\n")
        one.define(handler=f"bad_{name}:handle")
        told = refused(one, 2, "run", one.name)
        assert f"handler bad_{name}:handle" in told
        assert said in told
    for setting, value in {"listener": "nowhere:X", "retry": {"class": "nowhere:X"}}.items():
        other = lab(create=False, **{setting: value})
        assert f"{setting}{' class' if setting == 'retry' else ''} nowhere:X" in refused(other, 2, "run", other.name)
        other.judged = True
    one.judged = True


# ---- ranges and times -----------------------------------------------------------------------------------------------

TOS = ["-1", "11", "1", "99999999999999999999", "9" * 5000, "1.5", "", "abc", "0x1", "+1", "٣", "Latest"]
OFFSETS = ["5:1", "-3:4", "a:b", "1:2:3", ":", "", "1.5", "1_0:20", "٣", "9223372036854775808", "0:9223372036854775808",
           "9" * 5000]  # fmt: skip
USAGE = [
    ["--partition", "-1"], ["--partition", "99999999999"], ["--turn", "-1"], ["--turn", "9" * 30], ["--limit", "-1"],
    ["--limit", "9" * 30], ["--outcome", "eaten"], ["--topic", "o'rders"], ["--topic", "a/b"],
]  # fmt: skip


def test_ranges_that_are_negative_inverted_beyond_the_log_or_before_its_start(lab: MakeLab, refused: Refused) -> None:
    one = lab()
    for command in ("skip", "reset"):
        assert "has not run yet" in refused(one, 2, command, one.name, "--to", "0")
    one.run()
    one.produce(*({} for _ in range(10)))
    one.expire(5)
    before = stored(one)
    for command in ("skip", "reset"):
        for to in TOS:
            told = refused(one, 2, command, one.name, "--to", to)
            assert f"--to {to}" in told or f"{one.topic}[0]: offset {to} is outside the log [5, 10)" in told
        assert "no partition yet of --topic nowhere" in refused(
            one, 2, command, one.name, "--to", "6", "--topic", "nowhere"
        )
        assert "no partition yet of --partition 7" in refused(
            one, 2, command, one.name, "--to", "6", "--partition", "7"
        )
        refused(one, 2, command, one.name)
    assert stored(one) == before
    assert one.committed() == 0


def test_questions_to_the_audit_that_make_no_sense(lab: MakeLab, refused: Refused) -> None:
    one = lab(create=False)
    for offsets in OFFSETS:
        assert f"--offsets {offsets}: write A:B" in refused(one, 2, "audit", one.name, "--offsets", offsets)
    for arguments in USAGE:
        assert arguments[0] in refused(one, 2, "audit", one.name, *arguments)
    one.judged = True


@pytest.mark.parametrize(
    ("now", "said"),
    [("2026-01-31T12:00:00", "has no time zone"), ("yesterday", "'yesterday' is not a time"), ("", "'' is not a time"),
     ("2026-13-01T00:00:00Z", "month must be in 1..12"), ("9999-12-31T23:59:59-12:00", "is not a time"),
     ("0001-01-01T00:00:00+14:00", "is not a time")],
)  # fmt: skip
def test_times_that_are_none_or_have_no_zone(lab: MakeLab, refused: Refused, now: str, said: str) -> None:
    one = lab(create=False)
    told = refused(one, 2, "run", one.name, "--now", now)
    assert told.startswith("ackline: --now: ")
    assert said in told
    one.judged = True


def test_a_partition_that_the_file_names_and_the_topic_does_not_have_is_said(lab: MakeLab) -> None:
    one = lab(create=False)
    one.broker.create_topic(one.topic, 2)
    one.broker.create_topic(one.dead)
    kafka = {key: value for key, value in one.settings["kafka"].items() if key != "topics"}
    one.define(kafka={**kafka, "partitions": {one.topic: [0, 7]}})
    done = one.command("plan", one.name)
    assert f"The partition {one.topic}[7] does not exist (yet)." in done.stdout.replace("\n", "")
    done = one.command("doctor", one.name)
    assert done.returncode == 1
    assert "partition 7 of the file is missing" in done.stdout


# ---- tables ---------------------------------------------------------------------------------------------------------


def _logs(table: Path) -> list[Path]:
    return sorted((table / "_delta_log").glob("*.json"))


def _files(table: Path) -> list[Path]:
    return [path for path in table.rglob("*.parquet") if "_delta_log" not in path.parts]


def torn(table: Path) -> None:
    _logs(table)[-1].write_bytes(_logs(table)[-1].read_bytes()[:40])


def rubbish(table: Path) -> None:
    _logs(table)[-1].write_bytes(b"\xff\0\xfe" * 100)


def gone(table: Path) -> None:
    for path in _files(table):
        path.unlink()


def cut(table: Path) -> None:
    for path in _files(table):
        path.write_bytes(path.read_bytes()[:50])


def foreign(table: Path) -> None:
    shutil.rmtree(table)
    write_deltalake(str(table), pa.table({"a": [1]}))


def no_folder(table: Path) -> None:
    shutil.rmtree(table)
    table.write_text("x")


def test_tables_that_can_not_be_read_are_named_and_no_run_goes_on_without_them(lab: MakeLab, refused: Refused) -> None:
    one = lab(dead_letter="none", retry={"max_retries": 0})
    one.produce({"dead": True}, {"fail": 1})
    one.run()
    one.produce({})
    held, kept = one.held(), one.folder / "kept"
    shutil.copytree(one.audit, kept)
    commands: dict[str, Sequence[str]] = {"plans": ["status", "plan", "run"], "settlements": ["status", "audit", "run"],
                                          "outcomes": ["audit"]}  # fmt: skip
    for damage in (torn, rubbish, gone, cut, foreign, no_folder):
        for name, affected in commands.items():
            shutil.rmtree(one.audit)
            shutil.copytree(kept, one.audit)
            damage(Path(one.audit, name))
            for command in affected:
                told = refused(one, 1, command, one.name)
                assert f"ackline: the table {name} at {one.audit}/{name} " in told, (damage.__name__, command)
                assert "<unknown>" not in told
    assert one.held() == held
    assert len(one.calls()) == 2
    shutil.rmtree(one.audit)
    shutil.copytree(kept, one.audit)


def test_a_folder_of_tables_that_is_none(lab: MakeLab, refused: Refused) -> None:
    one = lab()
    Path(one.audit).write_text("x")
    for command in ("status", "plan", "audit", "run"):
        assert f"{one.audit} is not a folder" in refused(one, 1, command, one.name)
    one.audit = "nowhere://me:canary@bucket/x"
    for command in ("status", "plan", "audit", "run"):
        told = refused(one, 1, command, one.name)
        assert "at nowhere://***@bucket/x/" in told
        assert "can't be used: Unknown scheme: nowhere" in told
        assert "canary" not in told
    one.audit = "/proc/nowhere"
    assert "/proc/nowhere" in refused(one, 1, "run", one.name)
    assert one.held() is None
    one.judged = True


# ---- brokers --------------------------------------------------------------------------------------------------------

LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "u",
    "sasl.password": "canary",
}


@pytest.mark.parametrize(
    ("kafka", "command", "said"),
    [
        ({"bootstrap_servers": "127.0.0.1:1"}, "status", "(at 127.0.0.1:1); check that the broker is up"),
        ({"bootstrap_servers": "127.0.0.1:1"}, "run", "(at 127.0.0.1:1); check that the broker is up"),
        ({"properties": LOGIN}, "plan", "check security.protocol, the login and the certificates of the connection"),
        ({"properties": {"security.protocol": "SSL"}}, "run", "SSL"),
    ],
    ids=["away: status", "away: run", "login", "no SSL there"],
)
def test_a_broker_that_is_away_or_refuses_is_said_within_seconds_in_one_line(
    lab: MakeLab, refused: Refused, kafka: dict[str, Any], command: str, said: str
) -> None:
    one = lab(create=False)
    one.define(kafka={**one.settings["kafka"], **kafka})
    started = time.monotonic()
    told = refused(one, 1, command, one.name)
    assert time.monotonic() - started < 45  # a busy machine takes its time to start Python
    assert said in told
    assert [line.startswith("ackline: ") for line in told.splitlines() if "settings in force" not in line] == [True]
    assert "canary" not in told
    assert not Path(one.audit, "plans").exists()
    one.judged = True
