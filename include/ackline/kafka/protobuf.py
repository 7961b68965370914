"""Protobuf in the wire format of the schema registry: the id of a schema, the indexes of a message in it, the message.

`ackline.kafka.registry` imports this where a pipeline decodes so. Confluent's own deserializer takes the class of the
messages from the program. This one makes the class from the schema that the record names, in a pool of its own, so that
two versions of a schema do not meet.
"""

from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from uuid import UUID

from confluent_kafka.schema_registry import (
    RuleMode,
    Schema,
    SchemaRegistryClient,
    dual_schema_id_deserializer,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.common.protobuf import PROTOBUF_TYPE, _init_pool, _is_builtin, transform
from confluent_kafka.schema_registry.common.schema_registry_client import RulePhase
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import SerializationContext
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from ackline.pipeline.messages import content_of
from ackline.pipeline.streams import Undecodable

_SERIALIZED = "serialized"
"""The format in which a registry gives a schema as a descriptor, which needs no compiler."""
_MAIN = "default"
"""The name of a schema's own file in its pool, as in Confluent's deserializer: no import has this name."""
_SCHEMAS = 1_000
"""How many schemas a process keeps, as Confluent's client does by default: a record may name any id."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A schema, its file with all that it imports, and the classes of those of its messages that have come."""

    schema: Schema
    file: FileDescriptor
    classes: dict[tuple[int, ...], type[Message]] = field(default_factory=dict)


class RegistryMessages(ProtobufDeserializer):
    """Decodes messages with the schemas that they name.

    `client` requests schemas as they are, and `descriptors`, which keeps a cache of its own, in the format
    `serialized`. `not_given` makes the error for a registry that does not know that format.
    """

    def __init__(
        self, client: SchemaRegistryClient, descriptors: SchemaRegistryClient, not_given: Callable[[], Exception]
    ) -> None:
        super().__init__(Empty, {"subject.name.strategy.type": "TOPIC"}, client)
        self._client = client
        self._descriptors = descriptors
        self._not_given = not_given
        self._loaded = lru_cache(maxsize=_SCHEMAS)(self._load)

    def __call__(self, data: bytes | None, ctx: SerializationContext | None = None) -> Any:
        """Returns what a handler gets of the message. Raises Undecodable, with a text that ends a sentence, what the
        clients raise, and other errors for bytes that are no message of their schema."""
        assert data is not None
        assert ctx is not None
        named = SchemaId(PROTOBUF_TYPE)
        rest = dual_schema_id_deserializer(data, ctx, named)
        loaded = self._loaded(topic_subject_name_strategy(ctx, None), named.id, named.guid)
        indexes = tuple(named.message_indexes or ())
        message_class = loaded.classes.get(indexes)
        if message_class is None:
            message_class = loaded.classes[indexes] = _message_class(loaded.file, indexes)
        if loaded.schema.rule_set is None:
            return content_of(message_class.FromString(rest.read()))
        return content_of(self._by_rules(loaded.schema, message_class, rest.read(), ctx, data))

    def _by_rules(
        self, schema: Schema, message_class: type[Message], content: bytes, ctx: SerializationContext, data: bytes
    ) -> Message:
        """Parses a message whose schema has rules for readers, such as for encrypted fields, as Confluent's
        deserializer does: without their rule a handler would get the fields as they were stored."""
        subject = str(topic_subject_name_strategy(ctx, None))
        content = self._execute_rules_with_phase(
            ctx, subject, RulePhase.ENCODING, RuleMode.READ, None, schema, content, None, None, data
        )
        message = message_class.FromString(content)
        descriptor = message.DESCRIPTOR

        def transformed(rule_ctx: Any, field_transform: Any, value: Any) -> Any:
            return transform(rule_ctx, descriptor, value, field_transform)

        done: Message = self._execute_rules(ctx, subject, RuleMode.READ, None, schema, message, None, transformed, data)
        return done

    def _load(self, subject: str | None, schema_id: int | None, guid: UUID | None) -> _Loaded:
        schema = _requested(self._client, subject, schema_id, guid, None)
        # Checked before the request for a descriptor: some registries answer that with 501 for another type of schema,
        # and a record may name any schema.
        if schema.schema_type != PROTOBUF_TYPE:
            raise Undecodable("names a schema that is not Protobuf")
        if _file_of(schema) is None:  # a registry may store a descriptor as it was registered
            schema = _requested(self._descriptors, subject, schema_id, guid, _SERIALIZED)
        pool = DescriptorPool()
        _init_pool(pool)
        self._add(pool, _MAIN, schema, set())
        return _Loaded(schema, pool.FindFileByName(_MAIN))

    def _add(self, pool: DescriptorPool, name: str, schema: Schema, added: set[str]) -> None:
        """Adds a schema to the pool, after those that it refers to."""
        for reference in schema.references or ():
            imported = str(reference.name)
            if not _is_builtin(imported) and imported not in added:
                added.add(imported)
                # A deleted version too: records that need it are still there.
                found = self._descriptors.get_version(
                    str(reference.subject), reference.version or "latest", True, _SERIALIZED
                )
                self._add(pool, imported, found.schema, added)
        file = _file_of(schema)
        if file is None:
            raise self._not_given()
        file.name = name
        pool.Add(file)


def _requested(
    client: SchemaRegistryClient, subject: str | None, schema_id: int | None, guid: UUID | None, fmt: str | None
) -> Schema:
    if schema_id is not None:
        return client.get_schema(schema_id, subject, fmt)
    return client.get_schema_by_guid(str(guid), fmt)


def _file_of(schema: Schema) -> FileDescriptorProto | None:
    """Returns the descriptor in a schema; None if the schema is the text of a `.proto` file. No text is one and the
    other: it has characters that base64 does not have."""
    try:
        return FileDescriptorProto.FromString(b64decode(schema.schema_str or "", validate=True))
    except (ValueError, DecodeError):
        return None


def _message_class(file: FileDescriptor, indexes: Sequence[int]) -> type[Message]:
    """Returns the class of a message: the first index counts the messages of the file, each further one those nested in
    the message before. Raises Undecodable if there is none."""
    messages = list(file.message_types_by_name.values())
    found = None
    for index in indexes:
        # Entries of maps are counted, as by Confluent's serializers. None of them is ever a whole message.
        if not 0 <= index < len(messages) or messages[index].GetOptions().map_entry:
            raise Undecodable("names a message that its schema does not have")
        found = messages[index]
        messages = list(found.nested_types)
    if found is None:
        raise Undecodable("names no message of its schema")
    message_class: type[Message] = GetMessageClass(found)
    return message_class
