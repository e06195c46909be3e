import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import javax.crypto.spec.SecretKeySpec;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.runtime.AbstractStatus;
import org.apache.kafka.connect.runtime.ConnectorStatus;
import org.apache.kafka.connect.runtime.RestartRequest;
import org.apache.kafka.connect.runtime.SessionKey;
import org.apache.kafka.connect.runtime.TargetState;
import org.apache.kafka.connect.runtime.TaskStatus;
import org.apache.kafka.connect.runtime.TopicStatus;
import org.apache.kafka.connect.runtime.distributed.DistributedConfig;
import org.apache.kafka.connect.storage.ClusterConfigState;
import org.apache.kafka.connect.storage.ConfigBackingStore;
import org.apache.kafka.connect.storage.KafkaConfigBackingStore;
import org.apache.kafka.connect.storage.KafkaOffsetBackingStore;
import org.apache.kafka.connect.storage.KafkaStatusBackingStore;
import org.apache.kafka.connect.storage.OffsetStorageReaderImpl;
import org.apache.kafka.connect.storage.OffsetStorageWriter;
import org.apache.kafka.connect.util.ConnectorTaskId;
import org.apache.kafka.connect.util.KafkaBasedLog;
import org.apache.kafka.connect.util.TopicAdmin;

/** Kafka Connect's own stores over its three topics: a line is a call, the answer what it returned or raised. */
public class BackingStores {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long WAIT_MS = 60_000;
    private static final ArrayNode restarts = JSON.createArrayNode();
    private static final ArrayNode levels = JSON.createArrayNode();
    private static JsonConverter converter;
    private static KafkaConfigBackingStore configs;
    private static KafkaStatusBackingStore statuses;
    private static KafkaOffsetBackingStore offsets;

    public static void main(String[] given) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        PrintWriter out = new PrintWriter(System.out, true, java.nio.charset.StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("value", called(JSON.readTree(line)));
            } catch (Exception error) {
                StringWriter trace = new StringWriter();
                error.printStackTrace(new PrintWriter(trace));
                answer.put("raised", trace.toString());
            }
            out.println(JSON.writeValueAsString(answer));
        }
        stop();
    }

    private static JsonNode called(JsonNode asked) throws Exception {
        String name = asked.path("name").asText();
        switch (asked.get("call").asText()) {
            case "open":
                open(texts(asked.get("settings")));
                break;
            case "connector":
                configs.putConnectorConfig(name, texts(asked.get("config")), target(asked));
                break;
            case "delete":
                configs.removeConnectorConfig(name);
                break;
            case "tasks":
                List<Map<String, String>> tasks = new ArrayList<>();
                asked.get("tasks").forEach(each -> tasks.add(texts(each)));
                configs.putTaskConfigs(name, tasks);
                break;
            case "target":
                configs.putTargetState(name, target(asked));
                break;
            case "restart":
                boolean onlyFailed = asked.get("only_failed").asBoolean();
                configs.putRestartRequest(new RestartRequest(name, onlyFailed, asked.get("include_tasks").asBoolean()));
                break;
            case "session_key":
                byte[] key = Base64.getDecoder().decode(asked.get("key").asText());
                SecretKeySpec secret = new SecretKeySpec(key, asked.get("algorithm").asText());
                configs.putSessionKey(new SessionKey(secret, asked.get("created").asLong()));
                break;
            case "level":
                configs.putLoggerLevel(name, asked.get("level").asText());
                break;
            case "fencing":
                configs.putTaskCountRecord(name, asked.get("count").asInt());
                break;
            case "status":
                putStatus(name, asked);
                break;
            case "topic":
                int task = asked.get("task").asInt();
                long at = asked.get("at").asLong();
                statuses.put(new TopicStatus(asked.get("topic").asText(), name, task, at));
                break;
            case "topic_forgotten":
                statuses.deleteTopic(name, asked.get("topic").asText());
                break;
            case "offset":
                putOffset(name, asked);
                break;
            case "read":
                return state(asked);
            default:
                throw new IllegalArgumentException(asked.toString());
        }
        // Each call is read back before the next one, whoever makes it: the topic's order is that of the calls.
        configs.refresh(WAIT_MS, TimeUnit.MILLISECONDS);
        statuses.flush();
        return null;
    }

    private static void open(Map<String, String> settings) {
        stop();
        restarts.removeAll();
        levels.removeAll();
        converter = new JsonConverter();
        converter.configure(Map.of("schemas.enable", "false"), false);
        DistributedConfig config = new DistributedConfig(settings);
        Supplier<TopicAdmin> admin = () -> new TopicAdmin(Map.of("bootstrap.servers", settings.get("bootstrap.servers")));
        configs = new KafkaConfigBackingStore(converter, config, null, admin, "oracle");
        configs.setUpdateListener(new Heard());
        statuses = new KafkaStatusBackingStore(Time.SYSTEM, converter, admin, "oracle");
        statuses.configure(config);
        // Keys of offsets are read with the converter of keys, as a worker does.
        JsonConverter keys = new JsonConverter();
        keys.configure(Map.of("schemas.enable", "false"), true);
        offsets = new KafkaOffsetBackingStore(admin, () -> "oracle", keys);
        offsets.configure(config);
        configs.start();
        statuses.start();
        offsets.start();
        configs.claimWritePrivileges();
    }

    private static void stop() {
        if (configs != null) {
            configs.stop();
            statuses.stop();
            offsets.stop();
        }
    }

    private static TargetState target(JsonNode asked) {
        JsonNode state = asked.path("state");
        return state.isTextual() ? TargetState.valueOf(state.asText()) : null;
    }

    private static void putStatus(String name, JsonNode asked) {
        AbstractStatus.State state = AbstractStatus.State.valueOf(asked.get("state").asText());
        String trace = asked.path("trace").textValue();
        String version = asked.path("version").textValue();
        String worker = asked.get("worker").asText();
        int generation = asked.get("generation").asInt();
        boolean isSafe = asked.get("is_safe").asBoolean();
        if (asked.get("task").isNull()) {
            ConnectorStatus status = new ConnectorStatus(name, state, trace, worker, generation, version);
            if (isSafe) {
                statuses.putSafe(status);
            } else {
                statuses.put(status);
            }
            return;
        }
        ConnectorTaskId id = new ConnectorTaskId(name, asked.get("task").asInt());
        TaskStatus status = new TaskStatus(id, state, worker, generation, trace, version);
        if (isSafe) {
            statuses.putSafe(status);
        } else {
            statuses.put(status);
        }
    }

    @SuppressWarnings("unchecked")
    private static void putOffset(String name, JsonNode asked) throws Exception {
        OffsetStorageWriter writer = new OffsetStorageWriter(offsets, name, converter, converter);
        Map<String, Object> part = JSON.convertValue(asked.get("part"), HashMap.class);
        writer.offset(part, JSON.convertValue(asked.get("offset"), HashMap.class));
        writer.beginFlush(WAIT_MS, TimeUnit.MILLISECONDS);
        writer.doFlush((error, nothing) -> { }).get(WAIT_MS, TimeUnit.MILLISECONDS);
    }

    private static JsonNode state(JsonNode asked) throws Exception {
        configs.refresh(WAIT_MS, TimeUnit.MILLISECONDS);
        readToEnd(statuses);
        ClusterConfigState found = configs.snapshot();
        ObjectNode state = JSON.createObjectNode();
        SessionKey key = found.sessionKey();
        state.set("session_key", key == null ? null : JSON.createArrayNode()
            .add(Base64.getEncoder().encodeToString(key.key().getEncoded()))
            .add(key.key().getAlgorithm()).add(key.creationTimestamp()));
        state.set("restarts", restarts);
        state.set("levels", levels);
        for (String part : List.of("connectors", "targets", "tasks", "statuses", "topics", "offsets")) {
            state.putObject(part);
        }
        ArrayNode inconsistent = state.putArray("inconsistent");
        found.inconsistentConnectors().forEach(inconsistent::add);
        for (String name : found.connectors()) {
            state.withObject("/connectors").set(name, JSON.valueToTree(found.rawConnectorConfig(name)));
            state.withObject("/targets").put(name, found.targetState(name).name());
            ArrayNode tasks = JSON.createArrayNode();
            found.tasks(name).forEach(each -> tasks.add(JSON.valueToTree(found.rawTaskConfig(each))));
            state.withObject("/tasks").set(name, tasks);
        }
        for (JsonNode each : asked.get("names")) {
            ofConnector(each.asText(), state);
        }
        return state;
    }

    private static void ofConnector(String name, ObjectNode state) throws Exception {
        ObjectNode found = JSON.createObjectNode();
        if (statuses.get(name) != null) {
            found.set("", status(statuses.get(name)));
        }
        for (TaskStatus each : statuses.getAll(name)) {
            found.set(String.valueOf(each.id().task()), status(each));
        }
        state.withObject("/statuses").set(name, found);
        ObjectNode topics = JSON.createObjectNode();
        for (TopicStatus each : statuses.getAllTopics(name)) {
            topics.set(each.topic(), JSON.createArrayNode().add(each.connector()).add(each.task()).add(each.discoverTimestamp()));
        }
        state.withObject("/topics").set(name, topics);
        // A call of `get` reads to the end; then the parts are known.
        offsets.get(List.of(ByteBuffer.wrap(new byte[0]))).get(WAIT_MS, TimeUnit.MILLISECONDS);
        Collection<Map<String, Object>> parts = offsets.connectorPartitions(name);
        OffsetStorageReaderImpl reader = new OffsetStorageReaderImpl(offsets, name, converter, converter);
        ArrayNode pairs = JSON.createArrayNode();
        for (Map<String, Object> part : parts) {
            JsonNode offset = JSON.valueToTree(reader.offset(part));
            pairs.add(JSON.createArrayNode().add(JSON.valueToTree(part)).add(offset));
        }
        state.withObject("/offsets").set(name, pairs);
    }

    private static ArrayNode status(AbstractStatus<?> status) {
        return JSON.createArrayNode().add(status.state().name()).add(status.workerId())
            .add(status.generation()).add(status.trace()).add(status.version());
    }

    /** Statuses are read in a thread of the store, and only its log knows how far. */
    private static void readToEnd(KafkaStatusBackingStore store) throws Exception {
        Field log = KafkaStatusBackingStore.class.getDeclaredField("kafkaLog");
        log.setAccessible(true);
        ((KafkaBasedLog<?, ?>) log.get(store)).readToEnd().get(WAIT_MS, TimeUnit.MILLISECONDS);
    }

    @SuppressWarnings("unchecked")
    private static Map<String, String> texts(JsonNode found) {
        return JSON.convertValue(found, HashMap.class);
    }

    /** What workers hear of alone: restarts and levels are in no snapshot. */
    private static class Heard implements ConfigBackingStore.UpdateListener {
        @Override
        public void onConnectorConfigRemove(String connector) { }

        @Override
        public void onConnectorConfigUpdate(String connector) { }

        @Override
        public void onTaskConfigUpdate(Collection<ConnectorTaskId> tasks) { }

        @Override
        public void onConnectorTargetStateChange(String connector) { }

        @Override
        public void onSessionKeyUpdate(SessionKey key) { }

        @Override
        public void onRestartRequest(RestartRequest asked) {
            restarts.add(JSON.createArrayNode().add(asked.connectorName()).add(asked.includeTasks()).add(asked.onlyFailed()));
        }

        @Override
        public void onLoggingLevelUpdate(String namespace, String level) {
            levels.add(JSON.createArrayNode().add(namespace).add(level));
        }
    }
}
