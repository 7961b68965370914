"""The DAG `ackline_maintenance`: every six hours, whatever `ackline maintain` does.

Asked by dags/maintenance.py each time it is parsed: what the task needs it imports when it runs.
"""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import DAG, BaseOperator, Context, CronDataIntervalTimetable

from ackline.airflow.dags import RETRIES
from ackline.airflow.operators import verdict
from ackline.paths import audit_root

SCHEDULE = "20 */6 * * *"
"""Often enough that a pipeline which runs every ten minutes stays as quick as it was (`make bench`)."""


class MaintainOperator(BaseOperator):
    """Compact, checkpoint and vacuum the tables of all pipelines. Returns what was done to each."""

    ui_color = "#e8e3f3"

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Do it; safe beside runs, and to be done again."""
        with verdict():
            from ackline.audit.maintenance import maintain

            done = [asdict(one) for one in maintain(audit_root())]
        for one in done:
            self.log.info("maintained: %s", one)
        return done


def maintenance_dag(file: str) -> DAG:
    """The DAG, as that of the DAG file `file`."""
    dag = DAG(
        dag_id="ackline_maintenance",
        schedule=CronDataIntervalTimetable(SCHEDULE, timezone="UTC"),
        start_date=datetime(2025, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        default_args=RETRIES,
        description="Compacts, checkpoints and vacuums the tables of all pipelines",
        doc_md=(
            "Without it every run gets slower, a little each day. No row changes, and runs may go on meanwhile. Files "
            "that nothing refers to are removed a week later, those of an open turn never. By hand: `ackline maintain`."
        ),
        tags={"ackline", "maintenance"},
        auto_register=False,
    )
    dag.fileloc = file
    MaintainOperator(task_id="maintain", dag=dag)
    return dag
