"""The examples of monitoring and deployment: alerts and dashboard name metrics that there are, and no file a secret."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from ackline.airflow.metrics import GAUGE, METRICS
from ackline.ledger.states import FAILING_SHARE, State
from tests.e2e.documents import section

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PROMETHEUS, SYSTEMD = EXAMPLES / "prometheus", EXAMPLES / "systemd"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((PROMETHEUS / "ackline.rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((EXAMPLES / "grafana/ackline.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
VALUES: dict[str, Any] = yaml.safe_load((EXAMPLES / "helm/values.yaml").read_text())
BY_PROMETHEUS_NAME = {f"airflow_{name.replace('.', '_')}": metric for name, metric in METRICS.items()}
"""The metrics by the names that Prometheus gives them, behind Airflow's prefix."""


# ---- the metrics ----------------------------------------------------------------------------------------------------


def test_the_documentation_lists_each_metric_with_kind_unit_and_tags() -> None:
    documented, prefixes, tags = {}, list[str](), list[tuple[str, ...]]()
    for line in section("docs/monitoring.md", "## The metrics").splitlines():
        named = re.findall(r"`(ackline\.\w+)\.…` has (?:the tags? )?((?:`\w+`(?:, | and )?)+)", line.replace("\n", " "))
        if named:
            prefixes = [prefix for prefix, _ in named]
            tags = [tuple(re.findall(r"`(\w+)`", words)) for _, words in named]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if only := re.match(r"only of a (partition|topic)", cells[0]):
            chosen = {"partition": "ackline.partition", "topic": "ackline.topic"}[only[1]]
            tags, prefixes = [of_tags(chosen)], [chosen]
        if line.startswith("| `"):
            for name in re.findall(r"`([\w.]+)`", cells[0]):
                for prefix, of_prefix in zip(prefixes, tags, strict=True):
                    documented[f"{prefix}.{name}"] = (cells[1], cells[2], of_prefix)
    assert documented == {name: (metric.kind, metric.unit, metric.tags) for name, metric in METRICS.items()}


def of_tags(prefix: str) -> tuple[str, ...]:
    return next(metric.tags for name, metric in METRICS.items() if name.startswith(prefix))


# ---- Prometheus -----------------------------------------------------------------------------------------------------


def metrics_of(expression: str) -> set[str]:
    """Returns the names of the metrics in an expression. Raises ValueError if it can't be parsed."""
    promql_parser.parse(expression)
    return set(re.findall(r"airflow_\w+", expression))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_parses_and_names_gauges_that_there_are(rule: dict[str, Any]) -> None:
    """Over OpenTelemetry each task starts its counters at 0, and their names end in `_total`."""
    found = metrics_of(rule["expr"])
    assert found
    assert {name: BY_PROMETHEUS_NAME[name].kind for name in found} == dict.fromkeys(found, GAUGE)
    labels = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    assert labels <= set.intersection(*(set(BY_PROMETHEUS_NAME[name].tags) for name in found))
    assert rule["labels"]["severity"] in ("warning", "critical")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_leads_to_a_section_of_the_runbook(rule: dict[str, Any]) -> None:
    document, _, anchor = (
        rule["annotations"]["runbook_url"].removeprefix("https://github.com/ackline/ackline/blob/main/").partition("#")
    )
    headings = re.findall(r"^## (.+)$", (ROOT / document).read_text(), re.MULTILINE)
    assert anchor in [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_the_documentation_lists_the_alerts_and_each_has_a_test() -> None:
    alerts = {rule["alert"] for rule in RULES}
    assert set(re.findall(r"^\| `(\w+)`", section("docs/monitoring.md", "## Prometheus and Grafana"), re.M)) == alerts
    tested = (PROMETHEUS / "ackline.rules.test.yaml").read_text()
    assert {alert for alert in alerts if alert in tested} == alerts


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: `apt install prometheus`")
def test_each_alert_fires_when_it_should_and_not_before() -> None:
    for command in (["check", "rules", "ackline.rules.yaml"], ["test", "rules", "ackline.rules.test.yaml"]):
        done = subprocess.run(["promtool", *command], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


# ---- Grafana --------------------------------------------------------------------------------------------------------


def expressions() -> Iterator[str]:
    """Yields each expression of the dashboard, with values for Grafana's variables."""
    for panel in PANELS:
        for target in panel["targets"]:
            yield re.sub(r"\$__(?:rate_interval|range)", "5m", target["expr"]).replace("$", "")


@pytest.mark.parametrize("expression", list(expressions()))
def test_an_expression_of_the_dashboard_parses_and_names_gauges_that_there_are(expression: str) -> None:
    found = metrics_of(expression)
    assert found
    assert {BY_PROMETHEUS_NAME[name].kind for name in found} == {GAUGE}
    for name in found:
        selectors = re.findall(rf"{name}\{{([^}}]*)\}}", expression)
        labels = {label for selector in selectors for label in re.findall(r"(\w+)=", selector)}
        assert labels <= set(BY_PROMETHEUS_NAME[name].tags), name


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(DASHBOARD)
    assert DASHBOARD["schemaVersion"] >= 39
    assert "id" not in DASHBOARD, "Grafana gives the number"
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "pipeline", "topic"]
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) - {"__rate_interval", "__range", "__all"}
    assert used == set(variables)
    for name in ("pipeline", "topic"):
        metric = re.match(r"label_values\((\w+)", variables[name]["query"]["query"])
        assert metric is not None
        assert name in BY_PROMETHEUS_NAME[metric[1]].tags
    taken = set[tuple[int, int]]()
    assert [panel["id"] for panel in PANELS] == list(range(1, len(PANELS) + 1))
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert not taken & cells, f"{panel['title']} covers another panel"
        taken |= cells
        assert panel["type"] in ("stat", "timeseries")
        assert [target["refId"] for target in panel["targets"]] == sorted({t["refId"] for t in panel["targets"]})


def test_the_dashboard_shows_the_states_by_their_words_and_the_share_of_new_records_that_fail() -> None:
    """Where nothing ran for three intervals of the schedule, what would be better than unknown is unknown."""
    panels = {panel["title"]: panel for panel in PANELS}
    states = panels["States, the worst first"]
    (mapping,) = states["fieldConfig"]["defaults"]["mappings"]
    assert {int(rank): shown["text"] for rank, shown in mapping["options"].items()} == {s.rank: s.value for s in State}
    assert f"> {State.PAUSED.rank}, {State.UNKNOWN.rank})" in states["targets"][0]["expr"]
    (share,) = panels["Share of new records that fail"]["targets"]
    assert "airflow_ackline_partition_failing_share{" in share["expr"]
    (rule,) = [rule for rule in RULES if rule["alert"] == "AcklineFailing"]
    limits = panels["Share of new records that fail"]["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert limits[-1]["value"] == FAILING_SHARE == float(rule["expr"].rpartition(">=")[2])


# ---- Kubernetes and systemd -----------------------------------------------------------------------------------------


def test_the_values_of_helm_name_secrets_and_hold_none() -> None:
    """The chart itself is on no registry of packages, so that `helm lint` can't check them."""
    names = [variable["name"] for variable in VALUES["env"]]
    assert not [name for name in names if re.search(r"AIRFLOW_CONN|PASSWORD|SECRET|TOKEN|_KEY$", name)]
    assert {frozenset(entry) for entry in VALUES["secret"]} == {frozenset({"envName", "secretName", "secretKey"})}
    assert all(re.fullmatch(r"AIRFLOW_CONN_\w+", entry["envName"]) for entry in VALUES["secret"])
    connection = next(entry["value"] for entry in VALUES["env"] if entry["name"] == "ACKLINE_AUDIT_CONNECTION")
    assert f"AIRFLOW_CONN_{connection.upper()}" in [entry["envName"] for entry in VALUES["secret"]]
    settings = (ROOT / "docs/settings.md").read_text()
    assert [name for name in names if name.startswith("ACKLINE_")]
    assert [name for name in names if not name.startswith("OTEL_") and f"| `{name}` |" not in settings] == []


def test_the_values_of_helm_are_settings_of_this_airflow() -> None:
    import airflow

    folder = Path(airflow.__path__[0])
    known = yaml.safe_load((folder / "config_templates/config.yml").read_text())
    for part, options in VALUES["config"].items():
        assert set(options) <= set(known[part]["options"])
    version = re.search(r"^apache-airflow==(\S+)", (ROOT / "requirements.in").read_text(), re.MULTILINE)
    assert version is not None
    assert VALUES["airflowVersion"] == version[1]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze: `apt install systemd`")
def test_the_units_of_systemd_are_valid_and_the_timer_starts_every_six_hours(tmp_path: Path) -> None:
    for unit in SYSTEMD.iterdir():
        # Only what this machine lacks is replaced: systemd looks for the program, and not for the user.
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/ackline/bin/ackline", "/bin/true"))
    units = sorted(map(str, tmp_path.iterdir()))
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    own = [line for line in done.stderr.splitlines() if "ackline" in line]
    assert (done.returncode, own) == (0, []), done.stderr
    timer = re.search(r"^OnCalendar=(.+)$", (SYSTEMD / "ackline-maintain.timer").read_text(), re.MULTILINE)
    assert timer is not None
    calendar = ["systemd-analyze", "calendar", "--iterations=4", "--base-time=2026-01-31 00:00", timer[1]]
    shown = subprocess.run(calendar, capture_output=True, text=True, check=True, env={"TZ": "UTC"}).stdout
    times = re.findall(r"(?:Next elapse|Iteration #\d|Iter. #\d): \S+ \S+ (\d\d:\d\d)", shown)
    assert times == ["00:30", "06:30", "12:30", "18:30"], shown


def test_the_unit_runs_a_command_that_there_is() -> None:
    from typer.main import get_command

    from ackline.cli.app import app

    command = re.search(r"^ExecStart=\S+/ackline (.+)$", (SYSTEMD / "ackline-maintain.service").read_text(), re.M)
    assert command is not None
    name, *rest = command[1].split()
    get_command(app).commands[name].loaded().make_context("ackline", rest).close()  # type: ignore[attr-defined]
