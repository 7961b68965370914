"""What `ackline dev` and `ackline demo` start on this machine: a Kafka broker, an Airflow, and the demo on both."""
