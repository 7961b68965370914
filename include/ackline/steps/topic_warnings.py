"""Warnings before a run: settings that are allowed and may lose records, given how the topics delete theirs."""

from collections.abc import Iterable

from ackline import setting_warnings
from ackline.errors import AcklineError
from ackline.steps.parts import Parts


def run_warnings(parts: Parts, topics: Iterable[str]) -> list[str]:
    """Returns one sentence for each warning, naming the setting; `topics` are those that are read.

    Never raises. If the broker refuses to describe topics (DescribeConfigs), leaves out the warnings that depend on
    topics.
    """
    try:
        return [*parts.setting_warnings, *topic_warnings(parts, topics)]
    except AcklineError:
        return list(parts.setting_warnings)


def topic_warnings(parts: Parts, topics: Iterable[str]) -> list[str]:
    """Returns the warnings that depend on retention and compaction of the topics.

    Raises AcklineError if the broker does not describe the topics.
    """
    dead_letter_topic = parts.pipeline.dead_letter_topic
    policies = parts.cluster.policies([*topics, *([dead_letter_topic] if dead_letter_topic is not None else [])])
    return list(setting_warnings.warnings_of_topics(parts.pipeline, policies))
