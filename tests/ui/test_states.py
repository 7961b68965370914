"""The page tells the truth at first look, in each state of a lane: as text, and as pictures in real browsers.

The lanes are stored once, without a broker, Spark and Airflow (`tests/ui/states.py`), and their views are files.
"""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ackline.ledger.offsets import TopicPartition
from ackline.ui import failing, readings
from tests.support.chromium import NoBrowserError, Tab, browser
from tests.support.firefox import firefox
from tests.ui import states
from tests.ui.states import SETTLED_AGO, VIEWS

SETTLED = int(SETTLED_AGO.total_seconds() // 60)
WIDTHS = (1400, 800, 420)
OVERPRINTED = """
(() => {
  const box = (element) => element.getBoundingClientRect();
  const covers = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  const found = [];
  for (const picture of document.querySelectorAll(".chart, svg.picture, svg.steps, svg.spark")) {
    const texts = [...picture.querySelectorAll("text")].map((it) => [it.textContent, box(it)]);
    const marks = [...picture.querySelectorAll(".mark")].map((it) => [it.getAttribute("class"), box(it.firstChild)]);
    const tips = [...picture.querySelectorAll(".tip")].map((it) => ["the tip of an arrow", box(it)]);
    const every = [...texts, ...marks, ...tips];
    every.forEach(([name, one], n) => every.slice(n + 1).forEach(([other, two]) => {
      if (covers(one, two)) found.push(`${name} covers ${other}`);
    }));
    const frame = box(picture.closest(".card"));
    if (!picture.closest(".scroll")) for (const [name, one] of every) {
      if (one.left < frame.left - 1 || one.right > frame.right + 1) found.push(`${name} reaches out of its card`);
    }
  }
  const rows = [...document.querySelectorAll("td, dd, dt, li, h1, h2, .badge, time, button, summary")]
    .filter((it) => it.checkVisibility() && !it.children.length && it.textContent.trim());
  for (const it of rows) {
    if (it.scrollWidth > it.clientWidth + 1 && getComputedStyle(it).display !== "inline") {
      found.push(`cut: ${it.textContent.trim().slice(0, 40)}`);
    }
  }
  return [...new Set(found)];
})()
"""
"""Returns which texts and marks of a picture cover each other or leave their card, and which texts are cut."""
GEOMETRY = """
[...document.querySelectorAll("h1, h2, .card, .mark path, svg rect, svg text")].map((it) => {
  const box = it.getBoundingClientRect();
  const frame = it.closest("svg:not(svg svg)")?.getBoundingClientRect().left ?? 0;
  const place = Math.round(box.left + box.width / 2 - frame);
  return [it.getAttribute("class") || it.tagName, it.checkVisibility() ? place : null];
})
"""
"""Returns where each card and heading is from left to right, and each part of a picture in its picture."""


@pytest.fixture(scope="module", autouse=True)
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The audit root with all states, for the tests of this file."""
    folder = tmp_path_factory.mktemp("states")
    (folder / "pipelines").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACKLINE_AUDIT", str(folder / "audit"))
        patch.setenv("ACKLINE_PIPELINES", str(folder / "pipelines"))
        states.write_states(str(folder / "audit"), folder / "pipelines")
        yield


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each view as a file."""
    folder = tmp_path_factory.mktemp("views")
    files = {name: folder / f"{name.replace(' ', '-')}.html" for name in VIEWS}
    for name, file in files.items():
        file.write_text(VIEWS[name]())
    return files


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """A Chromium."""
    try:
        with browser(tmp_path_factory.mktemp("browser") / "profile") as tab:
            yield tab
    except NoBrowserError as error:
        pytest.skip(f"the browser tests need a headless Chromium: {error}")


def text_of(view: str) -> str:
    """Returns the text of a view, with single spaces."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", view.partition("</head>")[2])).split())


def check_minutes(text: str, pattern: str, expected: int) -> None:
    """Checks the minutes that `N` in a pattern stands for. The tests before may have taken a few."""
    found = re.search(pattern.replace("N minutes", r"(\d+) minutes"), text)
    assert found is not None, text
    assert 0 <= int(found[1]) - expected <= 9


def row(view: str, name: str) -> str:
    """Returns the row of a pipeline in the overview, as text."""
    [found] = [text for text in view.split("<tr>") if f">{name}</a>" in text]
    return text_of(f"</head>{found.partition('</tr>')[0]}")


@pytest.mark.parametrize("name", ["moved", "restored", "gone"])
def test_i18_a_pipeline_whose_runs_are_refused_is_stuck_at_first_look_although_nothing_lags(name: str) -> None:
    """Its last turn is settled whole, so its tables alone show an up to date lane."""
    error = states.REFUSED[name][1].__name__
    assert re.match(rf"{name} stuck {error}, \d+ (second|minute)s? ago 1 0 0 0 ", row(VIEWS["overview"](), name))
    shown = text_of(states.pipeline_view(name))
    first = shown.partition("Lag 0")[0]
    assert re.search(rf"{name} stuck DAG .*The last run stopped \d+ \w+ ago \({error}\): orders", first)
    command = readings.read_lane(name).stands_still
    assert command is not None
    assert f"{command.command} Copy" in first
    assert "stopped" in text_of(states.partition_view(name, 0)).partition("The log, to scale")[0]


def test_i18_rows_that_are_not_published_are_the_first_line_with_the_command_that_publishes_them() -> None:
    assert row(VIEWS["overview"](), "unpublished").startswith("unpublished stuck Unpublished 1 0 0 0 ")
    first = text_of(states.pipeline_view("unpublished")).partition("Lag 0")[0]
    assert "The lane stands still (Unpublished): turn 2 (lane live, epoch 0) of unpublished is settled, and" in first
    assert "its rows are not yet in order_totals; " in first
    assert "ackline run unpublished Copy" in first


def test_a_settled_lane_is_green_and_committed_at_its_end_and_a_foreign_commit_is_shown_where_it_stayed() -> None:
    settled = readings.read_lane("payments")
    assert [(part.committed, part.floor) for part in settled.partitions] == [(400, 400)] * 2
    assert row(VIEWS["overview"](), "payments").startswith("payments up to date 2 0 0 0 ")
    foreign = text_of(states.partition_view("foreign", 0))
    assert "foreign[0] waiting" in foreign
    assert "Committed 40 by another: the turn left it Floor 200" in foreign


def test_the_overview_has_the_worst_first_and_the_dead_of_the_last_day_before_what_waits() -> None:
    view = VIEWS["overview"]()
    names = re.findall(r'<td class="title"><a [^>]*>([^<]*)</a>', view)
    assert names[:6] == ["broken", "near", "gone", "moved", "restored", "unpublished"]
    assert names[6:9] == ["bursts", "letters", "calls"]
    assert len(names) == 12 + 40 + 1
    assert row(view, "letters").startswith("letters up to date 2 0 0 200 ")
    dead = sum(readings.read_lane(name).dead for name in ("bursts", "letters"))
    assert f"{dead:,} dead in the last day" in text_of(view)


def test_retention_that_comes_near_is_named_with_its_time_and_what_is_not_known_is_not_called_never() -> None:
    view = VIEWS["overview"]()
    assert row(view, "near").endswith("near[0]: now")
    assert row(view, "clicks").endswith("not known")
    assert row(view, "payments").endswith("nothing waits")
    near = text_of(states.partition_view("near", 1))
    assert re.search(r"Retention may take offset 480 at \S+ \S+ UTC \((in 1\d\d minutes|in 2 hours)\)", near)


def test_times_are_relative_and_the_exact_one_is_a_hover_away() -> None:
    for name in ("overview", "300 partitions", "records in flight", "failing records", "dead records"):
        view = VIEWS[name]()
        times = re.findall(r'<time datetime="[^"]*"( title="[^"]*")? class="nowrap">([^<]*)</time>', view)
        exact = [text for title, text in times if "UTC" in text]
        assert len(exact) <= 1, "the time of the page itself"
        assert all(re.fullmatch(r' title="(since )?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"', title) for title, text in times
                   if "UTC" not in text)  # fmt: skip
        assert len(times) > 1, name


def test_records_in_flight_show_how_long_the_oldest_has_waited() -> None:
    """Handed on by the first of four turns, ten minutes apart."""
    check_minutes(text_of(states.pipeline_view("calls")), "in flight 50 the oldest has waited N minutes", SETTLED + 30)
    shown = text_of(states.failures_view("calls", "in_flight", ""))
    check_minutes(shown, "Records 50 in 1 partition The oldest has waited N minutes", SETTLED + 30)


def test_failing_records_show_the_last_error_how_many_and_since_when() -> None:
    group = text_of(states.pipeline_view("calls")).partition("Failing records, and those in flight")[2]
    rest = r"\d+ minutes ago in \d+ minutes status 503 from the tax service at order \d+"
    check_minutes(group, f"requests.HTTPError retry 2 1 4 N minutes ago {rest}", SETTLED + 30)
    shown = text_of(states.failures_view("letters", "dead", "requests.HTTPError"))
    check_minutes(shown, "The last error Records 200 in 2 partitions Since N minutes ago", SETTLED + 40)
    assert "after 4 attempts" not in shown, "the decision names no error: that of the last attempt is shown"
    assert shown.count("status 503") > 40


def test_a_dead_record_names_its_letter_and_the_command_that_prints_it() -> None:
    shown = text_of(states.record_view("letters", 0, 13))
    assert "Its dead letter letters.dead[0] offset 26" in shown
    assert "ackline dead letters letters 0 13 Copy" in shown
    assert "Its dead letter" not in text_of(states.record_view("calls", 0, 10))


def test_a_turn_shows_the_code_that_planned_it_and_the_code_that_ran_it() -> None:
    shown = text_of(states.turn_view("letters", 2))
    assert "Code that planned 3f2a-dirty" in shown
    assert "Code that ran code of 2" in shown


def test_a_step_that_fails_leads_to_the_records_that_failed_in_it() -> None:
    view = states.pipeline_view("shop")
    assert 'href="/ackline/pipelines/shop/failures?kind=failed&amp;step=price"' in view
    shown = text_of(states.failures_view("shop", "failed", "", step="price"))
    assert shown.startswith("Pipelines / shop / failing records failed in price failed")
    assert "shop[0] 229 1" in shown
    assert "No record fails like this" in text_of(states.failures_view("shop", "failed", "", step="source"))


def test_the_attempts_at_a_record_come_from_effective_turns_alone() -> None:
    reading = readings.read_lane("calls")
    [group] = [group for group in failing.failures(reading) if group.kind == "retry"]
    assert (group.attempts, group.records, group.partitions) == (4, 2, 1)
    [held, other] = failing.failing_records(reading, "retry", "requests.HTTPError")
    assert (held.tp, held.offset, held.attempts) == (TopicPartition("calls", 1), 7, 4)
    assert held.since is not None
    assert held.at is not None
    assert (held.at - held.since).total_seconds() == 30 * 60
    assert other.since == other.at


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_covers_anything_else_at_any_width(tab: Tab, views: dict[str, Path], width: int) -> None:
    tab.theme("light")
    tab.size(width, 900)
    for name, file in views.items():
        tab.open(file.as_uri())
        assert tab.run(OVERPRINTED) == [], name
        assert tab.run("document.documentElement.scrollWidth") <= width, name


def test_the_figures_of_first_look_are_in_the_first_screen_of_a_phone(tab: Tab, views: dict[str, Path]) -> None:
    """Health, dead records and what a lane stands still for, of the pipelines that need a person."""
    tab.size(420, 900)
    tab.open(views["overview"].as_uri())
    seen = tab.run("""[...document.querySelectorAll("tr")].filter((it) => it.getBoundingClientRect().bottom <= 900)
        .map((it) => it.innerText.split(/\\s+/).join(" "))""")
    for name, words in {
        "near": "now",
        "gone": "TopicChanged",
        "moved": "GroupMoved",
    }.items():
        assert any(text.strip().startswith(name) and words in text for text in seen), (name, seen)
    dead = sum(readings.read_lane(name).dead for name in ("bursts", "letters"))
    assert f"{dead:,} dead in the last day" in tab.run("document.querySelector('.head').innerText")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_barrier(tab: Tab, views: dict[str, Path], theme: str) -> None:
    tab.theme(theme)
    tab.size(1400, 900)
    for name in ("overview", "steps", "output not published", "partition that loses", "dead records", "dead record",
                 "turn", "run"):  # fmt: skip
        tab.open(views[name].as_uri())
        assert tab.run("document.documentElement.dataset.theme") == theme
        tab.run("document.querySelectorAll('details').forEach(it => it.open = true)")
        assert tab.barriers() == [], name


def test_the_keyboard_reaches_everything_in_the_order_of_the_page(tab: Tab, views: dict[str, Path]) -> None:
    tab.size(1400, 900)
    tab.open(views["steps"].as_uri())
    wanted = tab.run("""[...document.querySelectorAll("a, button, input:not([type=hidden]), summary, [tabindex]")]
        .filter((it) => it.checkVisibility()).map((it, n) => { it.dataset.number = n; return n; })""")
    reached = []
    for _ in wanted:
        tab.press("Tab")
        reached.append(tab.run("Number(document.activeElement.dataset.number)"))
    assert reached == wanted
    tab.run("document.querySelector('summary').focus()")
    tab.press("Enter")
    assert tab.run("document.querySelectorAll('details[open]').length") == 1


def test_firefox_shows_the_same(tab: Tab, views: dict[str, Path], tmp_path: Path) -> None:
    names = ("overview", "steps", "small turns beside a large one", "partition that loses")
    try:
        with firefox(tmp_path / "profile") as other:
            for width in (1400, 420):
                tab.size(width, 900)
                other.size(width, 900)
                for name in names:
                    tab.open(views[name].as_uri())
                    other.open(views[name].as_uri())
                    assert other.run(OVERPRINTED) == [], (name, width)
                    ours, theirs = (_by_kind(each.run(GEOMETRY)) for each in (tab, other))
                    assert ours.keys() == theirs.keys(), (name, width)
                    for kind, places in ours.items():
                        moved = [abs(a - b) for a, b in zip(places, theirs[kind], strict=True)]
                        assert max(moved) <= 12, (name, width, kind)  # fonts are drawn a little wider or narrower
    except NoBrowserError as error:
        pytest.skip(f"the test of the second browser needs one: {error}")


def _by_kind(parts: list[list[Any]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for kind, place in parts:
        if place is not None:
            found.setdefault(kind, []).append(place)
    return found
