"""The options of a driver's JVM: its compilers, and the archive of Spark's classes, which is used where it fits, never
where it would end a JVM, and made once."""

import importlib.util
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pyspark
import pytest

from ackline.errors import ConfigError, TransientError
from ackline.pipeline.blocks import SparkBlock
from ackline.spark import jars, jvm
from ackline.spark.session import session_settings


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for JARs in which there is nothing yet."""
    monkeypatch.setenv("ACKLINE_JARS", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def dumps(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Makes archives of five bytes; returns the files that were made."""
    made: list[Path] = []

    def dump(file: Path) -> None:
        file.write_bytes(b"12345")
        made.append(file)

    monkeypatch.setattr(jvm, "_dump", dump)
    return made


def test_a_driver_uses_the_archive_from_when_it_is_there(cache: Path, dumps: list[Path]) -> None:
    assert jvm.archive_options() == []
    assert jvm.make_archive()
    found = jvm.archive()
    assert found is not None
    assert found.parent == cache
    assert f"-XX:SharedArchiveFile={found}" in jvm.driver_options().split()
    assert not jvm.make_archive()
    assert len(dumps) == 1
    assert [path for path in cache.iterdir() if path.suffix not in (".jsa", ".crc32", ".lock")] == []


def test_a_folder_that_spark_would_split_in_two_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKLINE_JARS", "/a,b")
    with pytest.raises(ConfigError, match="/a,b has a comma"):
        jars.jar_settings()


def _flags(options: list[str]) -> str:
    command = [jars.java(), *options, "-XX:+PrintFlagsFinal", "-version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_driver_compiles_twice_only_what_runs_often_and_an_executor_as_java_does() -> None:
    """A run of 1,000 records ends before the slow compiler would be worth its time."""
    usual, ours = (
        {name: int(value) for name, value in re.findall(r"(Tier4\w+Threshold) += (\d+)", _flags(options))}
        for options in ([], jvm.driver_options().split())
    )
    assert len(usual) == 4
    assert ours == {name: 10 * threshold for name, threshold in usual.items()}
    settings = session_settings("spark://elsewhere:7077", SparkBlock(), submitted=False)
    assert not [name for name in settings if name.startswith("spark.executor.") and "JavaOptions" in name]


def test_of_two_that_make_the_archive_at_once_one_does(cache: Path, dumps: list[Path]) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: jvm.make_archive(), range(8)))
    assert (sum(made), len(dumps)) == (1, 1)


@pytest.mark.parametrize("content", [b"1234", b"", b"12045", b"\0\0\0\0\0"])
def test_an_archive_that_was_cut_off_or_damaged_is_not_used_which_is_said_and_is_made_again(
    cache: Path, dumps: list[Path], content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A JVM crashes or hangs on it, each time."""
    jvm.make_archive()
    found = jvm.archive()
    assert found is not None
    found.write_bytes(content)
    assert caplog.messages == []
    assert jvm.archive_options() == []
    assert caplog.messages == [
        f"{found} is damaged, so Spark starts without it and takes twice as long: `python -m ackline.spark.jvm` makes "
        f"it again"
    ]
    assert jvm.make_archive()
    assert jvm.archive() == found


def test_another_java_has_an_archive_of_its_own(
    cache: Path, dumps: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jvm.make_archive()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert jvm.archive() is None


def test_a_pyspark_that_was_installed_again_has_an_archive_of_its_own_and_the_old_one_goes(
    cache: Path, dumps: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java ignores an archive of JARs that have other times, in silence."""
    spark = tmp_path / "pyspark"
    (spark / "jars").mkdir(parents=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: SimpleNamespace(submodule_search_locations=[str(spark)]))
    os.utime(spark / "jars", (2, 2.5))
    jvm.make_archive()
    before = jvm.archive()
    os.utime(spark / "jars", (2, 2))  # as in an image that was packed and unpacked
    assert jvm.archive() == before is not None
    os.utime(spark / "jars", (1, 1))
    assert jvm.archive() is None
    assert jvm.make_archive()
    assert jvm.archive() != before
    assert list(cache.glob("*.jsa")) == [jvm.archive()]


def test_an_archive_that_cannot_be_made_is_a_sentence_and_no_part_of_it_stays(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def dump(file: Path) -> None:
        file.write_bytes(b"12")
        raise subprocess.CalledProcessError(1, ["python", "-c", jvm.LOAD_CLASSES], stderr=b"Traceback\nno space left\n")

    monkeypatch.setattr(jvm, "_dump", dump)
    said = r"so each start of Spark takes longer: Spark ended with status 1 \(no space left\)\. Nothing"
    with pytest.raises(TransientError, match=said):
        jvm.make_archive()
    assert jvm.archive() is None
    assert jvm.main() == TransientError.exit_status
    assert "each start of Spark takes longer" in capsys.readouterr().err
    assert list(cache.glob("*.jsa")) == []


@pytest.mark.real
def test_a_session_takes_its_classes_from_the_archive_also_in_a_folder_with_a_blank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jvm.make_archive()
    folder, loaded = tmp_path / "the cache", tmp_path / "classes"
    folder.mkdir()
    for file in jars.cache_folder().iterdir():
        (folder / file.name).symlink_to(file)
    monkeypatch.setenv("ACKLINE_JARS", str(folder))
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", f"-Xlog:class+load:file={loaded}")
    monkeypatch.setenv("ACKLINE_SPARK_MASTER", "local[1]")
    code = "from ackline.spark.session import open_session; open_session('classes').range(3).count()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert "org.apache.spark.SparkContext source: shared objects file (top)" in loaded.read_text()
    assert "warning" not in ended.stderr.lower()


@pytest.mark.real
def test_a_jvm_with_other_jars_says_nothing_of_the_archive() -> None:
    jvm.make_archive()
    jar = next((Path(pyspark.__path__[0]) / "jars").glob("spark-launcher*.jar"))
    command = [jars.java(), *jvm.driver_options().split(), "-cp", str(jar), "org.apache.spark.launcher.Main"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "shared" not in ended.stdout + ended.stderr
    assert "Not enough arguments" in ended.stderr
