"""The demo: the main job on a real broker, Airflow, Spark and Delta, until every order is settled, and then proved.

What it shows it reads from where anybody could: the ledger's tables, and the broker. Its verdict is the checker's,
which runs as a process of its own and shares no code with the product.
"""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from ackline.errors import AcklineError, ConfigError, FatalError
from ackline.local import demo_output as show
from ackline.local import order_events
from ackline.local.airflow_api import ENDED
from ackline.local.airflow_stack import USERNAME, AirflowStack
from ackline.local.broker import Broker
from ackline.local.demo_view import Look
from ackline.local.stack import PARTITIONS, demo_folder, stop_demo
from ackline.paths import project_root
from ackline.pipeline import Pipeline
from ackline.pipeline_folder import find

RECORDS = 20_000
RUN_SECONDS = 300.0
MOST_RUNS = 12
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """The user, or the system, asked the demo to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_status = 128 + number


def main(keep: bool) -> int:
    """Run the demo; the exit status: 0 when every record is proved to be settled as it should be.

    With `keep` broker and Airflow are left running, and `stack.stop_demo` ends them. Without, and on failure or Ctrl-C,
    nothing is left.
    """
    console = show.console()
    try:
        with _stoppable(), _cleaned_up() as left:
            proved = _run(console, keep, left)
            if keep:
                left.pop_all()
            return 0 if proved else 1
    except Stopped as stopped:
        console.print("\nStopped; nothing is left running.")
        return stopped.exit_status
    except AcklineError as error:
        Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(f"ackline: {error}")
        return error.exit_status


@contextmanager
def _stoppable() -> Iterator[None]:
    """Ctrl-C, SIGTERM and a closed terminal stop the demo, once."""

    def stop(number: int, frame: FrameType | None) -> None:
        _ignore_signals()
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _cleaned_up() -> Iterator[ExitStack]:
    """What is entered here is ended, the last first, however it comes to that; nothing interrupts the clean-up."""
    with ExitStack() as left:
        try:
            yield left
        finally:
            _ignore_signals()


def _run(console: Console, keep: bool, left: ExitStack) -> bool:
    started = time.monotonic()
    root = project_root()
    if not (root / "dags").is_dir():
        raise ConfigError(
            f"the demo runs the project's own dags/, and there are none in {root}: start it from a checkout"
        )
    pipeline = find(root / "include" / "pipelines", "orders")
    folder = _folder(keep, left)
    broker = Broker(folder / "broker", detached=keep)
    with console.status("starting a broker"):
        left.enter_context(broker)
    console.print(f"A broker is up at {broker.bootstrap}.")
    counts = _produce(console, broker, pipeline)
    airflow = _airflow(folder, root, broker, pipeline, keep)
    with console.status("starting Airflow: scheduler, DAG processor, API server"):
        left.enter_context(airflow)
    console.print(f"Airflow is up at {airflow.url} (login {USERNAME}, password {airflow.password}).\n")
    look = Look(broker.bootstrap, str(folder / "audit"), pipeline)
    _until_settled(console, airflow, look)
    proved = _prove(console, look, counts)
    console.print(f"\n{time.monotonic() - started:.0f} s in all.")
    if keep:
        console.print(show.kept(airflow.url, USERNAME, airflow.password, folder))
    return proved


def _folder(keep: bool, left: ExitStack) -> Path:
    if not keep:
        folder = Path(tempfile.mkdtemp(prefix="ackline-demo-"))
    else:
        stop_demo()
        folder = demo_folder()
        folder.mkdir(parents=True)
    left.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _produce(console: Console, broker: Broker, pipeline: Pipeline) -> order_events.Counts:
    topic, dead = _topics(pipeline)
    broker.create_topic(topic, PARTITIONS)
    broker.create_topic(dead)
    with console.status(f"producing {RECORDS:,} orders"):
        # Quiet: that the broker's coordinator is still loading is no news, the client tries again.
        client = {"bootstrap.servers": broker.bootstrap, "log_level": 3}
        counts = order_events.produce(client, topic, order_events.orders(RECORDS))
    console.print(show.produced(topic, counts))
    return counts


def _topics(pipeline: Pipeline) -> tuple[str, str]:
    topics, dead = pipeline.kafka.topics or [], pipeline.dead_letter_topic
    if len(topics) != 1 or dead is None:
        raise ConfigError("the demo's pipeline reads one topic and has a dead-letter topic", key="kafka.topics")
    return topics[0], dead


def _airflow(folder: Path, root: Path, broker: Broker, pipeline: Pipeline, keep: bool) -> AirflowStack:
    connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": broker.bootstrap}}
    return AirflowStack(
        folder / "airflow",
        dags_folder=root / "dags",
        plugins_folder=root / "plugins",
        env={
            f"AIRFLOW_CONN_{(pipeline.kafka.connection or '').upper()}": json.dumps(connection),
            "ACKLINE_AUDIT": str(folder / "audit"),
            "ACKLINE_PIPELINES": str(root / "include" / "pipelines"),
        },
        detached=keep,
    )


def _until_settled(console: Console, airflow: AirflowStack, look: Look) -> None:
    """Runs, each triggered when the last has ended, or made by the schedule, until nothing is pending or behind."""
    dag = f"replay__{look.pipeline.name}"
    airflow.wait_for_dag(dag)
    airflow.trigger(dag)  # before the schedule may start one
    airflow.unpause(dag)
    seen: set[str] = set()
    for _ in range(MOST_RUNS):
        begun = time.monotonic()
        run = _ended_run(console, airflow, dag, seen)
        seen.add(run)
        view = look.after_run()
        console.print(show.run_table(run, view, time.monotonic() - begun))
        console.print()
        if view.settled:
            return
        if set(airflow.runs(dag)) == seen:
            show.wait_until(console, view.next_due)
            airflow.trigger(dag)
    raise FatalError(f"after {MOST_RUNS} runs not all is settled")


def _ended_run(console: Console, airflow: AirflowStack, dag: str, seen: set[str]) -> str:
    """Wait for the next run that ends. Raises FatalError where it fails or takes too long."""
    deadline = time.monotonic() + RUN_SECONDS
    with console.status(dag) as status:
        while time.monotonic() < deadline:
            new = {run: state for run, state in airflow.runs(dag).items() if run not in seen}
            for run, state in new.items():
                if state == "failed":
                    raise FatalError(f"the run {run} of {dag} failed; {_last_words(airflow, dag, run)}")
                if state in ENDED:
                    return run
                if state == "running":
                    status.update(f"{run}: " + show.task_line(airflow.task_states(dag, run)))
            time.sleep(0.5)
    raise FatalError(f"no run of {dag} ended within {RUN_SECONDS:.0f} s; they are {airflow.runs(dag)}")


def _last_words(airflow: AirflowStack, dag: str, run: str) -> str:
    tasks = airflow.task_states(dag, run)
    wrong = next((name for name in ("plan", "replay", "settle") if tasks.get(name) != "success"), "plan")
    try:
        log = airflow.log(dag, run, wrong)
    except FatalError as error:
        return f"{tasks}; no log of {wrong}: {error}"
    return f"the end of the log of {wrong}:\n" + "\n".join(log.splitlines()[-25:])


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checker says."""

    totals: dict[str, int]
    violations: list[str]


def _prove(console: Console, look: Look, counts: order_events.Counts) -> bool:
    """Whether the checker finds each produced record settled once, as its kind demands."""
    with console.status("the checker reads the topics, the tables and the group, sharing no code with Ackline"):
        verdict = _check(look)
    wanted = {"records": counts.records, "acked": counts.acked, "dead": counts.dead, "skipped": counts.skipped,
              "letters": counts.dead}  # fmt: skip
    console.print(show.totals_table(wanted, verdict.totals))
    wrong = [name for name, number in wanted.items() if verdict.totals.get(name) != number]
    for sentence in [*verdict.violations, *(f"{name} is not what was produced" for name in wrong)]:
        console.print(f"[red]{sentence}[/]")
    if verdict.violations or wrong:
        return False
    console.print(show.proved(counts))
    return True


def _check(look: Look) -> Verdict:
    topic, dead = _topics(look.pipeline)
    kafka = look.pipeline.kafka
    wanted: dict[str, Any] = {
        "bootstrap": look.bootstrap,
        "audit": look.audit,
        "pipeline": look.pipeline.name,
        "group": kafka.group_id,
        "topic": topic,
        "dead-letter-topic": dead,
        "isolation": kafka.isolation,
        "max-retries": look.pipeline.retry.max_retries,
    }
    options = [part for name, value in wanted.items() for part in (f"--{name}", str(value))]
    done = subprocess.run(
        [sys.executable, "-m", "ackline.verify", *options, "--settled", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        found = json.loads(done.stdout)
    except ValueError:
        raise FatalError(f"the checker could not judge: {done.stderr.strip()[-500:]}") from None
    return Verdict(found["totals"], found["violations"])
