"""Backfill lanes: chosen offsets are handled again, beside the live lane, and the group stays where it is."""
