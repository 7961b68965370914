"""Doubles and fixtures for tests: Kafka, the tables and Spark in memory, and a handler that keeps a journal.

Only tests import this package.
"""
