import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.TimeZone;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;
import org.apache.kafka.connect.storage.StringConverter;
import org.apache.kafka.connect.transforms.Cast;

/** Reads values by JsonConverter and shows them by Kafka Connect's classes: one line of JSON in, one out. */
public class ValuesRunner {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final SimpleHeaderConverter HEADERS = new SimpleHeaderConverter();
    private static final StringConverter TEXTS = new StringConverter();

    private interface Shown {
        byte[] bytes() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        TimeZone.setDefault(TimeZone.getTimeZone("UTC"));
        TEXTS.configure(Map.of(), false);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer;
            try {
                answer = answer(JSON.readTree(line));
            } catch (Exception | StackOverflowError error) {
                answer = JSON.createObjectNode().put("error", error.toString());
            }
            System.out.println(JSON.writeValueAsString(answer));
            System.out.flush();
        }
    }

    private static ObjectNode answer(JsonNode asked) throws Exception {
        JsonConverter converter = converter(asked.get("settings"));
        byte[] data = asked.get("data").asText().getBytes(StandardCharsets.UTF_8);
        SchemaAndValue read = converter.toConnectData("t", data);
        Schema schema = read.schema();
        Object value = read.value();
        ObjectNode answer = JSON.createObjectNode();
        put(answer, "json", () -> converter.fromConnectData("t", schema, value));
        put(answer, "text", () -> TEXTS.fromConnectData("t", schema, value));
        put(answer, "header", () -> HEADERS.fromConnectHeader("t", "h", schema, value));
        JsonConverter whole = converter(JSON.createObjectNode());
        for (JsonNode each : asked.get("casts")) {
            put(answer, each.asText(), () -> cast(whole, each.asText(), schema, value));
        }
        return answer;
    }

    private static byte[] cast(JsonConverter whole, String kind, Schema schema, Object value) {
        Cast.Value<SinkRecord> cast = new Cast.Value<>();
        cast.configure(Map.of("spec", kind));
        SinkRecord made = cast.apply(new SinkRecord("t", 0, null, null, schema, value, 0));
        return whole.fromConnectData("t", made.valueSchema(), made.value());
    }

    private static void put(ObjectNode answer, String name, Shown shown) {
        try {
            byte[] found = shown.bytes();
            answer.put(name, found == null ? null : new String(found, StandardCharsets.UTF_8));
        } catch (Exception | StackOverflowError error) {
            answer.putObject(name).put("error", error.toString());
        }
    }

    private static JsonConverter converter(JsonNode settings) {
        Map<String, String> named = new HashMap<>();
        settings.fields().forEachRemaining(each -> named.put(each.getKey(), each.getValue().asText()));
        JsonConverter converter = new JsonConverter();
        converter.configure(named, false);
        return converter;
    }
}
