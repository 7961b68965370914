"""Spark's part: exact reads, running handlers and writing outcomes; and the JARs that it takes."""
