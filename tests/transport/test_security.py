"""A client's security settings, and the exchange for each SASL mechanism."""

from __future__ import annotations

import ssl

import pytest

from streamlog.errors import AuthenticationFailed, ConfigError
from streamlog.transport.security import Security, exchange_of, security_settings, variable_of
from tests.broker.certificates import certificates

SETTINGS = {
    "security.protocol": "sasl_ssl",
    "sasl.mechanism": "scram-sha-256",
    "sasl.username": "alice",
    "sasl.password": "wonderland",
}


def test_security_settings_have_librdkafkas_names() -> None:
    security = Security.of({**SETTINGS, "ssl.ca.location": certificates().authority})
    assert (security.protocol, security.mechanism) == ("SASL_SSL", "SCRAM-SHA-256")
    assert security.secret == "wonderland"
    assert "wonderland" not in repr(security)
    context = security.tls()
    assert isinstance(context, ssl.SSLContext)
    assert context.check_hostname
    assert security.loaded().context is not None
    assert Security().tls() is None


def test_environment_variables_have_the_names_of_the_settings() -> None:
    environment = {variable_of(name): value for name, value in SETTINGS.items()}
    assert environment["STREAMLOG_SASL_PASSWORD"] == "wonderland"
    assert security_settings({**environment, "STREAMLOG_OTHER": "x"}) == SETTINGS


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"security.protocol": "TLS"}, "use one of PLAINTEXT"),
        ({"security.protcol": "SSL"}, "'security.protcol': did you mean 'security.protocol'"),
        ({"zzz": "SSL"}, "'zzz'; there are: security.protocol"),
        ({"ssl.endpoint.identification.algorithm": "no"}, "use https or none"),
        ({"sasl.username": "alice"}, "but security.protocol is PLAINTEXT"),
        ({"security.protocol": "SASL_SSL"}, "no sasl.mechanism: use one of PLAIN"),
        ({**SETTINGS, "sasl.mechanism": "GSSAPI"}, "sasl.mechanism='GSSAPI'"),
        ({**SETTINGS, "sasl.username": ""}, "needs a user and a password"),
        ({**SETTINGS, "sasl.mechanism": "OAUTHBEARER"}, "needs a token"),
    ],
)
def test_contradictory_settings_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Security.of(settings)
    assert "wonderland" not in str(caught.value)


@pytest.mark.parametrize("name", ["ssl.ca.location", "ssl.certificate.location"])
@pytest.mark.parametrize("path", ["/no/such/file", __file__])
def test_an_unusable_certificate_file_is_named(name: str, path: str) -> None:
    security = Security.of({"security.protocol": "SSL", name: path})
    with pytest.raises(ConfigError, match=f"{name}={path}"):
        security.tls()


def test_the_check_of_the_host_name_can_be_disabled() -> None:
    settings = {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none"}
    context = Security.of(settings).tls()
    assert context is not None
    assert not context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_each_sasl_mechanism_has_its_exchange() -> None:
    with pytest.raises(AuthenticationFailed, match="use one of PLAIN"):
        exchange_of("GSSAPI", "alice", "wonderland", nonce="n")
    assert exchange_of("PLAIN", "alice", "wonderland", nonce="n").first() == b"\0alice\0wonderland"
    bearer = exchange_of("OAUTHBEARER", "", "token", nonce="n")
    assert bearer.first() == b"n,,\x01auth=Bearer token\x01\x01"
    assert bearer.answer(b"") is None
    assert bearer.answer(b"{}") == b"\x01"
