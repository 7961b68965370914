"""The pure rules: what is read, what is settled, what may be committed. No Kafka, Spark, Airflow, Delta, clock or
file.
"""
