"""Names from certificate subjects; the examples are from KIP-371 and Kafka's documentation."""

from __future__ import annotations

import pytest

from streamlog.broker.security.principals import PrincipalRules
from streamlog.errors import ConfigError

RULES = (
    r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, "
    r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    r"RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U,"
    r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U ,DEFAULT"
)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_the_first_matching_rule_applies(subject: str, name: str) -> None:
    assert PrincipalRules.parse(RULES).name_of(subject) == name


@pytest.mark.parametrize("rules", ["", " ", "DEFAULT"])
def test_without_rules_the_name_is_the_subject(rules: str) -> None:
    assert PrincipalRules.parse(rules).name_of("CN=a") == "CN=a"


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        (r"RULE:CN=(.*)/$1/", "CN=a,O=b", "a,O=b"),
        (r"RULE:CN=(.*)/$1/", "O=b,CN=a", None),
        (r"RULE:CN=(.*?),O=a\/b/$1-\$1\//", "CN=x,O=a/b", "x-$1/"),
        (r"RULE:CN=(.*)/$2$1/", "CN=x", "$2x"),
        (r"RULE:CN=(a)?b/<$1>/", "CN=b", "<>"),
        (r"RULE:CN=a/all/, RULE:CN=.*/other/U", "CN=c", "OTHER"),
        (r"RULE:CN=([^,]*),.*/$1/", "CN=a,OU=b,O=c", "a"),
    ],
)
def test_a_rule_maps_a_subject_to_a_name(rules: str, subject: str, name: str | None) -> None:
    assert PrincipalRules.parse(rules).name_of(subject) == name


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "RULE:CN=(.*)/$1",
        "RULE:CN=(.*)/$1/X",
        "RULE:CN=(/$1/",
        "DEFAULT;DEFAULT",
        "RULE:",
    ],
)
def test_a_malformed_rule_is_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        PrincipalRules.parse(rules)
