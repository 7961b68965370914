"""`ackline pause` and `ackline resume` for several pipelines: one that fails is named, and the others go on."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ackline.pipeline.pipeline import Pipeline
from tests.cli.memory_command import MemoryCommand
from tests.support.memory_adapters import MemoryAdapters
from tests.support.memory_lane import OK, MemoryLane

FILES = {
    "orders": "tags: [shop, eu]\nhandler: handlers.shop:orders\n",
    "payments": "tags: [shop]\nhandler: handlers.shop:payments\n",
    "mail": "handler: handlers.mail:send\nsteps: [{name: log, handler: handlers.shop:log, input: source}]\n",
}


@pytest.fixture
def lanes() -> dict[str, MemoryLane]:
    """Three pipelines, of two partitions each; `mail` has not run yet."""
    lanes = {name: MemoryLane(OK, partitions=2, name=name, start="earliest") for name in FILES}
    for name in ("orders", "payments"):
        lanes[name].run()
    return lanes


@pytest.fixture
def ackline(lanes: dict[str, MemoryLane], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryCommand:
    """The command, with a file of each pipeline."""
    command = MemoryCommand(lanes["orders"], tmp_path, monkeypatch)
    (tmp_path / "lane.yaml").unlink()
    for name, keys in FILES.items():
        kafka = f"{{bootstrap_servers: 'memory:1', group_id: {name}, topics: [orders]}}"
        (tmp_path / f"{name}.yaml").write_text(f"name: {name}\nkafka: {kafka}\ndead_letter: none\n{keys}")

    @contextlib.contextmanager
    def open_adapters(pipeline: Pipeline, *_: Any, now: Any = None, **__: Any) -> Iterator[MemoryAdapters]:
        yield replace(lanes[pipeline.name].adapters(), actor="ada", fixed_now=now)

    monkeypatch.setattr("ackline.cli.options.open_adapters", open_adapters)
    return command


def paused(lanes: dict[str, MemoryLane]) -> set[str]:
    """The pipelines that have begun and read nothing."""
    begun = {name: lane for name, lane in lanes.items() if lane.adapters().store.newest() is not None}
    return {name for name, lane in begun.items() if all(row.paused for row in lane.newest().partitions.values())}


@pytest.mark.parametrize(("option", "chosen"), [
    (["--tag", "shop"], {"orders", "payments"}),
    (["--tag", "eu"], {"orders"}),
    (["--handler", "handlers.shop:payments"], {"payments"}),
])  # fmt: skip
def test_a_tag_or_a_handler_chooses_pipelines(
    option: list[str], chosen: set[str], lanes: dict[str, MemoryLane], ackline: MemoryCommand
) -> None:
    dry = ackline("pause", *option, "--dry-run")
    assert (dry.status, paused(lanes)) == (0, set())
    assert dry.output.splitlines() == [
        *(f"{name}: 2 partitions would be paused" for name in sorted(chosen)), "Nothing was changed.",
    ]  # fmt: skip
    done = ackline("pause", *option, "--reason", "bad deploy", "--yes")
    assert (done.status, paused(lanes)) == (0, chosen)
    assert done.output.splitlines() == [f"{name}: 2 partitions paused" for name in sorted(chosen)]
    assert {lanes[name].newest().reason for name in chosen} == {"bad deploy"}
    body = ackline("resume", *option, "--yes", "--json").json
    assert ({one["pipeline"] for one in body["pipelines"]}, body["failed"]) == (chosen, [])
    assert paused(lanes) == set()


def test_a_resume_of_several_leaves_alone_what_was_paused_before_for_another_reason(
    lanes: dict[str, MemoryLane], ackline: MemoryCommand
) -> None:
    """A pause for the weekend outlives an incident, though the incident's pause names the same pipelines."""
    ackline("pause", "payments", "--reason", "weekend", "--yes")
    for lane in lanes.values():
        lane.world.now += timedelta(minutes=1)
    both = ackline("pause", "--tag", "shop", "--reason", "bad deploy", "--yes")
    assert "payments: 0 partitions paused, 2 paused already" in both.output
    assert lanes["payments"].newest().reason == "weekend"
    texts = ("2 partitions would be resumed", "2 partitions resumed", "0 partitions resumed, 2 resumed already")
    for option, text in zip(("--dry-run", "--yes", "--yes"), texts, strict=True):
        done = ackline("resume", "--tag", "shop", option)
        assert f"orders: {text}\n" in done.output
        assert "payments: left paused, since" in done.output
        assert "by ada: weekend; `ackline resume payments` resumes it" in done.output
    assert paused(lanes) == {"payments"}
    (left,) = ackline("resume", "--tag", "shop", "--yes", "--json").json["left_paused"]
    assert (left["pipeline"], left["actor"], left["reason"]) == ("payments", "ada", "weekend")
    assert ackline("resume", "payments", "--yes").status == 0
    assert paused(lanes) == set()


def test_a_partition_that_a_void_has_paused_outlives_the_end_of_an_incident(
    lanes: dict[str, MemoryLane], ackline: MemoryCommand
) -> None:
    """Its pause is the void, and neither an older pause that was resumed nor the one that found it paused."""
    orders = lanes["orders"]
    ackline("pause", "orders", "--reason", "weekend", "--yes")
    ackline("resume", "orders", "--yes")
    orders.produce(b"1", b"2")
    orders.plan()
    assert ackline("void", "orders", "--reason", "the batch is broken", "--pause", "--yes").status == 0
    orders.world.now += timedelta(minutes=1)
    ackline("pause", "--tag", "shop", "--reason", "bad deploy", "--yes")
    done = ackline("resume", "--tag", "shop", "--yes")
    assert "payments: 2 partitions resumed" in done.output
    assert "orders: left paused, since" in done.output
    assert "by ada: the batch is broken; `ackline resume orders` resumes it" in done.output


@pytest.mark.parametrize("option", [["--all"], ["--handler", "handlers.shop"]])
def test_one_that_fails_is_named_and_the_others_go_on(
    option: list[str], lanes: dict[str, MemoryLane], ackline: MemoryCommand, tmp_path: Path
) -> None:
    """`mail` has not run yet, which its step's handler chooses too; one file is refused, so nothing is known of it."""
    (tmp_path / "broken.yaml").write_text("name: broken\n")
    done = ackline("pause", *option, "--yes")
    assert (done.status, paused(lanes)) == (1, {"orders", "payments"})
    assert "mail: not paused: mail has not run yet: there is nothing to pause" in done.errors
    assert "broken.yaml: not paused: " in done.errors
    again = ackline("pause", *option, "--dry-run")
    assert "orders: 0 partitions would be paused, 2 paused already" in again.output
    assert "mail: not possible: mail has not run yet" in again.output


def test_they_are_asked_for_once_at_a_terminal_and_refused_without_one(
    lanes: dict[str, MemoryLane], ackline: MemoryCommand
) -> None:
    refused = ackline("pause", "--tag", "shop")
    assert (refused.status, "give --yes or --dry-run" in refused.errors, paused(lanes)) == (2, True, set())
    ackline.answers = [False]
    assert ackline("pause", "--tag", "shop").output.endswith("Nothing was changed.\n")
    ackline.answers = [True]
    assert (ackline("pause", "--tag", "shop").status, paused(lanes)) == (0, {"orders", "payments"})


@pytest.mark.parametrize(("options", "words"), [
    ([], "give one of NAME, --all, --tag and --handler: nothing is chosen"),
    (["orders", "--all"], "give one of NAME, --all, --tag and --handler: several of them are given"),
    (["--tag", "shop", "--handler", "handlers.shop"], "several of them are given"),
    (["--tag", "shoop"], "has it; did you mean shop?"),
    (["--tag", ""], "has it"),
    (["--handler", "handlers.shop:paymnts"], "has it; did you mean handlers.shop:payments?"),
    (["--handler", "handlers"], "has it"),
])  # fmt: skip
def test_exactly_one_choice_that_chooses_something_is_wanted(
    options: list[str], words: str, ackline: MemoryCommand
) -> None:
    error = ackline("pause", *options, "--yes", "--json").error
    assert (error["exit_status"], words in error["error"]) == (2, True), error


def test_the_overview_has_the_tags_of_each_pipeline(ackline: MemoryCommand, lanes: dict[str, MemoryLane]) -> None:
    found = {one["pipeline"]: one["tags"] for one in ackline("status", "--json").json["pipelines"]}
    assert found == {"orders": ["shop", "eu"], "payments": ["shop"], "mail": []}
