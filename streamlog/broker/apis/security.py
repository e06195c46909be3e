"""Requests about ACLs and SCRAM users, and the authorization of every request.

`RequestAuthorization` takes a request through the rules of `broker/security` to its handler, and
takes the response back through them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from streamlog.broker.config.security import AUTHORIZER_NONE
from streamlog.broker.future_responses import has_failed, is_abandoned
from streamlog.broker.handlers import AnyAnswer, AnyHandler, Handlers, entry
from streamlog.broker.quorum.controller.security_control import filter_of
from streamlog.broker.security.acl_authorizer import Access, Authorizer, super_users_of
from streamlog.broker.security.principals import IN_PROCESS
from streamlog.broker.security.rules import RULES
from streamlog.broker.security.topic_rules import may_read, may_write
from streamlog.broker.subject_logs import log_decision
from streamlog.errors import LogError, NotAuthorized
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.produce_and_fetch import FetchRequest, ProduceRequest
from streamlog.protocol.messages.sasl_acls_quotas import (
    AclDescription,
    CredentialInfo,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.config.security import SecurityConfig
    from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata
    from streamlog.broker.replication.partition import Partitions
    from streamlog.broker.security.principals import RequestContext
    from streamlog.broker.security.users import Credentials
    from streamlog.protocol.produce_runs import ProduceRun


class RequestAuthorization:
    """Authorizes each request before its handler, by the rules of `broker/security`.

    Requests that repeat earlier ones (`produce_runs`, `fetch_patterns`) are only let through here,
    by the predicates that the rules use. They are never refused: the caller sends what is not let
    through the full way, where the rule of its request refuses it.
    """

    def __init__(self, acls: AclRequests, partitions: Partitions) -> None:
        self._acls = acls
        self._partitions = partitions

    def begin(self, request: Message, context: RequestContext, handler: AnyHandler) -> AnyAnswer:
        """Return the handler's answer to a request, or the refusal of the request's rule.

        Raises:
            NotAuthorized: no response can carry the refusal, so the connection is closed.
        """
        access = self._access(context)
        if access is None:
            return handler(request, context)
        return _judge(request, access, partial(handler, request, context))

    def count_allowed(self, run: ProduceRun, context: RequestContext) -> int:
        """Return how many requests of a run, from its first on, the principal may make."""
        access = self._access(context)
        if access is None:
            return len(run.requests)
        # A run has few topics and many requests: one decision per topic is enough.
        allowed: dict[str, bool] = {}
        for count, (pattern, *_) in enumerate(run.requests):
            topic = pattern.topic
            if topic not in allowed:
                allowed[topic] = may_write(topic, access)
            if not allowed[topic]:
                return count
        return len(run.requests)

    def allows_repeat(
        self, request: ProduceRequest | FetchRequest, context: RequestContext
    ) -> bool:
        """Return whether the principal may make every part of a request."""
        if self._acls.authorizer is None:
            return True
        access = self._access(context)
        if access is None:
            return True
        if isinstance(request, ProduceRequest):
            return all(may_write(topic.name, access) for topic in request.topic_data)
        return all(may_read(topic, access) for topic in request.topics)

    def _access(self, context: RequestContext) -> Access | None:
        """Return what the principal may do; None if that is everything."""
        authorizer = self._acls.authorizer
        if authorizer is None or context.principal == IN_PROCESS:
            return None
        return Access(
            authorizer=authorizer,
            principal=context.principal,
            host=context.client_host.removeprefix("/"),
            version=context.version,
            exists=lambda name: self._partitions.topic_id(name) is not None,
            name_of=self._partitions.name_of,
            topics=self._partitions.names,
            log=log_decision,
        )


def _judge(request: Message, access: Access, answer: Callable[..., AnyAnswer]) -> AnyAnswer:
    """Apply the rule of a request: before its handler, and to the response."""
    rule = RULES.get(type(request))
    if rule is None:
        raise NotAuthorized(
            f"{type(request).__name__} has no authorization rule, so no client may send it"
        )
    verdict = rule(request, access)
    if verdict.answer is not None:
        return verdict.answer
    if verdict.readable is not None:
        return answer(verdict.readable)
    given = answer()
    finish = verdict.finish
    if finish is None or given is None:
        return given
    if isinstance(given, asyncio.Future):
        return _finish_later(given, finish)
    finish(given)
    return given


def _finish_later(
    given: asyncio.Future[Message | None], finish: Callable[[Message], None]
) -> asyncio.Future[Message | None]:
    """Return the future of the response after `finish` has removed what may not be seen."""
    seen: asyncio.Future[Message | None] = given.get_loop().create_future()

    def hand_on(_: object) -> None:
        if is_abandoned(seen, given) or has_failed(seen, given):
            return
        response = given.result()
        if response is not None:
            finish(response)
        seen.set_result(response)

    given.add_done_callback(hand_on)
    # A client that disconnects cancels `seen`; the handler's own future has to end with it.
    seen.add_done_callback(lambda _: given.cancel() if seen.cancelled() else None)
    return seen


DISABLED = "this broker checks no ACLs: set authorizer.class.name=standard"


class AclRequests:
    """Answers requests about ACLs; `authorizer` decides by the ACLs, None without authorization."""

    def __init__(
        self, metadata: ClusterMetadata, config: SecurityConfig, *, peers: frozenset[str]
    ) -> None:
        """Use the ACLs of the metadata; `peers`, the other brokers, are super users too.

        Raises:
            ConfigError: an entry of `super.users` is not a principal.
        """
        self._metadata = metadata
        self.authorizer: Authorizer | None = None
        if config.authorizer != AUTHORIZER_NONE:
            self.authorizer = Authorizer(
                metadata.acls(),
                super_users=super_users_of(config.super_users) | peers,
                allow_if_none_found=config.allow_if_no_acl,
            )

    def on_changed(self) -> None:
        """Use the ACLs that the metadata has now."""
        if self.authorizer is not None:
            self.authorizer.replace(self._metadata.acls())

    def handlers(self) -> Handlers:
        """Return the handler of each request type."""
        return dict([entry(DescribeAclsRequest, lambda request, _: self.describe(request))])

    def describe(self, request: DescribeAclsRequest) -> DescribeAclsResponse:
        """Return the ACLs that a filter matches, by resource."""
        try:
            found = self._required().acls.matching(filter_of(request))
        except LogError as error:
            return DescribeAclsResponse(error_code=error.code, error_message=str(error))
        return DescribeAclsResponse(
            error_message=None,
            # `matching` sorts by resource, which `groupby` relies on.
            resources=[
                DescribeAclsResource(
                    resource_type=kind,
                    resource_name=name,
                    pattern_type=pattern,
                    acls=[
                        AclDescription(
                            principal=acl.principal,
                            host=acl.host,
                            operation=acl.operation,
                            permission_type=acl.permission,
                        )
                        for acl in acls
                    ],
                )
                for (kind, name, pattern), acls in groupby(
                    found, key=lambda acl: (acl.resource_type, acl.name, acl.pattern)
                )
            ],
        )

    def _required(self) -> Authorizer:
        if self.authorizer is None:
            raise error_for(ErrorCode.SECURITY_DISABLED, DISABLED)
        return self.authorizer


class UserRequests:
    """Answers requests about SCRAM users, and keeps the users that this broker knows."""

    def __init__(self, metadata: ClusterMetadata, own: Credentials) -> None:
        """`own` are users from this broker's own configuration; they precede the metadata's."""
        self._metadata = metadata
        self._own = own
        # Apart: DescribeUserScramCredentials shows only the users in the metadata, not the brokers'
        # own user, whose credentials each broker derives from its settings.
        self._kept = metadata.users()
        self.users = self._kept.join(own)
        """The users who can authenticate at this broker."""

    def on_changed(self) -> None:
        """Use the users that the metadata has now."""
        self._kept = self._metadata.users()
        self.users = self._kept.join(self._own)

    def handlers(self) -> Handlers:
        """Return the handler of each request type."""
        return dict(
            [
                entry(
                    DescribeUserScramCredentialsRequest, lambda request, _: self.describe(request)
                ),
                # Only a listener without SASL passes these on; `SaslHandshake` answers the others.
                entry(
                    SaslHandshakeRequest,
                    lambda _, __: SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE),
                ),
                entry(
                    SaslAuthenticateRequest,
                    lambda _, __: SaslAuthenticateResponse(
                        error_code=ErrorCode.ILLEGAL_SASL_STATE,
                        error_message="this listener does not use SASL",
                    ),
                ),
            ]
        )

    def describe(
        self, request: DescribeUserScramCredentialsRequest
    ) -> DescribeUserScramCredentialsResponse:
        """Return the mechanisms of users, and the iterations of each."""
        asked = [each.name for each in request.users or ()] or self._kept.names
        counts = Counter(asked)
        return DescribeUserScramCredentialsResponse(
            error_message=None, results=[self._described(name, counts[name]) for name in counts]
        )

    def _described(self, name: str, count: int) -> DescribeUserScramCredentialsResult:
        own = self._kept.of(name)
        if count > 1:
            code = ErrorCode.DUPLICATE_RESOURCE
            message = f"the request names user {name!r} {count} times"
        elif not own:
            code, message = ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {name!r}"
        else:
            infos = [
                CredentialInfo(mechanism=each.mechanism, iterations=each.iterations)
                for _, each in sorted(own.items())
            ]
            return DescribeUserScramCredentialsResult(
                user=name, error_message=None, credential_infos=infos
            )
        return DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=message)
