"""A topic that is compacted in the middle of a backfill, on a real broker: each offset that was asked for is counted."""

from ackline.backfill_arguments import BackfillArguments
from tests.contract.kafka_log import COMPACTED, compact
