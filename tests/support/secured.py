"""A broker that asks for a login and checks rights, with a login that has none at first."""

from collections.abc import Iterable, Mapping
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
)

from ackline.lane.rights import Right
from ackline.local import broker
from ackline.local.broker import Broker
from ackline.local.connection import LOOPBACK
from ackline.local.processes import free_ports

_DENIALS = """
logger.authorizer.name = kafka.authorizer.logger
logger.authorizer.level = info
"""
USER, PASSWORD = "replayer", "the password of the tests"


class SecuredBroker(Broker):
    """Clients log in at `secured` by SASL PLAIN. On the plain listener everything is allowed."""

    def __init__(self, directory: Path) -> None:
        login, controller, plain = free_ports(3)
        clients = f"PLAINTEXT://{LOOPBACK}:{plain},LOGIN://{LOOPBACK}:{login}"
        jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        super().__init__(
            directory,
            port=plain,
            config={
                "listeners": f"{clients},CONTROLLER://{LOOPBACK}:{controller}",
                "advertised.listeners": clients,
                "controller.quorum.bootstrap.servers": f"{LOOPBACK}:{controller}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.login.plain.sasl.jaas.config": f'{jaas} user_{USER}="{PASSWORD}";',
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
            },
        )
        self.login: Mapping[str, object] = {
            "bootstrap.servers": f"{LOOPBACK}:{login}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }

    def start(self) -> None:
        """Starts the broker, whose log names each request that was denied."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broker, "LOGGING", f"{broker.LOGGING}{_DENIALS}")
            super().start()

    @property
    def denials(self) -> list[str]:
        """The requests of the user that were denied so far."""
        return [line for line in self.log.read_text().splitlines() if f"User:{USER} is Denied" in line]

    def grant(self, rights: Iterable[Right]) -> None:
        """Gives the user these rights, in place of all others."""
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
                ResourceType[kind.upper()], name, ResourcePatternType.LITERAL, f"User:{USER}", "*",
                AclOperation[operation.upper()], AclPermissionType.ALLOW,
            )
            for operation, kind, name in rights
        ]  # fmt: skip
        for answer in admin.create_acls(bindings).values() if bindings else ():
            answer.result(30)
