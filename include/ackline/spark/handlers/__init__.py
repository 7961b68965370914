"""Calls handlers: each record that a handler is given gets exactly one outcome."""
