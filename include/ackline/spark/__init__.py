"""Reads the planned records with Spark, calls the handler, and writes the outcomes; also fetches the JARs for that."""
