"""The lists of the page, chosen by plain parameters of the address: text, tag and state."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from ackline.audit.history import TurnTotals
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.states import State
from ackline.ledger.turns import LIVE
from ackline.ui import app, readings
from ackline.ui.filters import Filters, listed_file
from ackline.ui.links import ActionMaker, Addresses
from ackline.ui.readings import LaneReading
from tests.support.memory_lane import OK, MemoryLane
from tests.ui.stored_lanes import StoredPartition, write_lane
from tests.ui.test_states import text_of

FILE = """
name: {name}
kafka: {{bootstrap_servers: "127.0.0.1:9", group_id: {group}, topics: [{topic}]}}
handler: handlers.shop:split
dead_letter: none
"""
LANES = {
    "orders": ("shop.orders.v2", "group-one", "tags: [shop, eu]\nowner: Team Payments\n"),
    "mails": ("mail", "group-two", "tags: [shop]\n"),
    "clicks": ("clicks", "group-three", ""),
    "fresh": ("fresh", "group-four", ""),
}
DAGS = {f"replay__{name}" for name in LANES}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pipelines of which `orders` has dead records, `clicks` has an unread log, and `fresh` has not run."""
    monkeypatch.setenv("ACKLINE_AUDIT", str(tmp_path / "audit"))
    monkeypatch.setenv("ACKLINE_PIPELINES", str(tmp_path))
    parts = {"orders": StoredPartition(die_every=40), "mails": StoredPartition(), "clicks": StoredPartition(read=30)}
    for name, (topic, group, more) in LANES.items():
        (tmp_path / f"{name}.yaml").write_text(FILE.format(name=name, topic=topic, group=group) + more)
        if name in parts:
            write_lane(str(tmp_path / "audit"), name, {TopicPartition(topic, 0): parts[name]}, 2)
    return tmp_path


@pytest.fixture
def client() -> Iterator[TestClient]:
    """A browser without JavaScript, of a user who may read every pipeline."""
    login = app.app.router.dependencies[0].dependency
    assert login is not None
    app.app.dependency_overrides |= {login: lambda: None, app._readable_dags: lambda: DAGS}
    yield TestClient(app.app)
    app.app.dependency_overrides.clear()


def shown(page: str) -> list[str]:
    """Returns the pipelines in the list, from the top."""
    return re.findall(r'<td class="title"><a href="/ackline/pipelines/[^"]*">([^<]*)</a>', page)


@pytest.mark.parametrize(("filters", "names"), [
    (Filters(), ["fresh", "clicks", "mails", "orders"]),
    (Filters("ORDERS"), ["orders"]), (Filters("shop."), ["orders"]), (Filters(" group-t "), ["clicks", "mails"]),
    (Filters("payments"), ["orders"]), (Filters(tag="shop"), ["mails", "orders"]), (Filters("mail", "shop"), ["mails"]),
    (Filters(tag="nowhere"), []), (Filters(state=State.WORKING), ["clicks"]), (Filters(state=State.LOSING), []),
    (Filters(state=State.UNKNOWN), ["fresh"]), (Filters(state=State.UP_TO_DATE), ["mails", "orders"]),
])  # fmt: skip
def test_the_list_is_chosen_by_name_topic_group_owner_tag_and_state(filters: Filters, names: list[str]) -> None:
    page = app.index(DAGS, filters)
    assert sorted(shown(page)) == sorted(names)
    if filters.is_set:
        assert f"{len(names)} of 4 pipelines" in text_of(page)
        assert 'href="/ackline/">Show all' in page


def test_an_empty_result_says_so_and_leads_back() -> None:
    text = text_of(app.index(DAGS, Filters("nothing like this")))
    assert "No pipeline matches. Show all 4" in text
    assert "You may read no DAG" not in text
    assert "You may read no DAG of a pipeline." in text_of(app.index(set(), Filters("x")))


def test_the_counts_are_of_every_chosen_pipeline_and_lead_to_those_in_a_state() -> None:
    page = app.index(DAGS, Filters(tag="shop", state=State.LOSING))
    assert 'href="/ackline/?tag=shop&amp;state=up+to+date">2 up to date</a>' in page
    assert 'href="/ackline/?q=a&amp;tag=shop"' in app.index(DAGS, Filters("a", "shop", State.UP_TO_DATE))


def test_the_form_offers_the_tags_of_the_files_and_keeps_what_was_asked_for() -> None:
    page = app.index(DAGS, Filters("<b>", "eu", State.FAILING))
    assert "<option selected>eu</option><option>shop</option>" in page
    assert "<option selected>failing</option>" in page
    assert 'value="&lt;b&gt;"' in page
    assert 'href="/ackline/?tag=shop">shop</a>' in app.index(DAGS, Filters())
    assert "owner Team Payments" in text_of(app.pipeline(readings.read_lane("orders"), DAGS))


def test_the_failures_of_all_pipelines_are_chosen_by_the_same_parameters() -> None:
    assert "requests.HTTPError" in app.all_failures(DAGS, Filters(tag="eu"))
    without = app.all_failures(DAGS, Filters("mails"))
    assert "requests.HTTPError" not in without
    assert "No record of these pipelines is pending" in text_of(without)
    assert 'href="/ackline/failures?tag=eu"' in app.index(DAGS, Filters(tag="eu"))
    assert "requests.HTTPError" not in app.all_failures(DAGS, Filters(state=State.WORKING))


def test_what_is_not_valid_in_the_address_is_refused_by_its_name(client: TestClient) -> None:
    for query, name in (("tag=Not%20a%20tag", "tag"), ("state=green", "state"), ("q=" + "x" * 251, "q")):
        for path in ("/", "/failures"):
            answer = client.get(f"{path}?{query}")
            assert answer.status_code == 422
            assert f"Correct {name} in the address." in answer.text
    assert shown(client.get("/?q=&tag=&state=").text) == shown(client.get("/").text)
    assert shown(client.get("/?q=ord&state=up+to+date").text) == ["orders"]
    assert "There are no more pipelines." in text_of(client.get("/?start=9").text)


def test_pages_of_a_long_list_keep_the_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "PIPELINES_A_PAGE", 1)
    page = app.index(DAGS, Filters(tag="shop", state=State.LOSING))
    assert "None of the pipelines of this page matches." in text_of(page)
    assert 'href="/ackline/?tag=shop&amp;state=losing&amp;start=1">Next pipelines' in page


def test_a_file_is_read_again_once_it_has_changed(folder: Path) -> None:
    assert listed_file("mails").tags == ("shop",)
    file = folder / "mails.yaml"
    file.write_text(file.read_text().replace("[shop]", "[shop, new]"))
    assert listed_file("mails").tags == ("shop", "new")
    text = file.read_text().lstrip()
    for name in ("\ufeffname: mails", '"name": mails', "name : mails", "name: !!str mails"):
        file.write_text(text.replace("name: mails", name))
        assert listed_file("mails").tags == ("shop", "new"), name
    file.write_text("name: mails\n")
    assert listed_file("mails").tags == ()
    file.unlink()
    assert listed_file("mails").tags == ()


@pytest.mark.parametrize(("failed", "now", "new"), [
    ("a", "a", False), ("a", "b", True), ("a-dirty", "a-dirty", None), ("", "b", None), ("a", "", None),
])  # fmt: skip
def test_a_retry_of_everything_is_offered_unless_the_code_that_has_failed_still_runs(
    failed: str, now: str, new: bool | None
) -> None:
    """Where that is not known, the action says so. Two states of a folder with changes have one name."""
    lane = MemoryLane(OK).after_run()
    newest, at = replace(lane.newest(), code=now), datetime.now(UTC)
    turns = [
        TurnTotals(newest.turn._replace(n=n), "run", "r", "a", "", at, 1, outcomes, {}, code)
        for n, outcomes, code in ((1, {"failed": 3}, "old"), (2, {"failed": 3}, failed), (3, {"acked": 3}, now))
    ]
    reading = LaneReading("lane", LIVE, newest, None, turns, (), at)
    assert reading.has_new_code is new
    offered = ActionMaker("lane", LIVE, (), Addresses("/", "")).of_pipeline(True, False, new_code=new)
    assert [action.title for action in offered if "everything" in action.title] == (
        [] if new is False else ["Retry everything that is pending now"]
    )
    assert ("It is not known" in offered[0].effect) == (new is None)
