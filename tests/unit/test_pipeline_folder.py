"""A folder of pipeline files: a broken one harms no other, and two never share a group's offsets."""

from pathlib import Path

import pytest

from ackline.errors import ConfigError
from ackline.pipeline import load
from ackline.pipeline_folder import find, load_folder
from tests.unit.pipeline_files import NOT_YAML, OTHER, Write, writer


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a pipeline file."""
    return writer(tmp_path)


def test_a_broken_file_leaves_the_others_as_they_are(write: Write, tmp_path: Path) -> None:
    good = write()
    bad = write(("name", "nmae"), name="bad.yml")
    write(name="notes.txt")
    (tmp_path / "folder.yaml").mkdir()

    loaded = load_folder(tmp_path)
    assert loaded.pipelines == {"orders": load(good)}
    assert list(loaded.broken) == [bad]


@pytest.mark.parametrize("more", NOT_YAML.values(), ids=NOT_YAML.keys())
def test_no_rubbish_breaks_anothers_file(write: Write, tmp_path: Path, more: str) -> None:
    bad = write(*OTHER, name="a.yaml", more=more)
    write()

    loaded = load_folder(tmp_path)
    assert (set(loaded.pipelines), set(loaded.broken)) == ({"orders"}, {bad})


def test_a_link_that_leads_nowhere_is_said_not_passed_over(write: Write, tmp_path: Path) -> None:
    write()
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere.yaml")
    loaded = load_folder(tmp_path)
    assert (set(loaded.pipelines), set(loaded.broken)) == ({"orders"}, {tmp_path / "gone.yaml"})


SAME = [
    ("name", [("orders-replay", "other")], "name", "the same name orders"),
    ("group and topic", [], "kafka.group_id", "the same group orders-replay and a common topic"),
    ("group and one of the topics", [("[orders]", "[payments, orders]")], "kafka.group_id", "same group"),
    ("group and a pattern", [("topics: [orders]", "pattern: 'o[a-z]*'")], "kafka.group_id", "same group"),
    ("group and partitions", [("topics: [orders]", "partitions: {orders: [3]}")], "kafka.group_id", "same group"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "key", "reason"), [case[1:] for case in SAME], ids=[case[0] for case in SAME])
def test_two_files_that_would_share_a_groups_offsets_are_both_refused(
    write: Write, tmp_path: Path, changes: list[tuple[str, str]], key: str, reason: str
) -> None:
    renamed = [] if key == "name" else [("name: orders", "name: b")]
    one, two, third = write(), write(*renamed, *changes, name="b.yaml"), write(*OTHER, name="c.yaml")

    loaded = load_folder(tmp_path)
    assert set(loaded.broken) == {one, two}
    assert loaded.pipelines == {"payments": load(third)}
    for path, other in ((one, two), (two, one)):
        error = loaded.broken[path]
        assert str(error).startswith(f"{path}:")
        assert (error.key, error.file) == (key, path)
        assert f"{reason}" in str(error)
        assert other.name in str(error)


def test_dead_letters_that_come_round_again_are_refused_by_the_files_that_pass_them_on(
    write: Write, tmp_path: Path
) -> None:
    """orders → orders.dead → second.dead → orders: what fails everywhere would be read for ever."""
    redrive = [("name: orders", "name: b"), ("orders-replay", "b"), ("[orders]", "[orders.dead]")]
    one, two = write(), write(*redrive, ("{topic: orders.dead}", "{topic: second.dead}"), name="b.yaml")
    assert load_folder(tmp_path).broken == {}
    third = write(("name: orders", "name: c"), ("orders-replay", "c"), ("topics: [orders]", "pattern: 'sec.*'"),
                  ("{topic: orders.dead}", "{topic: orders}"), name="c.yaml")  # fmt: skip
    beside = write(*OTHER, name="d.yaml")

    loaded = load_folder(tmp_path)
    assert set(loaded.broken) == {one, two, third}
    assert loaded.pipelines == {"payments": load(beside)}
    assert loaded.broken[one].key == "dead_letter"
    assert str(loaded.broken[one]).startswith(f"{one}:7: dead_letter: its dead letters come back")
    assert "by way of c.yaml" in str(loaded.broken[one])


@pytest.mark.parametrize(
    "changes",
    [
        [("name: orders", "name: b"), ("orders-replay", "other")],
        [("name: orders", "name: b"), ("[orders]", "[payments]")],
        [("name: orders", "name: b"), ("topics: [orders]", "pattern: 'p.*'")],
    ],
    ids=["another group", "another topic", "a pattern of others"],
)
def test_files_that_share_nothing_are_neighbours(write: Write, tmp_path: Path, changes: list[tuple[str, str]]) -> None:
    write()
    write(*changes, name="b.yaml")
    assert set(load_folder(tmp_path).pipelines) == {"orders", "b"}


def test_a_pipeline_is_found_by_its_name(write: Write, tmp_path: Path) -> None:
    path = write(name="any-file.yaml")
    assert find(tmp_path, "orders") == load(path)


def test_a_pipeline_that_is_not_there_is_refused_with_the_names_that_are(write: Write, tmp_path: Path) -> None:
    write()
    write(*OTHER, name="b.yaml")
    with pytest.raises(ConfigError, match=r"no pipeline named nothing .*there: orders, payments"):
        find(tmp_path, "nothing")
    with pytest.raises(ConfigError, match="no folder of pipeline files"):
        find(tmp_path / "nowhere", "orders")


@pytest.mark.parametrize("name", ["name: orders", 'name: "orders"', "name:   orders  # ours"])
def test_asking_for_a_pipeline_whose_file_is_broken_says_what_is_wrong_with_it(
    write: Write, tmp_path: Path, name: str
) -> None:
    write(("name: orders", name), name="x.yaml", more="y: 1\n")
    with pytest.raises(ConfigError, match="y: unknown key"):
        find(tmp_path, "orders")


def test_another_file_that_is_broken_is_not_taken_for_it(write: Write, tmp_path: Path) -> None:
    write(("name: orders", "name: orders2"), name="x.yaml", more="y: 1\n")
    with pytest.raises(ConfigError, match="no pipeline named orders in"):
        find(tmp_path, "orders")
