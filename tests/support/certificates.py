"""An authority of the tests, and the certificates that it issues: for brokers, clients and token endpoints."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

from ackline.local.connection import LOOPBACK

PASSWORD = "the password of the key store"


@dataclass(frozen=True, slots=True)
class Issued:
    certificate: x509.Certificate
    private_key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    @property
    def key(self) -> str:
        """The key as PEM text: PKCS#8, not encrypted."""
        return self.private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Writes the certificate and the key into two files of a folder, and returns their paths."""
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        certificate.write_text(self.pem)
        key.write_text(self.key)
        return certificate, key

    def write_store(self, path: Path) -> Path:
        """Writes the certificate and the key into a PKCS#12 file that PASSWORD opens, and returns its path."""
        encrypted = BestAvailableEncryption(PASSWORD.encode())
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(b"own", self.private_key, self.certificate, None, encrypted)
        )
        return path


class Authority:
    def __init__(self, name: str = "authority of the tests") -> None:
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        key = ec.generate_private_key(ec.SECP256R1())
        self._own = Issued(self._signed(self._name, key, key, timedelta(days=1), None), key)

    @property
    def pem(self) -> str:
        return self._own.pem

    def issue(self, name: str, *, host: str = LOOPBACK, valid: timedelta = timedelta(days=1)) -> Issued:
        """Returns a certificate for `name` at `host`; it has expired if `valid` is negative."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return Issued(self._signed(subject, key, self._own.private_key, valid, host), key)

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        signs: ec.EllipticCurvePrivateKey,
        valid: timedelta,
        host: str | None,
    ) -> x509.Certificate:
        end = datetime.now(UTC) + valid
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(end, datetime.now(UTC)) - timedelta(days=1))
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
        )
        if host is not None:
            given = x509.IPAddress(ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
            certificate = certificate.add_extension(x509.SubjectAlternativeName([given]), critical=False)
        return certificate.sign(signs, hashes.SHA256())
