"""A broker that asks for a login, by each way that Kafka has, and checks rights. Its user has none at first."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from ackline.lane.rights import Right
from ackline.local import broker
from ackline.local.broker import Broker
from ackline.local.connection import LOOPBACK
from ackline.local.processes import free_ports
from tests.support.certificates import Authority
from tests.support.token_endpoint import AUDIENCE, CLIENT_ID, CLIENT_SECRET, SCOPE, TokenEndpoint

_DENIALS = """
logger.authorizer.name = kafka.authorizer.logger
logger.authorizer.level = info
"""
USER, PASSWORD = "replayer", "the password of the tests"
_BY_PASSWORD: Mapping[str, object] = {"sasl.username": USER, "sasl.password": PASSWORD}
_SECURITY = "org.apache.kafka.common.security"
_LISTENERS = {
    "PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", "LOGIN": "SASL_PLAINTEXT", "TLS": "SASL_SSL", "MTLS": "SSL",
    "EXPIRED": "SASL_SSL", "MISNAMED": "SASL_SSL",
}  # fmt: skip


class SecuredBroker(Broker):
    """Each way to log in is a connection of the same user. On the plain listener everything is allowed.

    The listeners with TLS have certificates of `authority`. Tokens come from `endpoint`.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.authority = Authority()
        self.endpoint = TokenEndpoint(USER, self.authority.issue("endpoint"), directory)
        self._ports = dict(zip(_LISTENERS, free_ports(len(_LISTENERS)), strict=True))
        self._folder = directory
        clients = ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in self._ports.items() if name != "CONTROLLER")
        super().__init__(
            directory,
            port=self._ports["PLAINTEXT"],
            config={
                "listeners": f"{clients},CONTROLLER://{LOOPBACK}:{self._ports['CONTROLLER']}",
                "advertised.listeners": clients,
                "controller.quorum.bootstrap.servers": f"{LOOPBACK}:{self._ports['CONTROLLER']}",
                "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in _LISTENERS.items()),
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
                **self._logins(),
                **self._certificates(),
            },
        )
        self.login = self._connection("LOGIN", {"sasl.mechanism": "PLAIN", **_BY_PASSWORD})

    def _logins(self) -> dict[str, str]:
        plain = f'{_SECURITY}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        by_listener = {
            f"listener.name.{name.lower()}.{mechanism.lower()}.sasl.jaas.config": module
            for name, kind in _LISTENERS.items()
            if kind.startswith("SASL")
            for mechanism, module in {
                "PLAIN": plain,
                "SCRAM-SHA-512": f"{_SECURITY}.scram.ScramLoginModule required;",
                "OAUTHBEARER": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule required;",
            }.items()
        }
        return by_listener | {
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
            "listener.name.tls.oauthbearer.sasl.server.callback.handler.class":
                f"{_SECURITY}.oauthbearer.OAuthBearerValidatorCallbackHandler",
            "sasl.oauthbearer.jwks.endpoint.url": self.endpoint.jwks.as_uri(),
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            # With any limit a connection ends when its token has expired, unless the client has logged in again.
            "listener.name.tls.oauthbearer.connections.max.reauth.ms": "3600000",
        }  # fmt: skip

    def _certificates(self) -> dict[str, str]:
        of_listeners = {
            "TLS": self.authority.issue("broker"),
            "MTLS": self.authority.issue("broker"),
            "EXPIRED": self.authority.issue("broker", valid=timedelta(hours=-1)),
            "MISNAMED": self.authority.issue("broker", host="broker.example"),
        }
        authority = self._folder / "authority.pem"
        authority.write_text(self.authority.pem)
        settings = {"ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/"}
        for name, issued in of_listeners.items():
            store = self._folder / f"{name.lower()}.pem"
            store.write_text(issued.key + issued.pem)
            for setting, value in {
                "keystore.type": "PEM", "keystore.location": str(store),
                "truststore.type": "PEM", "truststore.location": str(authority),
                "client.auth": "required" if name == "MTLS" else "none",
            }.items():  # fmt: skip
                settings[f"listener.name.{name.lower()}.ssl.{setting}"] = value
        return settings

    def _connection(self, listener: str, login: Mapping[str, object]) -> dict[str, object]:
        address = {
            "bootstrap.servers": f"{LOOPBACK}:{self._ports[listener]}",
            "security.protocol": _LISTENERS[listener],
        }
        return {**address, **login}

    @property
    def ca(self) -> str:
        return str(self._folder / "authority.pem")

    def by_password(self, mechanism: str, listener: str = "TLS") -> dict[str, object]:
        """Returns a connection by SASL_SSL, with the user's password."""
        return self._connection(listener, {"sasl.mechanism": mechanism, **_BY_PASSWORD, "ssl.ca.location": self.ca})

    def by_certificate(self, own: Mapping[str, object]) -> dict[str, object]:
        """Returns a connection by mutual TLS. `own` are the properties of the client's certificate."""
        return self._connection("MTLS", {"ssl.ca.location": self.ca, **own})

    def by_token(self, **changed: object) -> dict[str, object]:
        """Returns a connection by OAUTHBEARER. `changed` replaces properties `sasl.oauthbearer.…`."""
        token = {
            "method": "oidc", "client.id": CLIENT_ID, "client.secret": CLIENT_SECRET, "scope": SCOPE,
            "token.endpoint.url": self.endpoint.url,
            **{name.replace("_", "."): value for name, value in changed.items()},
        }  # fmt: skip
        return self._connection("TLS", {
            "sasl.mechanism": "OAUTHBEARER", "ssl.ca.location": self.ca, "https.ca.location": self.ca,
            **{f"sasl.oauthbearer.{name}": value for name, value in token.items()},
        })  # fmt: skip

    def start(self) -> None:
        """Starts the broker, whose log names each request that was denied."""
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.{{}}={self.endpoint.jwks.as_uri()}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broker, "LOGGING", f"{broker.LOGGING}{_DENIALS}")
            patch.setattr(broker, "JVM", [*broker.JVM, allowed.format("urls"), allowed.format("files")])
            self.endpoint.start()
            super().start()
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        wanted = UserScramCredentialUpsertion(USER, scram, PASSWORD.encode())
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.alter_user_scram_credentials([wanted])[USER].result(30)

    def stop(self) -> None:
        super().stop()
        self.endpoint.stop()

    @property
    def denials(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if f"User:{USER} is Denied" in line]

    def grant(self, rights: Iterable[Right], user: str = USER) -> None:
        """Gives a user these rights, in place of all others that any user has."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        nothing: Any = None
        everything = AclBindingFilter(
            ResourceType.ANY, nothing, ResourcePatternType.ANY, nothing, nothing, AclOperation.ANY,
            AclPermissionType.ANY,
        )  # fmt: skip
        for answer in admin.delete_acls([everything]).values():
            answer.result(30)
        bindings = [
            AclBinding(
                ResourceType[kind.upper()], name, ResourcePatternType.LITERAL, f"User:{user}", "*",
                AclOperation[operation.upper()], AclPermissionType.ALLOW,
            )
            for operation, kind, name in rights
        ]  # fmt: skip
        for answer in admin.create_acls(bindings).values() if bindings else ():
            answer.result(30)
