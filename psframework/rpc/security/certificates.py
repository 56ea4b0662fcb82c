"""The development authority of `psf certs`: makes a CA, issues a certificate for each role, describes them.

EC P-256 keys, files of PEM. A certificate carries `psf://cluster/role/name`, by which servers know callers,
and the DNS names of `identity.server_name`, by which callers know servers.
"""

from __future__ import annotations

import ipaddress
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from psframework.errors import ConfigurationError
from psframework.rpc.security.identity import ANY_NAME, Identity, check_names, parse_uri, server_name

CA_CERT, CA_KEY = "ca.pem", "ca.key"
CERT, KEY = "cert.pem", "key.pem"
CA_DAYS, LEAF_DAYS = 3650, 365
_SKEW = timedelta(hours=1)  # clocks of two machines differ


@dataclass(frozen=True, slots=True)
class CertificateInfo:
    """What `psf certs` shows of one certificate.

    Args:
        subject: its common name.
        issuer: the common name of who signed it.
        identity: role and name; None for an authority or a certificate that is not ours.
        hosts: the host names and addresses under which stock clients may reach it.
        not_before: when it begins to hold (UTC).
        not_after: when it ends (UTC).
        is_authority: whether it may sign others.
        fingerprint: SHA-256, in hexadecimal.
    """

    subject: str
    issuer: str
    identity: Identity | None
    hosts: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    is_authority: bool
    fingerprint: str

    @property
    def days_left(self) -> int:
        """Whole days for which it still holds; negative once it has expired."""
        return (self.not_after - datetime.now(UTC)) // timedelta(days=1)


def init(
    directory: str | Path, *, cluster: str = "cluster", days: int = CA_DAYS, overwrite: bool = False
) -> Path:
    """Makes a certificate authority in `directory`: ca.pem, and ca.key (mode 0600; services don't need it).

    Args:
        directory: made if it is not there.
        cluster: name of the cluster, written into each certificate.
        days: how long the authority holds.
        overwrite: replace an authority that is there; certificates that it issued stop working.

    Returns:
        The path of ca.pem.

    Raises:
        ConfigurationError: there already is an authority.
    """
    folder = Path(directory)
    cert_path, key_path = folder / CA_CERT, folder / CA_KEY
    if key_path.exists() and not overwrite:
        raise ConfigurationError(
            f"{key_path} already is an authority: issue from it with `psf certs issue`, or pass --overwrite "
            "(every certificate that it issued stops working)"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, "psframework development CA"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster[:64]),
        ]
    )
    builder = _builder(subject, subject, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    certificate = builder.sign(key, hashes.SHA256())
    _write(key_path, _key_pem(key), 0o600)
    _write(cert_path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return cert_path


def issue(
    directory: str | Path,
    role: str,
    name: str = ANY_NAME,
    hosts: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    days: float = LEAF_DAYS,
) -> Path:
    """Issues a certificate, and puts what a service needs for `--tls-dir` into one folder.

    Args:
        directory: where `init` made the authority.
        role: what its holder is: "parameter-server", "coordinator", "trainer", ...
        name: the one member that may use it; "*" for any member of that role.
        hosts: host names and IP addresses for clients that check these (stock stubs); ours check the role.
        out: folder for ca.pem, cert.pem and key.pem (mode 0600); default `directory/ROLE[-NAME]`.
        days: how long it holds. Issue again into the same folder to renew: running servers take it up.

    Returns:
        The folder.

    Raises:
        ConfigurationError: no authority there, or a role or name that can't be.
    """
    check_names(role, name)
    authority, authority_key = _load_authority(Path(directory))
    organization = authority.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    who = Identity(role, name, str(organization[0].value) if organization else "cluster")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, str(who)[:64])])
    builder = _builder(subject, authority.subject, key.public_key(), days)
    builder = builder.add_extension(
        x509.SubjectAlternativeName(_alternative_names(who, hosts)), critical=False
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = builder.add_extension(issuer_key, critical=False).sign(authority_key, hashes.SHA256())
    folder = Path(out) if out else folder_of(directory, role, name)
    _write(folder / KEY, _key_pem(key), 0o600)
    _write(folder / CERT, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    _write(folder / CA_CERT, authority.public_bytes(serialization.Encoding.PEM), 0o644)
    return folder


def folder_of(directory: str | Path, role: str, name: str = ANY_NAME) -> Path:
    """Where `issue` puts the files of a holder unless it is told another folder."""
    return Path(directory) / (role if name == ANY_NAME else f"{role}-{name}")


def describe(path: str | Path) -> CertificateInfo:
    """Describes the (first) certificate of a PEM file.

    Raises:
        ConfigurationError: the file is missing or holds no certificate.
    """
    return info_of(load_certificates(Path(path))[0])


def info_of(certificate: x509.Certificate) -> CertificateInfo:
    """Reads the fields of `CertificateInfo` from a certificate."""
    names = _subject_names(certificate)
    uris = names.get_values_for_type(x509.UniformResourceIdentifier) if names else []
    hosts = [str(host) for host in names.get_values_for_type(x509.DNSName)] if names else []
    hosts += [str(address) for address in names.get_values_for_type(x509.IPAddress)] if names else []
    return CertificateInfo(
        subject=_common_name(certificate.subject),
        issuer=_common_name(certificate.issuer),
        identity=next(filter(None, map(parse_uri, uris)), None),
        hosts=tuple(hosts),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        is_authority=_is_authority(certificate),
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
    )


def _common_name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def load_certificates(path: Path) -> list[x509.Certificate]:
    """Reads a PEM file of one or more certificates; raises ConfigurationError naming the file."""
    try:
        return x509.load_pem_x509_certificates(read_file(path))
    except ValueError as error:
        raise ConfigurationError(f"{path} holds no certificate in PEM form ({error})") from error


def read_file(path: Path) -> bytes:
    """Reads one file of a TLS folder; raises ConfigurationError with the command that makes it."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{path} is missing: `psf certs init` makes an authority, `psf certs issue ROLE` a folder with "
            f"{CA_CERT}, {CERT} and {KEY}"
        ) from error
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read: {error.strerror or error}") from error


def _load_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate = load_certificates(folder / CA_CERT)[0]
    try:
        key = serialization.load_pem_private_key(read_file(folder / CA_KEY), password=None)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{folder / CA_KEY} holds no private key ({error})") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ConfigurationError(
            f"{folder / CA_KEY} is not the key of {folder / CA_CERT}: run `psf certs init` anew"
        )
    return certificate, key


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public_key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - _SKEW).not_valid_after(now + timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
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


def _alternative_names(who: Identity, hosts: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(who.uri)]
    names += [x509.DNSName(server_name(who.role)), x509.DNSName(server_name(who.role, who.name))]
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            if not host.isascii() or not host or "/" in host or ":" in host:
                raise ConfigurationError(
                    f"host {host!r} is neither a host name nor an IP address (no port, no scheme)"
                ) from None
            names.append(x509.DNSName(host))
    return names


def _subject_names(certificate: x509.Certificate) -> x509.SubjectAlternativeName | None:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Writes a file whole or not at all, and never readable by others for an instant."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
