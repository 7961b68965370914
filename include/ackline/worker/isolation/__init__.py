"""Runs a handler in a process of its own, so that a crash or a hang fails only the record that caused it."""
