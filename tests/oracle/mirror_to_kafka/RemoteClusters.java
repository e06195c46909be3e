import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

/** Asks Kafka's own RemoteClusterUtils about a cluster: one line of JSON for each question. */
public final class RemoteClusters {
    public static void main(String[] arguments) throws Exception {
        var json = new ObjectMapper();
        var in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(json.writeValueAsString(answer(json.readTree(line))));
        }
    }

    private static Map<String, Object> answer(JsonNode asked) throws Exception {
        Map<String, Object> cluster = new HashMap<>();
        cluster.put("bootstrap.servers", asked.get("bootstrap").asText());
        String alias = asked.get("alias").asText();
        Map<String, Object> found = new TreeMap<>();
        found.put("upstream", new TreeSet<>(RemoteClusterUtils.upstreamClusters(cluster)));
        found.put("hops", RemoteClusterUtils.replicationHops(cluster, alias));
        found.put("checkpoints", new TreeSet<>(RemoteClusterUtils.checkpointTopics(cluster)));
        Map<String, Map<String, Long>> groups = new TreeMap<>();
        for (JsonNode group : asked.get("groups")) {
            Map<String, Long> offsets = new TreeMap<>();
            RemoteClusterUtils.translateOffsets(cluster, alias, group.asText(), Duration.ofSeconds(20))
                .forEach((at, offset) -> offsets.put(at.topic() + "-" + at.partition(), offset.offset()));
            groups.put(group.asText(), offsets);
        }
        found.put("groups", groups);
        return found;
    }
}
