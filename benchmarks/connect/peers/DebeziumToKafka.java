import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.DebeziumEngine.RecordCommitter;
import io.debezium.engine.format.Json;
import java.io.FileReader;
import java.io.Reader;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Debezium's engine into topics of Kafka: DebeziumToKafka ENGINE.properties PRODUCER.properties.
 *
 * A batch of the engine is sent, waited for and marked, as Debezium Server's sink for Kafka does.
 */
public class DebeziumToKafka {
    public static void main(String[] arguments) throws Exception {
        Properties settings = read(arguments[0]);
        KafkaProducer<String, String> producer = new KafkaProducer<>(read(arguments[1]));
        DebeziumEngine<ChangeEvent<String, String>> engine =
            DebeziumEngine.create(Json.class)
                .using(settings)
                .notifying((events, committer) -> send(producer, events, committer))
                .using((success, message, error) -> {
                    System.err.println("the engine has ended: " + message + ", " + error);
                    System.exit(1);
                })
                .build();
        engine.run();
    }

    static void send(
            KafkaProducer<String, String> producer,
            List<ChangeEvent<String, String>> events,
            RecordCommitter<ChangeEvent<String, String>> committer)
            throws InterruptedException {
        CountDownLatch left = new CountDownLatch(events.size());
        AtomicReference<Exception> failure = new AtomicReference<>();
        for (ChangeEvent<String, String> event : events) {
            producer.send(
                new ProducerRecord<>(event.destination(), event.key(), event.value()),
                (metadata, error) -> {
                    if (error != null) {
                        failure.set(error);
                    }
                    left.countDown();
                });
            committer.markProcessed(event);
        }
        left.await();
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
        committer.markBatchFinished();
    }

    static Properties read(String path) throws Exception {
        Properties found = new Properties();
        try (Reader reader = new FileReader(path)) {
            found.load(reader);
        }
        return found;
    }
}
