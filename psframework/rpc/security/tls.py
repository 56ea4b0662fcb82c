"""The three files of a TLS folder: checked when loaded, taken up again when they change."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes

from psframework.errors import ConfigurationError, PermissionDenied
from psframework.observe.logs import get_logger
from psframework.rpc.security.certificates import CA_CERT, CERT, KEY, info_of, load_certificates, read_file
from psframework.rpc.security.identity import Identity

_Fetcher = Callable[[], grpc.ServerCertificateConfiguration]  # the stub omits that None means "as before"
Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsPems:
    """A checked set: authority, certificate chain and key as PEM, and whom the certificate names."""

    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    identity: Identity
    until: datetime


class TlsFiles:
    """ca.pem, cert.pem and key.pem of one folder.

    Args:
        directory: the folder; nothing is read before `load`.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self._lock = threading.Lock()  # gRPC asks for renewed files from its own threads
        self._loaded: tuple[Stamp, TlsPems] | None = None
        self._refused: Stamp = ()
        self._contexts: dict[bool, tuple[Stamp, ssl.SSLContext]] = {}

    def __repr__(self) -> str:
        return f"TlsFiles({str(self.directory)!r})"

    @property
    def identity(self) -> Identity:
        """Role and name in our own certificate."""
        return self.load().identity

    def load(self) -> TlsPems:
        """Reads and checks the files, or returns the last set if they are unchanged.

        Raises:
            ConfigurationError: names the file, what is wrong with it and what to do.
        """
        with self._lock:
            stamp = self._stamp()
            if self._loaded is None or self._loaded[0] != stamp:
                self._loaded = stamp, _check(self.directory)
            return self._loaded[1]

    def client_credentials(self) -> grpc.ChannelCredentials:
        """Credentials of a new channel, from the files as they are now.

        Raises:
            ConfigurationError: as `load`.
            PermissionDenied: our certificate has expired since it was loaded: nobody would take it.
        """
        pems = self.load()
        if datetime.now(UTC) > pems.until:
            raise PermissionDenied(
                f"our own certificate, {self.directory / CERT}, expired on {pems.until:%Y-%m-%d %H:%M} UTC: "
                "issue it anew into the same folder, and this process takes it up"
            )
        return grpc.ssl_channel_credentials(pems.authority, pems.key, pems.certificate)

    def socket_context(self, *, server_side: bool) -> ssl.SSLContext:
        """What sockets beside gRPC make TLS with: the same files, and both sides show theirs.

        Raises:
            ConfigurationError: as `load`.
        """
        self.load()
        with self._lock:
            made = self._contexts.get(server_side)
            if made is None or made[0] != self._stamp():
                made = self._contexts[server_side] = self._stamp(), self._context(server_side)
            return made[1]

    def _context(self, server_side: bool) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(self.directory / CA_CERT)
            context.load_cert_chain(self.directory / CERT, self.directory / KEY)
        except OSError as error:  # replaced since they were checked
            raise ConfigurationError(f"the files of {self.directory} do not fit: {error}") from error
        return context

    def server_credentials(self) -> grpc.ServerCredentials:
        """Credentials that demand a client certificate and follow renewed files without a restart."""
        return grpc.dynamic_ssl_server_credentials(
            _server_configuration(self.load()),
            cast(_Fetcher, self._renewed),
            require_client_authentication=True,
        )

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC before each handshake; None keeps what it has."""
        before = self._loaded
        stamp = self._stamp()
        if before is not None and before[0] == stamp:
            return None
        try:
            pems = self.load()
        except ConfigurationError as error:
            if stamp != self._refused:  # half-written files are seen by many handshakes, tell once
                self._refused = stamp
                get_logger("psframework.rpc.security.tls").warning(
                    "renewed certificate refused, the old one stays", reason=str(error)
                )
            return None
        get_logger("psframework.rpc.security.tls").info(
            "renewed certificate in use", directory=str(self.directory)
        )
        return _server_configuration(pems)

    def _stamp(self) -> Stamp:
        try:
            stats = [(self.directory / name).stat() for name in (CA_CERT, CERT, KEY)]
        except OSError:
            return ()
        return tuple((stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in stats)


def _server_configuration(pems: TlsPems) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(pems.key, pems.certificate)], root_certificates=pems.authority
    )


def _check(directory: Path) -> TlsPems:
    if not directory.is_dir():
        raise ConfigurationError(f"TLS folder {directory} is not there: `psf certs issue ROLE` makes one")
    authority_path, certificate_path, key_path = (directory / name for name in (CA_CERT, CERT, KEY))
    authorities, chain = load_certificates(authority_path), load_certificates(certificate_path)
    key = _load_key(key_path)
    leaf = chain[0]
    if _public_bytes(key.public_key()) != _public_bytes(leaf.public_key()):
        raise ConfigurationError(
            f"{key_path} is not the key of {certificate_path}: issue both anew, as one pair"
        )
    for certificate, path in ((leaf, certificate_path), (authorities[0], authority_path)):
        _check_dates(certificate, path)
    if not any(_signed_by(leaf, issuer) for issuer in (*authorities, *chain[1:])):
        raise ConfigurationError(
            f"{certificate_path} was not signed by {authority_path}: both must come from one `psf certs init`"
        )
    who = info_of(leaf).identity
    if who is None:
        raise ConfigurationError(
            f"{certificate_path} names no role (psf://cluster/role/name): make it with `psf certs issue`"
        )
    return TlsPems(
        read_file(authority_path),
        read_file(certificate_path),
        read_file(key_path),
        who,
        leaf.not_valid_after_utc,
    )


def _load_key(path: Path) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(read_file(path), password=None)
    except (ValueError, TypeError) as error:  # TypeError: it asks for a password
        raise ConfigurationError(f"{path} holds no unencrypted private key in PEM form ({error})") from error


def _check_dates(certificate: x509.Certificate, path: Path) -> None:
    now = datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        raise ConfigurationError(
            f"{path} expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: issue it anew"
        )
    if now < certificate.not_valid_before_utc:
        raise ConfigurationError(
            f"{path} holds only from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC: check the clock"
        )


def _signed_by(leaf: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _public_bytes(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
