"""TLS certificates for a SuperLink, and the keys by which nodes authenticate to it."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flameche.errors import BadInput

CURVE = ec.SECP384R1
DAYS = 825  # the longest validity that common clients accept
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Certificates:
    """The three files that a SuperLink needs; nodes need `ca` too."""

    ca: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path, hosts: Sequence[str], days: int = DAYS) -> Certificates:
    """Make a certificate authority, and a server's certificate for these host names or addresses.

    The certificate is also valid for loopback addresses, by which the server app calls its SuperLink. The
    authority's private key is discarded, so nothing else can be signed with it.

    Raises:
        BadInput: if one of the files exists, or a host is neither a name nor an address.
    """
    files = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    names = [_host(host) for host in dict.fromkeys([*hosts, *LOOPBACK])]
    _refuse_existing(files.ca, files.certificate, files.key)
    authority, server = ec.generate_private_key(CURVE()), ec.generate_private_key(CURVE())
    ca_name, server_name = _name("flameche authority"), _name(hosts[0])
    own = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    ca = (
        _certificate(ca_name, ca_name, authority, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(own, critical=False)
        .sign(authority, hashes.SHA384())
    )
    certificate = (
        _certificate(server_name, ca_name, server, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own), critical=False)
        .sign(authority, hashes.SHA384())
    )
    folder.mkdir(parents=True, exist_ok=True)
    files.ca.write_bytes(ca.public_bytes(form.Encoding.PEM))
    files.certificate.write_bytes(certificate.public_bytes(form.Encoding.PEM))
    pkcs8 = form.PrivateFormat.PKCS8
    _write_secret(files.key, server.private_bytes(form.Encoding.PEM, pkcs8, form.NoEncryption()))
    return files


def make_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Make the private key by which a node authenticates, and the public key to be registered."""
    secret, public = folder / name, folder / f"{name}.pub"
    _refuse_existing(secret, public)
    key = ec.generate_private_key(CURVE())
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    openssh = form.PrivateFormat.OpenSSH
    _write_secret(secret, key.private_bytes(form.Encoding.PEM, openssh, form.NoEncryption()))
    public.write_bytes(
        key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH) + b"\n"
    )
    return secret, public


def _refuse_existing(*files: Path) -> None:
    for file in files:
        if file.exists():
            raise BadInput(f"{file} exists; keys are never replaced, remove it first")


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # sites' clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError as problem:
        raise BadInput(f"--host {text} is not a host name or address") from problem


def _write_secret(file: Path, data: bytes) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(data)
