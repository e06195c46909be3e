"""Every request that is served, and the response that carries nothing but an error."""

from __future__ import annotations

from streamlog.protocol.messages import (
    admin,
    brokers,
    cluster,
    config_resources,
    consumer_group_description,
    consumer_groups,
    coordination,
    data,
    group_admin,
    partitions,
    publishing,
    quorum,
    quotas,
    replace_configs,
    replicas,
    security,
    topic_partitions,
    transaction_admin,
    transactions,
)
from streamlog.protocol.schema import Message

CODE = 41
ID = bytes(15) + b"\1"
RESPONSES: list[tuple[Message, Message]] = [
    (
        data.ProduceRequest(
            topic_data=[
                data.TopicProduceData(name="a", partition_data=[data.PartitionProduceData(index=2)])
            ]
        ),
        data.ProduceResponse(
            responses=[
                data.TopicProduceResponse(
                    name="a",
                    partition_responses=[
                        data.PartitionProduceResponse(
                            index=2, error_code=CODE, base_offset=-1, error_message="why"
                        )
                    ],
                )
            ]
        ),
    ),
    (data.FetchRequest(), data.FetchResponse(error_code=CODE)),
    (
        data.ListOffsetsRequest(
            topics=[
                data.ListOffsetsTopic(
                    name="a", partitions=[data.ListOffsetsPartition(partition_index=2)]
                )
            ]
        ),
        data.ListOffsetsResponse(
            topics=[
                data.ListOffsetsTopicResponse(
                    name="a",
                    partitions=[
                        data.ListOffsetsPartitionResponse(partition_index=2, error_code=CODE)
                    ],
                )
            ]
        ),
    ),
    (cluster.MetadataRequest(), cluster.MetadataResponse(error_code=CODE)),
    (
        coordination.OffsetCommitRequest(
            topics=[
                coordination.OffsetCommitRequestTopic(
                    topic_id=ID,
                    partitions=[coordination.OffsetCommitRequestPartition(partition_index=2)],
                )
            ]
        ),
        coordination.OffsetCommitResponse(
            topics=[
                coordination.OffsetCommitResponseTopic(
                    topic_id=ID,
                    partitions=[
                        coordination.OffsetCommitResponsePartition(
                            partition_index=2, error_code=CODE
                        )
                    ],
                )
            ]
        ),
    ),
    (
        coordination.OffsetFetchRequest(
            topics=[coordination.OffsetFetchRequestTopic(name="a", partition_indexes=[1, 2])]
        ),
        coordination.OffsetFetchResponse(
            topics=[
                coordination.OffsetFetchResponseTopic(
                    name="a",
                    partitions=[
                        coordination.OffsetFetchResponsePartition(
                            partition_index=1, committed_offset=-1, error_code=CODE
                        ),
                        coordination.OffsetFetchResponsePartition(
                            partition_index=2, committed_offset=-1, error_code=CODE
                        ),
                    ],
                )
            ],
            error_code=CODE,
        ),
    ),
    (
        coordination.OffsetFetchRequest(
            groups=[
                coordination.OffsetFetchRequestGroup(
                    group_id="a",
                    topics=[
                        coordination.OffsetFetchRequestTopics(topic_id=ID, partition_indexes=[1, 2])
                    ],
                )
            ]
        ),
        coordination.OffsetFetchResponse(
            error_code=CODE,
            groups=[coordination.OffsetFetchResponseGroup(group_id="a", error_code=CODE)],
        ),
    ),
    (
        coordination.FindCoordinatorRequest(),
        coordination.FindCoordinatorResponse(
            error_code=CODE, error_message="why", node_id=-1, port=-1
        ),
    ),
    (
        coordination.FindCoordinatorRequest(coordinator_keys=["a", "b"]),
        coordination.FindCoordinatorResponse(
            error_code=CODE,
            error_message="why",
            node_id=-1,
            port=-1,
            coordinators=[
                coordination.Coordinator(
                    key="a", node_id=-1, port=-1, error_code=CODE, error_message="why"
                ),
                coordination.Coordinator(
                    key="b", node_id=-1, port=-1, error_code=CODE, error_message="why"
                ),
            ],
        ),
    ),
    (coordination.JoinGroupRequest(), coordination.JoinGroupResponse(error_code=CODE)),
    (coordination.HeartbeatRequest(), coordination.HeartbeatResponse(error_code=CODE)),
    (coordination.LeaveGroupRequest(), coordination.LeaveGroupResponse(error_code=CODE)),
    (coordination.SyncGroupRequest(), coordination.SyncGroupResponse(error_code=CODE)),
    (
        coordination.DescribeGroupsRequest(groups=["a", "b"]),
        coordination.DescribeGroupsResponse(
            groups=[
                coordination.DescribedGroup(error_code=CODE, error_message="why", group_id="a"),
                coordination.DescribedGroup(error_code=CODE, error_message="why", group_id="b"),
            ]
        ),
    ),
    (coordination.ListGroupsRequest(), coordination.ListGroupsResponse(error_code=CODE)),
    (security.SaslHandshakeRequest(), security.SaslHandshakeResponse(error_code=CODE)),
    (cluster.ApiVersionsRequest(), cluster.ApiVersionsResponse(error_code=CODE)),
    (
        admin.CreateTopicsRequest(
            topics=[
                admin.CreatableTopic(
                    name="a",
                    assignments=[admin.CreatableReplicaAssignment(partition_index=2)],
                    configs=[admin.CreatableTopicConfig(name="a")],
                )
            ]
        ),
        admin.CreateTopicsResponse(
            topics=[
                admin.CreatableTopicResult(
                    name="a", error_code=CODE, error_message="why", configs=None
                )
            ]
        ),
    ),
    (
        admin.DeleteTopicsRequest(topic_names=["a", "b"]),
        admin.DeleteTopicsResponse(
            responses=[
                admin.DeletableTopicResult(name="a", error_code=CODE, error_message="why"),
                admin.DeletableTopicResult(name="b", error_code=CODE, error_message="why"),
            ]
        ),
    ),
    (
        admin.DeleteTopicsRequest(topics=[admin.DeleteTopicState(name="a", topic_id=ID)]),
        admin.DeleteTopicsResponse(
            responses=[
                admin.DeletableTopicResult(
                    name="a", topic_id=ID, error_code=CODE, error_message="why"
                )
            ]
        ),
    ),
    (
        admin.DeleteRecordsRequest(
            topics=[
                admin.DeleteRecordsTopic(
                    name="a", partitions=[admin.DeleteRecordsPartition(partition_index=2)]
                )
            ]
        ),
        admin.DeleteRecordsResponse(
            topics=[
                admin.DeleteRecordsTopicResult(
                    name="a",
                    partitions=[
                        admin.DeleteRecordsPartitionResult(
                            partition_index=2, low_watermark=-1, error_code=CODE
                        )
                    ],
                )
            ]
        ),
    ),
    (
        coordination.InitProducerIdRequest(),
        coordination.InitProducerIdResponse(error_code=CODE, producer_epoch=-1),
    ),
    (
        cluster.OffsetForLeaderEpochRequest(
            topics=[
                cluster.OffsetForLeaderTopic(
                    topic="a", partitions=[cluster.OffsetForLeaderPartition(partition=2)]
                )
            ]
        ),
        cluster.OffsetForLeaderEpochResponse(
            topics=[
                cluster.OffsetForLeaderTopicResult(
                    topic="a", partitions=[cluster.EpochEndOffset(error_code=CODE, partition=2)]
                )
            ]
        ),
    ),
    (
        transactions.AddPartitionsToTxnRequest(
            v3_and_below_topics=[transactions.AddPartitionsToTxnTopic(name="a", partitions=[1, 2])]
        ),
        transactions.AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                transactions.AddPartitionsToTxnTopicResult(
                    name="a",
                    results_by_partition=[
                        transactions.AddPartitionsToTxnPartitionResult(
                            partition_index=1, partition_error_code=CODE
                        ),
                        transactions.AddPartitionsToTxnPartitionResult(
                            partition_index=2, partition_error_code=CODE
                        ),
                    ],
                )
            ]
        ),
    ),
    (
        transactions.AddPartitionsToTxnRequest(
            transactions=[
                transactions.AddPartitionsToTxnTransaction(
                    transactional_id="a",
                    producer_id=2,
                    topics=[transactions.AddPartitionsToTxnTopic(name="a", partitions=[1, 2])],
                )
            ]
        ),
        transactions.AddPartitionsToTxnResponse(
            results_by_transaction=[
                transactions.AddPartitionsToTxnResult(
                    transactional_id="a",
                    topic_results=[
                        transactions.AddPartitionsToTxnTopicResult(
                            name="a",
                            results_by_partition=[
                                transactions.AddPartitionsToTxnPartitionResult(
                                    partition_index=1, partition_error_code=CODE
                                ),
                                transactions.AddPartitionsToTxnPartitionResult(
                                    partition_index=2, partition_error_code=CODE
                                ),
                            ],
                        )
                    ],
                )
            ]
        ),
    ),
    (transactions.AddOffsetsToTxnRequest(), transactions.AddOffsetsToTxnResponse(error_code=CODE)),
    (transactions.EndTxnRequest(), transactions.EndTxnResponse(error_code=CODE)),
    (
        transactions.WriteTxnMarkersRequest(
            markers=[
                transactions.WritableTxnMarker(
                    producer_id=2,
                    topics=[
                        transactions.WritableTxnMarkerTopic(name="a", partition_indexes=[1, 2])
                    ],
                )
            ]
        ),
        transactions.WriteTxnMarkersResponse(
            markers=[
                transactions.WritableTxnMarkerResult(
                    producer_id=2,
                    topics=[
                        transactions.WritableTxnMarkerTopicResult(
                            name="a",
                            partitions=[
                                transactions.WritableTxnMarkerPartitionResult(
                                    partition_index=1, error_code=CODE
                                ),
                                transactions.WritableTxnMarkerPartitionResult(
                                    partition_index=2, error_code=CODE
                                ),
                            ],
                        )
                    ],
                )
            ]
        ),
    ),
    (
        transactions.TxnOffsetCommitRequest(
            topics=[
                transactions.TxnOffsetCommitRequestTopic(
                    name="a",
                    partitions=[transactions.TxnOffsetCommitRequestPartition(partition_index=2)],
                )
            ]
        ),
        transactions.TxnOffsetCommitResponse(
            topics=[
                transactions.TxnOffsetCommitResponseTopic(
                    name="a",
                    partitions=[
                        transactions.TxnOffsetCommitResponsePartition(
                            partition_index=2, error_code=CODE
                        )
                    ],
                )
            ]
        ),
    ),
    (
        security.DescribeAclsRequest(),
        security.DescribeAclsResponse(error_code=CODE, error_message="why"),
    ),
    (
        security.CreateAclsRequest(
            creations=[security.AclCreation(resource_type=2, resource_name="a")]
        ),
        security.CreateAclsResponse(
            results=[security.AclCreationResult(error_code=CODE, error_message="why")]
        ),
    ),
    (
        security.DeleteAclsRequest(filters=[security.DeleteAclsFilter()]),
        security.DeleteAclsResponse(
            filter_results=[security.DeleteAclsFilterResult(error_code=CODE, error_message="why")]
        ),
    ),
    (
        admin.DescribeConfigsRequest(
            resources=[
                admin.DescribeConfigsResource(
                    resource_type=2, resource_name="a", configuration_keys=["a", "b"]
                )
            ]
        ),
        admin.DescribeConfigsResponse(
            results=[
                admin.DescribeConfigsResult(
                    error_code=CODE, error_message="why", resource_type=2, resource_name="a"
                )
            ]
        ),
    ),
    (
        replace_configs.AlterConfigsRequest(
            resources=[
                replace_configs.AlterConfigsResource(
                    resource_type=2,
                    resource_name="a",
                    configs=[replace_configs.AlterableConfig(name="a")],
                )
            ]
        ),
        replace_configs.AlterConfigsResponse(
            responses=[
                admin.AlterConfigsResourceResponse(
                    error_code=CODE, error_message="why", resource_type=2, resource_name="a"
                )
            ]
        ),
    ),
    (partitions.DescribeLogDirsRequest(), partitions.DescribeLogDirsResponse(error_code=CODE)),
    (
        security.SaslAuthenticateRequest(),
        security.SaslAuthenticateResponse(error_code=CODE, error_message="why"),
    ),
    (
        partitions.CreatePartitionsRequest(
            topics=[
                partitions.CreatePartitionsTopic(
                    name="a", assignments=[partitions.CreatePartitionsAssignment()]
                )
            ]
        ),
        partitions.CreatePartitionsResponse(
            results=[
                partitions.CreatePartitionsTopicResult(
                    name="a", error_code=CODE, error_message="why"
                )
            ]
        ),
    ),
    (
        group_admin.DeleteGroupsRequest(groups_names=["a", "b"]),
        group_admin.DeleteGroupsResponse(
            results=[
                group_admin.DeletableGroupResult(group_id="a", error_code=CODE),
                group_admin.DeletableGroupResult(group_id="b", error_code=CODE),
            ]
        ),
    ),
    (
        replicas.ElectLeadersRequest(
            topic_partitions=[replicas.TopicPartitions(topic="a", partitions=[1, 2])]
        ),
        replicas.ElectLeadersResponse(
            error_code=CODE,
            replica_election_results=[
                replicas.ReplicaElectionResult(
                    topic="a",
                    partition_result=[
                        replicas.PartitionResult(
                            partition_id=1, error_code=CODE, error_message="why"
                        ),
                        replicas.PartitionResult(
                            partition_id=2, error_code=CODE, error_message="why"
                        ),
                    ],
                )
            ],
        ),
    ),
    (
        admin.IncrementalAlterConfigsRequest(
            resources=[
                admin.AlterConfigsResource(
                    resource_type=2, resource_name="a", configs=[admin.AlterableConfig(name="a")]
                )
            ]
        ),
        admin.IncrementalAlterConfigsResponse(
            responses=[
                admin.AlterConfigsResourceResponse(
                    error_code=CODE, error_message="why", resource_type=2, resource_name="a"
                )
            ]
        ),
    ),
    (
        replicas.AlterPartitionReassignmentsRequest(),
        replicas.AlterPartitionReassignmentsResponse(error_code=CODE, error_message="why"),
    ),
    (
        replicas.ListPartitionReassignmentsRequest(),
        replicas.ListPartitionReassignmentsResponse(error_code=CODE, error_message="why"),
    ),
    (group_admin.OffsetDeleteRequest(), group_admin.OffsetDeleteResponse(error_code=CODE)),
    (
        quotas.DescribeClientQuotasRequest(),
        quotas.DescribeClientQuotasResponse(error_code=CODE, error_message="why", entries=None),
    ),
    (
        quotas.AlterClientQuotasRequest(
            entries=[
                quotas.QuotaAlteration(
                    entity=[quotas.QuotaEntity(entity_type="a", entity_name="a")],
                    ops=[quotas.QuotaOperation(key="a")],
                )
            ]
        ),
        quotas.AlterClientQuotasResponse(
            entries=[
                quotas.AlteredQuota(
                    error_code=CODE,
                    error_message="why",
                    entity=[quotas.QuotaEntity(entity_type="a", entity_name="a")],
                )
            ]
        ),
    ),
    (
        security.DescribeUserScramCredentialsRequest(),
        security.DescribeUserScramCredentialsResponse(error_code=CODE, error_message="why"),
    ),
    (
        security.AlterUserScramCredentialsRequest(
            deletions=[security.ScramCredentialDeletion(name="a")],
            upsertions=[security.ScramCredentialUpsertion(name="a")],
        ),
        security.AlterUserScramCredentialsResponse(
            results=[
                security.AlterUserScramCredentialsResult(
                    user="a", error_code=CODE, error_message="why"
                )
            ]
        ),
    ),
    (quorum.VoteRequest(), quorum.VoteResponse(error_code=CODE)),
    (quorum.BeginQuorumEpochRequest(), quorum.BeginQuorumEpochResponse(error_code=CODE)),
    (quorum.EndQuorumEpochRequest(), quorum.EndQuorumEpochResponse(error_code=CODE)),
    (
        quorum.DescribeQuorumRequest(),
        quorum.DescribeQuorumResponse(error_code=CODE, error_message="why"),
    ),
    (brokers.AlterPartitionRequest(), brokers.AlterPartitionResponse(error_code=CODE)),
    (quorum.FetchSnapshotRequest(), quorum.FetchSnapshotResponse(error_code=CODE)),
    (
        cluster.DescribeClusterRequest(),
        cluster.DescribeClusterResponse(error_code=CODE, error_message="why"),
    ),
    (
        transaction_admin.DescribeProducersRequest(
            topics=[transaction_admin.TopicRequest(name="a", partition_indexes=[1, 2])]
        ),
        transaction_admin.DescribeProducersResponse(
            topics=[
                transaction_admin.TopicResponse(
                    name="a",
                    partitions=[
                        transaction_admin.PartitionResponse(
                            partition_index=1, error_code=CODE, error_message="why"
                        ),
                        transaction_admin.PartitionResponse(
                            partition_index=2, error_code=CODE, error_message="why"
                        ),
                    ],
                )
            ]
        ),
    ),
    (brokers.BrokerRegistrationRequest(), brokers.BrokerRegistrationResponse(error_code=CODE)),
    (brokers.BrokerHeartbeatRequest(), brokers.BrokerHeartbeatResponse(error_code=CODE)),
    (
        brokers.UnregisterBrokerRequest(),
        brokers.UnregisterBrokerResponse(error_code=CODE, error_message="why"),
    ),
    (
        transaction_admin.DescribeTransactionsRequest(transactional_ids=["a", "b"]),
        transaction_admin.DescribeTransactionsResponse(
            transaction_states=[
                transaction_admin.TransactionState(error_code=CODE, transactional_id="a"),
                transaction_admin.TransactionState(error_code=CODE, transactional_id="b"),
            ]
        ),
    ),
    (
        transactions.ListTransactionsRequest(),
        transactions.ListTransactionsResponse(error_code=CODE),
    ),
    (brokers.AllocateProducerIdsRequest(), brokers.AllocateProducerIdsResponse(error_code=CODE)),
    (
        consumer_groups.ConsumerGroupHeartbeatRequest(),
        consumer_groups.ConsumerGroupHeartbeatResponse(error_code=CODE, error_message="why"),
    ),
    (
        consumer_group_description.ConsumerGroupDescribeRequest(group_ids=["a", "b"]),
        consumer_group_description.ConsumerGroupDescribeResponse(
            groups=[
                consumer_group_description.DescribedGroup(
                    error_code=CODE, error_message="why", group_id="a"
                ),
                consumer_group_description.DescribedGroup(
                    error_code=CODE, error_message="why", group_id="b"
                ),
            ]
        ),
    ),
    (
        config_resources.ListConfigResourcesRequest(),
        config_resources.ListConfigResourcesResponse(error_code=CODE),
    ),
    (
        topic_partitions.DescribeTopicPartitionsRequest(
            topics=[topic_partitions.TopicRequest(name="a")]
        ),
        topic_partitions.DescribeTopicPartitionsResponse(
            topics=[
                topic_partitions.DescribeTopicPartitionsResponseTopic(error_code=CODE, name="a")
            ]
        ),
    ),
    (publishing.PublishRequest(), publishing.PublishResponse(error_code=CODE, error_message="why")),
    (publishing.StageRequest(), publishing.StageResponse(error_code=CODE, error_message="why")),
    (
        publishing.DropStagedRequest(),
        publishing.DropStagedResponse(error_code=CODE, error_message="why"),
    ),
]
BY_ITEM: list[tuple[Message, Message]] = [
    (
        data.FetchRequest(
            topics=[data.FetchTopic(topic_id=ID, partitions=[data.FetchPartition(partition=2)])]
        ),
        data.FetchResponse(
            responses=[
                data.FetchableTopicResponse(
                    topic_id=ID,
                    partitions=[
                        data.PartitionData(
                            partition_index=2, error_code=CODE, high_watermark=-1, records=b""
                        )
                    ],
                )
            ]
        ),
    ),
    (
        group_admin.OffsetDeleteRequest(
            topics=[
                group_admin.OffsetDeleteRequestTopic(
                    name="a",
                    partitions=[group_admin.OffsetDeleteRequestPartition(partition_index=2)],
                )
            ]
        ),
        group_admin.OffsetDeleteResponse(
            topics=[
                group_admin.OffsetDeleteResponseTopic(
                    name="a",
                    partitions=[
                        group_admin.OffsetDeleteResponsePartition(
                            partition_index=2, error_code=CODE
                        )
                    ],
                )
            ]
        ),
    ),
]
