import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.source.ExactlyOnceSupport;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;
import org.apache.kafka.connect.util.ConnectorUtils;

/** Numbers up to `count` from each of `parts` parts: the source of tests/connect_service/outside.py. */
public class Numbers extends SourceConnector {
    private Map<String, String> settings;

    @Override
    public String version() {
        return "4.4.0";
    }

    @Override
    public void start(Map<String, String> given) {
        settings = given;
    }

    @Override
    public void stop() {
    }

    @Override
    public Class<? extends Task> taskClass() {
        return NumbersTask.class;
    }

    @Override
    public ConfigDef config() {
        return new ConfigDef()
            .define("count", ConfigDef.Type.LONG, 10L, ConfigDef.Importance.MEDIUM, "")
            .define("parts", ConfigDef.Type.LONG, 3L, ConfigDef.Importance.MEDIUM, "")
            .define("label", ConfigDef.Type.STRING, "", ConfigDef.Importance.MEDIUM, "")
            .define("password", ConfigDef.Type.PASSWORD, "", ConfigDef.Importance.MEDIUM, "");
    }

    @Override
    public List<Map<String, String>> taskConfigs(int maxTasks) {
        int parts = Integer.parseInt(settings.getOrDefault("parts", "3"));
        List<String> all = new ArrayList<>();
        for (int part = 0; part < parts; part++) {
            all.add("{\"part\":" + part + "}");
        }
        List<Map<String, String>> found = new ArrayList<>();
        for (List<String> own : ConnectorUtils.groupPartitions(all, Math.min(parts, maxTasks))) {
            Map<String, String> config = new HashMap<>(settings);
            config.put("task.parts", "[" + String.join(",", own) + "]");
            found.add(config);
        }
        return found;
    }

    @Override
    public ExactlyOnceSupport exactlyOnceSupport(Map<String, String> given) {
        return ExactlyOnceSupport.SUPPORTED;
    }

    @Override
    public boolean alterOffsets(Map<String, String> given, Map<Map<String, ?>, Map<String, ?>> offsets) {
        return true;
    }

    /** One task. */
    public static class NumbersTask extends SourceTask {
        private final Map<Long, Long> next = new HashMap<>();
        private long count;
        private String topic;

        @Override
        public String version() {
            return "4.4.0";
        }

        @Override
        public void start(Map<String, String> given) {
            if (given.getOrDefault("label", "").equals("broken")) {
                throw new IllegalStateException("broken is broken");
            }
            count = Long.parseLong(given.getOrDefault("count", "10"));
            topic = given.get("topic");
            for (String text : given.get("task.parts").replaceAll("[^0-9,]", "").split(",")) {
                long part = Long.parseLong(text);
                Map<String, Object> offset = context.offsetStorageReader().offset(Map.of("part", part));
                next.put(part, offset == null ? 0 : (Long) offset.get("at"));
            }
        }

        @Override
        public List<SourceRecord> poll() throws InterruptedException {
            List<SourceRecord> records = new ArrayList<>();
            for (Map.Entry<Long, Long> each : next.entrySet()) {
                if (each.getValue() < count) {
                    Map<String, Object> value = new HashMap<>();
                    value.put("part", each.getKey());
                    value.put("number", each.getValue());
                    each.setValue(each.getValue() + 1);
                    records.add(new SourceRecord(
                        Map.of("part", each.getKey()), Map.of("at", each.getValue()), topic,
                        Schema.STRING_SCHEMA, Long.toString(each.getKey()), null, value));
                }
            }
            if (records.isEmpty()) {
                Thread.sleep(20);
                return null;
            }
            return records;
        }

        @Override
        public void stop() {
        }
    }
}
