"""The keyed hash of a record's key."""

import hashlib
import hmac

import pytest

from ackline.errors import ConfigError
from ackline.pipeline.properties import SECRET, key_hash, secret_of, without_own_settings

TEXT = "sixteen letters!"


@pytest.mark.parametrize("key", [b"", b"4711", b"\0\xff" * 1000])
def test_the_hash_is_hmac_sha256_of_the_raw_key_cut_to_64_bits(key: bytes) -> None:
    hashed = key_hash(b"secret")
    assert hashed(key) == hashed(key)
    assert f"{hashed(key) % 2**64:016x}" == hmac.new(b"secret", key, hashlib.sha256).hexdigest()[:16]
    assert key_hash(b"another")(key) != hashed(key)


def test_the_secret_is_a_text_of_at_least_sixteen_characters() -> None:
    assert secret_of({SECRET: TEXT}, "shop") == TEXT.encode()


@pytest.mark.parametrize(
    "extra", [{}, {SECRET: None}, {SECRET: TEXT[1:]}, {SECRET: 1234567890123456}, {SECRET: [TEXT]}]
)
def test_any_other_secret_is_refused_without_quoting_it(extra: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"connection shop has (no|a) `ackline\.key_hash_secret`") as refused:
        secret_of(extra, "shop")
    assert refused.value.key == "audit.key_hash"
    assert not extra or extra[SECRET] is None or str(extra[SECRET]) not in str(refused.value)


def test_kafka_clients_get_no_setting_of_our_own() -> None:
    assert without_own_settings({SECRET: TEXT, "bootstrap.servers": "b"}) == {"bootstrap.servers": "b"}
