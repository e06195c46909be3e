import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TestOutputTopic;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Aggregator;
import org.apache.kafka.streams.kstream.CogroupedKStream;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Initializer;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KGroupedTable;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Merger;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Reducer;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.SessionWindowedKStream;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindowedCogroupedKStream;
import org.apache.kafka.streams.kstream.TimeWindowedKStream;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.test.TestRecord;

/**
 * Runs cases in the vocabulary of tests/golden on Kafka Streams' TopologyTestDriver: one case per
 * line of standard input, its rows or its error per line of standard output.
 *
 * <p>Inputs are piped one at a time, and rows carry the number of the input that caused them. Keys
 * and values are JSON. A restart is left out: the driver has none.
 */
public final class CaseRunner {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Serde<Object> ANY = Serdes.serdeFrom(new Writer(), new Reader());

    /**
     * By default a store forgets windows as soon as time is past their end and grace, which may be
     * before their final result is read: a jump of time then loses results.
     */
    private static final Duration RETENTION = Duration.ofDays(1);

    private final StreamsBuilder builder = new StreamsBuilder();
    private final Map<String, Object> made = new HashMap<>();
    private final Map<String, JsonNode> nodes = new HashMap<>();
    private final List<String> outputs = new ArrayList<>();

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                answer.put("rows", new CaseRunner().run(JSON.readTree(line)));
            } catch (Exception error) {
                answer.put("error", error.getClass().getSimpleName() + ": " + error.getMessage());
            }
            System.out.println(JSON.writeValueAsString(answer));
        }
    }

    private List<Map<String, Object>> run(JsonNode given) {
        for (JsonNode node : given.get("topology")) {
            nodes.put(node.get("id").asText(), node);
            made.put(node.get("id").asText(), build(node));
        }
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "oracle");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "unused:1");
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Any.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Any.class);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, System.getProperty("java.io.tmpdir"));
        // Results are looked for with every record instead of once a second.
        settings.put("__emit.interval.ms.kstreams.windowed.aggregation__", 0L);
        settings.put("__emit.interval.ms.kstreams.outer.join.spurious.results.fix__", 0L);
        try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(), settings, Instant.EPOCH)) {
            return feed(driver, given.get("inputs"));
        }
    }

    private List<Map<String, Object>> feed(TopologyTestDriver driver, JsonNode inputs) {
        Map<String, TestInputTopic<Object, Object>> topics = new HashMap<>();
        Map<String, TestOutputTopic<Object, Object>> written = new LinkedHashMap<>();
        for (String name : outputs) {
            written.put(name, driver.createOutputTopic(name, new Reader(), new Reader()));
        }
        List<Map<String, Object>> rows = new ArrayList<>();
        for (int number = 0; number < inputs.size(); number++) {
            JsonNode input = inputs.get(number);
            if (input.has("control")) {
                continue;
            }
            topics
                .computeIfAbsent(
                    input.get("topic").asText(),
                    name -> driver.createInputTopic(name, new Writer(), new Writer()))
                .pipeInput(new TestRecord<>(
                    plain(input.get("key")),
                    plain(input.get("value")),
                    Instant.ofEpochMilli(input.get("ts").asLong())));
            for (Map.Entry<String, TestOutputTopic<Object, Object>> each : written.entrySet()) {
                for (TestRecord<Object, Object> record : each.getValue().readRecordsToList()) {
                    rows.add(row(each.getKey(), record, number));
                }
            }
        }
        return rows;
    }

    private static Map<String, Object> row(String topic, TestRecord<Object, Object> record, int after) {
        Map<String, Object> row = new LinkedHashMap<>();
        Object key = record.key();
        row.put("topic", topic);
        row.put("key", key);
        row.put("window", null);
        if (key instanceof Map<?, ?> windowed) {
            row.put("key", windowed.get("key"));
            row.put("window", List.of(windowed.get("start"), windowed.get("end")));
        }
        row.put("value", record.value());
        row.put("ts", record.timestamp());
        row.put("after", after);
        return row;
    }

    // ---- operators ----

    private Object build(JsonNode node) {
        JsonNode by = node.path("by");
        return switch (node.get("op").asText()) {
            case "stream" -> builder.stream(topic(node), Consumed.with(ANY, ANY));
            case "table" -> node.has("versioned")
                ? builder.table(topic(node), Consumed.with(ANY, ANY), versioned(node))
                : builder.table(topic(node), Consumed.with(ANY, ANY));
            case "global_table" -> builder.globalTable(topic(node), Consumed.with(ANY, ANY));
            case "sink" -> sink(node);
            case "map" -> stream(node).map((k, v) -> Functions.pair(by, k, v));
            case "map_values" -> stream(node).mapValues((k, v) -> Functions.value(by, v));
            case "flat_map" -> stream(node).flatMap((k, v) -> Functions.pairs(by, k, v));
            case "filter" -> stream(node).filter((k, v) -> Functions.test(by, k, v));
            case "filter_not" -> stream(node).filterNot((k, v) -> Functions.test(by, k, v));
            case "select_key" -> stream(node).selectKey((k, v) -> Functions.key(by, k, v));
            case "merge" -> merge(node);
            case "branch" -> stream(node);
            case "branch_out" -> branch(node);
            case "repartition" -> stream(node).repartition(Repartitioned.with(ANY, ANY));
            case "table_filter" -> table(node).filter((k, v) -> Functions.test(by, k, v));
            case "table_filter_not" -> table(node).filterNot((k, v) -> Functions.test(by, k, v));
            case "table_map_values" -> table(node).mapValues((k, v) -> Functions.value(by, v));
            case "to_stream" -> table(node).toStream();
            case "suppress" -> suppress(node);
            case "group_by_key" -> stream(node).groupByKey(Grouped.with(ANY, ANY));
            case "group_by" -> groupBy(node);
            case "window" -> window(node);
            case "count", "reduce", "aggregate" -> aggregate(node);
            case "cogroup" -> cogroup(node);
            case "join" -> join(node);
            default -> throw new IllegalArgumentException("operation " + node.get("op"));
        };
    }

    private static String topic(JsonNode node) {
        return node.get("topic").asText();
    }

    private Object of(JsonNode node, int index) {
        JsonNode of = node.get("of");
        return made.get(of.isArray() ? of.get(index).asText() : of.asText());
    }

    @SuppressWarnings("unchecked")
    private KStream<Object, Object> stream(JsonNode node) {
        return (KStream<Object, Object>) of(node, 0);
    }

    @SuppressWarnings("unchecked")
    private KTable<Object, Object> table(JsonNode node) {
        return (KTable<Object, Object>) of(node, 0);
    }

    private static Materialized<Object, Object, KeyValueStore<Bytes, byte[]>> versioned(JsonNode node) {
        Duration history = Duration.ofMillis(node.get("versioned").get("history").asLong());
        String name = "versions-" + node.get("id").asText();
        Materialized<Object, Object, KeyValueStore<Bytes, byte[]>> store =
            Materialized.as(Stores.persistentVersionedKeyValueStore(name, history));
        return store.withKeySerde(ANY).withValueSerde(ANY);
    }

    private Object sink(JsonNode node) {
        KStream<Object, Object> written = of(node, 0) instanceof KTable ? table(node).toStream() : stream(node);
        outputs.add(topic(node));
        written.map((k, v) -> new KeyValue<>(Functions.shown(k), v)).to(topic(node), Produced.with(ANY, ANY));
        return null;
    }

    @SuppressWarnings("unchecked")
    private Object merge(JsonNode node) {
        KStream<Object, Object> whole = stream(node);
        for (int index = 1; index < node.get("of").size(); index++) {
            whole = whole.merge((KStream<Object, Object>) of(node, index));
        }
        return whole;
    }

    private Object branch(JsonNode node) {
        JsonNode all = nodes.get(node.get("of").asText()).get("branches");
        int wanted = node.get("branch").asInt();
        return stream(node).filter((k, v) -> {
            for (int index = 0; index < all.size(); index++) {
                if (Functions.test(all.get(index), k, v)) {
                    return index == wanted;
                }
            }
            return false;
        });
    }

    private Object suppress(JsonNode node) {
        if (node.get("until").asText().equals("window_closes")) {
            @SuppressWarnings("unchecked")
            KTable<Windowed<Object>, Object> windowed = (KTable<Windowed<Object>, Object>) of(node, 0);
            return windowed.suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()));
        }
        Duration limit = node.hasNonNull("ms") ? millis(node, "ms") : Duration.ofDays(10_000);
        Suppressed.BufferConfig<?> buffer = node.hasNonNull("max_records")
            ? Suppressed.BufferConfig.maxRecords(node.get("max_records").asLong())
            : Suppressed.BufferConfig.unbounded();
        return table(node).suppress(Suppressed.untilTimeLimit(limit, buffer));
    }

    private Object groupBy(JsonNode node) {
        JsonNode by = node.get("by");
        return of(node, 0) instanceof KTable
            ? table(node).groupBy((k, v) -> Functions.pair(by, k, v), Grouped.with(ANY, ANY))
            : stream(node).groupBy((k, v) -> Functions.key(by, k, v), Grouped.with(ANY, ANY));
    }

    @SuppressWarnings("unchecked")
    private Object window(JsonNode node) {
        KGroupedStream<Object, Object> grouped = (KGroupedStream<Object, Object>) of(node, 0);
        Object windows = windows(node);
        if (windows instanceof TimeWindows time) {
            return grouped.windowedBy(time);
        }
        return windows instanceof SlidingWindows sliding
            ? grouped.windowedBy(sliding)
            : grouped.windowedBy((SessionWindows) windows);
    }

    private static Object windows(JsonNode node) {
        Duration grace = Duration.ofMillis(node.path("grace").asLong(0));
        return switch (node.get("type").asText()) {
            case "tumbling" -> TimeWindows.ofSizeAndGrace(millis(node, "size"), grace);
            case "hopping" ->
                TimeWindows.ofSizeAndGrace(millis(node, "size"), grace).advanceBy(millis(node, "advance"));
            case "sliding" -> SlidingWindows.ofTimeDifferenceAndGrace(millis(node, "difference"), grace);
            default -> SessionWindows.ofInactivityGapAndGrace(millis(node, "gap"), grace);
        };
    }

    private static Duration millis(JsonNode node, String name) {
        return Duration.ofMillis(node.get(name).asLong());
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private Object aggregate(JsonNode node) {
        Object grouped = of(node, 0);
        boolean closes = node.path("emit").asText("").equals("on_close");
        EmitStrategy emit = closes ? EmitStrategy.onWindowClose() : EmitStrategy.onWindowUpdate();
        String kind = node.get("op").asText();
        JsonNode adding = node.has("add") ? node.get("add") : node.get("by");
        Initializer<Object> init = () -> plain(node.path("init"));
        Reducer<Object> reduce = (a, b) -> Functions.add(adding, a, b);
        Aggregator<Object, Object, Object> add = (k, v, a) -> Functions.add(adding, a, v);
        Materialized state = Materialized.with(ANY, ANY);
        Materialized counts = Materialized.with(ANY, Serdes.Long());
        if (nodes.get(node.get("of").asText()).get("op").asText().equals("window")) {
            state = state.withRetention(RETENTION);
            counts = counts.withRetention(RETENTION);
        }
        if (grouped instanceof KGroupedStream stream) {
            return switch (kind) {
                case "count" -> stream.count(counts);
                case "reduce" -> stream.reduce(reduce, state);
                default -> stream.aggregate(init, add, state);
            };
        }
        if (grouped instanceof KGroupedTable rows) {
            Reducer<Object> unreduce = (a, b) -> Functions.add(node.get("sub"), a, b);
            Aggregator<Object, Object, Object> sub = (k, v, a) -> Functions.add(node.get("sub"), a, v);
            return switch (kind) {
                case "count" -> rows.count(counts);
                case "reduce" -> rows.reduce(reduce, unreduce, state);
                default -> rows.aggregate(init, add, sub, state);
            };
        }
        if (grouped instanceof TimeWindowedKStream windowed) {
            TimeWindowedKStream emitting = windowed.emitStrategy(emit);
            return switch (kind) {
                case "count" -> emitting.count(counts);
                case "reduce" -> emitting.reduce(reduce, state);
                default -> emitting.aggregate(init, add, state);
            };
        }
        SessionWindowedKStream sessions = ((SessionWindowedKStream) grouped).emitStrategy(emit);
        Merger<Object, Object> merge = (k, a, b) -> Functions.add(node.get("merge"), a, b);
        return switch (kind) {
            case "count" -> sessions.count(counts);
            case "reduce" -> sessions.reduce(reduce, state);
            default -> sessions.aggregate(init, add, merge, state);
        };
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private Object cogroup(JsonNode node) {
        if (node.has("window") && node.path("emit").asText("").equals("on_close")) {
            throw new IllegalArgumentException("cogrouped windows have no emit strategy");
        }
        CogroupedKStream whole = null;
        for (int index = 0; index < node.get("of").size(); index++) {
            JsonNode adding = node.get("adds").get(index);
            Aggregator<Object, Object, Object> add = (k, v, a) -> Functions.add(adding, a, v);
            KGroupedStream<Object, Object> grouped = (KGroupedStream<Object, Object>) of(node, index);
            whole = whole == null ? grouped.cogroup(add) : whole.cogroup(grouped, add);
        }
        Initializer<Object> init = () -> plain(node.get("init"));
        Materialized state = Materialized.with(ANY, ANY);
        if (!node.hasNonNull("window")) {
            return whole.aggregate(init, state);
        }
        state = state.withRetention(RETENTION);
        Object windows = windows(nodes.get(node.get("window").asText()));
        if (windows instanceof SessionWindows sessions) {
            Merger<Object, Object> merge = (k, a, b) -> Functions.add(node.get("merge"), a, b);
            return whole.windowedBy(sessions).aggregate(init, merge, state);
        }
        TimeWindowedCogroupedKStream<Object, Object> windowed = windows instanceof TimeWindows time
            ? whole.windowedBy(time)
            : whole.windowedBy((SlidingWindows) windows);
        return windowed.aggregate(init, state);
    }

    // ---- joins ----

    @SuppressWarnings("unchecked")
    private Object join(JsonNode node) {
        ValueJoiner<Object, Object, Object> joiner = (a, b) -> Functions.join(node.get("joiner"), a, b);
        boolean inner = node.get("how").asText().equals("inner");
        Object right = of(node, 1);
        switch (node.get("kind").asText()) {
            case "stream_table": {
                Joined<Object, Object, Object> joined = Joined.with(ANY, ANY, ANY);
                if (node.has("grace")) {
                    joined = joined.withGracePeriod(millis(node, "grace"));
                }
                KTable<Object, Object> rows = (KTable<Object, Object>) right;
                return inner ? stream(node).join(rows, joiner, joined) : stream(node).leftJoin(rows, joiner, joined);
            }
            case "stream_global_table": {
                GlobalKTable<Object, Object> rows = (GlobalKTable<Object, Object>) right;
                JsonNode lookup = node.get("lookup");
                return inner
                    ? stream(node).join(rows, (k, v) -> Functions.key(lookup, k, v), joiner)
                    : stream(node).leftJoin(rows, (k, v) -> Functions.key(lookup, k, v), joiner);
            }
            case "table_table": {
                KTable<Object, Object> rows = (KTable<Object, Object>) right;
                return switch (node.get("how").asText()) {
                    case "inner" -> table(node).join(rows, joiner);
                    case "left" -> table(node).leftJoin(rows, joiner);
                    default -> table(node).outerJoin(rows, joiner);
                };
            }
            case "table_table_fk": {
                KTable<Object, Object> rows = (KTable<Object, Object>) right;
                JsonNode foreign = node.get("foreign_key");
                Materialized<Object, Object, KeyValueStore<Bytes, byte[]>> state = Materialized.with(ANY, ANY);
                return inner
                    ? table(node).join(rows, v -> Functions.key(foreign, null, v), joiner, state)
                    : table(node).leftJoin(rows, v -> Functions.key(foreign, null, v), joiner, state);
            }
            default:
                return joinStreams(node, (KStream<Object, Object>) right, joiner);
        }
    }

    private Object joinStreams(
            JsonNode node, KStream<Object, Object> right, ValueJoiner<Object, Object, Object> joiner) {
        long before = node.path("before").asLong(node.path("within").asLong());
        long after = node.path("after").asLong(node.path("within").asLong());
        JoinWindows windows = JoinWindows
            .ofTimeDifferenceAndGrace(
                Duration.ofMillis(Math.max(Math.max(before, after), 0)),
                Duration.ofMillis(node.path("grace").asLong(0)))
            .before(Duration.ofMillis(before))
            .after(Duration.ofMillis(after));
        StreamJoined<Object, Object, Object> joined = StreamJoined.with(ANY, ANY, ANY);
        return switch (node.get("how").asText()) {
            case "inner" -> stream(node).join(right, joiner, windows, joined);
            case "left" -> stream(node).leftJoin(right, joiner, windows, joined);
            default -> stream(node).outerJoin(right, joiner, windows, joined);
        };
    }

    private static Object plain(JsonNode node) {
        return node == null || node.isNull() || node.isMissingNode() ? null : JSON.convertValue(node, Object.class);
    }

    /** The functions that cases name. A null prints as the text "null". */
    private static final class Functions {
        static String text(Object value) {
            return String.valueOf(value);
        }

        static long number(Object value) {
            return value instanceof Number number ? number.longValue() : Long.parseLong((String) value);
        }

        static Object shown(Object key) {
            if (!(key instanceof Windowed<?> windowed)) {
                return key;
            }
            Map<String, Object> whole = new LinkedHashMap<>();
            whole.put("key", windowed.key());
            whole.put("start", windowed.window().start());
            whole.put("end", windowed.window().end());
            return whole;
        }

        static KeyValue<Object, Object> pair(JsonNode by, Object k, Object v) {
            return switch (by.get("fn").asText()) {
                case "identity" -> new KeyValue<>(k, v);
                case "swap" -> new KeyValue<>(v, k);
                case "value_as_key" -> new KeyValue<>(v, v);
                case "int_value" -> new KeyValue<>(k, v == null ? null : number(v));
                case "value_as_key_with_nulls" ->
                    "NULL".equals(k) ? null : new KeyValue<>("null".equals(k) ? null : v, v);
                default -> throw new IllegalArgumentException("function " + by);
            };
        }

        static Object key(JsonNode by, Object k, Object v) {
            switch (by.get("fn").asText()) {
                case "lookup_value":
                    return plain(by.get("map").path(text(v)));
                case "value_after_bar": {
                    String[] parts = v == null ? new String[0] : ((String) v).split("\\|", -1);
                    String found = parts.length > 1 ? parts[1] : null;
                    return found != null && found.equals(by.path("null_word").asText(null)) ? null : found;
                }
                case "null":
                    return null;
                default:
                    KeyValue<Object, Object> pair = pair(by, k, v);
                    return pair == null ? null : pair.key;
            }
        }

        static Object value(JsonNode by, Object v) {
            if (by.get("fn").asText().equals("length")) {
                return ((String) v).length();
            }
            throw new IllegalArgumentException("function " + by);
        }

        static List<KeyValue<Object, Object>> pairs(JsonNode by, Object k, Object v) {
            return switch (by.get("fn").asText()) {
                case "prefix_v_V" -> List.of(new KeyValue<>(k, "v" + text(v)), new KeyValue<>(k, "V" + text(v)));
                case "prefix_v_k" -> List.of(new KeyValue<>(k, "v" + text(v)), new KeyValue<>(k, "k" + text(k)));
                default -> throw new IllegalArgumentException("function " + by);
            };
        }

        static boolean test(JsonNode by, Object k, Object v) {
            return switch (by.get("fn").asText()) {
                case "key_mod" -> number(k) % by.get("n").asLong() == 0;
                case "value_mod" -> number(v) % by.get("n").asLong() == 0;
                case "key_negative" -> number(k) < 0;
                case "always" -> true;
                default -> throw new IllegalArgumentException("function " + by);
            };
        }

        static Object add(JsonNode by, Object a, Object b) {
            return switch (by.get("fn").asText()) {
                case "count" -> number(a) + 1;
                case "concat" -> text(a) + by.get("sep").asText() + text(b);
                case "append" -> text(a) + text(b);
                case "sum" -> number(a) + number(b);
                case "sub" -> number(a) - number(b);
                case "max" -> Math.max(number(a), number(b));
                case "min" -> Math.min(number(a), number(b));
                default -> throw new IllegalArgumentException("function " + by);
            };
        }

        static Object join(JsonNode by, Object a, Object b) {
            return switch (by.get("fn").asText()) {
                case "concat" -> text(a) + by.get("sep").asText() + text(b);
                case "pair" -> "(" + text(a) + "," + text(b) + ")";
                case "sum" -> number(a) + number(b);
                default -> throw new IllegalArgumentException("function " + by);
            };
        }
    }

    /** JSON as the default serde, made by reflection. */
    public static final class Any extends Serdes.WrapperSerde<Object> {
        public Any() {
            super(new Writer(), new Reader());
        }
    }

    private static final class Writer implements Serializer<Object> {
        @Override
        public byte[] serialize(String topic, Object value) {
            try {
                return value == null ? null : JSON.writeValueAsBytes(value);
            } catch (Exception error) {
                throw new IllegalArgumentException(error);
            }
        }
    }

    private static final class Reader implements Deserializer<Object> {
        @Override
        public Object deserialize(String topic, byte[] data) {
            try {
                return data == null ? null : JSON.readValue(data, Object.class);
            } catch (Exception error) {
                throw new IllegalArgumentException(error);
            }
        }
    }
}
