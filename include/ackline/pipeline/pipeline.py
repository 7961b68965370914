"""One pipeline file: how it is loaded, and what an open turn takes from it.

`ackline.pipeline.keys` checks the file before anything else happens; `ackline.pipeline.refusals` writes the messages.

A turn is carried out by any process, perhaps after the file was changed. Each process must come to the same outcome, so
what decides about records comes from the plan (`TurnSettings`). `FROM_FILE` names all that does not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import PrivateAttr, ValidationError, create_model, model_validator
from pydantic_core import ErrorDetails

from ackline.errors import ConfigError
from ackline.ledger.backoff import Backoff
from ackline.ledger.order import Order
from ackline.ledger.turns import Plan
from ackline.pipeline.blocks import RetryBlock
from ackline.pipeline.field_types import StrictBlock
from ackline.pipeline.keys import Guarantee, PipelineKeys, check_rules
from ackline.pipeline.outputs import shadow_table
from ackline.pipeline.refusals import read_yaml, refusal
from ackline.pipeline.streams import PIPELINE_STREAM, RegistryBlock, Stream, Translation
from ackline.pipeline.topology import Topology, topology

SHADOW = "shadow"
"""The key of `Pipeline.shadow` in the settings of a plan. A pipeline file has no such key."""


class Pipeline(PipelineKeys):
    """A valid pipeline file. docs/settings.md describes each key and its default."""

    _folder: Path | None = PrivateAttr(None)
    _where: str | None = PrivateAttr(None)  # of a backfill: no key of a file
    _shadow: str | None = PrivateAttr(None)

    @property
    def folder(self) -> Path | None:
        """The folder of the file; None for a pipeline that comes from no file."""
        return self._folder

    def with_where(self, where: str) -> Self:
        """Returns a copy whose handlers get the records alone for which an expression (`ackline.pipeline.where`) is
        true. Raises ConfigError for an expression that does not fit the decoders of a stream."""
        from ackline.pipeline.where import predicate_of  # here, because DuckDB takes long to import

        copy = self.model_copy()
        copy._where = where
        assert copy.translation is not None
        for key, value in dict.fromkeys((stream.key, stream.value) for stream in copy.translation.streams):
            predicate_of(where, key, value)
        return copy

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        check_rules(self)
        return self

    @property
    def shadow(self) -> str | None:
        """The id of the backfill with `--shadow` that runs by these settings; None for every other lane. Its rows go to
        tables beside the real ones, and topics and dead letters get nothing."""
        return self._shadow

    def as_shadow(self, backfill_id: str) -> Self:
        """Returns the settings of a backfill with `--shadow`. Its topics stay in the settings, so that what can't be
        sent there fails its record as it does without a shadow."""
        outputs = self.outputs and [
            output
            if output.table is None
            else output.model_copy(update={"table": shadow_table(output.table, backfill_id)})
            for output in self.outputs
        ]
        return self.model_copy(update={"outputs": outputs, "dead_letter": "none", "rescue": None})._of_shadow(
            backfill_id
        )

    def _of_shadow(self, backfill_id: str | None) -> Self:
        self._shadow = backfill_id
        return self

    @property
    def isolated(self) -> bool:
        """Whether the handler runs in a process of its own. A `record_timeout` needs one, to end a call by a kill."""
        return self.handler_isolation == "process" or self.record_timeout is not None

    @property
    def translation(self) -> Translation | None:
        """The streams, without the settings of the schema registry; None if `handler` gets all records undecoded."""
        streams = [block.stream(self.decode) for block in self.streams or ()]
        if self.handler is not None:
            key, value = self.decode.decoders()
            streams.append(Stream(PIPELINE_STREAM, self.handler, self.filter, key=key, value=value))
        raw = not self.streams and self.filter is None and self.decode.decoders() == ("bytes", "bytes")
        return None if raw and self._where is None else Translation(tuple(streams), where=self._where)

    @property
    def topology(self) -> Topology | None:
        """The steps and outputs, and who takes what; None for a pipeline that has neither."""
        return topology(self.steps or (), self.outputs or ()) if self.steps or self.outputs else None

    @property
    def functions(self) -> tuple[str | None, Translation | None, bool, Topology | None, bool, int | None, Order]:
        """What `check_functions` takes: handler, streams, whether they are isolated, the steps, whether a record may be
        in flight, how many calls may be under way, and what may not overtake."""
        in_flight = self.ack_topic is not None
        return self.handler, self.translation, self.isolated, self.topology, in_flight, self.concurrency, self.order

    @property
    def handlers(self) -> tuple[str, ...]:
        """The paths of all handlers, in the order in which their streams are offered a record."""
        paths = [stream.handler for stream in self.streams or ()]
        return tuple(dict.fromkeys([*paths, *filter(None, [self.handler])]))

    def has_handler(self, text: str) -> bool:
        """Returns whether a handler of a stream or of a step is `module:name`, or is in the module of that name."""
        paths = {*self.handlers, *(step.handler for step in self.steps or ())}
        return text in paths or text in {path.partition(":")[0] for path in paths}

    @property
    def registry_url(self) -> str | None:
        """The schema registry's address; None if the file does not name it."""
        return self.schema_registry.url if isinstance(self.schema_registry, RegistryBlock) else None

    def settings(self) -> dict[str, Any]:
        """Returns the settings for plans and logs. Properties of Kafka and Spark are lists of names: their values may
        be secret."""
        settings = self.model_dump(mode="json", by_alias=True)
        settings["kafka"]["properties"] = sorted(self.kafka.properties)
        settings["spark"]["conf"] = sorted(self.spark.conf)
        return settings if self.shadow is None else settings | {SHADOW: self.shadow}


def load(path: Path) -> Pipeline:
    """Returns the pipeline of a file. Raises ConfigError with the file, line, key and reason of each problem."""
    node, data = read_yaml(path)
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path}: not a mapping; a pipeline file is a mapping of keys to values, such as `name: orders`", file=path
        )
    try:
        pipeline = Pipeline.model_validate(data)
        pipeline._folder = path.parent.resolve()  # not that of a link in the folder
        return pipeline
    except ValidationError as error:
        problems = error.errors(include_url=False)
    raise refusal(path, node, [*problems, *_problems_between_valid_keys(data, problems)], Pipeline)


def _problems_between_valid_keys(data: Mapping[str, Any], problems: Iterable[ErrorDetails]) -> list[ErrorDetails]:
    """Returns the rules that the file breaks with the keys that are valid alone, so that all problems are named at
    once. Empty if only rules were broken, because then pydantic has named them all."""
    refused = {str(problem["loc"][0]) for problem in problems if problem["loc"]}
    if not refused:
        return []
    fields: dict[str, Any] = {
        name: (field.annotation, field)
        for name, field in PipelineKeys.model_fields.items()
        if name in data and name not in refused
    }
    model = create_model("ValidKeys", __base__=StrictBlock, **fields)
    values = vars(model.model_validate({name: data[name] for name in fields}))
    try:
        check_rules(PipelineKeys.model_construct(set(fields), **values), refused)
    except ValidationError as error:
        return error.errors(include_url=False)
    return []


FROM_FILE = frozenset(
    {
        # The handler's code, which a deploy replaces while a turn is open, and how its calls are made and watched. The
        # same keys of steps belong here too, each by the name of its step.
        *("handler", "filter", "streams", "decode", "schema_registry", "handler_isolation", "record_timeout"),
        "concurrency",
        *("listener", "debug"),
        # Addresses and credentials. `check_open_plan_settings` refuses another `kafka.isolation`.
        *("name", "kafka", "spark", "audit"),
        # Limits, and what an operator sets to get on with a turn that waits or stops.
        *("max_uncommitted", "max_records_per_run", "max_rate", "max_offset_behind", "breaker", "lost_after"),
        *("on_expired", "on_external_reset", "missing_topics", "rescue"),
        # What begins lanes and runs, and no part of a turn.
        *("start", "start_timestamp", "schedule", "backfill", "tags", "owner"),
    }
)
"""The keys that an open turn takes from the pipeline file as it is now. It takes every other key from its plan."""
_OF_STEP_FROM_FILE = ("handler", "concurrency")
"""The keys of a step of which the same holds."""


_STORED_FIELDS: dict[str, Any] = {
    name: (field.annotation, field) for name, field in Pipeline.model_fields.items() if name not in FROM_FILE
}
_StoredSettings = create_model("_StoredSettings", __base__=StrictBlock, **_STORED_FIELDS)


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """The settings that a plan has stored, as a turn runs by them.

    Each property reads one key, so that a turn can be closed although this version can't read another key. A missing
    key was unknown to the version that stored the plan, and has its default.
    """

    stored: Mapping[str, Any]

    def _value(self, key: str) -> Any:
        return self.stored.get(key, Pipeline.model_fields[key].default)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee under which the turn's records are handed out."""
        return Guarantee(self._value("guarantee"))

    @property
    def keeps_outcome_rows(self) -> bool:
        """Whether each outcome becomes a row. Always True under at_least_once: a failure without a row would count as a
        gap, and the record would be lost."""
        return bool(self._value("record_outcomes")) or self.guarantee.retries

    @property
    def order(self) -> Order:
        """What may not overtake in the turn; NONE under a guarantee that leaves nothing pending."""
        return Order(self._value("order")) if self.guarantee.retries else Order.NONE

    @property
    def has_outputs(self) -> bool:
        """Whether steps may emit rows for output tables or topics."""
        return bool(self._value("outputs"))

    @property
    def dead_letter_topic(self) -> str | None:
        """The topic for records that are given up; None if they leave no copy."""
        block = self.stored.get("dead_letter")
        return str(block["topic"]) if isinstance(block, Mapping) else None

    @property
    def ack_topic(self) -> str | None:
        """The topic of answers for records in flight; None without one."""
        topic: str | None = self._value("ack_topic")
        return topic

    def retry_policy(self) -> Backoff:
        """Returns what decides on retries. Raises ConfigError if a class of the user can't be used any more."""
        return RetryBlock.stored(self.stored.get("retry", {})).policy()

    @property
    def isolation(self) -> str:
        """Kafka's `isolation.level` of the turn."""
        return str(self.stored["kafka"]["isolation"])

    @property
    def wiring(self) -> list[dict[str, Any]]:
        """The steps without what comes from the file: their handlers, and how many calls of them are under way."""
        return [
            {key: step[key] for key in step if key not in _OF_STEP_FROM_FILE} for step in self._value("steps") or ()
        ]


def claims(plan: Plan) -> bool:
    """Returns whether the turn is claimed before it is handed out; never one that hands nothing out."""
    return not plan.empty and TurnSettings(plan.settings).guarantee.claims


def pipeline_of_turn(file: Pipeline, plan: Plan) -> Pipeline:
    """Returns the pipeline that an open turn runs by: the stored settings of its plan, and `FROM_FILE` of the file.

    Raises ConfigError if this version can't read the stored settings.
    """
    try:
        stored = _StoredSettings.stored({"dead_letter": file.dead_letter, **plan.settings})
    except ValidationError as error:
        keys = ", ".join(sorted({str(problem["loc"][0]) for problem in error.errors() if problem["loc"]}))
        raise ConfigError(
            f"{plan.turn} is open, and this version can't read the settings of its plan ({keys}); settle it with the "
            f"version that planned it"
        ) from None
    settings: dict[str, Any] = {name: getattr(stored, name) for name in _STORED_FIELDS}
    if settings["steps"]:
        now = {step.name: step for step in file.steps or ()}
        settings["steps"] = [
            step.model_copy(update={key: getattr(now.get(step.name, step), key) for key in _OF_STEP_FROM_FILE})
            for step in settings["steps"]
        ]
    # What the turn has read under the isolation level of its plan, settle reads again under it, for dead letters.
    settings["kafka"] = file.kafka.model_copy(update={"isolation": plan.isolation})
    # A process may have opened the lane with the settings of the file alone, such as one that closes its turn.
    return file.model_copy(update=settings)._of_shadow(plan.settings.get(SHADOW))
