"""The rescue topic: copies of pending records that retention is about to take, and a reader that takes the copies for
the originals.

A copy has the key, the value, the timestamp and the headers of its record, and behind these the headers that name its
origin. A copy counts only once the ledger has stored where it is. So one that was sent and not stored does no harm: the
record is copied again, and nobody reads the first copy.

The reader believes no offset alone. A rescue topic may have been created again, or truncated, and then the offset of a
copy holds another message. So it compares the origin in the headers, topic id included, and raises CopyGone if that is
not the wanted record.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from ackline.errors import CopyGone, FatalError, MissingRights
from ackline.kafka.clients import Closing
from ackline.kafka.dead_letters import HEADERS_HEADER, split_headers
from ackline.kafka.exact import ExactReader, Found, Gone
from ackline.kafka.fetching import Headers, headers_of
from ackline.kafka.produce import OutputTopics, Row
from ackline.ledger.copies import CopyLog, Rescued
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.turns import TurnId

_KINDS = {TIMESTAMP_NOT_AVAILABLE: "none", TIMESTAMP_CREATE_TIME: "create", TIMESTAMP_LOG_APPEND_TIME: "append"}
_KIND_OF = {word: kind for kind, word in _KINDS.items()}
_MOST_BUFFERED = 1000


def rescue_topic(config: Mapping[str, object]) -> OutputTopics:
    """Returns a producer of copies. A copy counts only after all replicas have it."""
    # A record that fitted its topic only because it was compressed fits here too.
    return OutputTopics(config, "copying records to the rescue topic", **{"compression.type": "zstd"})


def copy_of(found: Found, topic_id: str, log: CopyLog, turn: TurnId) -> Row:
    """Returns the copy of a record of the topic with this id, for a partition of the rescue topic.

    The header with the record's timestamp decides: a rescue topic may stamp its records itself. The timestamp of the
    copy is the same, so that a person who looks at the topic finds the record by its time.
    """
    tp, (kind, timestamp) = found.topic_partition, found.message.timestamp()
    headers: Headers | None = found.headers
    own = {
        "pipeline": turn.pipeline,  # the first one, by which `split_headers` finds where Ackline's begin
        "lane": turn.lane,
        "epoch": turn.epoch,
        "turn": turn.n,
        "topic": tp.topic,
        "topic_id": topic_id,
        "partition": tp.partition,
        "offset": found.offset,
        "timestamp": timestamp,
        "timestamp_type": _KINDS[kind],
    }
    mine = [(f"ackline.{name}", str(value).encode()) for name, value in own.items()]
    if headers is None:
        mine.append((HEADERS_HEADER, b"omitted: a name is not UTF-8"))
    place = {"partition": log.partition} | ({"timestamp": timestamp} if timestamp > 0 else {})
    message = found.message
    return Row(log.topic, message.key(), message.value(), [*(headers or ()), *mine], place=place)


def original_of(copy: Found, tp: TopicPartition, topic_id: str, offset: int) -> Found | None:
    """Returns the record as it was in its topic, made of its copy; None if this is not the copy of that record."""
    headers = headers_of(copy.message)
    source, own = split_headers(headers or [])
    origin = (tp.topic, topic_id, str(tp.partition), str(offset))
    if tuple(own.get(f"ackline.{name}") for name in ("topic", "topic_id", "partition", "offset")) != origin:
        return None
    kind, timestamp = own.get("ackline.timestamp_type", ""), own.get("ackline.timestamp", "")
    if kind not in _KIND_OF or not timestamp.removeprefix("-").isdecimal():
        return None
    message = Message(
        topic=tp.topic, partition=tp.partition, offset=offset, key=copy.message.key(), value=copy.message.value(),
        headers=list(source), timestamp=(_KIND_OF[kind], int(timestamp)),
    )  # fmt: skip
    return Found(message, tp, offset, has_headers=HEADERS_HEADER not in own)


class CopyReader(Closing):
    """An exact reader that reads the copies of records that are gone from their topics.

    What it yields for a copy is the record itself, with its topic, offset, timestamp and headers. `open_reader` opens
    readers: one for the topics, and another one for the rescue topic once a copy is wanted.
    """

    def __init__(self, open_reader: Callable[[], ExactReader], rescued: Mapping[TopicPartition, Rescued]) -> None:
        self._open = open_reader
        self._rescued = {tp: of for tp, of in rescued.items() if len(of.copies)}
        self._reader = open_reader()
        self._of_copies: ExactReader | None = None

    def close(self) -> None:
        """Closes the connections of both readers."""
        self._reader.close()
        if self._of_copies is not None:
            self._of_copies.close()

    @property
    def delivered(self) -> int:
        """Records received so far, as `ExactReader.delivered` counts them."""
        return self._reader.delivered + (self._of_copies.delivered if self._of_copies is not None else 0)

    def read(self, wanted: Mapping[TopicPartition, Sequence[int]]) -> Generator[Found | Gone]:
        """Yields one answer for each offset, as `ExactReader.read` does; `Gone` only for a record without a copy.

        Raises CopyGone for a record that is gone, and whose copy is gone too.
        """
        # Retention takes the lowest offsets, so neighbours are gone together: their copies are read together, too.
        waiting = dict[TopicPartition, list[Gone]]()
        for answer in self._reader.read(wanted):
            tp = answer.topic_partition
            if isinstance(answer, Gone) and self._has_copy(answer):
                waiting.setdefault(tp, []).append(answer)
                if len(waiting[tp]) >= _MOST_BUFFERED:
                    yield from self._read_copies(tp, waiting.pop(tp))
                continue
            # The answers of a partition come in the order of offsets, whichever topic they are read from.
            yield from self._read_copies(tp, waiting.pop(tp, []))
            yield answer
        for tp, gone in waiting.items():
            yield from self._read_copies(tp, gone)

    def _has_copy(self, gone: Gone) -> bool:
        rescued = self._rescued.get(gone.topic_partition)
        return rescued is not None and rescued.copies.place_of(gone.offset) is not None

    def _read_copies(self, tp: TopicPartition, gone: Sequence[Gone]) -> Iterator[Found]:
        section: dict[int, int] = {}
        log: CopyLog | None = None
        for answer in gone:
            place = self._rescued[tp].copies.place_of(answer.offset)
            assert place is not None
            last = next(reversed(section), -1)
            if log is not None and (place.log != log or place.offset <= last):
                yield from self._read_section(tp, log, section)
                section = {}
            log = place.log
            section[place.offset] = answer.offset
        if log is not None:
            yield from self._read_section(tp, log, section)

    def _read_section(self, tp: TopicPartition, log: CopyLog, section: Mapping[int, int]) -> Iterator[Found]:
        """Yields the records whose copies are at the ascending keys of `section`; the values are their own offsets."""
        if self._of_copies is None:
            self._of_copies = self._open()
        topic_id, first = self._rescued[tp].topic_id, next(iter(section))
        try:
            for answer in self._of_copies.read({log.tp: list(section)}):
                offset = section[answer.offset]
                if isinstance(answer, Gone):
                    raise copy_gone(tp, offset, log, answer.offset, f"it is {answer.outcome} there")
                original = original_of(answer, tp, topic_id, offset)
                if original is None:
                    raise copy_gone(tp, offset, log, answer.offset, "another message is there")
                yield original
        except (CopyGone, MissingRights):
            raise
        except FatalError as error:  # the topic is gone, or its log ends below the copy
            raise copy_gone(tp, section[first], log, first, str(error).rstrip(".")) from None


def copy_gone(tp: TopicPartition, offset: int, log: CopyLog, copy: int, why: str) -> CopyGone:
    """Returns the error for a record that is gone from its topic, and whose copy is gone too."""
    return CopyGone(
        f"{tp}: the record at offset {offset} is gone from its topic, and its copy {log.tp}@{copy} can't be read: "
        f"{why}. Was the rescue topic created again, or did its own retention take the copy?",
        tp=tp,
        offset=offset,
    )
