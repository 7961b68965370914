"""Functions of the user that a pipeline file names, imported and checked before a plan is stored. Loads no Spark.

They are the handlers and filters of streams, the handlers of steps, and the partition filter: a function that selects
partitions among those that the pipeline subscribes to. In Storm, TopicFilter and ManualPartitioner have that role. Name
it in the pipeline file, `kafka: {partition_filter: module:function}`. It gets topic and partition, and returns whether
to read that partition::

    def my_half(topic: str, partition: int) -> bool:
        return partition % 2 == 0

Each plan calls it for each partition of the named topics, or of the topics that match the pattern. A partition that it
excludes later is parked, like one that is no longer subscribed to.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ackline.calling import ManagedHandler
from ackline.errors import ConfigError
from ackline.handler import Handler, Tier, import_problem, imported, load_handler, tier_of
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.order import Order
from ackline.pipeline.messages import load_message_class
from ackline.pipeline.streams import ARROW_DECODERS, Stream, Translation, message_class_of
from ackline.pipeline.topology import Step, Topology


@dataclass(frozen=True, slots=True)
class StreamFunctions:
    """The imported handler of a stream, its tier, and the imported filter; None if the stream has no filter."""

    handler: Handler
    tier: Tier
    filter: Handler | None

    @property
    def is_asynchronous(self) -> bool:
        """Whether each call of the handler is awaited, so that it can be cancelled."""
        is_record = self.tier is Tier.RECORD
        return is_record and isinstance(self.handler, ManagedHandler) and self.handler.is_asynchronous

    @property
    def needs_loop(self) -> bool:
        """Whether a call of the handler, or its `open` or `close`, is awaited."""
        return isinstance(self.handler, ManagedHandler) and self.handler.needs_loop

    @property
    def buffers(self) -> bool:
        """Whether the handler may write what it has buffered when it is closed."""
        return isinstance(self.handler, ManagedHandler) and self.handler.buffers

    @classmethod
    def of_handler(cls, handler: Handler) -> "StreamFunctions":
        """Returns the functions of a pipeline whose handler gets all records undecoded."""
        return cls(handler, tier_of(handler), None)


def load_functions(stream: Stream, *, emits: bool = False, in_flight: bool = False) -> StreamFunctions:
    """Imports a stream's handler, which may emit to steps if `emits`, and hand records on if `in_flight`, its filter,
    and the message classes of its decoders.

    Raises ConfigError as `ackline.handler.load_handler` and `load_message_class` do, and if a handler of this tier
    cannot be given what the stream decodes, or can't emit.
    """
    handler_key = stream.key_path("handler")
    handler = load_handler(stream.handler, handler_key, emits=emits, in_flight=in_flight)
    if emits:
        check_emits(handler, stream.handler, handler_key)
    record_filter = (
        load_handler(stream.filter, stream.key_path("filter"), is_filter=True) if stream.filter is not None else None
    )
    tier = tier_of(handler)
    if tier is Tier.COLUMN:
        raise ConfigError(
            f"{handler_key}: {stream.handler} is a column handler, which runs in the JVM on undecoded records; remove "
            f"`decode`, `filter` and `streams`, and `--where` of a backfill, or write a record handler",
            key=handler_key,
        )
    for name, decoder in (("key", stream.key), ("value", stream.value)):
        if (path := message_class_of(decoder)) is not None:
            load_message_class(path, stream.key_path(f"decode.{name}"))
        if tier is Tier.ARROW and decoder not in ARROW_DECODERS:
            key = stream.key_path(f"decode.{name}")
            raise ConfigError(
                f"{key}: {decoder} has no column type, so the Arrow handler {stream.handler} cannot take it; write "
                f"bytes or utf8 and decode in the handler, or write a record handler",
                key=key,
            )
    return StreamFunctions(handler, tier, record_filter)


def load_steps(topology: Topology) -> list[Handler]:
    """Imports the handlers of the steps, by the numbers of the steps. Raises ConfigError as `load_handler` does, and
    for a column handler."""
    return [load_step(step) for step in sorted(topology.steps, key=lambda step: step.number)]


_BATCHES = (
    "is an Arrow or a column handler, which gets many records in one call; remove this key (an Arrow handler may make "
    "calls of its own at once), or write a record handler"
)


def load_step(step: Step) -> Handler:
    """Imports the handler of a step. Raises ConfigError as `load_steps` does, and for an Arrow handler of which several
    calls are to be under way."""
    key = f"steps.{step.name}.handler"
    handler = load_handler(step.handler, key, emits=True)
    check_emits(handler, step.handler, key)
    if tier_of(handler) is Tier.ARROW and (step.concurrency or 1) > 1:
        key = f"steps.{step.name}.concurrency"
        raise ConfigError(f"{key}: {step.handler} {_BATCHES}", key=key)
    return handler


def check_emits(handler: Handler, path: str, key: str) -> None:
    """Raises ConfigError if a handler of this tier can't emit to steps or outputs, or take tuples."""
    if tier_of(handler) is Tier.COLUMN:
        raise ConfigError(
            f"{key}: {path} is of the column tier, and a column can't emit to `steps` or `outputs`; write a record "
            f"handler or an Arrow handler",
            key=key,
        )


def check_in_flight(functions: Sequence[StreamFunctions], in_flight: bool) -> None:
    """Raises ConfigError if records may be in flight and a handler takes batches or columns, which can't answer so."""
    if in_flight and any(function.tier is not Tier.RECORD for function in functions):
        raise ConfigError(
            "ack_topic: only a record handler can answer InFlight; remove this key, or write a record handler",
            key="ack_topic",
        )


def check_concurrency(functions: Sequence[StreamFunctions], paths: Sequence[str], concurrency: int | None) -> None:
    """Raises ConfigError if several calls are to be under way, and a handler takes batches or columns. `paths` names
    the handlers."""
    batched = [path for function, path in zip(functions, paths, strict=True) if function.tier is not Tier.RECORD]
    if not batched:
        return
    if (concurrency or 1) > 1:
        raise ConfigError(
            f"concurrency: {batched[0]} {_BATCHES}",
            key="concurrency",
        )
    if len(functions) > 1 and any(function.needs_loop for function in functions):
        raise ConfigError(
            f"streams: {batched[0]} is an Arrow handler, and a handler of the streams is asynchronous; write all as "
            f"record handlers, or all without `async`",
            key="streams",
        )


def check_functions(
    handler: str | None,
    translation: Translation | None,
    isolated: bool = False,
    topology: Topology | None = None,
    in_flight: bool = False,
    concurrency: int | None = None,
    order: Order = Order.NONE,
) -> None:
    """Imports all handlers and filters of a pipeline, so that no turn is planned that no process can handle.

    Raises ConfigError as `load_functions` and `load_steps` do, if the functions are to be `isolated` and cannot be, and
    if records may be `in_flight` and a handler is no record handler.
    """
    functions: list[StreamFunctions] = []
    emits = topology is not None
    if translation is not None:
        functions = [load_functions(stream, emits=emits, in_flight=in_flight) for stream in translation.streams]
    elif handler is not None:
        functions = [StreamFunctions.of_handler(load_handler(handler, emits=emits, in_flight=in_flight))]
        if emits:
            check_emits(functions[0].handler, handler, "handler")
    if topology is not None:
        load_steps(topology)
    check_in_flight(functions, in_flight)
    paths = [str(handler)] if translation is None else [stream.handler for stream in translation.streams]
    check_concurrency(functions, paths[: len(functions)], concurrency)
    columns = [path for function, path in zip(functions, paths, strict=False) if function.tier is Tier.COLUMN]
    if columns and order is not Order.NONE:
        raise ConfigError(
            f"order: {columns[0]} is a column handler, which Spark calls in no order; remove this key, or write a "
            f"record handler",
            key="order",
        )
    obstacle = isolation_obstacle(functions, topology)
    if isolated and obstacle is not None:
        raise ConfigError(obstacle, key="handler_isolation")


def isolation_obstacle(functions: Sequence[StreamFunctions], topology: Topology | None = None) -> str | None:
    """Returns why these functions, in the order of the streams, and those of the steps cannot run in a process of their
    own; None if they can. Raises ConfigError as `load_steps` does."""
    steps = () if topology is None else topology.steps
    batched = [step.name for step in steps if tier_of(load_step(step)) is Tier.ARROW]
    filtered = [stream.filter is not None for stream in functions]
    if any(stream.tier is Tier.COLUMN for stream in functions):
        reason = "the handler is a column handler, which runs inside Spark's JVM"
    elif any(stream.tier is Tier.ARROW and any(filtered[: n + 1]) for n, stream in enumerate(functions)):
        # The log of calls shows which call a death interrupted. A batch that filters have selected is no call of its
        # own there: it is answered within the call for the records that it was selected from.
        reason = "a stream has an Arrow handler behind a filter, whose batches are made while other records are handled"
    elif batched or (topology is not None and any(stream.tier is Tier.ARROW for stream in functions)):
        place = f"step {batched[0]} has" if batched else "a pipeline with `steps` or `outputs` has"
        reason = f"{place} an Arrow handler, whose rows come from a batch of tuples that no process of its own is sent"
    else:
        return None
    return (
        f"{reason}, so it cannot run in a process of its own; remove `handler_isolation: process` and "
        f"`record_timeout`, or write a record handler"
    )


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
    try:
        function: object = imported(path)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"partition filter {path} does not import: {import_problem(path, error)}", key=KEY) from None
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
