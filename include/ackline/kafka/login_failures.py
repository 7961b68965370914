"""Why a Kafka client could not log in, and what to do: the token endpoint, the broker's certificate, or the client's.

librdkafka reports each of these as an error of its own, or of the connection, and often without the reason. It does not
name why a broker's certificate is not valid, so this module connects to the broker once more. It has no error for a
client certificate that the broker refuses: the connection ends with a TLS alert, as if the broker were down.
"""

import re
import socket
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from ackline.errors import ConfigError
from ackline.kafka.config import endpoint_address, pem_text

_NO_TOKEN = re.compile(r"Failed to acquire SASL OAUTHBEARER token: (.*)", re.DOTALL)
_ENDPOINT_AWAY = re.compile(r"connect|resolve|timed? ?out|HTTP\D*5\d\d", re.IGNORECASE)
_CERTIFICATE_ALERT = re.compile(r"SSL alert number (42|43|44|45|46|48|49|116)\b")
"""Alerts of RFC 8446 by which a broker refuses a client's certificate, or its absence."""
_BROKER = re.compile(r"\w+://(\[[^\]]+\]|[^/\s:]+):(\d+)/")
_HANDSHAKE_SECONDS = 3.0
_EXPIRED, _NOT_YET, _NAMES = 10, 9, (62, 64)
"""OpenSSL's codes (X509_V_ERR_…): a certificate is expired, is not valid yet, or lacks the broker's name."""
_TIME = re.compile(rb"\x17\x0d(\d{12})Z|\x18\x0f(\d{14})Z")
"""Matches times in DER: UTCTime and GeneralizedTime."""


class LoginFailure(NamedTuple):
    """What went wrong, what to do, and whether another try may help."""

    reason: str
    advice: str
    transient: bool = False


def refuses_certificate(text: str) -> bool:
    """Returns whether the text of a connection error is that of a broker that wants another client certificate."""
    return _CERTIFICATE_ALERT.search(text) is not None


def login_failure(text: str, config: Mapping[str, object]) -> LoginFailure | None:
    """Returns the cause of a connection error, and what to do, from its text; None for a login that the broker itself
    has refused, because its text has the reason.

    May open a connection to the broker, for at most three seconds.
    """
    if no_token := _NO_TOKEN.search(text):
        return _without_token(no_token[1].strip(), config)
    if refuses_certificate(text):
        return _refused_certificate(config)
    if "certificate verify failed" in text:
        return _broker_certificate(text, config)
    return None


def _without_token(reason: str, config: Mapping[str, object]) -> LoginFailure:
    failure = f"no login, because the token endpoint {endpoint_address(config)} gave no token: {reason}"
    if "SSL" in reason or "certificate" in reason:
        return LoginFailure(failure, "name the authority of the endpoint's certificate in `https.ca.location`")
    if _ENDPOINT_AWAY.search(reason):
        advice = "check `sasl.oauthbearer.token.endpoint.url`, and that the endpoint is up and can be reached from here"
        return LoginFailure(failure, advice, transient=True)
    return LoginFailure(failure, "check `sasl.oauthbearer.client.id`, `.client.secret` and `.scope` of the connection")


def _refused_certificate(config: Mapping[str, object]) -> LoginFailure:
    store = config.get("ssl.keystore.location")
    if not store and not any(config.get(f"ssl.certificate.{form}") for form in ("pem", "location")):
        return LoginFailure(
            "the broker demands a client certificate, and the connection has none",
            "set `ssl.certificate.location` and `ssl.key.location`, or `ssl.keystore.location`",
        )
    where = "ssl.keystore.location" if store else "ssl.certificate.location"
    end = None if store else _end_of_own(config)
    if end is not None and end < datetime.now(UTC):
        return LoginFailure(
            f"the broker refuses the client certificate, which has expired on {end:%Y-%m-%d at %H:%M} UTC",
            f"put a new one into `{where}`",
        )
    return LoginFailure(
        "the broker refuses the client certificate" + (", which may have expired" if end is None else ""),
        f"put one into `{where}` that is valid and signed by an authority that the broker trusts",
    )


def _end_of_own(config: Mapping[str, object]) -> datetime | None:
    """Returns when the client's certificate expires; None if that can't be read."""
    try:
        pem = pem_text({name: str(value) for name, value in config.items()}, "ssl.certificate") or ""
        first = pem[pem.index(ssl.PEM_HEADER) : pem.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)]
        # Of all times in a certificate, its validity comes first: its beginning, then its end.
        _, (short, long), *_ = _TIME.findall(ssl.PEM_cert_to_DER_cert(first))
        # RFC 5280: two digits below 50 are years of this century, as Python's `%y` up to 68.
        return datetime.strptime((short or long).decode(), "%y%m%d%H%M%S" if short else "%Y%m%d%H%M%S").replace(
            tzinfo=UTC
        )
    except (ConfigError, ValueError):
        return None


def _broker_certificate(text: str, config: Mapping[str, object]) -> LoginFailure | None:
    broker = _BROKER.search(text)
    error = _verification_error(broker[1].strip("[]"), int(broker[2]), config) if broker else None
    if broker is None or error is None:
        return None
    failure = f"the certificate of the broker {broker[1]}:{broker[2]} does not hold: {error.verify_message.rstrip('.')}"
    if error.verify_code in (_EXPIRED, _NOT_YET):
        return LoginFailure(failure, "the broker needs a new certificate; check the clock of this machine, too")
    if error.verify_code in _NAMES:
        return LoginFailure(failure, "connect by a name that the certificate has, or let the broker have one for this")
    return LoginFailure(failure, "name the authority that has signed it in `ssl.ca.location`")


def _verification_error(host: str, port: int, config: Mapping[str, object]) -> ssl.SSLCertVerificationError | None:
    """Returns why the certificate of a broker is not valid; None if it is, or if there is no answer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    given = {name: str(value) for name, value in config.items()}
    context.check_hostname = given.get("ssl.endpoint.identification.algorithm", "https").lower() != "none"
    try:
        authority = pem_text(given, "ssl.ca") if given.get("ssl.ca.location") != "probe" else None
        if authority is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(cadata=authority)
        with (
            socket.create_connection((host, port), _HANDSHAKE_SECONDS) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            return None
    except ssl.SSLCertVerificationError as error:
        return error
    except (ConfigError, OSError, ValueError):
        return None
