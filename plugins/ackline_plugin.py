"""Adds the page to an Airflow that reads this folder. Where the package is installed, its entry point does that, and
Airflow would report a second plugin of the same name."""

from importlib.metadata import entry_points

if not entry_points(group="airflow.plugins", name="ackline"):
    from ackline.ui.plugin import AcklinePlugin

    __all__ = ["AcklinePlugin"]
