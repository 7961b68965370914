"""The pipeline as a backfill lane runs it: the file's settings, with the handler and dead letters of the lane. Pure."""

from ackline.backfill_arguments import BackfillArguments
from ackline.errors import ConfigError
from ackline.pipeline import DeadLetterBlock, Pipeline


def backfill_pipeline(pipeline: Pipeline, arguments: BackfillArguments, max_rate: int | None = None) -> Pipeline:
    """Returns the settings of a backfill lane.

    Each outcome becomes a row, because the account of the lane and `ackline diff` count rows. What retention took is
    recorded: it was shown before the backfill began. Another handler takes the place of the file's `handler` and
    `streams`, and keeps its `decode` and `filter`. Raises ConfigError for a handler that is not in the allow-list, and
    for a dead-letter topic that the pipeline reads.
    """
    changes: dict[str, object] = {"record_outcomes": True, "on_expired": "record", "max_offset_behind": None}
    if max_rate is not None:
        changes["max_rate"] = max_rate
    if arguments.handler is not None:
        _check_allowed(pipeline, arguments.handler)
        changes |= {"handler": arguments.handler, "streams": None}
    if arguments.dead_letter is not None:
        topic = arguments.dead_letter
        if topic != "none" and pipeline.kafka.subscribes_to_topic(topic):
            raise ConfigError(
                f"--dead-letter {topic}: the pipeline reads this topic, so it would read its dead letters again; name "
                f"another topic",
                key="--dead-letter",
            )
        changes["dead_letter"] = "none" if topic == "none" else DeadLetterBlock(topic=topic)
    return pipeline.model_copy(update=changes)


def _check_allowed(pipeline: Pipeline, handler: str) -> None:
    allowed = [*pipeline.handlers, *pipeline.backfill.handlers]
    if handler not in allowed:
        raise ConfigError(
            f"--handler {handler} is not allowed: add it to `backfill.handlers` of pipeline {pipeline.name}; allowed "
            f"are {', '.join(dict.fromkeys(allowed))}",
            key="--handler",
        )
