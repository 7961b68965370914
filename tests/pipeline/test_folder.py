"""Where the folders are; a refused file affects no other file, and no two pipelines share a group's offsets."""

import gc
import time
from pathlib import Path

import pytest

from ackline.errors import ConfigError
from ackline.pipeline.folder import (
    audit_root,
    conflicts,
    find_pipeline,
    load_folder,
    load_pipeline,
    pipelines_folder,
    project_root,
)
from ackline.pipeline.keys import DeadLetterBlock
from ackline.pipeline.pipeline import Pipeline, load
from tests.support.pipeline_files import GOOD, OTHER, Write


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a relative path it would make the project itself the folder of the tables."""
    monkeypatch.setenv("ACKLINE_AUDIT", "")
    monkeypatch.setenv("ACKLINE_PIPELINES", "")
    assert audit_root() == str(project_root() / ".ackline/audit")
    assert pipelines_folder() == project_root() / "include/pipelines"


@pytest.mark.parametrize(("root", "expected"), [
    ("s3://bucket/audit/", "s3://bucket/audit"),
    ("s3a://bucket/audit", "s3://bucket/audit"),
    ("s3://bucket", "s3://bucket"),
    ("file:///mnt/audit", "/mnt/audit"),
    ("/mnt/audit", "/mnt/audit"),
    ("/mnt/audit é #1 50% a=b+c?x&y", "/mnt/audit é #1 50% a=b+c?x&y"),
])  # fmt: skip
def test_the_audit_root_may_be_in_an_object_store(monkeypatch: pytest.MonkeyPatch, root: str, expected: str) -> None:
    monkeypatch.setenv("ACKLINE_AUDIT", root)
    assert audit_root() == expected


@pytest.mark.parametrize(("root", "reason"), [
    ("s3://key:canary@bucket/audit", "holds a login"),
    ("s3://key:canary/with/slash@bucket/audit", "holds a login"),
    ("s3://canary@bucket/audit", "holds a login"),
    ("s3://bucket/audit?signature=canary", "a `\\?` or a `#`"),
    ("s3://bucket/audit#1", "a `\\?` or a `#`"),
    ("s3://", "names no bucket"),
    ("s3://bucket/a%20b", "a `%` before two hexadecimal digits"),
    ("/mnt/a%2fb", "a `%` before two hexadecimal digits"),
    ("hdfs://bucket/audit", "it begins with hdfs://; use a path or s3://"),
    ("gs://bucket/audit", "it is in Google Cloud Storage, where .* proved for paths and for s3://"),
    ("wasbs://container@account.blob.core.windows.net/audit", "it is in Azure Blob Storage, where"),
    ("az://container/audit", "it is in Azure Blob Storage, where"),
    ("abfss://container@account.dfs.core.windows.net/audit", "it is in Azure Blob Storage, where"),
])  # fmt: skip
def test_a_uri_that_can_not_name_the_tables_is_refused(monkeypatch: pytest.MonkeyPatch, root: str, reason: str) -> None:
    monkeypatch.setenv("ACKLINE_AUDIT", root)
    with pytest.raises(ConfigError, match=f"ACKLINE_AUDIT=.* can't be used: .*{reason}") as refused:
        audit_root()
    assert "canary" not in str(refused.value)


def test_a_refused_file_leaves_the_others_as_they_are(write_file: Write, tmp_path: Path) -> None:
    good = write_file()
    bad = write_file(("name", "nmae"), name="bad.yml")
    write_file(name="notes.txt")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere.yaml")
    loaded = load_folder(tmp_path)
    assert (loaded.pipelines, set(loaded.broken)) == ({"orders": load(good)}, {bad, tmp_path / "gone.yaml"})


SAME = [
    ("name", [("orders-replay", "other")], "name", "the same name orders"),
    ("group and topic", [], "kafka.group_id", "the same group orders-replay and a common topic"),
    ("group and one of the topics", [("[orders]", "[payments, orders]")], "kafka.group_id", "same group"),
    ("group and a pattern", [("topics: [orders]", "pattern: 'o[a-z]*'")], "kafka.group_id", "same group"),
    ("group and partitions", [("topics: [orders]", "partitions: {orders: [3]}")], "kafka.group_id", "same group"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "key", "reason"), [case[1:] for case in SAME], ids=[case[0] for case in SAME])
def test_two_files_that_would_share_a_groups_offsets_are_both_refused(
    write_file: Write, tmp_path: Path, changes: list[tuple[str, str]], key: str, reason: str
) -> None:
    renamed = [] if key == "name" else [("name: orders", "name: b")]
    first, second = write_file(), write_file(*renamed, *changes, name="b.yaml")
    third = write_file(*OTHER, name="c.yaml")
    loaded = load_folder(tmp_path)
    assert (set(loaded.broken), loaded.pipelines) == ({first, second}, {"payments": load(third)})
    for path, other in ((first, second), (second, first)):
        error = loaded.broken[path]
        assert str(error).startswith(f"{path}:")
        assert (error.key, error.file) == (key, path)
        assert reason in str(error)
        assert other.name in str(error)


def test_files_whose_dead_letters_come_back_to_them_are_refused(write_file: Write, tmp_path: Path) -> None:
    """orders → orders.dead → second.dead → orders: a record that always fails would be read for ever."""
    redrive = [("name: orders", "name: b"), ("orders-replay", "b"), ("[orders]", "[orders.dead]")]
    first = write_file()
    second = write_file(*redrive, ("{topic: orders.dead}", "{topic: second.dead}"), name="b.yaml")
    assert load_folder(tmp_path).broken == {}
    third = write_file(("name: orders", "name: c"), ("orders-replay", "c"), ("topics: [orders]", "pattern: 'sec.*'"),
                       ("{topic: orders.dead}", "{topic: orders}"), name="c.yaml")  # fmt: skip
    beside = write_file(*OTHER, name="d.yaml")
    loaded = load_folder(tmp_path)
    assert (set(loaded.broken), loaded.pipelines) == ({first, second, third}, {"payments": load(beside)})
    assert loaded.broken[first].key == "dead_letter"
    assert str(loaded.broken[first]).startswith(f"{first}:7: dead_letter: its dead letters come back")
    assert "by way of c.yaml" in str(loaded.broken[first])


@pytest.mark.parametrize(
    "changes",
    [[("orders-replay", "other")], [("[orders]", "[payments]")], [("topics: [orders]", "pattern: 'p.*'")]],
    ids=["another group", "another topic", "a pattern of other topics"],
)
def test_files_that_share_no_offsets_are_all_loaded(
    write_file: Write, tmp_path: Path, changes: list[tuple[str, str]]
) -> None:
    write_file()
    write_file(("name: orders", "name: b"), *changes, name="b.yaml")
    assert set(load_folder(tmp_path).pipelines) == {"orders", "b"}


def test_an_unknown_name_is_refused_with_the_names_of_the_folder(write_file: Write, tmp_path: Path) -> None:
    write_file()
    write_file(*OTHER, name="b.yaml")
    with pytest.raises(ConfigError, match=r"no pipeline named nothing .*: orders, payments"):
        find_pipeline(tmp_path, "nothing")
    with pytest.raises(ConfigError, match="no folder of pipeline files"):
        find_pipeline(tmp_path / "nowhere", "orders")


@pytest.mark.parametrize("name", ["name: orders", 'name: "orders"', "name:   orders  # ours"])
def test_a_pipeline_whose_file_is_refused_is_reported_with_the_problems_of_the_file(
    write_file: Write, tmp_path: Path, name: str
) -> None:
    write_file(("name: orders", name), name="x.yaml", more="y: 1\n")
    with pytest.raises(ConfigError, match="y: unknown key"):
        find_pipeline(tmp_path, "orders")


def test_the_problems_of_another_file_are_not_reported_for_it(write_file: Write, tmp_path: Path) -> None:
    write_file(("name: orders", "name: orders2"), name="x.yaml", more="y: 1\n")
    with pytest.raises(ConfigError, match="no pipeline named orders in"):
        find_pipeline(tmp_path, "orders")


def test_a_pipeline_is_loaded_from_its_own_file_alone(
    write_file: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_file(name="some-name.yaml")
    write_file(*OTHER, name="other.yaml")
    write_file(("name: orders", "name: ["), name="broken.yaml")
    loaded = []

    def noted(path: Path) -> Pipeline:
        loaded.append(path)
        return load(path)

    monkeypatch.setattr("ackline.pipeline.folder.load", noted)
    assert (load_pipeline(tmp_path, "orders"), loaded) == (load(path), [path])
    with pytest.raises(ConfigError, match="no pipeline named nothing"):
        load_pipeline(tmp_path, "nothing")


def test_a_file_named_after_its_pipeline_is_found_before_any_other_is_read(
    write_file: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_file(name="orders.yaml")
    monkeypatch.setattr("ackline.pipeline.folder.pipeline_files", lambda _: pytest.fail("reads the folder"))
    assert load_pipeline(tmp_path, "orders") == load(path)


def test_an_unusual_way_to_write_the_name_is_found_too(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(GOOD.replace("name: orders", "'name': orders"))
    assert load_pipeline(tmp_path, "orders") == load(path)


@pytest.mark.parametrize("shared", ["nothing", "the group", "the topic", "the dead letters"])
def test_conflicts_of_ten_times_as_many_files_take_about_ten_times_as_long(write_file: Write, shared: str) -> None:
    template = load(write_file())

    def seconds(files: int) -> float:
        pipelines = {}
        for n in range(files):
            kafka = template.kafka.model_copy(
                update={
                    "group_id": "g" if shared == "the group" else f"g{n}",
                    "topics": ["t"] if shared == "the topic" else [f"t{n}"],
                }
            )
            letters = DeadLetterBlock(topic="d" if shared == "the dead letters" else f"d{n}")
            changes = {"name": f"p{n}", "kafka": kafka, "dead_letter": letters}
            pipelines[Path(f"{n}.yaml")] = template.model_copy(update=changes)
        gc.disable()  # it would go through every pipeline again and again
        start = time.process_time()
        assert list(conflicts(pipelines)) == []
        took = time.process_time() - start
        gc.enable()
        return took

    assert min(seconds(5_000) for _ in range(3)) < 60 * max(min(seconds(500) for _ in range(3)), 0.0005)
