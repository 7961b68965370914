"""A schema registry for tests: those parts of the real one's HTTP interface that Confluent's client uses."""

import base64
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

if TYPE_CHECKING:
    from google.protobuf.message import Message


class StubRegistry:
    """The server's schemas and its behaviour.

    `login`: required if set. `broken`: the status of every answer if set. `delay`: seconds before each answer.
    `serialized`: whether the registry knows the format of that name. As Redpanda, it then answers 501 for a schema of
    another type. `schema_requests`: how often the schema with each id was requested.
    """

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.login: str | None = None
        self.broken: int | None = None
        self.delay = 0.0
        self.serialized = True
        self.schema_requests: Counter[int] = Counter()
        self.url = ""

    def answer(self, method: str, path: str, body: Any, login: str, fmt: str = "") -> tuple[int, Any]:
        """The status and the JSON body of the answer to a request."""
        if self.broken is not None:
            return self.broken, {"error_code": self.broken, "message": "broken"}
        if self.login is not None and login != "Basic " + base64.b64encode(self.login.encode()).decode():
            return 401, {"error_code": 401, "message": "Unauthorized"}
        if method == "POST" and re.match(r"/subjects/[^/]+(/versions)?$", path):
            if body not in self.schemas:
                self.schemas.append(body)
            number = self.schemas.index(body) + 1
            return 200, {"id": number, "version": number, "subject": path.split("/")[2], **body}
        fetched = re.match(r"/schemas/ids/(\d+)$", path)
        if fetched:
            self.schema_requests[int(fetched[1])] += 1
            if 0 < int(fetched[1]) <= len(self.schemas):
                return self._formatted(self.schemas[int(fetched[1]) - 1], fmt)
            return 404, {"error_code": 40403, "message": f"Schema {fetched[1]} not found"}
        version = re.match(r"/subjects/([^/]+)/versions/(\d+)$", path)  # each version has the number of its schema
        if method == "GET" and version:
            if not 0 < int(version[2]) <= len(self.schemas):
                return 404, {"error_code": 40402, "message": f"Version {version[2]} not found"}
            status, schema = self._formatted(self.schemas[int(version[2]) - 1], fmt)
            more = {"id": int(version[2]), "version": int(version[2]), "subject": unquote(version[1])}
            return status, schema | (more if status == 200 else {})
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _formatted(self, schema: dict[str, Any], fmt: str) -> tuple[int, dict[str, Any]]:
        """A schema in the format that was asked for. Like Confluent's registry, the stub keeps Protobuf as text."""
        if schema.get("schemaType") != "PROTOBUF":
            refused = {"error_code": 501, "message": "format not implemented"}
            return (501, refused) if fmt and self.serialized else (200, schema)
        text = 'syntax = "proto3"; // the text of the file'
        return 200, schema if fmt == "serialized" and self.serialized else {**schema, "schema": text}

    def protobuf(self, message: "Message", topic: str = "orders", field: str = "value") -> bytes:
        """Registers the file of a message and those that it imports, and returns the message as Confluent's own
        serializer writes it."""
        with SchemaRegistryClient({"url": self.url}) as client:
            serialize = ProtobufSerializer(type(message), client, conf=_CONF)
            return bytes(serialize(message, SerializationContext(topic, MessageField(field))) or b"")

    def avro(self, schema: Any, value: Any, topic: str = "orders", field: str = "value") -> bytes:
        """Registers an Avro schema, and returns the value as Confluent's own serializer writes it."""
        with SchemaRegistryClient({"url": self.url}) as client:
            serialize = AvroSerializer(client, json.dumps(schema), conf=_CONF)
            return bytes(serialize(value, SerializationContext(topic, MessageField(field))) or b"")

    def json_schema(self, schema: Any, value: Any, topic: str = "orders") -> bytes:
        """Registers a JSON Schema, and returns the value as Confluent's own serializer writes it."""
        with SchemaRegistryClient({"url": self.url}) as client:
            serialize = JSONSerializer(json.dumps(schema), client, conf=_CONF)
            return bytes(serialize(value, SerializationContext(topic, MessageField.VALUE)) or b"")


_CONF = {"subject.name.strategy.type": "TOPIC"}


@contextmanager
def stub_registry() -> Iterator[StubRegistry]:
    stub = StubRegistry()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path, _, query = self.path.partition("?")
            fmt = parse_qs(query).get("format", [""])[0]
            body = json.loads(text) if text else None
            time.sleep(stub.delay)
            status, content = stub.answer(self.command, path, body, self.headers.get("Authorization", ""), fmt)
            answer = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            with suppress(BrokenPipeError):  # the client has timed out
                self.wfile.write(answer)

        do_GET = do_POST = _answer  # noqa: N815 - http.server calls these names

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
