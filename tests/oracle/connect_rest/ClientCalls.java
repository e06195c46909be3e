import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import org.sourcelab.kafka.connect.apiclient.Configuration;
import org.sourcelab.kafka.connect.apiclient.KafkaConnectClient;
import org.sourcelab.kafka.connect.apiclient.request.dto.ConnectorPluginConfigDefinition;
import org.sourcelab.kafka.connect.apiclient.request.dto.ConnectorsWithExpandedMetadata;
import org.sourcelab.kafka.connect.apiclient.request.dto.NewConnectorDefinition;
import org.sourcelab.kafka.connect.apiclient.request.post.PostConnectorRestart;
import org.sourcelab.kafka.connect.apiclient.rest.exceptions.InvalidRequestException;

/** Calls of kafka-connect-client: a line names a call, and the answer has what it returned or raised. */
public class ClientCalls {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static KafkaConnectClient client;

    public static void main(String[] given) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("value", JSON.valueToTree(called(JSON.readTree(line))));
            } catch (InvalidRequestException error) {
                // The message is the worker's own; the class says what the client made of the status.
                answer.put("raised", error.getClass().getSimpleName() + " " + error.getErrorCode());
            } catch (RuntimeException error) {
                answer.put("raised", error.toString());
            }
            System.out.println(JSON.writeValueAsString(answer));
            System.out.flush();
        }
    }

    @SuppressWarnings("unchecked")
    private static Object called(JsonNode asked) {
        String name = asked.path("name").asText();
        Map<String, String> config = JSON.convertValue(asked.path("config"), Map.class);
        switch (asked.get("call").asText()) {
            case "open":
                client = new KafkaConnectClient(new Configuration(name));
                return null;
            case "getConnectServerVersion":
                return client.getConnectServerVersion();
            case "getConnectors":
                return client.getConnectors();
            case "getConnectorsWithExpandedStatus":
                return client.getConnectorsWithExpandedStatus().getMappedStatuses();
            case "getConnectorsWithExpandedInfo":
                return client.getConnectorsWithExpandedInfo().getMappedDefinitions();
            case "getConnectorsWithAllExpandedMetadata":
                ConnectorsWithExpandedMetadata all = client.getConnectorsWithAllExpandedMetadata();
                return Map.of("info", all.getMappedDefinitions(), "status", all.getMappedStatuses());
            case "getConnector":
                return client.getConnector(name);
            case "getConnectorConfig":
                return client.getConnectorConfig(name);
            case "getConnectorStatus":
                return client.getConnectorStatus(name);
            case "getConnectorTopics":
                return client.getConnectorTopics(name);
            case "resetConnectorTopics":
                return client.resetConnectorTopics(name);
            case "addConnector":
                return client.addConnector(
                    NewConnectorDefinition.newBuilder().withName(name).withConfig(config).build());
            case "updateConnectorConfig":
                return client.updateConnectorConfig(name, config);
            case "restartConnector":
                return client.restartConnector(name);
            case "restartConnectorTasks":
                return client.restartConnector(
                    new PostConnectorRestart(name).withIncludeTasks(true).withOnlyFailed(true));
            case "pauseConnector":
                return client.pauseConnector(name);
            case "stopConnector":
                return client.stopConnector(name);
            case "resumeConnector":
                return client.resumeConnector(name);
            case "deleteConnector":
                return client.deleteConnector(name);
            case "getConnectorTasks":
                return client.getConnectorTasks(name);
            case "getConnectorTaskStatus":
                return client.getConnectorTaskStatus(name, asked.get("task").asInt());
            case "restartConnectorTask":
                return client.restartConnectorTask(name, asked.get("task").asInt());
            case "getConnectorPlugins":
                return client.getConnectorPlugins();
            case "validateConnectorPluginConfig":
                return client.validateConnectorPluginConfig(
                    ConnectorPluginConfigDefinition.newBuilder().withName(name).withConfig(config).build());
            default:
                throw new IllegalArgumentException("no such call: " + asked);
        }
    }
}
