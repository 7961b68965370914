"""Set-up: pinned versions, the error for a missing prerequisite, and a second or an interrupted set-up."""

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ackline.errors import ConfigError
from ackline.spark import jars

ROOT = Path(__file__).parents[2]
TOOLS = ("bash", "awk", "cat", "dirname", "env", "flock", "head", "mkdir", "rm", "sed", "sha256sum")
# Takes the place of a Python of the machine: prints its own path, and notes all other calls.
PYTHON = """#!/bin/sh
case "$*" in
    *"print(sys.executable)"*) {allows} && echo "$0" ;;
    *) echo "$0 $*" >>"{calls}"; exit 7 ;;
esac
"""
JAVA = """#!/bin/sh
echo 'openjdk version "{version}" 2025-04-15' >&2
"""


class Machine:
    """A tree with the set-up's files, and a PATH with nothing but the given programs."""

    def __init__(self, folder: Path) -> None:
        self.tree = folder / "tree"
        self.bin = folder / "bin"
        self._calls = folder / "calls"
        self.bin.mkdir()
        (self.tree / "scripts").mkdir(parents=True)
        for name in ("scripts/setup.sh", "requirements.lock", "pyproject.toml"):
            shutil.copy(ROOT / name, self.tree / name)
        for name in TOOLS:
            if path := shutil.which(name):
                (self.bin / name).symlink_to(path)
        self.install("git", "#!/bin/sh\n")
        self.install("java", JAVA.format(version="17.0.15"))
        self.install_python("python3")

    def install(self, name: str, script: str) -> None:
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)

    def install_python(self, name: str, allows: str = "true") -> None:
        self.install(name, PYTHON.format(allows=allows, calls=self._calls))

    def finish_setup(self) -> None:
        """Make the environment that a complete set-up leaves behind; every command in it succeeds."""
        (self.tree / ".venv/bin").mkdir(parents=True)
        python = self.tree / ".venv/bin/python"
        python.write_text(f'#!/bin/sh\necho "$*" >>"{self._calls}"\n')
        python.chmod(0o755)
        sections = re.split(r"^(?=\[)", (self.tree / "pyproject.toml").read_text(), flags=re.MULTILINE)
        project = "".join(s for s in sections if s.startswith(("[build-system", "[project", "[tool.setuptools")))
        lock = (self.tree / "requirements.lock").read_text()
        for stamp, source in (("locked", lock), ("project", project)):
            digest = hashlib.sha256(source.encode()).hexdigest()
            (self.tree / ".venv" / stamp).write_text(f"{self.tree} {digest}  -\n")

    def setup(self, *first_on_path: Path) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(str(folder) for folder in (*first_on_path, self.bin))
        return subprocess.run(
            [self.tree / "scripts/setup.sh"], env={"PATH": path, "HOME": str(self.tree)}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines() if self._calls.exists() else []

    def made_an_environment(self) -> bool:
        return any(call.endswith("-m venv --clear .venv") for call in self.calls)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def refusal(machine: Machine) -> str:
    done = machine.setup()
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert not machine.calls
    return done.stderr


@pytest.mark.parametrize(
    ("missing", "advice"),
    [("git", "apt install git"), ("java", "apt install openjdk-17"), ("python3", "apt install python3")],
)
def test_a_missing_prerequisite_is_an_error_of_one_line_with_advice(
    machine: Machine, missing: str, advice: str
) -> None:
    (machine.bin / missing).unlink()
    assert advice in refusal(machine)


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "16"])
def test_a_java_that_is_too_old_is_named(machine: Machine, version: str) -> None:
    machine.install("java", JAVA.format(version=version))
    assert "Java 17 or later" in refusal(machine)


@pytest.mark.parametrize(
    ("allows", "advice"),
    [("false", "Python 3.11 to 3.14"), ('case "$*" in *venv*) false;; esac', "apt install python3-venv")],
)
def test_a_python_that_is_too_old_or_without_venv_is_named(machine: Machine, allows: str, advice: str) -> None:
    machine.install_python("python3", allows)
    assert advice in refusal(machine)


def test_a_newer_python_beside_one_that_is_too_old_is_used(machine: Machine) -> None:
    machine.install_python("python3", allows="false")
    machine.install_python("python3.12")
    machine.setup()
    assert machine.calls == [f"{machine.bin / 'python3.12'} -m venv --clear .venv"]


def test_a_complete_setup_does_and_prints_nothing(machine: Machine) -> None:
    machine.finish_setup()
    before = os.times()
    done = machine.setup()
    after = os.times()  # the computing of the processes that this one has started
    assert after.children_user + after.children_system - before.children_user - before.children_system < 1
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.calls == ["-c ", "-m ackline.spark.jars fetch", "-m ackline.spark.jvm"]


@pytest.mark.parametrize("change", ["stamp missing", "python missing", "lock changed", "tree moved"])
def test_an_interrupted_setup_a_changed_lock_or_a_moved_tree_makes_a_new_environment(
    machine: Machine, change: str
) -> None:
    machine.finish_setup()
    if change == "lock changed":
        (machine.tree / "requirements.lock").write_text("# another\n")
    elif change == "tree moved":
        machine.tree = machine.tree.rename(machine.tree.with_name("moved"))
    else:
        (machine.tree / ".venv" / {"stamp missing": "locked", "python missing": "bin/python"}[change]).unlink()
    machine.setup()
    assert machine.made_an_environment()


def test_the_environment_is_not_made_by_its_own_python(machine: Machine) -> None:
    own = machine.tree / ".venv/bin"
    own.mkdir(parents=True)
    shutil.copy(machine.bin / "python3", own / "python3")
    machine.setup(own)
    assert machine.calls == [f"{machine.bin / 'python3'} -m venv --clear .venv"]


def test_another_setting_of_a_tool_changes_nothing(machine: Machine) -> None:
    machine.finish_setup()
    with (machine.tree / "pyproject.toml").open("a") as file:
        file.write("\n[tool.another]\nsetting = 1\n")
    assert machine.setup().returncode == 0
    assert machine.calls == ["-c ", "-m ackline.spark.jars fetch", "-m ackline.spark.jvm"]


def test_a_changed_project_is_installed_into_the_environment_that_is_there(machine: Machine) -> None:
    machine.finish_setup()
    with (machine.tree / "pyproject.toml").open("a") as file:
        file.write('\n[project.urls]\nhome = "elsewhere"\n')
    assert machine.setup().returncode == 0
    assert not machine.made_an_environment()
    assert any("--no-deps --no-build-isolation --editable ." in call for call in machine.calls)


@pytest.mark.parametrize(("checks", "tests", "status"), [(0, 0, 0), (1, 0, 2), (0, 1, 2)])
def test_the_ci_run_fails_with_checks_or_tests_and_ends_with_the_last_line_of_the_tests(
    tmp_path: Path, checks: int, tests: int, status: int
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / "Makefile").write_text(
        f"setup:\ncheck: ; @echo checked; exit {checks}\ntest: ; @echo closing line $(SLOW); exit {tests}\n"
    )
    done = subprocess.run(
        [tmp_path / ".ci/run"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == status
    assert done.stdout.splitlines()[-1] == "closing line 1", "the tests run although a check has failed"


def test_a_test_that_runs_beside_others_has_its_group_in_its_id(request: pytest.FixtureRequest) -> None:
    """pytest-xdist takes the group from there. Without it each test would run in any process, beside any server."""
    grouped = request.config.getoption("loadgroup", False)
    assert request.node.nodeid.partition("@")[2] == ("project/test_setup.py" if grouped else "")


def test_make_without_a_target_prints_the_targets() -> None:
    listed = subprocess.run(["make", "-C", ROOT, "--no-print-directory"], capture_output=True, text=True, check=True)
    targets = {line.split()[1] for line in listed.stdout.splitlines()}
    assert targets >= {"setup", "test", "test-unit", "check", "demo", "up", "down", "bench", "lock", "clean", "help"}


def test_each_requirement_is_locked_at_its_version_with_hashes() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", lock, re.MULTILINE))
    wanted = re.findall(r"^([\w.-]+)(?:\[\w+])?==(\S+)$", (ROOT / "requirements.in").read_text(), re.MULTILINE)
    assert len(wanted) > 15
    assert {name.lower(): version for name, version in wanted}.items() <= locked.items()
    entries = re.split(r"\n(?=[\w.-]+==)", lock)
    assert all("--hash=sha256:" in entry for entry in entries)


@pytest.mark.parametrize(
    "file",
    ["requirements.in", "requirements.lock", "include/ackline/spark/ivy.xml", "include/ackline/spark/ivysettings.xml"],
)
def test_no_address_of_a_registry_is_in_the_tree(file: str) -> None:
    assert "://" not in (ROOT / file).read_text()


def test_jars_are_locked_once_each_without_those_that_spark_brings() -> None:
    locked = jars.locked()
    assert len({jar.file for jar in locked}) == len(locked)
    assert all(re.fullmatch("[0-9a-f]{64}", jar.sha256) for jar in locked)
    assert {jar.module for jar in locked} >= {"delta-spark_4.2_2.13", "spark-sql-kafka-0-10_2.13", "kafka_2.13"}
    for jar in locked:
        assert jar.configuration == "broker" or jar.module.startswith(jars.WANTED_BY_SPARK)


def test_missing_jars_are_an_error_with_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ACKLINE_JARS", str(tmp_path))
    for read, configuration in (
        (jars.spark_jars, "spark"), (jars.kafka_source_jars, "spark"), (jars.broker_classpath, "broker"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=rf"python -m ackline\.spark\.jars fetch {configuration}`"):
            read()


def test_a_run_needs_no_jar_of_a_broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(jars.cache_folder() / "spark", tmp_path / "spark", copy_function=os.symlink)
    monkeypatch.setenv("ACKLINE_JARS", str(tmp_path))
    assert jars.kafka_source_jars()
    monkeypatch.setattr(jars, "_ivy", lambda *_: pytest.fail("all of Spark's JARs are there"))
    assert (jars.main(["fetch", "spark"]), jars.main(["verify", "spark"]), jars.main(["verify"])) == (0, 0, 2)
    with pytest.raises(ConfigError, match="JARs are missing"):
        jars.broker_classpath()


def test_only_the_kafka_source_is_given_to_a_session_without_delta() -> None:
    source = jars.kafka_source_jars()
    assert {path.name.startswith(jars.KAFKA_SOURCE) for path in source} == {True}
    assert set(source) < set(jars.spark_jars())


def test_a_damaged_jar_is_fetched_again_and_the_others_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = jars.cache_folder()
    folder = tmp_path / "jars"
    shutil.copytree(whole, folder, copy_function=os.symlink, ignore=shutil.ignore_patterns(".*"))
    victim = jars.locked()[0]
    (folder / victim.file).unlink()
    (folder / victim.file).write_bytes(b"half a download")
    (folder / ".fetching-abandoned").mkdir()
    monkeypatch.setenv("ACKLINE_JARS", str(folder))
    requests: list[str] = []

    def fetch_from_the_repository(cache: Path, *arguments: str) -> None:
        requests.append(Path(arguments[arguments.index("-ivy") + 1]).read_text())
        target = cache.parent / victim.file
        target.parent.mkdir(parents=True)
        shutil.copy(whole / victim.file, target)

    monkeypatch.setattr(jars, "_ivy", fetch_from_the_repository)
    assert jars.fetch() == 1
    assert jars.damaged(folder, jars.locked()) == []
    assert [text.count("<dependency ") for text in requests] == [1]
    assert not list(folder.glob(".fetching-*"))
    assert jars.fetch() == 0


def test_a_jar_whose_hash_is_not_that_of_the_lock_is_deleted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ACKLINE_JARS", str(tmp_path))

    def fetch_from_a_false_repository(cache: Path, *arguments: str) -> None:
        for jar in jars.locked():
            target = cache.parent / jar.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(b"something else")

    monkeypatch.setattr(jars, "_ivy", fetch_from_a_false_repository)
    assert jars.main(["fetch"]) == 1
    assert not list(tmp_path.rglob("*.jar"))
    assert jars.main(["verify"]) == 2
