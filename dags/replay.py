"""A DAG `replay__NAME` for each pipeline file. This file never raises; broken_pipelines.py reports what is wrong."""

from ackline.airflow.dags import make_dags
from ackline.paths import pipelines_folder

globals().update(make_dags(pipelines_folder(), __file__).dags)
