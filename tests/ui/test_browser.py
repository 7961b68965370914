"""The page in a real headless Chromium, in the frame of a running Airflow and on its own.

`make screenshots` keeps the pictures that the last test makes, for the README.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ackline.airflow.backfill import id_of_run
from ackline.audit.queries import AuditFilter, audit_rows
from ackline.forms.arguments import lane_of
from ackline.ledger.offsets import TopicPartition
from ackline.local.airflow_api import POLL_SECONDS
from ackline.local.airflow_servers import USERNAME, LocalAirflow
from ackline.local.broker import Broker
from ackline.local.processes import wait_until
from tests.airflow.project import Project
from tests.e2e import wire
from tests.support.chromium import NoBrowserError, Tab, browser
from tests.ui.conftest import HOSTILE
from tests.ui.stored_lanes import StoredLane, StoredPartition, add_attempt, write_lane

FRAME = "document.querySelector('iframe').contentDocument"
VIEWS = {
    "pipelines": "",
    "all failures": "failures",
    "pipeline": "pipelines/orders",
    "partition": "pipelines/orders/partition?topic=orders&partition=1",
    "failures": "pipelines/orders/failures?kind=dead&error_class=requests.HTTPError",
    "record": "pipelines/orders/record?topic=orders&partition=1&offset=141",
    "turn": "pipelines/orders/turns/0/24",
    "run": "pipelines/orders/run?run_id=manual__1",
}
KEPT = {"pipeline": "plugin/ackline/ackline/pipelines/orders", "partition": f"ackline/{VIEWS['partition']}"}
"""The pictures of the README: a view in Airflow's frame, and one on its own."""

CONTRAST = """
(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const linear = (part) => part <= 10 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = colour.slice(0, 3).map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  let texts = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility() || element.closest("title")) continue;
    texts++;
    const style = getComputedStyle(element);
    const [a, b] = [light(rgba(element.closest("svg") ? style.fill : style.color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${walker.currentNode.textContent.trim().slice(0, 40)}`);
  }
  return { texts, poor: [...new Set(poor)] };
})()
"""
"""Returns the texts whose contrast is below 4.5, which WCAG asks for."""
OUTSIDE = """
[...document.querySelectorAll("main *")].filter((element) => {
  if (!element.checkVisibility() || element.closest("title") || element.closest(".scroll *")) return false;
  const box = element.getBoundingClientRect();
  return box.width > 0 && (box.left < -1 || box.right > innerWidth + 1);
}).map((element) => element.outerHTML.slice(0, 120))
"""
"""Returns the elements that reach out of the viewport sideways. A wide table scrolls in its own box."""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """A browser that has no login yet."""
    try:
        with browser(tmp_path_factory.mktemp("browser") / "profile") as tab:
            tab.size(1280, 900)
            yield tab
    except NoBrowserError as error:
        pytest.skip(f"the browser tests need a headless Chromium: {error}")


@pytest.fixture
def user(tab: Tab, airflow: LocalAirflow) -> Tab:
    """The browser, logged in as the admin, with no problem noted so far."""
    tab.open(f"{airflow.url}/")
    tab.wait_for("document.querySelector('input[name=username]') || document.querySelector('nav, #nav, a[href*=dags]')")
    if tab.run("!!document.querySelector('input[name=username]')"):
        for name, value in (("username", USERNAME), ("password", airflow.password)):
            tab.run(f"document.querySelector('input[name={name}]').focus()")
            tab.command("Input.insertText", text=value)
        tab.run("document.querySelector('button[type=submit]').click()")
        tab.wait_for("!location.pathname.includes('login') && !!document.querySelector('a[href*=dags]')")
    tab.theme("light")
    tab.size(1280, 900)
    tab.problems.clear()
    tab.requests.clear()
    return tab


def click(tab: Tab, text: str, within: str = "document") -> None:
    """Clicks the link, button or summary with this text, once it is there. An accordion of Airflow takes no click
    without the focus."""
    find = f"[...{within}.querySelectorAll('a, button, summary')].find(it => it.textContent.trim() === {text!r})"
    tab.wait_for(f"!!{find}")
    tab.run(f"{find}.focus()")
    tab.run(f"{find}.click()")


def test_the_page_opens_from_airflows_navigation_and_leads_from_a_pipeline_to_an_attempt_and_to_its_dag_run(
    user: Tab, airflow: LocalAirflow
) -> None:
    click(user, "Browse")
    click(user, "Ackline")
    user.wait_for(f"{FRAME}?.querySelector('h1')?.textContent === 'Pipelines'")
    click(user, "orders", FRAME)
    user.wait_for(f"{FRAME}.querySelector('h1')?.textContent === 'orders'")
    assert user.run(f"{FRAME}.querySelectorAll('svg.picture').length") == 4
    assert user.run(f"{FRAME}.querySelectorAll('.chart svg.plot').length") == 2
    click(user, "orders[1]", FRAME)
    user.wait_for(f"{FRAME}.querySelector('h1')?.textContent === 'orders[1]'")
    for name in ("log", "lost", "read", "unread", "pending.retry", "mark.floor", "mark.complete", "committed"):
        assert user.run(f"!!{FRAME}.querySelector('svg.picture .{name}')"), name
    click(user, "141", FRAME)
    user.wait_for(f"{FRAME}.querySelector('h1')?.textContent === 'orders[1] offset 141'")
    assert "failed 23 times with requests.HTTPError" in user.run(f"{FRAME}.body.innerText")
    click(user, "turn 24", FRAME)
    user.wait_for(f"{FRAME}.querySelector('h1')?.textContent === 'Turn 24'")
    run_id = user.run(f"{FRAME}.querySelector('a[target=_top]').textContent")
    click(user, run_id, FRAME)  # leaves the frame
    user.wait_for("location.pathname.startsWith('/dags/replay__orders/runs/')")
    assert user.problems == []
    assert [url for url in user.requests if not url.startswith((airflow.url, "data:", "blob:"))] == []


def test_each_dag_has_a_tab_with_its_pipeline(user: Tab, airflow: LocalAirflow) -> None:
    user.open(f"{airflow.url}/dags/replay__orders")
    click(user, "Ackline")
    user.wait_for(f"{FRAME}?.querySelector('h1')?.textContent === 'orders'")
    assert user.problems == []


def test_an_act_is_ready_to_paste_into_the_form_of_its_dag(user: Tab, airflow: LocalAirflow) -> None:
    airflow.wait_for_dag("operate__orders")
    user.open(f"{airflow.url}/ackline/{VIEWS['record']}")
    click(user, "Skip this record")
    conf, command = user.run("[...document.querySelectorAll('details[open] pre')].map(it => it.textContent)")
    assert json.loads(conf) == {
        "action": "skip", "reason": "", "topics": ["orders"], "partitions": [1], "offsets": "141",
        "confirm": False,
    }  # fmt: skip
    assert command.startswith("ackline skip orders --topic orders --partition 1 --offsets 141")
    click(user, "Copy", "document.querySelector('details[open]')")
    assert user.run("String(getSelection())").strip() == conf
    user.command("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    click(user, "Copy, and open the DAG operate__orders", "document.querySelector('details[open]')")
    user.wait_for("location.pathname === '/dags/operate__orders' && document.body.innerText.includes('Trigger')")
    assert user.run("navigator.clipboard.readText()") == conf
    assert user.problems == []


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_a_backfill_is_started_from_the_page_by_its_configuration_in_the_form_of_the_dag(
    user: Tab, airflow: LocalAirflow, project: Project, broker: Broker
) -> None:
    """The configuration goes through the clipboard, as an operator takes it over."""
    dag_id, tp = "backfill__orders", TopicPartition("orders", 0)
    broker.create_topic(tp.topic, 4)
    wire.produce(broker.bootstrap, tp.topic, [wire.Write(b"{}")] * 8, tp.partition)
    airflow.wait_for_dag(dag_id)
    user.command("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    user.open(f"{airflow.url}/ackline/pipelines/orders/record?topic=orders&partition=0&offset=7")
    click(user, f"Backfill {tp} [7, 8)")
    action = "document.querySelector('details[open]')"
    assert json.loads(user.run(f"{action}.querySelector('pre').textContent")) == {
        "ranges": ["orders:0:7-8"], "confirm": False,
    }  # fmt: skip
    click(user, f"Copy, and open the DAG {dag_id}", action)
    click(user, "Trigger")
    user.wait_for("document.querySelector('#element_ranges')")
    click(user, "Advanced Options")
    editor = "document.querySelector('.monaco-editor .native-edit-context')"
    user.wait_for(f"{editor} && ({editor}.focus(), document.activeElement === {editor})")
    user.press_ctrl("a", "selectAll")
    user.press_ctrl("v", "paste")
    user.wait_for("document.querySelector('.monaco-editor .view-lines').innerText.includes('0:7-8')")
    click(user, "Run Parameters")  # leaves the editor, and the form takes the configuration over
    confirm = "document.querySelector('input[name=element_confirm]')"
    user.wait_for(f"{confirm} && !document.querySelector('[name=element_all]')")
    user.run(f"{confirm}.click()")
    user.wait_for(f"{confirm}.checked")
    user.run("document.querySelector('[data-testid=trigger-dag-submit]').click()")
    assert wait_until(lambda: bool(airflow.runs(dag_id)), 400, POLL_SECONDS)
    [run_id] = airflow.runs(dag_id)
    assert airflow.wait(dag_id, run_id, 400) == "success"
    criteria = AuditFilter(lane=lane_of(id_of_run(run_id)))
    rows = [
        (row["topic"], row["partition"], row["offset"], row["outcome"])
        for row in audit_rows(project.audit, "orders", criteria)
    ]
    assert (rows, user.problems) == ([(*tp, 7, "acked")], [])


def test_the_page_refreshes_itself_and_keeps_what_is_open(user: Tab, airflow: LocalAirflow) -> None:
    """The timer of the page is turned fast before its script begins."""
    fast = "window.setInterval = ((every) => (call, wait) => every(call, wait / 50))(window.setInterval)"
    script = user.command("Page.addScriptToEvaluateOnNewDocument", source=fast)["identifier"]
    try:
        user.open(f"{airflow.url}/ackline/{VIEWS['pipeline']}")
        click(user, "Handle the dead records again")
        before = user.run("document.querySelector('.head .end').textContent")
        user.wait_for(f"document.querySelector('.head .end').textContent !== {before!r}")
        assert user.run("document.querySelectorAll('details[open]').length") == 1
        focused = user.run("document.activeElement.textContent.trim()")
        assert focused == "Handle the dead records again", "a keyboard would begin anew"
    finally:
        user.command("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
    assert user.problems == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_view_is_readable_in_both_themes(user: Tab, airflow: LocalAirflow, theme: str) -> None:
    user.theme(theme)
    for name, path in VIEWS.items():
        user.open(f"{airflow.url}/ackline/{path}")
        assert user.run("document.documentElement.dataset.theme") == theme
        user.run("document.querySelectorAll('details').forEach(it => it.open = true)")
        contrast = user.run(CONTRAST)
        assert contrast["texts"] > 3, name
        assert contrast["poor"] == [], name
    assert user.problems == []


@pytest.mark.parametrize("width", [1600, 1280, 390])
def test_nothing_is_outside_the_viewport(user: Tab, airflow: LocalAirflow, width: int) -> None:
    user.size(width, 900)
    for name, path in VIEWS.items():
        user.open(f"{airflow.url}/ackline/{path}")
        user.run("document.querySelectorAll('details').forEach(it => it.open = true)")
        assert user.run("document.documentElement.scrollWidth") <= width, name
        assert user.run(OUTSIDE) == [], name


def test_a_hostile_error_message_is_text(user: Tab, airflow: LocalAirflow, project: Project) -> None:
    """Markup, marks that turn the direction of writing, and 200 KB."""
    project.write("hostile", "hostile", schedule=None)
    tp = TopicPartition("hostile", 0)
    lane: StoredLane = write_lane(
        project.audit, "hostile", {tp: StoredPartition(fail_every=50, die_every=60)}, turns=3,
        error_class="<script>document.title='owned'</script>\u202eError", message=lambda offset: HOSTILE,
    )  # fmt: skip
    add_attempt(lane, tp, 257, HOSTILE)
    airflow.wait_for_dag("replay__hostile")
    views = ["", "/partition?topic=hostile&partition=0", "/record?topic=hostile&partition=0&offset=257"]
    user.open(f"{airflow.url}/ackline/pipelines/hostile")
    views += [
        link.partition("/hostile")[2]
        for link in user.run("[...document.querySelectorAll('a[href*=failures]')].map(it => it.getAttribute('href'))")
        if "/hostile/" in link
    ]
    assert len(views) == 5
    for view in views:
        user.open(f"{airflow.url}/ackline/pipelines/hostile{view}")
        assert "owned" not in user.run("document.title") or "<script>" in user.run("document.title")
        assert user.run("document.querySelectorAll('main script').length") == 0
        assert user.run("document.documentElement.scrollWidth") <= 1280, view
        assert user.run("document.documentElement.outerHTML.length") < 120_000, view
        text = user.run("document.body.innerText")
        assert "<script>" in text
        assert "\u202e" not in text
    assert user.problems == []


def test_the_screenshots_of_the_readme(user: Tab, airflow: LocalAirflow, tmp_path: Path) -> None:
    folder = Path(os.environ.get("SCREENSHOTS") or tmp_path)
    for name, path in KEPT.items():
        user.size(1280, 800)
        user.open(f"{airflow.url}/{path}")
        if path.startswith("plugin"):
            user.wait_for(f"{FRAME}?.querySelector('.chart svg.plot') && document.querySelector('a[href*=dags]')")
        else:
            end = user.run("document.querySelector('main').getBoundingClientRect().bottom")
            user.size(1280, int(end) + 16)
        user.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        file = folder / f"page-{name}.png"
        user.screenshot(file)
        assert 5_000 < file.stat().st_size < 200_000
