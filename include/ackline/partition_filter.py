"""A partition filter of the user's: which partitions, of the topics that are subscribed to, are read.

Name it in the pipeline file, `kafka: {partition_filter: module:function}`: a function of topic and partition that
returns True or False (Storm's TopicFilter and ManualPartitioner). Each plan asks it anew, for every partition that the
names or the pattern allow. One that it excludes later is parked, like any that is no longer subscribed to.
"""

import importlib
import inspect
from collections.abc import Callable

from ackline.errors import ConfigError
from ackline.offsets import TopicPartition

PartitionFilter = Callable[[TopicPartition], bool]

KEY = "kafka.partition_filter"


def everything(_: TopicPartition) -> bool:
    """The filter of a file that names none."""
    return True


def load_partition_filter(path: str | None) -> PartitionFilter:
    """The filter named by `module:function`; without a name, one that excludes nothing.

    Raises ConfigError where it does not import or does not take a topic and a partition. What is returned raises
    ConfigError where the function raises, or returns anything but True or False: nothing may be planned by a guess.
    """
    if path is None:
        return everything
    function = _imported(path)

    def wanted(tp: TopicPartition) -> bool:
        try:
            answer = function(tp.topic, tp.partition)
        except (Exception, SystemExit) as error:
            said = f"raised {type(error).__name__}: {error}"
        else:
            if isinstance(answer, bool):
                return answer
            said = f"returned a {type(answer).__name__}, not True or False"
        raise ConfigError(f"partition filter {path} {said}, asked about {tp}. Nothing was planned", key=KEY)

    return wanted


def _imported(path: str) -> Callable[[str, int], object]:
    module, _, name = path.partition(":")
    try:
        found: object = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"partition filter {path} does not import: {type(error).__name__}: {error}", key=KEY
        ) from None
    if not callable(found):
        raise ConfigError(f"partition filter {path} is not a function", key=KEY)
    if inspect.iscoroutinefunction(found):
        raise ConfigError(f"partition filter {path} is asynchronous; write a plain function", key=KEY)
    try:
        inspect.signature(found).bind("topic", 0)
    except TypeError as error:
        raise ConfigError(f"partition filter {path} does not take a topic and a partition: {error}", key=KEY) from None
    except ValueError:
        pass  # a builtin without a signature: its first call tells
    return found
