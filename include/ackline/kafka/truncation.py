"""Finds truncated logs: requests from each leader where an older leader's epoch ends (KIP-320, OffsetForLeaderEpoch).

A follower that lags and is elected all the same has a shorter log. New records then take the offsets of the lost ones,
so the log's end shows nothing. The leader epoch does: a log agrees with the log of the leader of epoch E below an
offset if no later epoch begins below that offset. The admin client has no such request. A consumer sends it for a
position that is assigned with a leader epoch, and reports a record or the end of the log if the log agrees.

Two truncations stay unnoticed. First, one whose records retention has taken since, up to the offset: no record is left
that it could hide. Second, a log exchanged for one that never had epoch E, in which an epoch before E goes on beyond
the offset: that takes two elections in a row of a replica that was not in sync, of different replicas.
"""

import re
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as ClientPartition

from ackline.errors import TransientError
from ackline.kafka import clients
from ackline.kafka.clients import LastError, ackline_error, is_login_failure, is_transient
from ackline.kafka.config import brokers
from ackline.ledger.offsets import TopicPartition

TIMEOUT = 30.0
"""Seconds within which all leaders have to answer."""
_DOING = "reading where leader epochs end"
_END = re.compile(r"broker end offset is (\d+)")
_OUT_OF_RANGE = KafkaError(KafkaError.OFFSET_OUT_OF_RANGE).str()

Positions = Mapping[TopicPartition, tuple[int, int]]
"""Offset and leader epoch: the log of the leader of that epoch had everything below the offset."""


def truncated_logs(
    config: Mapping[str, object], positions: Positions, timeout: float = TIMEOUT
) -> dict[TopicPartition, int | None]:
    """Returns the partitions whose log no longer holds all that the leader of the epoch had below the offset.

    The value is the offset below which the log still agrees, or None if even that is unknown. Costs a request and a
    fetch for each partition. Raises TransientError if leaders don't answer within `timeout` seconds.
    """
    last = LastError()
    # Uncommitted records answer as well, and need no wait for a transaction's end.
    settings = {**clients.SPARSE_FETCH, "error_cb": last}
    reader = clients.consumer(config, "ackline-epochs", "read_uncommitted", **settings)
    try:
        with clients.as_ackline_errors(_DOING, config, last):
            return _query_leaders(reader, config, positions, timeout, last)
    finally:
        reader.close()


def _query_leaders(
    reader: Consumer, config: Mapping[str, object], positions: Positions, timeout: float, last: LastError
) -> dict[TopicPartition, int | None]:
    reader.assign(
        [ClientPartition(*tp, offset, leader_epoch=leader_epoch) for tp, (offset, leader_epoch) in positions.items()]
    )
    waiting, truncated = set(positions), dict[TopicPartition, int | None]()
    deadline = time.monotonic() + timeout
    # Not a retry: each poll returns the next answer of any partition, and the client itself repeats its requests.
    while waiting:
        if (left := deadline - time.monotonic()) <= 0:
            raise _no_answer(min(waiting), config)
        message = reader.poll(left)
        if message is None:
            continue
        tp, error = TopicPartition(str(message.topic()), int(message.partition() or 0)), message.error()
        if tp not in waiting:
            if error is not None and is_login_failure(error):
                raise ackline_error(error, _DOING, config, last=last)
            continue
        if error is not None and not _is_answer(error):
            if not is_transient(error):
                raise ackline_error(error, "reading where its leader epoch ends", config, tp, positions[tp][0], last)
            continue
        waiting.discard(tp)
        reader.incremental_unassign([ClientPartition(*tp)])
        if _is_truncated(message):
            truncated[tp] = _reported_end(message)
    return truncated


def _is_answer(error: KafkaError) -> bool:
    return error.name() in ("_PARTITION_EOF", "_AUTO_OFFSET_RESET", "_LOG_TRUNCATION", "OFFSET_OUT_OF_RANGE")


def _is_truncated(message: Message) -> bool:
    """Whether an answer means that the log was truncated. A position that agrees with the log, but is below the log
    start, is not truncated; a position beyond the log's end never agrees.

    librdkafka reports both cases as `_AUTO_OFFSET_RESET`; only the text differs.
    """
    error = message.error()
    return error is not None and error.name() != "_PARTITION_EOF" and _OUT_OF_RANGE not in error.str()


def _reported_end(message: Message) -> int | None:
    error = message.error()
    match = _END.search(error.str()) if error is not None else None
    return int(match[1]) if match else None


def _no_answer(tp: TopicPartition, config: Mapping[str, object]) -> TransientError:
    return TransientError(
        f"{tp}: its leader gave no answer where an older leader's log ended (at {brokers(config)}); check that the "
        f"partition has a leader, then run this again",
        topic=tp.topic,
        partition=tp.partition,
    )
