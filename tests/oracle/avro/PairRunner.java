import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;

/** Reads a pair of schemas from each line, and writes what Avro says of it as one line. */
public class PairRunner {
  private static final ObjectMapper JSON = new ObjectMapper();

  public static void main(String[] arguments) throws Exception {
    BufferedReader in =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(System.out, true, "UTF-8");
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      JsonNode pair = JSON.readTree(line);
      ObjectNode answer = JSON.createObjectNode();
      Schema reader = parse(pair, "reader", answer);
      Schema writer = parse(pair, "writer", answer);
      if (reader != null && writer != null) {
        compare(reader, writer, answer);
      }
      out.println(JSON.writeValueAsString(answer));
    }
  }

  private static Schema parse(JsonNode pair, String side, ObjectNode answer) {
    try {
      Schema.Parser parser = new Schema.Parser();
      parser.setValidateDefaults(true);
      Schema schema = parser.parse(pair.get(side).asText());
      answer.put(side, schema.toString());
      return schema;
    } catch (RuntimeException error) {
      answer.putNull(side);
      answer.put(side + "Error", String.valueOf(error.getMessage()));
      return null;
    }
  }

  private static void compare(Schema reader, Schema writer, ObjectNode answer) {
    ArrayNode found = answer.putArray("found");
    try {
      SchemaCompatibility.SchemaPairCompatibility result =
          SchemaCompatibility.checkReaderWriterCompatibility(reader, writer);
      for (SchemaCompatibility.Incompatibility each : result.getResult().getIncompatibilities()) {
        found.addArray()
            .add(each.getType().name())
            .add(each.getLocation())
            .add(each.getMessage());
      }
    } catch (RuntimeException error) {
      answer.put("error", String.valueOf(error.getMessage()));
    }
  }
}
