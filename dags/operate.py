"""Makes a DAG `operate__NAME` for each pipeline file. Never raises: broken_pipelines.py raises the errors."""

from ackline.airflow.dags import make_dags
from ackline.airflow.operate import OPERATE_PREFIX, operate_dag
from ackline.pipeline.folder import pipelines_folder

globals().update(make_dags(pipelines_folder(), __file__, OPERATE_PREFIX, operate_dag).dags)
