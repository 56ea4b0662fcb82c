"""`psf certs`: a development authority, and certificates for services and clients."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from psframework.errors import ConfigurationError
from psframework.rpc.security import certificates
from psframework.rpc.security.certificates import CertificateInfo

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
    holders: Annotated[
        list[str],
        typer.Argument(
            help="ROLE or ROLE/NAME, several at once: coordinator, parameter-server, worker, pipeline-stage, "
            "pipeline, allreduce, trainer, ..."
        ),
    ],
    directory: Folder = Path("certs"),
    name: Annotated[str, typer.Option(help="the one member that may use it; *: any of the role")] = "*",
    host: Annotated[
        list[str] | None, typer.Option(help="host name or address for stock clients; repeatable")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="folder to write to, of several: OUT/NAME or OUT/ROLE; default: DIR/ROLE[-NAME]"),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="how long it holds")] = certificates.LEAF_DAYS,
    keep: Annotated[bool, typer.Option("--keep", help="do nothing if a good one is there already")] = False,
) -> None:
    """Issue certificates, and put what --tls-dir needs into a folder each: ca.pem, cert.pem, key.pem.

    Example: [bold]psf certs issue trainer worker/worker-0 --dir certs[/bold]
    """
    for holder in holders:
        role, _, own = holder.partition("/")
        who = role, own or name
        place = certificates.folder_of(directory, *who)
        if out is not None:
            place = out / (own or role) if len(holders) > 1 else out
        if keep and _still_good(place, directory, who, host or ()):
            print(f"{place} already holds a good certificate")
        else:
            folder = certificates.issue(directory, *who, host or (), out=place, days=days)
            print(f"wrote {folder}: use it as --tls-dir {folder}, or PSF_TLS_DIR={folder}")


@app.command("show")
def show(
    paths: Annotated[list[Path], typer.Argument(help="PEM files, or folders with cert.pem and ca.pem")],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Show whose a certificate is, who signed it, under which names it is known, and how long it holds.

    Example: [bold]psf certs show certs/trainer[/bold]
    """
    found = [(file, certificates.describe(file)) for path in paths for file in _files(path)]
    if as_json:
        print(json.dumps([_as_json(file, info) for file, info in found], indent=2))
        return
    for file, info in found:
        Console().print(_table(file, info))


def _table(file: Path, info: CertificateInfo) -> Table:
    """One certificate, one line a fact: what is cut short can't be copied."""
    table = Table("certificate")
    table.add_column(escape(str(file)), overflow="fold")
    who = info.identity
    facts = {
        "holder": str(who) if who else info.subject + (" (authority)" if info.is_authority else ""),
        "role": who.role if who else "",
        "signed by": info.issuer,
        "names": "\n".join([*([who.uri] if who else []), *info.hosts]),
        "holds": _holds(info),
        "SHA-256": info.fingerprint,
    }
    for fact, text in facts.items():
        if text:
            table.add_row(fact, text)
    return table


def _holds(info: CertificateInfo) -> str:
    dates = f"{info.not_before:%Y-%m-%d} to {info.not_after:%Y-%m-%d %H:%M} UTC"
    if info.days_left < 0:
        return f"{dates}\n[bold red]expired[/bold red]"
    return f"{dates}\n{info.days_left} days left"


def _still_good(folder: Path, authority: Path, holder: tuple[str, str], hosts: Sequence[str]) -> bool:
    """Whether `folder` has a certificate of (role, name) by that authority, with the hosts, for a month."""
    try:
        info = certificates.describe(folder / certificates.CERT)
        same_authority = (folder / certificates.CA_CERT).read_bytes() == certificates.read_file(
            authority / certificates.CA_CERT
        )
    except (ConfigurationError, OSError):
        return False
    who = (info.identity.role, info.identity.name) if info.identity else None
    lasts = info.not_after - datetime.now(UTC) > timedelta(days=30)
    fits = same_authority and who == holder and set(hosts) <= set(info.hosts)
    return fits and lasts and (folder / certificates.KEY).exists()


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
        "issuer": info.issuer,
        "role": info.identity.role if info.identity else None,
        "name": info.identity.name if info.identity else None,
        "uri": info.identity.uri if info.identity else None,
        "hosts": list(info.hosts),
        "not_before": info.not_before.isoformat(),
        "not_after": info.not_after.isoformat(),
        "days_left": info.days_left,
        "is_authority": info.is_authority,
        "sha256": info.fingerprint,
    }
