import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.StreamsConfig.InternalConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindowedKStream;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.WindowedSerdes;
import org.apache.kafka.streams.state.WindowStore;

/** The jobs on Kafka Streams, as its documentation would write them; ENGINE_JOB names one. */
public final class KafkaStreamsJobs {
  public record Event(String user, String item, int amount, long ts) {}

  public record Sale(String user, int amount, long ts) {}

  public record User(String name, String country) {}

  public record Placed(String user, int amount, long ts, String country) {}

  public record Total(int events, long amount) {}

  private static final ObjectMapper MAPPER = new ObjectMapper();
  private static final Serde<String> KEYS = Serdes.String();
  private static final Serde<Event> EVENTS = json(Event.class);
  private static final Serde<Total> TOTALS = json(Total.class);

  private KafkaStreamsJobs() {}

  public static void main(String[] arguments) {
    StreamsBuilder builder = new StreamsBuilder();
    String job = env("ENGINE_JOB");
    KStream<String, Event> events =
        builder.stream(env("ENGINE_INPUT"), Consumed.with(KEYS, EVENTS));
    switch (job) {
      case "j1" -> filterAndMap(events);
      case "j2" -> totals(events, EmitStrategy.onWindowUpdate());
      case "j2-final" -> totals(events, EmitStrategy.onWindowClose());
      case "j3" -> join(builder, events);
      default -> throw new IllegalArgumentException("there is no job " + job);
    }
    KafkaStreams streams = new KafkaStreams(builder.build(), settings(job));
    Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
    streams.start();
  }

  private static void filterAndMap(KStream<String, Event> events) {
    events
        .filter((key, event) -> event.amount() % 2 == 0)
        .mapValues(event -> new Sale(event.user(), 2 * event.amount(), event.ts()))
        .to(env("ENGINE_OUTPUT"), Produced.with(KEYS, json(Sale.class)));
  }

  private static void totals(KStream<String, Event> events, EmitStrategy when) {
    long windowMs = Long.parseLong(env("ENGINE_WINDOW_MS"));
    Duration grace = Duration.ofMillis(Long.parseLong(env("ENGINE_GRACE_MS")));
    TimeWindowedKStream<String, Event> windows =
        events
            .groupByKey(Grouped.with(KEYS, EVENTS))
            .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(windowMs), grace))
            .emitStrategy(when);
    windows
        .aggregate(
            () -> new Total(0, 0),
            (key, event, total) -> new Total(total.events() + 1, total.amount() + event.amount()),
            Materialized.<String, Total, WindowStore<Bytes, byte[]>>as("totals")
                .withKeySerde(KEYS)
                .withValueSerde(TOTALS))
        .toStream()
        .to(
            env("ENGINE_OUTPUT"),
            Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, windowMs), TOTALS));
  }

  private static void join(StreamsBuilder builder, KStream<String, Event> events) {
    Serde<User> users = json(User.class);
    KTable<String, User> table = builder.table(env("ENGINE_TABLE"), Consumed.with(KEYS, users));
    events
        .join(
            table,
            (event, user) -> new Placed(event.user(), event.amount(), event.ts(), user.country()),
            Joined.with(KEYS, EVENTS, users))
        .to(env("ENGINE_OUTPUT"), Produced.with(KEYS, json(Placed.class)));
  }

  private static Properties settings(String job) {
    Properties settings = new Properties();
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, env("ENGINE_ID"));
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, env("ENGINE_BROKER"));
    settings.put(StreamsConfig.STATE_DIR_CONFIG, env("ENGINE_STATE"));
    settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, env("ENGINE_COMMIT_MS"));
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
    if (job.equals("j2")) {
      // With a cache, a key's updates of one commit become one row; the job asks for all.
      settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, "0");
    }
    // By default, a closed window waits for the first record a second after the last emission; the
    // last windows of a round would wait for ever.
    settings.put(InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_WINDOWED_AGGREGATION, 0L);
    return settings;
  }

  private static String env(String name) {
    return System.getenv(name);
  }

  private static <T> Serde<T> json(Class<T> type) {
    ObjectWriter writer = MAPPER.writerFor(type);
    ObjectReader reader = MAPPER.readerFor(type);
    return Serdes.serdeFrom(
        (topic, value) -> {
          try {
            return value == null ? null : writer.writeValueAsBytes(value);
          } catch (IOException failure) {
            throw new UncheckedIOException(failure);
          }
        },
        (topic, bytes) -> {
          try {
            return bytes == null ? null : reader.readValue(bytes);
          } catch (IOException failure) {
            throw new UncheckedIOException(failure);
          }
        });
  }
}
