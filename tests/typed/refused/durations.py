"""Durations and times as plain numbers, without a unit."""

from __future__ import annotations

from streamlog import App, kv_store, tumbling

app = App("durations")
words = app.stream(app.topic("words", key=str, value=str))
windowed = words.group_by_key().windowed(tumbling("1m", grace="1s"))


async def length(word: str) -> int:
    return len(word)


# E: Argument 1 to "tumbling" has incompatible type "int"
# R: 60.*has no unit
tumbling(60)

# E: Argument "grace" to "tumbling" has incompatible type "int"
# R: 5.*has no unit
tumbling("1m", grace=5)

# E: Argument 1 to "idle_after" of "WindowedStream" has incompatible type "int"
# R: 30.*has no unit
windowed.idle_after(30)

# E: Argument "within" to "dedupe" of "Stream" has incompatible type "int"
# R: 600.*has no unit
words.dedupe(len, within=600, name="deduped")

# E: Argument "timeout" to "amap_values" of "Stream" has incompatible type "float"
# R: 2.5.*has no unit
words.amap_values(length, timeout=2.5)

# E: Argument "ttl" to "kv_store" has incompatible type "Literal[7]"
# R: 7.*has no unit
kv_store(str, int, ttl=7)

# E: Argument 1 to "timer" of "AppServices" has incompatible type "int"
# R: 15.*has no unit
app.timer(15)

# E: No overload variant of "join"
# R: 300.*has no unit
words.join(words, lambda one, other: one + other, within=300, name="pairs")

# R: '90': it has no unit
tumbling("90")
