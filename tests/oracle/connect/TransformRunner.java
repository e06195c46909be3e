import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.header.ConnectHeaders;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;
import org.apache.kafka.connect.transforms.Transformation;
import org.apache.kafka.connect.transforms.predicates.Predicate;

/** Transforms records by Kafka Connect's own classes: one line of JSON in, one out. */
public class TransformRunner {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final SimpleHeaderConverter HEADERS = new SimpleHeaderConverter();

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer;
            try {
                answer = answer(JSON.readTree(line));
            } catch (Exception error) {
                answer = JSON.createObjectNode().put("error", error.toString());
            }
            System.out.println(JSON.writeValueAsString(answer));
            System.out.flush();
        }
    }

    @SuppressWarnings("unchecked")
    private static ObjectNode answer(JsonNode asked) throws Exception {
        Map<String, String> config = new HashMap<>();
        asked.get("config").fields().forEachRemaining(each -> config.put(each.getKey(), each.getValue().asText()));
        JsonConverter keys = converter(asked, true);
        JsonConverter values = converter(asked, false);
        String topic = asked.get("topic").asText();
        SchemaAndValue key = keys.toConnectData(topic, bytes(asked.get("key")));
        SchemaAndValue value = values.toConnectData(topic, bytes(asked.get("value")));
        ConnectHeaders headers = new ConnectHeaders();
        for (JsonNode each : asked.get("headers")) {
            SchemaAndValue read = HEADERS.toConnectHeader(topic, each.get(0).asText(), bytes(each.get(1)));
            headers.add(each.get(0).asText(), read);
        }
        SinkRecord record = new SinkRecord(topic, asked.get("partition").asInt(), key.schema(), key.value(),
            value.schema(), value.value(), asked.get("offset").asLong(), asked.get("timestamp").asLong(),
            TimestampType.CREATE_TIME, headers);
        Object made = Class.forName(asked.get("class").asText()).getDeclaredConstructor().newInstance();
        if (made instanceof Predicate) {
            Predicate<SinkRecord> predicate = (Predicate<SinkRecord>) made;
            predicate.configure(config);
            return JSON.createObjectNode().put("holds", predicate.test(record));
        }
        Transformation<SinkRecord> transform = (Transformation<SinkRecord>) made;
        transform.configure(config);
        SinkRecord changed = transform.apply(record);
        if (changed == null) {
            return JSON.createObjectNode().put("dropped", true);
        }
        ObjectNode answer = JSON.createObjectNode().put("topic", changed.topic());
        answer.put("key", text(keys.fromConnectData(topic, changed.keySchema(), changed.key())));
        answer.put("value", text(values.fromConnectData(topic, changed.valueSchema(), changed.value())));
        ArrayNode written = answer.putArray("headers");
        for (Header each : changed.headers()) {
            ArrayNode pair = written.addArray().add(each.key());
            byte[] data = HEADERS.fromConnectHeader(topic, each.key(), each.schema(), each.value());
            pair.add(text(data));
        }
        return answer;
    }

    private static JsonConverter converter(JsonNode asked, boolean isKey) {
        JsonConverter converter = new JsonConverter();
        Map<String, String> settings = new HashMap<>();
        asked.get("converter").fields().forEachRemaining(each -> settings.put(each.getKey(), each.getValue().asText()));
        converter.configure(settings, isKey);
        return converter;
    }

    private static byte[] bytes(JsonNode text) {
        return text == null || text.isNull() ? null : text.asText().getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] data) {
        return data == null ? null : new String(data, StandardCharsets.UTF_8);
    }
}
