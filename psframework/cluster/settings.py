"""What a process is told: flags > `PSF_*` environment > `psf.toml` > defaults, by pydantic-settings.

`PSF_CONFIG` names another file than `./psf.toml`. Lists are separated by commas, or the flag is repeated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from psframework.errors import ConfigurationError
from psframework.wire.lanes import parse

PortRange = Annotated[tuple[int, int], NoDecode]
_METAVARS = {"tuple[str,...]": "A,B,...", "tuple[int,int]": "LOW-HIGH", "SecretStr": "TEXT", "str": "TEXT"}
Names = Annotated[tuple[str, ...], NoDecode]
_NO_DEFAULT = re.compile(r" \(default: (None|\(\))\)$")  # says nothing, or denies what the text says


class Settings(BaseSettings):
    """What every process of a cluster may be told: whom it talks to, and who it is."""

    example: ClassVar[str] = "--coordinator 127.0.0.1:7070"

    model_config = SettingsConfigDict(
        env_prefix="PSF_",
        env_ignore_empty=True,
        defer_build=True,  # only what a process asks for is built: of the services' flags, one of seven
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        extra="ignore",
        populate_by_name=True,
    )

    coordinator: Names = Field((), description="addresses HOST:PORT of the coordinator(s)")
    name: str | None = Field(None, description="its name; default: the role and the lowest free number")
    tls_dir: Path | None = Field(
        None, description="folder with ca.pem, cert.pem, key.pem: turns mutual TLS on"
    )
    token_file: Path | None = Field(None, description="file (mode 0600) with the bearer token of the cluster")
    token: SecretStr | None = Field(None, description="the bearer token itself; better keep it in a file")
    local_processes: int | None = Field(None, ge=1, description="processes that share this machine's cores")
    lanes: str | None = Field(None, description="lanes to offer, for tests: inline,striped,shm")

    @field_validator("coordinator", "advertise", "import_modules", "allow", mode="before", check_fields=False)
    @classmethod
    def _split(cls, value: object) -> object:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, Sequence):
            return value
        return tuple(part.strip() for item in items for part in str(item).split(",") if part.strip())

    @field_validator("coordinator")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            host, _, port = address.rpartition(":")
            if not (host and "/" not in host and port.isdecimal() and 1 <= int(port) <= 65535):  # no URL
                raise ValueError(f"address {address!r} is not HOST:PORT, such as 127.0.0.1:7070")
        return value

    @field_validator("lanes")
    @classmethod
    def _lanes(cls, value: str | None) -> str | None:
        if value is not None:
            parse(value)
        return value

    @field_validator("port_range", mode="before", check_fields=False)
    @classmethod
    def _ports(cls, value: object) -> object:
        text = value[0] if isinstance(value, list) and len(value) == 1 else value
        if not isinstance(text, str | int):
            return value
        low, _, high = str(text).partition("-")
        if not (low.isdecimal() and high.isdecimal()):
            raise ValueError(f"{text} is not LOW-HIGH, such as 7000-7100")
        return int(low), int(high)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order of precedence (the command line, where it is read, goes before all of these)."""
        if isinstance(env_settings, EnvSettingsSource):
            env_settings.env_vars = _own_variables(env_settings.env_vars)
        toml = TomlConfigSettingsSource(settings_cls, toml_file=os.environ.get("PSF_CONFIG", "psf.toml"))
        return init_settings, env_settings, toml

    @classmethod
    def load(cls, **values: Any) -> Self:
        """Reads environment and file; `values` that are not None win over both.

        Raises:
            ConfigurationError: a value that doesn't fit, named with the setting it was given for.
        """
        try:
            return cls(**{key: value for key, value in values.items() if value is not None})
        except (ValidationError, SettingsError, ValueError) as error:
            raise ConfigurationError(_explain(error)) from error

    @classmethod
    def from_command_line(cls, arguments: Sequence[str], program: str) -> Self:
        """As `load`, with the command line on top. `--help` and unknown flags end the process as usual."""
        try:
            source: CliSettingsSource[Any] = CliSettingsSource(cls, cli_prog_name=program)
            parser = source.root_parser
            parser.epilog = f"example: {program} {cls.example}"
            for action in parser._actions:  # its own metavars are Python types
                action.metavar = _METAVARS.get(str(action.metavar), action.metavar)
                action.help = _NO_DEFAULT.sub("", action.help or "")
            return cls(_cli_settings_source=source(args=list(arguments)))
        except (ValidationError, SettingsError, ValueError) as error:
            raise ConfigurationError(_explain(error)) from error


class ServiceSettings(Settings):
    """Flags of a service; each can stand in the environment (PSF_BIND=...) and in psf.toml too."""

    bind: str = Field("127.0.0.1:0", description="HOST:PORT to listen on; port 0: the system chooses one")
    advertise: Names = Field((), description="HOST:PORT by which others reach it; repeatable")
    port_range: PortRange | None = Field(
        None,
        description="LOW-HIGH: with port 0, the first free one, and the last for sockets: two a service",
    )
    plaintext: bool = Field(False, description="serve beyond loopback without TLS")
    lease: float = Field(5.0, gt=0, le=3600, description="seconds of silence that count as death")
    join_timeout: float = Field(30.0, gt=0, description="seconds to wait for the coordinator at the start")
    import_modules: Names = Field((), alias="import", description="modules to import at start; repeatable")
    max_request: int = Field(64 << 20, ge=2 << 20, description="largest gRPC message in bytes")


class CoordinatorSettings(ServiceSettings):
    """Flags of the coordinator."""

    example = "--bind 127.0.0.1:7070 --state state.sqlite"

    state: Path | None = Field(
        None, description="SQLite file that keeps the cluster's state; default: a temporary file, or with a "
        "fixed port ~/.local/state/psframework/coordinator-PORT.sqlite",
    )  # fmt: skip


class ParameterServerSettings(ServiceSettings):
    """Flags of a parameter-server shard."""

    memory_limit: int | None = Field(None, ge=1 << 20, description="bytes it may hold; default: no limit")


class AllreduceSettings(ServiceSettings):
    """Flags of the allreduce service."""

    memory_limit: int = Field(
        4 << 30, ge=1 << 20, description="bytes of arrays it may hold at once; more must wait"
    )


class WorkerSettings(ServiceSettings):
    """Flags of a worker."""

    example = "--coordinator 127.0.0.1:7070 --import my_module"

    max_running: int | None = Field(
        None, ge=1, description="threads for sync functions; default: cores + 4, at most 32"
    )
    queue: int = Field(
        10_000, ge=0, description="calls that may wait or be awaited beside them; more are refused"
    )
    allow: Names = Field(
        (), description="ROLE:FUNCTION or ROLE/NAME:FUNCTION, with * and ?; if any are given, only these "
        "calls are served; repeatable",
    )  # fmt: skip
    cloudpickle: bool = Field(
        False, description="run functions that peers send as code (psf.pickled): its callers "
        "may then run anything here",
    )  # fmt: skip


class PipelineStageSettings(WorkerSettings):
    """Flags of a pipeline stage: those of a worker."""


class PipelineSettings(WorkerSettings):
    """Flags of a pipeline's driver: those of a worker."""


def _own_variables(variables: Mapping[str, str | None]) -> dict[str, str | None]:
    """Only `PSF_*`; `import` is a keyword, so its field has an alias, read unprefixed otherwise."""
    own = {key: value for key, value in variables.items() if key.startswith("psf_")}
    if own.get("psf_import"):
        own["import"] = own["psf_import"]
    return own


def _explain(error: Exception) -> str:
    """One line out of pydantic's report: which setting, what is wrong with it."""
    if isinstance(error, ValidationError):
        problems = [f"{_flag(problem['loc'])}: {_plain(problem['msg'])}" for problem in error.errors()]
        return "bad settings: " + "; ".join(problems)
    return f"bad settings: {error}"


def _plain(message: str) -> str:
    text = message.removeprefix("Value error, ")
    return text[:1].lower() + text[1:]


def _flag(location: tuple[int | str, ...]) -> str:
    name = str(location[0]) if location else "?"
    return f"--{name.replace('_', '-')} (PSF_{name.upper()})"
