"""Who may call which function here: rules such as `trainer:my_module.*`, and the roles of `@psf.remote`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from psframework.errors import ConfigurationError, PermissionDenied
from psframework.rpc.call import PeerInfo
from psframework.rpc.security import audit
from psframework.rpc.security.identity import authorize

REMEMBERED = 4096  # decisions; names of peers and functions are theirs to choose


@dataclass(frozen=True, slots=True)
class Rule:
    """Peers of a role (and a name) may call functions; all three are patterns with `*` and `?`."""

    role: str
    name: str
    function: str

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Reads `ROLE:FUNCTION` or `ROLE/NAME:FUNCTION`; ConfigurationError says what is wrong."""
        who, colon, function = text.rpartition(":")
        role, slash, name = who.partition("/")
        if not (colon and role and function) or (slash and not name):
            raise ConfigurationError(
                f"rule {text!r}: ROLE:FUNCTION or ROLE/NAME:FUNCTION, such as trainer:my_module.* "
                "or worker/worker-0:my_module.add"
            )
        return cls(role, name or "*", function)

    def permits(self, peer: PeerInfo, function: str) -> bool:
        """Whether the rule is about this peer and this function."""
        return (
            fnmatchcase(peer.role, self.role)
            and fnmatchcase(peer.name, self.name)
            and fnmatchcase(function, self.function)
        )


class AllowList:
    """The rules of one process. Without a rule every member may call whatever is registered.

    Args:
        rules: as text, see `Rule.parse`. If there are any, each call needs one that permits it.
    """

    def __init__(self, rules: Iterable[str] = ()) -> None:
        self._rules = tuple(map(Rule.parse, rules))
        self._decided: dict[tuple[str, str, str], bool] = {}

    def __bool__(self) -> bool:
        return bool(self._rules)

    def check(self, peer: PeerInfo, function: str, roles: Collection[str] = ()) -> None:
        """Raises PermissionDenied, and writes an audit line, unless the peer may call the function.

        Args:
            peer: who calls.
            function: the name it was registered under; of a method, with its class.
            roles: roles that the registration names; empty: all.
        """
        if not self._rules and not roles:
            return
        try:
            authorize(peer, roles, function)
            if self._rules and not self._permits(peer, function):
                raise PermissionDenied(
                    f"{peer.name} ({peer.role}) may not call {function} here: no rule allows it; "
                    f"to permit it, start this process with --allow {peer.role}:{function}"
                )
        except PermissionDenied as error:
            audit.refused(function, error, name=peer.name, role=peer.role, certificate=peer.certificate_name)
            raise

    def _permits(self, peer: PeerInfo, function: str) -> bool:
        key = peer.role, peer.name, function
        known = self._decided.get(key)
        if known is None:
            if len(self._decided) >= REMEMBERED:
                self._decided.clear()
            known = self._decided[key] = any(rule.permits(peer, function) for rule in self._rules)
        return known


EVERYONE = AllowList()
