"""The Spark driver of the replay tasks of `replay__NAME` and `backfill__NAME`: the program that spark-submit runs, or
with a Spark Connect server Python alone.

Exit status 0: done. 1: a transient or unexpected error. 2: a configuration error. 3: a fatal error. 4: a refusal. 5: a
voided turn. Airflow retries the task only after 1. The cause is a line on standard error that begins with `ackline:`.

The driver ends with its task: it watches the process of the task and its own JVM. A task that is killed with SIGKILL
runs no `on_kill`, and a replay without its task would do no harm, as turns are fenced, but use the machine. A client of
a Spark Connect server has no JVM: its parent is the task, and before it ends it has the server end the job.
"""

import argparse
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ackline.airflow.traces import continued_trace
from ackline.errors import (
    REFUSALS,
    AcklineError,
    ConfigError,
    FatalError,
    LedgerError,
    TransientError,
    TurnVoided,
    counted,
)
from ackline.ledger.turns import LIVE
from ackline.spark.master import MASTER, connect_server
from ackline.stored import Stored
from ackline.tables.lease import ProcessIdentity

if TYPE_CHECKING:
    from ackline.spark.progress import Handled, Progress

POLL_SECONDS = 0.5
PROGRESS_SECONDS = 30.0
GRACE_SECONDS = 5.0


def end_with_task(
    task: ProcessIdentity | None, end: Callable[[int], object] = os._exit, *, has_jvm: bool = True
) -> threading.Thread:
    """Start a thread that ends the parent and this process once the process of the task or the parent has ended.

    Without a JVM the parent is the task, which is never ended from here. This process then gets SIGTERM first.
    """
    parent = ProcessIdentity.of(os.getppid()) if has_jvm else None

    def watch() -> None:
        while all(process is None or process.alive() for process in (task, parent)):
            time.sleep(POLL_SECONDS)
        # SIGTERM, so that Spark removes its scratch folders, and SIGKILL after GRACE_SECONDS.
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + GRACE_SECONDS
            while parent is not None and parent.alive() and time.monotonic() < deadline:
                parent.send(number)
                time.sleep(0.1)
        if not has_jvm:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(GRACE_SECONDS)
        end(1)

    thread = threading.Thread(target=watch, name="ackline-watch", daemon=True)
    thread.start()
    return thread


SECRETS = "ACKLINE_SECRETS"
"""The variable that names the pipe from which the driver reads its secrets, once."""
TASK = "ACKLINE_AIRFLOW_TASK"
"""The variable that holds the process of the Airflow task, as the text of its `ProcessIdentity`."""
DONE, TRANSIENT, CONFIGURATION, FATAL, REFUSED, VOIDED = range(6)
"""The exit statuses of the driver. Another process than the driver's may end with TRANSIENT, too."""
LASTING: Mapping[int | None, type[AcklineError]] = {
    CONFIGURATION: ConfigError, FATAL: FatalError, REFUSED: LedgerError, VOIDED: TurnVoided,
}  # fmt: skip
"""The errors that end another try as well, by the exit status of the driver."""


def main(argv: Sequence[str]) -> int:
    """Replay the open plan of the named pipeline, or run a backfill. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Replay the open plan of a pipeline, or take the turns of a backfill.")
    parser.add_argument("pipeline")
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--backfill", metavar="LANE", help="take the turns of this lane that are due")
    parser.add_argument("--max-records", type=int)
    parser.add_argument("--max-rate", type=int)
    parser.add_argument("--reason", default="")
    arguments = parser.parse_args(argv)
    # Before the secrets: a task that was killed meanwhile never writes them, and reading them would wait for ever.
    task = os.environ.pop(TASK, None)
    is_client = connect_server(os.environ.get(MASTER, "")) is not None
    if is_client:
        # As Ctrl-C does: leaving the job has the server cancel it.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TRANSIENT))
    end_with_task(ProcessIdentity.decode(task) if task else None, has_jvm=not is_client)
    secrets = read_secrets()
    if secrets.spark_master is not None:
        os.environ[MASTER] = secrets.spark_master  # of this process, which starts no other that inherits it
    try:
        limits = arguments.max_records, arguments.max_rate
        with continued_trace(secrets.trace):
            print(
                take_turns(arguments.pipeline, arguments.run_id, secrets, arguments.backfill, *limits, arguments.reason)
            )
    except AcklineError as error:
        print(f"ackline: {error}", file=sys.stderr)
        return exit_status_of(error)
    except Exception as error:
        print(describe_unexpected(error), file=sys.stderr)
        return TRANSIENT
    return DONE


@dataclass(frozen=True, slots=True)
class Secrets(Stored):
    """What the driver gets of its task that no other process may see: the properties of the Kafka connection, the
    options of the tables' object store, the trace with the login of its collector, and the address of a Spark Connect
    server with its token. None for what has none."""

    connection: dict[str, Any] | None = None
    store_options: dict[str, str] | None = None
    trace: dict[str, str] | None = None
    spark_master: str | None = None


def read_secrets() -> Secrets:
    """Returns the secrets that the task hands over, and removes their pipe. Returns none if the driver has no task.

    They are in no variable: the JVM of spark-submit is started before this code runs. It would inherit the variables,
    and start the Python processes of the handlers with them.
    """
    path = os.environ.pop(SECRETS, None)
    if path is None:
        return Secrets()
    with open(path, encoding="utf-8") as pipe:
        content = pipe.read()
    os.unlink(path)
    return Secrets.decode(content)


def exit_status_of(error: AcklineError) -> int:
    """Returns the driver's exit status for an error: TRANSIENT, CONFIGURATION, FATAL, REFUSED or VOIDED."""
    if isinstance(error, REFUSALS):
        return REFUSED
    kinds = {TransientError: TRANSIENT, ConfigError: CONFIGURATION, TurnVoided: VOIDED}
    return next((status for kind, status in kinds.items() if isinstance(error, kind)), FATAL)


def describe_unexpected(error: Exception) -> str:
    """Returns where an unexpected error was raised, without its text: Spark's errors quote records."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"{frames}ackline: unexpected {type(error).__module__}.{type(error).__qualname__}"


def take_turns(
    name: str,
    run_id: str,
    secrets: Secrets,
    lane: str | None = None,
    max_records: int | None = None,
    max_rate: int | None = None,
    reason: str = "",
) -> str:
    """Replays the open plan of a pipeline; with `lane`, plans, replays and settles turns of that backfill until nothing
    of it can be read now, or `max_records` offsets are read. Returns one line that sums it up.

    The whole loop of a backfill runs in one driver, because a driver for each turn would start a JVM for each turn.
    Raises TransientError if another process replays the turn: the driver never waits, because it has a worker and the
    memory of a JVM, and its task has waited before it started the driver. Raises FatalError if the lane has not begun.
    """
    from ackline.backfill.perform import backfill_pipeline
    from ackline.backfill.run import find_backfill, run_backfill
    from ackline.delta.object_store import use_options
    from ackline.lane.adapters import open_adapters
    from ackline.lane.lease import WhenHeld
    from ackline.pipeline.folder import (
        audit_root,
        load_pipeline,
        make_handlers_importable,
        pipelines_folder,
    )
    from ackline.pipeline.functions import check_functions
    from ackline.spark.session import open_session
    from ackline.steps.run import replay_until_records
    from ackline.tables.layout import LaneTables, noted_stop

    use_options(secrets.store_options)
    make_handlers_importable()
    pipeline = load_pipeline(pipelines_folder(), name)
    opening = partial(open_adapters, connection=secrets.connection, run_id=run_id, actor="airflow", lane=lane or LIVE)
    if lane is not None:
        with opening(pipeline) as adapters:
            stored = find_backfill(adapters.store)
        if stored is None:
            raise FatalError(f"{name} has no lane {lane}: the task `begin` has not stored it")
        # By the arguments that the lane has stored: no kill and no other form can change handler or dead letters.
        pipeline = backfill_pipeline(pipeline, lane, stored.arguments, max_rate)
    # The handler may have changed since the plan. At most once, a handler that fails to import costs the whole turn.
    check_functions(*pipeline.functions)
    noted = noted_stop(LaneTables(audit_root(), name, lane or LIVE), run_id)
    with noted, opening(pipeline, when_held=WhenHeld.REFUSE) as adapters:
        on_progress = progress_lines(name)
        session = partial(open_session, "-".join(filter(None, ["ackline", name, lane])), pipeline.spark)
        if lane is not None:
            done = run_backfill(adapters, session, max_records, on_progress=on_progress, reason=reason)
            return f"{name} {lane}: {counted(len(done.plans), 'turn')}, {counted(done.calls, 'handler call')}"
        done = replay_until_records(adapters, session, on_progress)
    if not done.plans:
        return f"{name}: no turn is open"
    void = f"; void: {done.voided[-1]}" if done.voided else ""
    return f"{done.plans[-1].turn}: {counted(done.calls, 'handler call')}{void}"


def progress_lines(name: str, clock: Callable[[], float] = time.monotonic) -> "Progress":
    """Returns a function that prints how much of a turn is handled, at most every PROGRESS_SECONDS. The task takes the
    line into its log."""
    printed = clock()

    def show(handled: "Handled") -> None:
        nonlocal printed
        if clock() - printed >= PROGRESS_SECONDS:
            printed = clock()
            print(f"{name}: {handled.text()}", flush=True)

    return show
