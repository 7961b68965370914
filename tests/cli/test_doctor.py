"""`ackline doctor`: what it names of a pipeline file that is valid and can't do what its author means."""

import json
import re
import sys
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from ackline.cli import doctor, options
from ackline.errors import ConfigError, FatalError
from ackline.pipeline.warnings import TopicPolicy
from ackline.spark import jars
from tests.cli.memory_command import MemoryCommand
from tests.steps.test_rescue import lane_with_rescue, run_at
from tests.support.memory_kafka import MemoryCluster
from tests.support.memory_lane import FAILS, OK, MemoryLane

PRICE = {"name": "price", "handler": "handlers.shop:price", "input": "source.items", "group_by": "key"}
TOTAL = {"name": "total", "handler": "handlers.shop:total", "input": "price", "group_by": "key", "join": True}
BREAKER = {"failure_ratio": 0.5}
REJECTED = {"from": "price.rejected", "topic": "rejected"}


@pytest.fixture
def lane() -> MemoryLane:
    return MemoryLane(OK, handler="handlers.shop:split", steps=[PRICE, TOTAL], outputs=[REJECTED], breaker=BREAKER)


def details(ackline: MemoryCommand, lane: MemoryLane, **changes: Any) -> dict[str, tuple[bool, str]]:
    """What doctor says of the pipeline with these settings, by the name of the check."""
    lane.settings |= changes
    checks = json.loads(ackline("doctor", "lane", "--json").output)
    return {check["check"]: (check["ok"], check["detail"]) for check in checks}


def test_a_pipeline_file_that_is_not_valid_is_named_once_with_the_hint_first(
    ackline: MemoryCommand, tmp_path: Path
) -> None:
    file = tmp_path / "lane.yaml"
    file.write_text(file.read_text().replace("dead_letter", "dead_leter"))
    done = ackline("doctor", "lane")
    (failed,) = [line for line in done.output.splitlines() if line.startswith("FAIL pipeline file")]
    assert failed.endswith("dead_leter: unknown key; did you mean `dead_letter`?")
    assert (done.status, done.output.count("dead_leter: unknown key")) == (1, 1)


def test_a_dead_letter_topic_that_does_not_exist_is_named_once_with_what_to_do(
    ackline: MemoryCommand, lane: MemoryLane
) -> None:
    lane.create("orders.dead")
    found = details(ackline, lane, dead_letter={"topic": "orders.ded"})
    assert not found["topic orders.ded"][0]
    assert (
        "the dead-letter topic orders.ded of pipeline lane does not exist at memory; did you mean orders.dead? Correct "
        "its name, create it with `kafka-topics.sh --bootstrap-server memory --create --topic orders.ded`, or write "
        "`dead_letter: none`."
    ) in found["topic orders.ded"][1] + "."
    assert "lane lane" not in found, "a lane that has not begun stands still for nothing"


@pytest.mark.parametrize(
    ("policy", "ok", "words"),
    [
        (TopicPolicy(None), True, "rescue keeps copies for good"),
        (TopicPolicy(timedelta(days=8)), True, "rescue keeps copies for"),
        (TopicPolicy(timedelta(days=7)), False, "the copy would go with them. Raise its retention.ms, or set it to -1"),
        (TopicPolicy(None, compacted=True), False, "is compacted (cleanup.policy): it keeps one copy of each key"),
    ],
)
def test_s88_the_rescue_topic_keeps_copies_for_longer_than_the_topics_that_are_read(
    ackline: MemoryCommand, lane: MemoryLane, monkeypatch: pytest.MonkeyPatch, policy: TopicPolicy, ok: bool, words: str
) -> None:
    lane.create("rescue")
    policies = {"orders": TopicPolicy(timedelta(days=7)), "rescue": policy}
    monkeypatch.setattr(MemoryCluster, "policies", lambda _, names: {n: policies[n] for n in names if n in policies})
    found = details(ackline, lane, rescue={"topic": "rescue"})
    assert found["topic rescue"] == (True, "1 partition")
    assert (found["rescue topic"][0], words in found["rescue topic"][1]) == (ok, True), found["rescue topic"]
    missing = details(ackline, lane, rescue={"topic": "rescu"})["topic rescu"]
    assert (missing[0], "did you mean rescue?" in missing[1]) == (False, True)


def test_a_pipeline_without_a_breaker_is_a_warning(ackline: MemoryCommand, lane: MemoryLane) -> None:
    ok, detail = details(ackline, lane, breaker=None)["breaker"]
    assert (ok, detail.startswith("warning: without the key `breaker`")) == (True, True)
    assert "breaker" not in details(ackline, lane, breaker=BREAKER)


def test_streams_that_the_handlers_emit_need_no_warning(ackline: MemoryCommand, lane: MemoryLane) -> None:
    assert "streams" not in details(ackline, lane)


def test_a_misspelt_stream_is_a_warning_with_the_nearest_name_in_the_source_of_its_handler(
    ackline: MemoryCommand, lane: MemoryLane
) -> None:
    """It is no error: a handler may make up the names of its streams."""
    found = details(ackline, lane, steps=[PRICE | {"input": "source.itmes"}, TOTAL])["streams"]
    assert found == (
        True,
        "warning: source.itmes is taken, and that name does not stand in the source of handlers.shop:split; did you "
        "mean items?",
    )
    found = details(ackline, lane, steps=[PRICE, TOTAL], outputs=[REJECTED | {"from": "price.rejectd"}])["streams"]
    assert found[1].endswith("handlers.shop:price; did you mean rejected?")


def test_a_handler_that_does_not_import_is_named_once_and_hides_no_other_check(
    ackline: MemoryCommand, lane: MemoryLane
) -> None:
    found = details(ackline, lane, handler="handlers.shop:splitt")
    assert found["handler"] == (
        False,
        "handler handlers.shop:splitt does not import: AttributeError: module 'handlers.shop' has no attribute "
        "'splitt'; did you mean split?",
    )
    assert "streams" not in found
    assert found["topic orders"] == (True, "1 partition")


def test_a_package_whose_version_ackline_is_not_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["pyspark[connect]<4.3,>=4.2", "deltalake<2,>=1.6", 'not-installed>=1; extra == "airflow"']
    installed = {"pyspark": "4.3.0", "deltalake": "1.6.6"}

    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "requires", lambda _: wanted)
    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(FatalError, match=re.escape("pyspark 4.3.0, and Ackline needs <4.3,>=4.2: install these")):
        doctor._packages()
    installed["pyspark"] = "4.2.1"
    assert doctor._packages() == "2 packages of the right versions"


def test_the_java_is_the_one_that_a_run_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ConfigError, match=r"no Java at /nowhere/bin/java, which JAVA_HOME names: install Java 17"):
        doctor._java()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    assert doctor._java() == 'openjdk version "21.0.2"'


def test_a_damaged_jar_is_named_with_what_fetches_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ACKLINE_JARS", str(tmp_path))
    for jar in jars.locked():
        (tmp_path / jar.file).parent.mkdir(exist_ok=True)
        (tmp_path / jar.file).write_text("junk")
    with pytest.raises(
        ConfigError, match=r"spark/.* is missing or damaged .* `python -m ackline.spark.jars fetch spark`"
    ):
        doctor._jars()


@pytest.fixture
def whole_machine(lane: MemoryLane, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine and a broker on which nothing is missing, whatever this machine has."""
    lane.create("rejected")
    for name in ("_java", "_jars", "_packages"):
        monkeypatch.setattr(doctor, name, lambda: "fine")


@pytest.mark.usefixtures("whole_machine")
def test_all_judges_every_pipeline_and_one_that_does_not_load_hides_no_other(
    ackline: MemoryCommand, tmp_path: Path
) -> None:
    (tmp_path / "broken.yaml").write_text("name: broken\nnonsense: 1\n")
    done = ackline("doctor", "--all", "--json")
    found = json.loads(done.output)
    assert (done.status, list(found), found["state"]) == (1, ["state", "machine", "pipelines"], "error")
    assert (list(found["machine"]), found["machine"]["state"]) == (["state", "checks"], "ok")
    broken, lane = found["pipelines"]
    assert (broken["pipeline"], broken["state"]) == ("broken", "error")
    assert [check["check"] for check in broken["checks"]] == ["pipeline file"]
    assert (list(lane), lane["pipeline"], lane["state"]) == (["pipeline", "state", "checks"], "lane", "ok")
    assert {"check": "topic orders", "state": "ok", "detail": "1 partition"} in lane["checks"]


@pytest.mark.usefixtures("whole_machine")
def test_a_pipeline_whose_check_itself_fails_is_an_error_of_its_own(
    ackline: MemoryCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe that ended in a traceback would judge no pipeline."""
    text = (
        (tmp_path / "lane.yaml").read_text().replace("name: lane", "name: other").replace("group_id: g", "group_id: h")
    )
    (tmp_path / "other.yaml").write_text(text)
    real = options.opened_to_read

    def opened(name: str, **given: Any) -> Any:
        if name == "other":
            raise RuntimeError("canary")
        return real(name, **given)

    monkeypatch.setattr("ackline.cli.doctor.opened_to_read", opened)
    done = ackline("doctor", "--all", "--json")
    lane, other = json.loads(done.output)["pipelines"]
    detail = "it could not be checked (RuntimeError); `ackline doctor other` shows the error"
    assert other["checks"] == [{"check": "pipeline other", "state": "error", "detail": detail}]
    assert (done.status, lane["state"]) == (1, "ok")


@pytest.mark.usefixtures("whole_machine")
def test_a_handler_that_prints_while_it_is_imported_leaves_standard_output_to_the_json(
    ackline: MemoryCommand, lane: MemoryLane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "noisy.py").write_text("print('noise')\ndef handle(record): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    lane.settings["handler"] = "noisy:handle"
    for words in (["doctor", "--all", "--json"], ["doctor", "lane", "--json"]):
        sys.modules.pop("noisy", None)
        done = ackline(*words)
        assert json.loads(done.output), done.output
        assert "noise" in done.errors


@pytest.mark.usefixtures("whole_machine")
def test_a_warning_is_a_state_of_its_own_and_fails_no_probe(ackline: MemoryCommand, lane: MemoryLane) -> None:
    lane.settings["outputs"] = [REJECTED | {"from": "price.rejectd"}]
    done = ackline("doctor", "--all", "--json")
    found = done.json
    (warning,) = [check for check in found["pipelines"][0]["checks"] if check["state"] == "warning"]
    assert (found["state"], found["pipelines"][0]["state"], warning["check"]) == ("warning", "warning", "streams")
    assert warning["detail"].startswith("price.rejectd is taken, and that name does not stand in the source")
    shown = ackline("doctor", "--all").output
    assert "\nPipeline lane: warning\n" in shown
    assert "ok   java: fine" in shown


def test_retention_that_reaches_the_floor_within_a_day_is_a_warning(
    ackline: MemoryCommand, lane: MemoryLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = {"orders": TopicPolicy(timedelta(hours=24, minutes=1))}
    monkeypatch.setattr(MemoryCluster, "policies", lambda *_: policies)
    assert "retention" not in details(ackline, lane), "a lane that has not run holds nothing"
    ackline.lane = lane = MemoryLane(FAILS, OK, retry={"initial_delay": "1h"}).after_run()
    assert "retention" not in details(ackline, lane)
    policies["orders"] = TopicPolicy(timedelta(hours=20))
    is_ok, text = details(ackline, lane)["retention"]
    assert is_ok
    assert text.startswith("warning: retention may take offset 0 of orders[0], which is not settled, from ")
    assert text.endswith("`ackline explain lane orders 0` names what holds it")
    ackline.lane = lane = lane_with_rescue(FAILS)
    run_at(lane, 0)
    run_at(lane, 18)
    lane.produce(FAILS)
    run_at(lane, 18.1)
    policies["orders"] = TopicPolicy(timedelta(hours=24))
    assert "retention may take offset 1 of orders[0]" in details(ackline, lane)["retention"][1], "offset 0 has a copy"


@pytest.mark.usefixtures("whole_machine")
@pytest.mark.parametrize("begun", [False, True], ids=["first run", "later"])
def test_a_group_id_of_another_type_of_group_is_an_error_that_names_it(
    ackline: MemoryCommand, lane: MemoryLane, begun: bool
) -> None:
    if begun:
        lane.after_run()
    lane.world.taken = "a share group"
    ok, detail = details(ackline, lane)["group g"]
    assert not ok
    assert detail == "see lane lane" if begun else "is that of a share group" in detail


@pytest.mark.usefixtures("whole_machine")
def test_a_folder_without_a_pipeline_is_an_error_of_the_machine(ackline: MemoryCommand, tmp_path: Path) -> None:
    (tmp_path / "lane.yaml").unlink()
    done = ackline("doctor", "--all", "--json")
    found = json.loads(done.output)
    assert (done.status, found["state"], found["machine"]["state"], found["pipelines"]) == (1, "error", "error", [])


def test_all_and_a_name_exclude_one_another(ackline: MemoryCommand) -> None:
    assert ackline("doctor", "lane", "--all", "--json").error["key"] == "--all"


def test_doctor_of_a_pipeline_fails_for_that_one_alone_and_names_the_remedy_of_a_missing_topic(
    ackline: MemoryCommand, tmp_path: Path
) -> None:
    (tmp_path / "other.yaml").write_text("name: other\nnonsense: 1\n")
    ackline.lane.topics = ["ordres"]
    checks = json.loads(ackline("doctor", "lane", "--json").output)
    (other,) = [check for check in checks if check["check"] == "pipeline file"]
    assert (other["ok"], other["detail"].startswith("warning: ")) == (True, True)
    (topic,) = [check for check in checks if check["check"] == "topic ordres"]
    assert topic["detail"].startswith("missing; correct its name or the connection, or create it")
    assert topic["detail"].endswith("; did you mean orders?")
    (own,) = [check for check in json.loads(ackline("doctor", "--json").output) if check["check"] == "pipeline file"]
    assert not own["ok"]


def test_a_folder_that_is_not_there_or_empty_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, what in ((tmp_path / "away", "no such folder"), (tmp_path, "no file")):
        monkeypatch.setenv("ACKLINE_PIPELINES", str(folder))
        (check,) = doctor._files(None)
        remedy = "set ACKLINE_PIPELINES, or write a first file with `ackline init`"
        assert (check.ok, check.detail) == (False, f"{what}: {folder}; {remedy}")
