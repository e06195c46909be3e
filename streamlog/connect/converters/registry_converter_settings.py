"""Registry access: the settings that all converters with a schema registry have.

Their names are Confluent's. A certificate and its authorities are PEM files.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from streamlog.connect.converters.registry_converter import RegistryUse
from streamlog.connect.secrets import Secret
from streamlog.errors import ConfigError
from streamlog.serdes.registered.topic_schema import SubjectNames

_STRATEGIES: Final[dict[str, SubjectNames]] = {
    "TopicNameStrategy": "topic",
    "RecordNameStrategy": "record",
    "TopicRecordNameStrategy": "topic_record",
}
STRATEGY_PACKAGE: Final = "io.confluent.kafka.serializers.subject."
TOPIC_STRATEGY: Final = f"{STRATEGY_PACKAGE}TopicNameStrategy"


class RegistryConverterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where schemas are, and how they get there.

    Attributes:
        schema_registry_url: the servers of the registry, separated by commas.
        basic_auth_credentials_source: whether the password is in the URL, or in
            `basic.auth.user.info`.
        basic_auth_user_info: `USER:PASSWORD`.
        ssl_ca_location: a PEM file with the certificates that servers may be signed by.
        ssl_certificate_location: a PEM file with the certificate that the client shows.
        ssl_key_location: the key of that certificate.
        ssl_key_password: the password of an encrypted key.
        auto_register_schemas: whether schemas that the registry lacks are registered.
        use_latest_version: whether records are written with the latest version of their subject;
            only with `auto.register.schemas=false`.
        normalize_schemas: whether the registry takes schemas for one that differ in spelling.
        key_subject_name_strategy: what names the subject of keys: TopicNameStrategy,
            RecordNameStrategy or TopicRecordNameStrategy.
        value_subject_name_strategy: what names the subject of values.
        schemas_cache_config: accepted; a converter keeps the last 1,000 schemas.
    """

    schema_registry_url: str
    basic_auth_credentials_source: Literal["URL", "USER_INFO"] = "URL"
    basic_auth_user_info: Secret | None = None
    ssl_ca_location: str = ""
    ssl_certificate_location: str = ""
    ssl_key_location: str = ""
    ssl_key_password: Secret | None = None
    auto_register_schemas: bool = True
    use_latest_version: bool = False
    normalize_schemas: bool = False
    key_subject_name_strategy: str = TOPIC_STRATEGY
    value_subject_name_strategy: str = TOPIC_STRATEGY
    schemas_cache_config: int = 1_000

    def check(self) -> None:
        """Raise ConfigError if settings contradict each other."""
        for side in ("key", "value"):
            self.subjects(side)
        if self.basic_auth_credentials_source == "USER_INFO" and self.basic_auth_user_info is None:
            raise ConfigError(
                "basic.auth.credentials.source=USER_INFO needs basic.auth.user.info=USER:PASSWORD"
            )

    def subjects(self, side: str) -> SubjectNames:
        """Return what names the subject of keys or values.

        Raises:
            ConfigError: there is no such strategy.
        """
        is_key = side == "key"
        given = self.key_subject_name_strategy if is_key else self.value_subject_name_strategy
        found = _STRATEGIES.get(given.removeprefix(STRATEGY_PACKAGE))
        if found is None:
            raise ConfigError(f"{side}.subject.name.strategy: use one of {', '.join(_STRATEGIES)}")
        return found

    def use(self, side: Literal["key", "value"]) -> RegistryUse:
        """Return how schemas of keys or values are found."""
        return RegistryUse(
            side,
            registers=self.auto_register_schemas,
            uses_latest=self.use_latest_version,
            normalizes=self.normalize_schemas,
            subjects=self.subjects(side),
        )
