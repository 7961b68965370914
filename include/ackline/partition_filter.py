"""Partition filters: a function of the user that selects partitions among those that the pipeline subscribes to.

Name it in the pipeline file, `kafka: {partition_filter: module:function}`; in Storm, TopicFilter and ManualPartitioner
have this role. It gets topic and partition, and returns whether to read that partition::

    def my_half(topic: str, partition: int) -> bool:
        return partition % 2 == 0

Each plan calls it for each partition of the named topics, or of the topics that match the pattern. A partition that it
excludes later is parked, like one that is no longer subscribed to.
"""

import importlib
import inspect
from collections.abc import Callable

from ackline.errors import ConfigError
from ackline.offsets import TopicPartition

PartitionFilter = Callable[[TopicPartition], bool]

KEY = "kafka.partition_filter"


def all_partitions(_: TopicPartition) -> bool:
    """The filter of a pipeline file that names none: returns True."""
    return True


def load_partition_filter(path: str | None) -> PartitionFilter:
    """Imports the filter `module:function`; without a path, returns one that excludes nothing.

    Raises ConfigError if it does not import or does not take a topic and a partition. The returned filter raises
    ConfigError if the function raises, or returns anything but True or False: no plan depends on a guess.
    """
    if path is None:
        return all_partitions
    function = _import(path)

    def includes(tp: TopicPartition) -> bool:
        try:
            answer = function(tp.topic, tp.partition)
        except (Exception, SystemExit) as error:
            problem = f"raised {type(error).__name__}: {error}"
        else:
            if isinstance(answer, bool):
                return answer
            problem = f"returned a {type(answer).__name__}, not True or False"
        raise ConfigError(
            f"partition filter {path}, called for {tp}, {problem}; nothing was planned: correct it, then run again",
            key=KEY,
        )

    return includes


def _import(path: str) -> Callable[[str, int], object]:
    module, _, name = path.partition(":")
    try:
        function: object = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"partition filter {path} does not import: {type(error).__name__}: {error}", key=KEY
        ) from None
    if not callable(function):
        raise ConfigError(f"partition filter {path} is not a function; name a function", key=KEY)
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"partition filter {path} is asynchronous; write a plain function", key=KEY)
    try:
        inspect.signature(function).bind("topic", 0)
    except TypeError as error:
        raise ConfigError(f"partition filter {path} does not take a topic and a partition: {error}", key=KEY) from None
    except ValueError:
        pass  # a builtin has no signature: its first call shows whether it fits
    return function
