import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

/** Debezium's engine: {"start": {settings}}, then {"take": N} returns the next N events. */
public class DebeziumEvents {
    static final long PATIENCE_S = 30;

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        BlockingQueue<ChangeEvent<String, String>> events = new LinkedBlockingQueue<>();
        AtomicReference<String> failure = new AtomicReference<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        String line;
        while ((line = lines.readLine()) != null) {
            JsonNode asked = json.readTree(line);
            ObjectNode answer = json.createObjectNode();
            if (asked.has("start")) {
                Properties settings = new Properties();
                for (Map.Entry<String, JsonNode> each : asked.get("start").properties()) {
                    settings.setProperty(each.getKey(), each.getValue().asText());
                }
                DebeziumEngine<ChangeEvent<String, String>> engine =
                    DebeziumEngine.create(Json.class)
                        .using(settings)
                        .notifying(events::add)
                        .using((success, message, error) -> failure.set(message))
                        .build();
                Thread running = new Thread(engine, "engine");
                running.setDaemon(true);
                running.start();
            } else {
                ArrayNode found = answer.putArray("events");
                for (int left = asked.get("take").asInt(); left > 0; left--) {
                    ChangeEvent<String, String> event = events.poll(PATIENCE_S, TimeUnit.SECONDS);
                    if (event == null) {
                        answer.put("missing", left).put("failure", failure.get());
                        break;
                    }
                    found.addObject()
                        .put("topic", event.destination())
                        .put("key", event.key())
                        .put("value", event.value());
                }
            }
            System.out.println(json.writeValueAsString(answer));
        }
        // The threads of the engine would keep the process.
        System.exit(0);
    }
}
