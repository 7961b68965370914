"""Airflow's part: DAGs from pipeline files, the operators of the three steps, and the middle one's driver."""
