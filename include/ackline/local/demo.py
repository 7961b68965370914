"""The demo: the pipelines `orders` and `shop` on a real broker, Airflow, Spark and Delta, until all is settled.

The demo prints what any user can read: the tables of the ledger, and the broker. For each pipeline it starts the
independent checker as a process of its own, and compares what the checker finds with what was produced. The output
tables of `shop` are compared with the sums of the orders that were produced.
"""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

import ackline
from ackline.errors import AcklineError, ConfigError, FatalError
from ackline.local import demo_report as show
from ackline.local import events as order_events
from ackline.local.airflow_api import ENDED, POLL_SECONDS
from ackline.local.airflow_servers import USERNAME, LocalAirflow
from ackline.local.broker import Broker
from ackline.local.connection import demo_folder
from ackline.local.demo_report import RunReader, prove_outputs
from ackline.local.dev import PARTITIONS, stop_demo
from ackline.local.events import shop_orders
from ackline.local.processes import wait_until
from ackline.pipeline.folder import find_pipeline
from ackline.pipeline.pipeline import Pipeline

RECORDS, SHOP_RECORDS = 20_000, 2_000
RUN_SECONDS = 300.0
MAX_RUNS = 12
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INSTALLED = "share/ackline/pipelines/orders.yaml"
"""Where a wheel installs a pipeline file of the demo, by `data-files` in pyproject.toml. The handlers' folder is beside
it."""
_DAG_FILE = """from ackline.airflow.dags import all_dags

globals().update(all_dags({folder!r}, __file__))
"""


class DemoInterrupted(BaseException):
    """A signal ended the demo."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_status = 128 + number


def main(keep: bool) -> int:
    """Runs the demo and returns its exit status: 0 if the checker finds every record settled as its kind demands.

    With `keep` the broker and Airflow are left running, and `dev.stop_demo` ends them. Nothing is left without `keep`,
    after a failure and after a signal.
    """
    console = show.console()
    try:
        with _cleaned_up() as cleanup:
            proved = _run(console, keep, cleanup)
            if keep:
                cleanup.pop_all()
            return 0 if proved else 1
    except DemoInterrupted as interrupted:
        console.print("\nStopped; nothing is left running.")
        return interrupted.exit_status
    except AcklineError as error:
        Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(f"ackline: {error}")
        return error.exit_status


@contextmanager
def _cleaned_up() -> Iterator[ExitStack]:
    """Yields a stack that is unwound at the end, after an error too.

    Raises DemoInterrupted on the first Ctrl-C, SIGTERM or closed terminal. Later signals are ignored, and none
    interrupts the clean-up.
    """

    def ignore_signals() -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def interrupt(number: int, frame: FrameType | None) -> None:
        ignore_signals()
        raise DemoInterrupted(number)

    with ExitStack() as restored, ExitStack() as cleanup:
        for number in SIGNALS:
            restored.callback(signal.signal, number, signal.signal(number, interrupt))
        try:
            yield cleanup
        finally:
            ignore_signals()


def _run(console: Console, keep: bool, cleanup: ExitStack) -> bool:
    started = time.monotonic()
    if find_spec("airflow") is None:
        raise ConfigError("the demo starts an Airflow, which is not installed: pip install 'ackline[airflow]'")
    pipelines = _pipelines()
    orders, shop = (find_pipeline(pipelines, name) for name in ("orders", "shop"))
    if keep:
        stop_demo()
        folder = demo_folder()
        folder.mkdir(parents=True)
    else:
        folder = Path(tempfile.mkdtemp(prefix="ackline-demo-"))
    cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
    console.print(
        f"The demo takes a few minutes. It starts a broker and Airflow, runs the pipeline orders over {RECORDS:,} "
        f"orders and the pipeline shop over {SHOP_RECORDS:,}, each until nothing is pending, and has a checker judge "
        f"both." + " Then it leaves all of it running." * keep
    )
    broker = Broker(folder / "broker", detached=keep)
    with console.status("starting a broker"):
        cleanup.enter_context(broker)
    console.print(f"A broker is up at {broker.bootstrap}.")
    counts = _produce(console, broker, orders, order_events.orders(RECORDS))
    airflow = _airflow(folder, pipelines, broker, orders, keep)
    with console.status("starting Airflow: scheduler, DAG processor, API server"):
        cleanup.enter_context(airflow)
    console.print(f"Airflow is up at {airflow.url} (login {USERNAME}, password {airflow.password}).\n")
    reader = RunReader(broker.bootstrap, str(folder / "audit"), orders)
    _run_until_settled(console, airflow, reader)
    with _paused(airflow, reader):
        proved = _check_and_show(console, reader, counts)
    proved &= _run_shop(console, broker, airflow, RunReader(broker.bootstrap, reader.audit, shop))
    console.print(f"\n{time.monotonic() - started:.0f} s in all.")
    if keep:
        console.print(show.kept(airflow.url, USERNAME, airflow.password, folder, pipelines))
    return proved


def _run_shop(console: Console, broker: Broker, airflow: LocalAirflow, reader: RunReader) -> bool:
    """Runs the pipeline with steps. Returns whether each order is settled, and each acked one has its rows once."""
    console.print("\nThe pipeline shop: orders with line items, priced by product and summed by order.")
    produced = list(shop_orders(SHOP_RECORDS))
    counts = _produce(console, broker, reader.pipeline, produced)
    _run_until_settled(console, airflow, reader)
    with _paused(airflow, reader):
        proved = _check_and_show(console, reader, counts)
        rows, differences = prove_outputs(reader.audit, reader.pipeline.name, produced)
    for sentence in differences:
        console.print(f"[red]{sentence}[/]")
    if not differences:
        console.print(show.proved_outputs(counts, rows))
    return proved and not differences


def _produce(
    console: Console, broker: Broker, pipeline: Pipeline, events: Iterable[order_events.OrderEvent]
) -> order_events.OrderCounts:
    topic, dead = _topics(pipeline)
    broker.create_topic(topic, PARTITIONS)
    broker.create_topic(dead)
    with console.status(f"producing to {topic}"):
        counts = order_events.produce_orders(broker.bootstrap, topic, events)
    console.print(show.produced(topic, counts))
    return counts


def _topics(pipeline: Pipeline) -> tuple[str, str]:
    topics, dead = pipeline.kafka.topics or [], pipeline.dead_letter_topic
    if len(topics) != 1 or dead is None:
        raise ConfigError("the demo's pipeline must read one topic and have a dead-letter topic", key="kafka.topics")
    return topics[0], dead


def _pipelines() -> Path:
    """Returns the folder of the demo's pipeline files: `include/pipelines` of a checkout, else where the wheel has
    installed them. Raises ConfigError if there are none."""
    include = Path(ackline.__file__).parents[1]
    if include.name == "include":
        return include / "pipelines"
    for file in distribution("ackline").files or ():
        if file.match(_INSTALLED):
            return Path(file.locate()).resolve().parent
    raise ConfigError(f"the demo's files are not installed: {_INSTALLED} is missing; install Ackline from its wheel")


def _airflow(folder: Path, pipelines: Path, broker: Broker, pipeline: Pipeline, keep: bool) -> LocalAirflow:
    connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": broker.bootstrap}}
    dags = folder / "dags"
    dags.mkdir()
    (dags / "demo.py").write_text(_DAG_FILE.format(folder=str(pipelines)))
    return LocalAirflow(
        folder / "airflow",
        dags_folder=dags,
        env={
            f"AIRFLOW_CONN_{(pipeline.kafka.connection or '').upper()}": json.dumps(connection),
            "ACKLINE_AUDIT": str(folder / "audit"),
            "ACKLINE_PIPELINES": str(pipelines),
        },
        detached=keep,
    )


def _run_until_settled(console: Console, airflow: LocalAirflow, reader: RunReader) -> None:
    """Shows one run after the other until all is settled. The schedule starts a run, or the demo triggers one."""
    dag = _dag(reader)
    airflow.wait_for_dag(dag)
    airflow.trigger(dag)  # before `unpause`, after which the schedule may start a run beside it
    airflow.unpause(dag)
    shown: set[str] = set()
    for _ in range(MAX_RUNS):
        begun = time.monotonic()
        run = _wait_for_next_run(console, airflow, dag, shown)
        shown.add(run)
        view = reader.next_run()
        console.print(show.run_table(run, view, time.monotonic() - begun))
        console.print()
        if view.settled:
            return
        if set(airflow.runs(dag)) == shown:
            show.wait_until(console, view.next_due)
            airflow.trigger(dag)
    raise FatalError(f"after {MAX_RUNS} runs not all is settled")


@contextmanager
def _paused(airflow: LocalAirflow, reader: RunReader) -> Iterator[None]:
    """Pauses the DAG between two of its runs: while a run is under way, the checker would find its turn open.

    Airflow does not go on with a run whose DAG is paused. So the DAG waits for a run that the schedule has started, and
    is paused once no run is left. Raises FatalError after `RUN_SECONDS`.
    """
    dag = _dag(reader)

    def pause_between_runs() -> bool:
        if set(airflow.runs(dag).values()) <= set(ENDED):
            airflow.pause(dag)
            if set(airflow.runs(dag).values()) <= set(ENDED):
                return True
            airflow.unpause(dag)  # the schedule has started a run between the look and the pause
        return False

    if not wait_until(pause_between_runs, RUN_SECONDS, POLL_SECONDS):
        raise FatalError(f"the runs of {dag} did not end within {RUN_SECONDS:.0f} s; they are {airflow.runs(dag)}")
    yield
    airflow.unpause(dag)


def _dag(reader: RunReader) -> str:
    return f"replay__{reader.pipeline.name}"


def _wait_for_next_run(console: Console, airflow: LocalAirflow, dag: str, shown: set[str]) -> str:
    """Returns the next run that succeeds. Raises FatalError if a run fails or takes too long."""
    deadline = time.monotonic() + RUN_SECONDS
    with console.status(dag) as status:
        while time.monotonic() < deadline:
            new = {run: state for run, state in airflow.runs(dag).items() if run not in shown}
            for run, state in new.items():
                if state == "failed":
                    raise FatalError(f"the run {run} of {dag} failed; {_end_of_failed_log(airflow, dag, run)}")
                if state in ENDED:
                    return run
                if state == "running":
                    status.update(f"{run}: " + show.task_line(airflow.task_states(dag, run)))
            time.sleep(POLL_SECONDS)
    raise FatalError(f"no run of {dag} ended within {RUN_SECONDS:.0f} s; they are {airflow.runs(dag)}")


def _end_of_failed_log(airflow: LocalAirflow, dag: str, run: str) -> str:
    tasks = airflow.task_states(dag, run)
    done = ("success", "skipped")  # plan skips a replay that would find nothing to read
    failed = next((name for name in ("plan", "replay", "settle") if tasks.get(name) not in done), "plan")
    try:
        log = airflow.log(dag, run, failed)
    except FatalError as error:
        return f"{tasks}; no log of {failed}: {error}"
    return f"the end of the log of {failed}:\n" + "\n".join(log.splitlines()[-25:])


def _check_and_show(console: Console, reader: RunReader, counts: order_events.OrderCounts) -> bool:
    """Returns whether the checker finds each produced record settled once, as its kind demands."""
    with console.status("the checker reads the topics, the tables and the group, sharing no code with Ackline"):
        found = _check(reader)
    produced = {"records": counts.records, "acked": counts.acked, "dead": counts.dead, "skipped": counts.skipped,
                "letters": counts.dead}  # fmt: skip
    console.print(show.totals_table(produced, found["totals"]))
    wrong = [name for name, number in produced.items() if found["totals"].get(name) != number]
    for sentence in [*found["violations"], *(f"{name} is not what was produced" for name in wrong)]:
        console.print(f"[red]{sentence}[/]")
    if found["violations"] or wrong:
        return False
    console.print(show.proved(counts))
    return True


def _check(reader: RunReader) -> dict[str, Any]:
    """Returns what the checker found: `totals`, counts of records by word, and `violations`, a sentence for each."""
    topic, dead = _topics(reader.pipeline)
    kafka = reader.pipeline.kafka
    options: dict[str, Any] = {
        "bootstrap": reader.bootstrap,
        "audit": reader.audit,
        "pipeline": reader.pipeline.name,
        "group": kafka.group_id,
        "topic": topic,
        "dead-letter-topic": dead,
        "isolation": kafka.isolation,
        "max-retries": reader.pipeline.retry.max_retries,
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    done = subprocess.run(
        [sys.executable, "-m", "ackline.verify", *arguments, "--settled", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return dict(json.loads(done.stdout))
    except ValueError:
        raise FatalError(f"the checker could not judge: {done.stderr.strip()[-500:]}") from None
