import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.sink.SinkConnector;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.sink.SinkTask;

/** A sink that drops what it gets: the sink of tests/connect_service/outside.py. */
public class Listed extends SinkConnector {
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
        return ListedTask.class;
    }

    @Override
    public ConfigDef config() {
        return new ConfigDef()
            .define("into", ConfigDef.Type.STRING, ConfigDef.NO_DEFAULT_VALUE, ConfigDef.Importance.HIGH, "");
    }

    @Override
    public List<Map<String, String>> taskConfigs(int maxTasks) {
        return Collections.nCopies(maxTasks, settings);
    }

    @Override
    public boolean alterOffsets(Map<String, String> given, Map<TopicPartition, Long> offsets) {
        return true;
    }

    /** One task. */
    public static class ListedTask extends SinkTask {
        @Override
        public String version() {
            return "4.4.0";
        }

        @Override
        public void start(Map<String, String> given) {
        }

        @Override
        public void put(Collection<SinkRecord> records) {
        }

        @Override
        public void stop() {
        }
    }
}
