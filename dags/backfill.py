"""Makes a DAG `backfill__NAME` for each pipeline file. Never raises: broken_pipelines.py raises the errors."""

from ackline.airflow.backfill import BACKFILL_PREFIX, backfill_dag
from ackline.airflow.dags import make_dags
from ackline.pipeline.folder import pipelines_folder

globals().update(make_dags(pipelines_folder(), __file__, BACKFILL_PREFIX, backfill_dag).dags)
