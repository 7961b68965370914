"""Dead letters: records that will not be tried again, copied to a topic where somebody can look at them.

A letter counts only once the broker has acknowledged it (acks=all); every other one stays pending and is sent
again by a later run. After a crash the same record may lie there twice, but never not at all.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ackline.kafka import clients
from ackline.kafka.cursor import Found, Headers, headers_of
from ackline.kafka.failures import error_of

PAYLOAD_HEADER = "ackline.payload"
"""Header of a letter without its value: `omitted: ` and the name of the broker's refusal."""
HEADERS_HEADER = "ackline.headers"
"""Header of a letter without the record's own headers, one of whose names is not UTF-8."""
KEPT_BYTES = 64 * 1024
"""A letter without its value keeps its key and headers while they are no larger than this together."""
TIMEOUT = 30.0
"""Seconds after which an unacknowledged letter is given up for this run."""

_LETTERS_ON_THE_WAY = 1000
_BYTES_ON_THE_WAY = 32 * 1024 * 1024
_WAIT = 0.02
_SETTINGS: Mapping[str, object] = {
    "acks": "all",
    "enable.idempotence": True,
    "message.max.bytes": 1_000_000_000,  # the client's maximum: the broker decides what is too large
    "compression.type": "zstd",  # what fitted the source only because it was compressed shall fit here
    "linger.ms": 5,
    "partitioner": "murmur2_random",  # a key goes where Java's producer would put it
    "topic.metadata.propagation.max.ms": 5000,
}
_TIMED_OUT = "_MSG_TIMED_OUT"
_REFUSED = frozenset({
    "MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD", "INVALID_MSG", "INVALID_MSG_SIZE",
    "POLICY_VIOLATION",
})  # fmt: skip
"""Refusals of a record for what it is: sending the same again would not help."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A record for the dead-letter topic, and the headers that say why; they are put after the record's
    own."""

    source: Found | Message
    headers: Sequence[tuple[str, bytes]]

    @property
    def message(self) -> Message:
        """The record itself."""
        return self.source.message if isinstance(self.source, Found) else self.source


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a letter. Only a `confirmed` one is on the topic for certain.

    `error` names the last refusal or failure, if there was one. `omitted`: the broker refused the record for what it
    is, and the letter went without its value.
    """

    letter: Letter
    confirmed: bool
    error: str | None = None
    omitted: bool = False


@dataclass(frozen=True, slots=True)
class _Form:
    """How much of a record is sent. The broker refuses a batch whole, so what was refused first goes
    `alone`."""

    alone: bool = False
    value: bool = True
    kept: bool = True

    def after(self, refusal: str) -> "_Form | None":
        """The next form to try; None when nothing is left to leave out."""
        if not self.alone:
            return replace(self, alone=True)
        if self.value:
            return replace(self, value=False)
        return replace(self, kept=False) if self.kept else None


@dataclass(slots=True)
class _Posting:
    """A letter on its way."""

    letter: Letter
    posted_at: float
    original: Headers
    form: _Form = _Form()
    refusal: str | None = None
    answer: Sent | None = None

    @property
    def size(self) -> int:
        message = self.letter.message
        return len(message) + len(message.key() or b"")

    def settle(self, error: str | None) -> None:
        """The last word on this letter: confirmed, or the name of the error."""
        omitted = error is None and not self.form.value
        self.answer = Sent(self.letter, error is None, error or self.refusal, omitted)


class DeadLetters:
    """A producer to one topic, which must exist. Close it, or use it as a context manager."""

    def __init__(self, config: Mapping[str, object], topic: str, *, timeout: float = TIMEOUT) -> None:
        self.topic = topic
        self._config = config
        self._settings = {**_SETTINGS, "message.timeout.ms": int(timeout * 1000)}
        self._together = clients.producer(config, **self._settings)
        self._alone: Producer | None = None
        self._again: deque[_Posting] = deque()
        self._confirmed_at = 0.0
        self._away = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop what is still on its way, and give the connections back."""
        for client in self._clients():
            client.purge()
            client.flush(1)

    def send(self, letters: Iterable[Letter]) -> Iterator[Sent]:
        """Send each letter and say, in their order, what became of it; one that fails raises nothing.

        Lazy: takes from `letters` as the broker keeps up, and holds a thousand of them or 32 MiB. Once a
        letter timed out and none was confirmed after it, the rest is given up unsent until one is.
        """
        window: deque[_Posting] = deque()
        held = 0
        for letter in letters:
            posting = _Posting(letter, time.monotonic(), _original(letter.message))
            window.append(posting)
            held += posting.size
            self._post(posting)
            while window and (window[0].answer or len(window) >= _LETTERS_ON_THE_WAY or held >= _BYTES_ON_THE_WAY):
                held -= window[0].size
                yield self._answer(window.popleft())
        while window:
            yield self._answer(window.popleft())

    def _answer(self, posting: _Posting) -> Sent:
        while posting.answer is None:
            self._serve(_WAIT)
        return posting.answer

    def _serve(self, wait: float) -> None:
        """Take the broker's answers, and send what was refused in its next form."""
        for client in self._clients():
            client.poll(wait if len(client) else 0)
        while self._again:
            self._post(self._again.popleft())

    def _post(self, posting: _Posting) -> None:
        if self._away:
            posting.settle(_TIMED_OUT)
            return
        try:
            self._produce(posting, self._together if not posting.form.alone else self._single())
        except KafkaException as raised:
            error = error_of(raised)
            self._answered(posting, error if error is not None else KafkaError(KafkaError._FAIL))

    def _produce(self, posting: _Posting, client: Producer) -> None:
        message, form = posting.letter.message, posting.form
        key, kept = _kept(message, posting.original, form)
        headers: list[tuple[str, str | bytes | None]] = [*kept, *posting.letter.headers]
        if not form.value:
            headers.append((PAYLOAD_HEADER, f"omitted: {posting.refusal}".encode()))
        while True:
            try:
                # Stamped now, not with the record's own time (that is in a header): by that, retention of the
                # dead-letter topic would take an old record's letter at once.
                client.produce(
                    self.topic, message.value() if form.value else None, key, headers=headers,
                    on_delivery=self._callback(posting),
                )  # fmt: skip
                return
            except BufferError:
                client.poll(_WAIT)

    def _callback(self, posting: _Posting) -> Callable[[KafkaError | None, Message], None]:
        return lambda error, _: self._answered(posting, error)

    def _answered(self, posting: _Posting, error: KafkaError | None) -> None:
        if error is None:
            self._confirmed_at, self._away = time.monotonic(), False
            posting.settle(None)
            return
        form = posting.form.after(error.name()) if error.name() in _REFUSED else None
        if form is not None:
            posting.form, posting.refusal = form, error.name()
            self._again.append(posting)
            return
        if error.name() == _TIMED_OUT and self._confirmed_at < posting.posted_at:
            self._away = True
        posting.settle(error.name())

    def _clients(self) -> list[Producer]:
        return [self._together] if self._alone is None else [self._together, self._alone]

    def _single(self) -> Producer:
        """The client that puts each record into a batch of its own."""
        if self._alone is None:
            self._alone = clients.producer(self._config, **self._settings, **{"batch.num.messages": 1})
        return self._alone


def _original(message: Message) -> Headers:
    headers = headers_of(message)
    return [(HEADERS_HEADER, b"omitted: a name is not UTF-8")] if headers is None else headers


def _kept(message: Message, headers: Headers, form: _Form) -> tuple[bytes | None, Headers]:
    """Key and original headers, as far as `form` keeps them."""
    key = message.key()
    if form.value:
        return key, headers
    size = len(key or b"") + sum(len(name) + len(value or b"") for name, value in headers)
    return (key, headers) if form.kept and size <= KEPT_BYTES else (None, [])
