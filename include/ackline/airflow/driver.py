"""The Spark driver of the replay task: what spark-submit runs, and how it says how it ended.

Exit status 0: done. 1: transient, the task is tried again. 2: configuration. 3: fatal. The last two are the same next
time. Why is one line on standard error, which begins with `ackline:`.
"""

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence

from ackline.airflow.watch import ProcessId, end_with
from ackline.errors import AcklineError, ConfigError, TransientError

KAFKA_CONFIG = "ACKLINE_KAFKA_CONFIG"
"""The variable that holds the Kafka connection as JSON."""
TASK = "ACKLINE_AIRFLOW_TASK"
"""The variable that holds the Airflow task's process, as `ProcessId` writes it."""
DONE, TRANSIENT, CONFIGURATION, FATAL = 0, 1, 2, 3


def main(argv: Sequence[str]) -> int:
    """Replay the open plan of the named pipeline; the exit status."""
    parser = argparse.ArgumentParser(description="Replay the open plan of a pipeline.")
    parser.add_argument("pipeline")
    parser.add_argument("--run-id", required=True)
    arguments = parser.parse_args(argv)
    # Taken out, so that nothing this process starts inherits it.
    secret = os.environ.pop(KAFKA_CONFIG, "null")
    task = os.environ.pop(TASK, None)
    end_with(ProcessId.decode(task) if task else None)
    try:
        print(replayed(arguments.pipeline, arguments.run_id, secret))
    except AcklineError as error:
        print(f"ackline: {error}", file=sys.stderr)
        return status_of(error)
    except Exception as error:
        print(unexpected(error), file=sys.stderr)
        return TRANSIENT
    return DONE


def status_of(error: AcklineError) -> int:
    """The exit status that says what kind of error it was."""
    if isinstance(error, TransientError):
        return TRANSIENT
    return CONFIGURATION if isinstance(error, ConfigError) else FATAL


def unexpected(error: Exception) -> str:
    """Where an error came from that is none of ours. Without its text: Spark's quotes what a handler was given."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"{frames}ackline: unexpected {type(error).__module__}.{type(error).__qualname__}"


def replayed(name: str, run_id: str, connection: str) -> str:
    """Replay, and say in one line what was done."""
    from ackline.paths import make_handlers_importable, pipelines_folder
    from ackline.pipeline_folder import find
    from ackline.spark.session import open_session
    from ackline.steps.parts import open_parts
    from ackline.steps.run import replay_on
    from ackline.translation import check_code

    make_handlers_importable()
    pipeline = find(pipelines_folder(), name)
    # What was planned may not fit what is deployed now; at most once, it would be found out after the hand-out.
    check_code(pipeline.handler, pipeline.translation, pipeline.isolated)
    with open_parts(pipeline, json.loads(connection), run_id=run_id, actor="airflow") as parts:
        done = replay_on(parts, lambda: open_session(f"ackline-{name}"))
    if done.plan is None:
        return f"{name}: no turn is open"
    return f"{done.plan.turn}: {done.calls:,} handler calls" + (f"; void: {done.void}" if done.void else "")
