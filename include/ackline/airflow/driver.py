"""The Spark driver of the replay tasks of `replay__NAME` and `backfill__NAME`: the program that spark-submit runs.

Exit status 0: done. 1: a transient error, Airflow retries the task. 2: a configuration error. 3: a fatal error. Airflow
does not retry the last two. The cause is one line on standard error that begins with `ackline:`.
"""

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from ackline.airflow.watch import end_with_task
from ackline.errors import AcklineError, ConfigError, FatalError, TransientError
from ackline.process_identity import ProcessIdentity

KAFKA_CONFIG = "ACKLINE_KAFKA_CONFIG"
"""The variable that holds the Kafka connection as JSON."""
STORE_OPTIONS = "ACKLINE_STORE_OPTIONS"
"""The variable that holds the options of the tables' object store as JSON."""
TASK = "ACKLINE_AIRFLOW_TASK"
"""The variable that holds the process of the Airflow task, as the text of its `ProcessIdentity`."""
DONE, TRANSIENT, CONFIGURATION, FATAL = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class BackfillOptions:
    """What may differ between the runs of a backfill: offsets in all, records a second, and why it is run. None: as the
    pipeline file has it."""

    max_records: int | None = None
    max_rate: int | None = None
    reason: str = ""


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
    # Removed from the environment, so that no process started here inherits them.
    secret = os.environ.pop(KAFKA_CONFIG, "null")
    store_options = os.environ.pop(STORE_OPTIONS, "null")
    task = os.environ.pop(TASK, None)
    end_with_task(ProcessIdentity.decode(task) if task else None)
    try:
        if arguments.backfill is None:
            print(replay_open_plan(arguments.pipeline, arguments.run_id, secret, store_options))
        else:
            options = BackfillOptions(arguments.max_records, arguments.max_rate, arguments.reason)
            print(
                take_due_turns(arguments.pipeline, arguments.run_id, secret, store_options, arguments.backfill, options)
            )
    except AcklineError as error:
        print(f"ackline: {error}", file=sys.stderr)
        return exit_status_of(error)
    except Exception as error:
        print(describe_unexpected(error), file=sys.stderr)
        return TRANSIENT
    return DONE


def exit_status_of(error: AcklineError) -> int:
    """Returns the exit status for this kind of error."""
    if isinstance(error, TransientError):
        return TRANSIENT
    return CONFIGURATION if isinstance(error, ConfigError) else FATAL


def describe_unexpected(error: Exception) -> str:
    """Returns where an unexpected error was raised, without its text: Spark's errors quote records."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"{frames}ackline: unexpected {type(error).__module__}.{type(error).__qualname__}"


def replay_open_plan(name: str, run_id: str, connection: str, store_options: str = "null") -> str:
    """Replay the open plan. Returns one line that sums it up.

    Raises TransientError if another process replays it. The driver never waits, because it has a worker and the memory
    of a JVM: its task has waited before it started the driver.
    """
    from ackline.audit.object_store import use_options
    from ackline.paths import make_handlers_importable, pipelines_folder
    from ackline.pipeline_folder import load_pipeline
    from ackline.spark.session import open_session
    from ackline.steps.parts import open_parts
    from ackline.steps.run import replay_until_records
    from ackline.steps.turn_lease import WhenHeld
    from ackline.stream_functions import check_functions

    use_options(json.loads(store_options))
    make_handlers_importable()
    pipeline = load_pipeline(pipelines_folder(), name)
    # The handler may have changed since the plan. At most once, a handler that fails to import costs the whole turn.
    check_functions(*pipeline.functions)
    with open_parts(
        pipeline, json.loads(connection), run_id=run_id, actor="airflow", when_held=WhenHeld.REFUSE
    ) as parts:
        done = replay_until_records(parts, lambda: open_session(f"ackline-{name}", pipeline.spark))
    if done.plan is None:
        return f"{name}: no turn is open"
    return f"{done.plan.turn}: {done.calls:,} handler calls" + (f"; void: {done.void}" if done.void else "")


def take_due_turns(
    name: str, run_id: str, connection: str, store_options: str, lane: str, options: BackfillOptions
) -> str:
    """Plans, replays and settles turns of a backfill until nothing of it can be read now. Returns one line that sums it
    up.

    The whole loop runs in one driver, because a driver for each turn would start a JVM for each turn. Raises
    TransientError if another process replays the lane's turn, and FatalError if the lane has not begun.
    """
    from ackline.audit.object_store import use_options
    from ackline.backfill_pipeline import backfill_pipeline
    from ackline.paths import make_handlers_importable, pipelines_folder
    from ackline.pipeline_folder import load_pipeline
    from ackline.spark.session import open_session
    from ackline.steps.backfill import find_backfill, run_backfill
    from ackline.steps.parts import open_parts
    from ackline.steps.turn_lease import WhenHeld
    from ackline.stream_functions import check_functions

    use_options(json.loads(store_options))
    make_handlers_importable()
    pipeline, kafka = load_pipeline(pipelines_folder(), name), json.loads(connection)
    with open_parts(pipeline, kafka, run_id=run_id, actor="airflow", lane=lane) as parts:
        stored = find_backfill(parts.store)
    if stored is None:
        raise FatalError(f"{name} has no lane {lane}: the task `begin` has not stored it")
    # By the arguments that the lane has stored, so that no kill and no other form can change handler or dead letters.
    pipeline = backfill_pipeline(pipeline, stored.arguments, options.max_rate)
    check_functions(*pipeline.functions)
    with open_parts(pipeline, kafka, run_id=run_id, actor="airflow", lane=lane, when_held=WhenHeld.REFUSE) as parts:
        done = run_backfill(
            parts,
            lambda: open_session(f"ackline-{name}-{lane}", pipeline.spark),
            options.max_records,
            reason=options.reason,
        )
    return f"{name} {lane}: {len(done.plans):,} turns, {done.calls:,} handler calls"
