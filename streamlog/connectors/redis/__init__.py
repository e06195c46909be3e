"""Redis: a sink for hashes, strings, streams and channels, and sources of streams and channels.

The sink writes rows and offsets by one script, so they count together or not at all. A stream is
read by its entries' ids, which are the offset. What is published to a channel is kept nowhere.
"""

from streamlog.connectors.redis.redis_sink import RedisSink
from streamlog.connectors.redis.redis_sources import RedisPubSub, RedisStreams

__all__ = ["RedisPubSub", "RedisSink", "RedisStreams"]
