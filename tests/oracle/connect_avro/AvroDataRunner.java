import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.apicurio.registry.utils.converter.avro.AvroData;
import io.apicurio.registry.utils.converter.avro.AvroDataConfig;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericContainer;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;

/** Writes rows as Avro and reads them, by Apicurio's port of AvroData: one line of JSON in, one out. */
public class AvroDataRunner {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final JsonConverter ROWS = new JsonConverter();
    /** Settings that the port has no name for, by its fields. */
    private static final Map<String, String> FIELDS = Map.of(
        "scrub.invalid.names", "scrubInvalidNames",
        "allow.optional.map.keys", "allowOptionalMapKey",
        "ignore.default.for.nullables", "ignoreDefaultForNullables");

    public static void main(String[] arguments) throws Exception {
        ROWS.configure(Map.of("schemas.enable", "true"), false);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer;
            try {
                JsonNode asked = JSON.readTree(line);
                AvroData data = data(asked.get("settings"));
                answer = asked.has("row") ? write(data, asked) : read(data, asked);
            } catch (Exception | StackOverflowError error) {
                answer = JSON.createObjectNode().put("error", error.toString());
            }
            System.out.println(JSON.writeValueAsString(answer));
            System.out.flush();
        }
    }

    private static ObjectNode write(AvroData data, JsonNode asked) throws Exception {
        SchemaAndValue row = ROWS.toConnectData("t", asked.get("row").asText().getBytes(StandardCharsets.UTF_8));
        Schema schema = data.fromConnectSchema(row.schema());
        Object made = data.fromConnectData(row.schema(), row.value());
        // A value that is no record comes in a container of the serializer.
        Object value = made instanceof GenericContainer && made.getClass().getSimpleName().equals("NonRecordContainer")
            ? made.getClass().getMethod("getValue").invoke(made) : made;
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        if (schema.getType() == Schema.Type.BYTES) {
            // Confluent's serializer, which the port is without, writes such bytes as they are.
            out.write(bytesOf(value));
            return written(schema, out);
        }
        BinaryEncoder encoder = EncoderFactory.get().directBinaryEncoder(out, null);
        new GenericDatumWriter<Object>(schema).write(value, encoder);
        encoder.flush();
        return written(schema, out);
    }

    private static ObjectNode written(Schema schema, ByteArrayOutputStream out) {
        return JSON.createObjectNode().put("avro", schema.toString())
            .put("data", HexFormat.of().formatHex(out.toByteArray()));
    }

    private static byte[] bytesOf(Object value) {
        ByteBuffer buffer = value instanceof ByteBuffer ? (ByteBuffer) value : ByteBuffer.wrap((byte[]) value);
        byte[] found = new byte[buffer.remaining()];
        buffer.duplicate().get(found);
        return found;
    }

    private static ObjectNode read(AvroData data, JsonNode asked) throws Exception {
        Schema schema = new Schema.Parser().parse(asked.get("avro").asText());
        byte[] bytes = HexFormat.of().parseHex(asked.get("data").asText());
        Object value = schema.getType() == Schema.Type.BYTES
            ? ByteBuffer.wrap(bytes)
            : new GenericDatumReader<Object>(schema).read(null, DecoderFactory.get().binaryDecoder(bytes, null));
        SchemaAndValue row = data.toConnectData(schema, value);
        if (row == null) {
            return JSON.createObjectNode().put("row", "null");
        }
        byte[] written = ROWS.fromConnectData("t", row.schema(), row.value());
        return JSON.createObjectNode().put("row", new String(written, StandardCharsets.UTF_8));
    }

    private static AvroData data(JsonNode settings) throws Exception {
        Map<String, String> named = new HashMap<>();
        settings.fields().forEachRemaining(each -> named.put(each.getKey(), each.getValue().asText()));
        AvroData data = new AvroData(new AvroDataConfig(named));
        for (Map.Entry<String, String> each : FIELDS.entrySet()) {
            Field field = AvroData.class.getDeclaredField(each.getValue());
            field.setAccessible(true);
            field.setBoolean(data, Boolean.parseBoolean(named.getOrDefault(each.getKey(), "false")));
        }
        return data;
    }
}
