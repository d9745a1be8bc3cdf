"""The certificates of a job: a process can make them if and only if it has the job's token.

    made = contexts(token, "worker-0")
    made.accepting.wrap_socket(connection, server_side=True)
    made.connecting.wrap_socket(connection, server_hostname="worker-1")

The token gives the key of the job's certificate authority (HKDF-SHA256, RFC 5869; Ed25519,
RFC 8032). Each task makes a new key for itself, and signs its certificate with the authority's
key. Only TLS 1.3 (RFC 8446) is accepted.
"""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

# The clocks of the machines may differ. The end is that of certificates without a known one (RFC
# 5280, 4.1.2.5).
_FROM, _UNTIL = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_AUTHORITY = "tfdist job"


class Contexts(NamedTuple):
    """The contexts for accepting and for opening connections; each authenticates both sides."""

    accepting: ssl.SSLContext
    connecting: ssl.SSLContext


def contexts(token: str, name: str) -> Contexts:
    """The contexts of one task.

    Args:
      token: the job's token.
      name: the name of this task, as in a DNS name.
    """
    derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"tfdist certificate authority")
    authority = Ed25519PrivateKey.from_private_bytes(
        derived.derive(token.encode("utf-8", "surrogateescape"))
    )
    own = Ed25519PrivateKey.generate()
    authority_certificate = _certificate(_AUTHORITY, authority.public_key(), authority)
    certificate = _certificate(name, own.public_key(), authority)
    pem = certificate.public_bytes(Encoding.PEM) + own.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    made = Contexts(
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    )
    for context in made:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=authority_certificate.public_bytes(Encoding.DER))
        _load(context, pem)
    # A link never resumes a session.
    made.accepting.num_tickets = 0
    return made


def name_of(connection: ssl.SSLSocket) -> str:
    """The name of the task at the other end, from its certificate."""
    names: Any = (connection.getpeercert() or {})["subjectAltName"]
    return str(names[0][1])


def _certificate(
    name: str, key: Ed25519PublicKey, authority: Ed25519PrivateKey
) -> x509.Certificate:
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    return (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(_AUTHORITY))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.BasicConstraints(name == _AUTHORITY, None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(authority, None)
    )


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Loads a certificate and its key from memory; `ssl` takes only files."""
    file = os.memfd_create("certificate")
    try:
        os.write(file, pem)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
