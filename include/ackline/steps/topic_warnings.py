"""What a user should know of the settings in force before a run, with what the broker says of the topics."""

from collections.abc import Iterable

from ackline import setting_warnings
from ackline.errors import AcklineError
from ackline.steps.parts import Parts


def warnings(parts: Parts, topics: Iterable[str]) -> list[str]:
    """A sentence for each, which names the setting. `topics` are those that are read.

    Never raises: a broker that does not tell topics' settings (DescribeConfigs) only leaves out what depends on them.
    """
    try:
        return [*parts.cautions, *of_topics(parts, topics)]
    except AcklineError:
        return list(parts.cautions)


def of_topics(parts: Parts, topics: Iterable[str]) -> list[str]:
    """Those that depend on how the topics forget. Raises what asking the broker raises."""
    dead = parts.pipeline.dead_letter_topic
    found = parts.cluster.policies([*topics, *([dead] if dead is not None else [])])
    return list(setting_warnings.of_topics(parts.pipeline, found))
