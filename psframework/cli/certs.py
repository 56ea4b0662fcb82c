"""`psf certs`: a development authority, and certificates for services and clients."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from psframework.errors import ConfigurationError
from psframework.rpc import certificates
from psframework.rpc.certificates import CertificateInfo

app = typer.Typer(
    help="Make a development certificate authority and the certificates of a cluster.\n\n"
    "Example: [bold]psf certs init && psf certs issue trainer[/bold]",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
Folder = Annotated[Path, typer.Option("--dir", help="folder of the authority")]


@app.command("init")
def init(
    directory: Folder = Path("certs"),
    cluster: Annotated[
        str, typer.Option(help="name of the cluster, written into each certificate")
    ] = "cluster",
    days: Annotated[int, typer.Option(min=1, help="how long it holds")] = certificates.CA_DAYS,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="replace an authority that is there")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="do nothing if there is one already")] = False,
) -> None:
    """Make an authority: ca.pem for everybody, ca.key for nobody else.

    Example: [bold]psf certs init --dir certs[/bold]
    """
    if keep and (directory / certificates.CA_KEY).exists():
        print(f"{directory} already is an authority")
        return
    print(f"wrote {certificates.init(directory, cluster=cluster, days=days, overwrite=overwrite)}")


@app.command("issue")
def issue(
    role: Annotated[str, typer.Argument(help="coordinator, parameter-server, trainer, ...")],
    directory: Folder = Path("certs"),
    name: Annotated[str, typer.Option(help="the one member that may use it; *: any of the role")] = "*",
    host: Annotated[
        list[str] | None, typer.Option(help="host name or address for stock clients; repeatable")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder to write to; default: DIR/ROLE[-NAME]")] = None,
    days: Annotated[int, typer.Option(min=1, help="how long it holds")] = certificates.LEAF_DAYS,
    keep: Annotated[bool, typer.Option("--keep", help="do nothing if a good one is there already")] = False,
) -> None:
    """Issue a certificate, and put what --tls-dir needs into one folder: ca.pem, cert.pem, key.pem.

    Example: [bold]psf certs issue trainer --dir certs[/bold]
    """
    if keep and out is not None and _still_good(out, directory, role, name):
        print(f"{out} already holds a good certificate")
        return
    folder = certificates.issue(directory, role, name, host or (), out=out, days=days)
    print(f"wrote {folder}: use it as --tls-dir {folder}, or PSF_TLS_DIR={folder}")


@app.command("show")
def show(
    paths: Annotated[list[Path], typer.Argument(help="PEM files, or folders with cert.pem and ca.pem")],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Show whose a certificate is and how long it holds.

    Example: [bold]psf certs show certs/trainer[/bold]
    """
    found = [(file, certificates.describe(file)) for path in paths for file in _files(path)]
    if as_json:
        print(json.dumps([_as_json(file, info) for file, info in found], indent=2))
        return
    table = Table()
    for column in ("file", "identity", "hosts", "valid until", "SHA-256"):
        table.add_column(column, overflow="fold")  # what is cut short can't be copied
    for file, info in found:
        who = (
            str(info.identity)
            if info.identity
            else info.subject + (" (authority)" if info.is_authority else "")
        )
        until = info.not_after.isoformat(timespec="minutes")
        table.add_row(str(file), who, "\n".join(info.hosts), until, info.fingerprint[:16] + "…")
    Console().print(table)


def _still_good(folder: Path, authority: Path, role: str, name: str) -> bool:
    """Whether `folder` has a certificate of that role and name, by that authority, for a month at least."""
    try:
        info = certificates.describe(folder / certificates.CERT)
        same_authority = (folder / certificates.CA_CERT).read_bytes() == certificates.read_file(
            authority / certificates.CA_CERT
        )
    except (ConfigurationError, OSError):
        return False
    who = (info.identity.role, info.identity.name) if info.identity else None
    lasts = info.not_after - datetime.now(UTC) > timedelta(days=30)
    return same_authority and who == (role, name) and lasts and (folder / certificates.KEY).exists()


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return [path / file for file in (certificates.CERT, certificates.CA_CERT) if (path / file).exists()] or [
        path / certificates.CERT
    ]


def _as_json(file: Path, info: CertificateInfo) -> dict[str, object]:
    return {
        "file": str(file),
        "subject": info.subject,
        "role": info.identity.role if info.identity else None,
        "name": info.identity.name if info.identity else None,
        "hosts": list(info.hosts),
        "not_before": info.not_before.isoformat(),
        "not_after": info.not_after.isoformat(),
        "is_authority": info.is_authority,
        "sha256": info.fingerprint,
    }
