"""Replaces the names of certificate files by their text, because only the driver's machine has the files."""

from collections.abc import Mapping

from ackline.kafka.java import pem_text

_PEM = ("ssl.ca", "ssl.certificate", "ssl.key")


def inlined_certificates(config: Mapping[str, str]) -> dict[str, str]:
    """Returns librdkafka's properties with the text of certificates and key in place of their files' names.

    The result holds secrets. Leaves a PKCS#12 file (`ssl.keystore.location`) as it is, because librdkafka takes it as
    a file only. Raises ConfigError for a file that can't be read.
    """
    properties = dict(config)
    if "SSL" not in config.get("security.protocol", "plaintext").upper().split("_"):
        return properties  # Kafka's clients open none of the files
    for prefix in _PEM:
        if properties.get(f"{prefix}.location") == "probe":  # librdkafka then looks for the system's authorities
            continue
        text = pem_text(properties, prefix)
        properties.pop(f"{prefix}.location", None)
        if text is not None:
            properties[f"{prefix}.pem"] = text
    return properties
