"""One pipeline file: its keys, their defaults, and how it is loaded.

pydantic checks each key, and `ackline.pipeline.rules` what holds between keys, before anything else happens.
`ackline.pipeline.refusals` writes the messages.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError, create_model, model_validator
from pydantic_core import ErrorDetails

from ackline.errors import ConfigError
from ackline.pipeline import yaml_file
from ackline.pipeline.field_types import StrictBlock
from ackline.pipeline.keys import PipelineKeys
from ackline.pipeline.refusals import refusal
from ackline.pipeline.rules import check_rules
from ackline.pipeline.streams import PIPELINE_STREAM, RegistryBlock, Stream, Translation
from ackline.pipeline.topology import Topology, topology


class Pipeline(PipelineKeys):
    """A valid pipeline file. docs/settings.md describes each key and its default."""

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        check_rules(self)
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
        if not self.streams and self.filter is None and self.decode.decoders() == ("bytes", "bytes"):
            return None
        return Translation(tuple(streams))

    @property
    def topology(self) -> Topology | None:
        """The steps and outputs, and who takes what; None for a pipeline that has neither."""
        return topology(self.steps or (), self.outputs or ()) if self.steps or self.outputs else None

    @property
    def functions(self) -> tuple[str | None, Translation | None, bool, Topology | None, bool]:
        """What `check_functions` takes: handler, streams, whether they are isolated, the steps, and whether a record
        may be in flight."""
        return self.handler, self.translation, self.isolated, self.topology, self.ack_topic is not None

    @property
    def handlers(self) -> tuple[str, ...]:
        """The paths of all handlers, in the order in which their streams are offered a record."""
        paths = [stream.handler for stream in self.streams or ()]
        return tuple(dict.fromkeys([*paths, *filter(None, [self.handler])]))

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
        return settings


def load(path: Path) -> Pipeline:
    """Returns the pipeline of a file. Raises ConfigError with the file, line, key and reason of each problem."""
    node, data = yaml_file.read(path)
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path}: not a mapping; a pipeline file is a mapping of keys to values, such as `name: orders`", file=path
        )
    try:
        return Pipeline.model_validate(data)
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
