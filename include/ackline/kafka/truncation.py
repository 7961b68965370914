"""Whether logs were cut: asks leaders where an older leader's epoch ends in their logs (KIP-320, OffsetForLeaderEpoch).

A follower that lags and is elected all the same has a shorter log; what producers send next takes the offsets of what
is gone, so that the log's end says nothing. What says it is the epoch: a log that agrees with that of the leader of
epoch E below an offset has no later epoch begin below it. No admin request of the client asks that; a consumer does, of
itself, for a position that is assigned with a leader epoch. It answers with a record or the end of the log where all is
well.

Not found: a cut of which retention has taken all since, up to the offset, so that no record is left that it could
hide; and a log that is exchanged for one that never knew of epoch E, and in which an epoch before E goes on beyond the
offset. That takes two elections in a row of a replica that was not in sync, of different replicas.
"""

import re
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as ClientPartition

from ackline.errors import TransientError
from ackline.kafka import clients
from ackline.kafka.config import brokers
from ackline.kafka.failures import LastError, failure, refuses_login, transient
from ackline.offsets import TopicPartition

PATIENCE = 30.0
"""Seconds within which all leaders have to answer."""
_END = re.compile(r"broker end offset is (\d+)")
_OUT_OF_RANGE = KafkaError(KafkaError.OFFSET_OUT_OF_RANGE).str()

Positions = Mapping[TopicPartition, tuple[int, int]]
"""Offset and leader epoch: everything below the offset was in the log of the leader of that epoch."""


def cut_logs(
    config: Mapping[str, object], positions: Positions, timeout: float = PATIENCE
) -> dict[TopicPartition, int | None]:
    """Those partitions whose log no longer holds all that the leader of the epoch had below the offset.

    The value is the offset below which it still does, or None where even that is not known. It costs a request and a
    fetch for each partition. Raises TransientError where leaders don't answer in time.
    """
    last = LastError()
    # Uncommitted records answer as well, and need no wait for a transaction's end.
    settings = {**clients.SPARSE, "error_cb": last}
    reader = clients.consumer(config, "ackline-epochs", "read_uncommitted", **settings)
    try:
        with clients.mapped("asking where leader epochs end", config, last):
            return _asked(reader, config, positions, timeout, last)
    finally:
        reader.close()


def _asked(
    reader: Consumer, config: Mapping[str, object], positions: Positions, timeout: float, last: LastError
) -> dict[TopicPartition, int | None]:
    waiting, found = set(positions), dict[TopicPartition, int | None]()
    reader.assign([ClientPartition(*tp, offset, leader_epoch=epoch) for tp, (offset, epoch) in positions.items()])
    deadline = time.monotonic() + timeout
    while waiting:
        if (left := deadline - time.monotonic()) <= 0:
            raise _unanswered(min(waiting), config)
        message = reader.poll(left)
        if message is None:
            continue
        tp, error = TopicPartition(str(message.topic()), int(message.partition() or 0)), message.error()
        if tp not in waiting:
            if error is not None and refuses_login(error):
                raise failure(error, "asking where leader epochs end", config, last=last)
            continue
        if error is not None and not _answers(error):
            if not transient(error):
                raise failure(error, "asking where its leader epoch ends", config, tp, positions[tp][0], last)
            continue
        waiting.discard(tp)
        reader.incremental_unassign([ClientPartition(*tp)])
        if _is_cut(message):
            found[tp] = _end(message)
    return found


def _answers(error: KafkaError) -> bool:
    return error.name() in ("_PARTITION_EOF", "_AUTO_OFFSET_RESET", "_LOG_TRUNCATION", "OFFSET_OUT_OF_RANGE")


def _is_cut(message: Message) -> bool:
    """Whether an answer says that the log was cut. A position that passed, and lies below the log start, did not.

    librdkafka names both `_AUTO_OFFSET_RESET` and tells them apart in the text alone. Beyond the end none passes.
    """
    error = message.error()
    return error is not None and error.name() != "_PARTITION_EOF" and _OUT_OF_RANGE not in error.str()


def _end(message: Message) -> int | None:
    error = message.error()
    told = _END.search(error.str()) if error is not None else None
    return int(told[1]) if told else None


def _unanswered(tp: TopicPartition, config: Mapping[str, object]) -> TransientError:
    return TransientError(
        f"{tp}: its leader does not say where an older leader's log ended (at {brokers(config)}); check that the "
        f"partition has a leader, then run this again",
        topic=tp.topic,
        partition=tp.partition,
    )
