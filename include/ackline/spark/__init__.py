"""The driver's side of a Spark job: session, JARs, lineage, and what comes back from the tasks."""
