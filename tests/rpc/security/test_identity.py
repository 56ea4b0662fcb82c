"""Roles and names in certificates, without a connection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework.errors import ConfigurationError, PermissionDenied
from psframework.rpc.security.identity import (
    ANY_NAME,
    Identity,
    authorize,
    check_claim,
    check_names,
    identity,
    parse_uri,
    server_name,
)


class Context:
    def __init__(self, *names: bytes, tls: bool = True):
        self._auth = {"transport_security_type": [b"ssl" if tls else b"insecure"]}
        if names:
            self._auth["x509_subject_alternative_name"] = list(names)

    def auth_context(self):
        return self._auth


NAMES = st.from_regex(r"[A-Za-z0-9_:.-]{1,127}", fullmatch=True)


@given(NAMES, st.text(min_size=1, max_size=20))
def test_a_uri_is_read_back_as_it_was_written(name, cluster):
    who = Identity("parameter-server", name, cluster)
    assert parse_uri(who.uri) == who


@given(NAMES, NAMES)
def test_server_names_differ_where_names_differ_even_in_case_only(one, other):
    same = server_name("worker", one).lower() == server_name("worker", other).lower()
    assert same == (one == other)
    assert len(server_name("worker", one).split(".")) == 4


@given(st.text(max_size=60))
def test_any_text_as_uri_is_an_identity_or_none(text):
    assert parse_uri(text) is None or isinstance(parse_uri(text), Identity)


@pytest.mark.parametrize(
    "uri", ["psf://a/b", "https://a/b/c", "psf://a/B/c", "psf://a/b/c/d", "psf://a/b/ ", ""]
)
def test_other_uris_are_no_identity(uri):
    assert parse_uri(uri) is None


def test_identity_of_a_connection():
    assert identity(Context(tls=False)) is None
    assert identity(Context(b"a.host", b"psf://cluster/worker/w:0")) == Identity("worker", "w:0")
    with pytest.raises(PermissionDenied, match="psf certs issue"):
        identity(Context(b"a.host"))


def test_claims_are_checked_against_the_certificate():
    check_claim(None, "worker", "w0")
    check_claim(Identity("worker", ANY_NAME), "worker", "w0")
    check_claim(Identity("worker", "w0"), "worker", "w0")
    check_claim(Identity("worker", "w0"), "worker", "")
    with pytest.raises(PermissionDenied, match=r"'parameter-server'.*'worker'"):
        check_claim(Identity("worker"), "parameter-server", "w0")
    with pytest.raises(PermissionDenied, match=r"'w1'.*'w0'"):
        check_claim(Identity("worker", "w0"), "worker", "w1")


def test_authorize_names_both_roles():
    authorize(Identity("worker", "w0"), frozenset())
    authorize(Identity("worker", "w0"), {"worker", "admin"})
    with pytest.raises(
        PermissionDenied, match="w0 has the role 'worker'; Drain needs 'admin' or 'coordinator'"
    ):
        authorize(Identity("worker", "w0"), {"coordinator", "admin"}, "Drain")


@pytest.mark.parametrize(
    ("role", "name"), [("Worker", "a"), ("", "a"), ("a/b", "a"), ("a", "a b"), ("a", "x" * 128)]
)
def test_names_that_cannot_stand_in_a_certificate(role, name):
    with pytest.raises(ConfigurationError):
        check_names(role, name)
