import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.Scanner;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * One thread that consumes a topic from its beginning and does nothing with the records: what no reader can fall below.
 *
 * <p>Arguments: number of partitions, topic, number of records, and name=value for each property of the consumer. For
 * each line of standard input it reads all records once, and prints how many they were.
 */
public class OneThread {
  public static void main(String[] arguments) {
    Properties properties = new Properties();
    for (int i = 3; i < arguments.length; i++) {
      String[] parts = arguments[i].split("=", 2);
      properties.put(parts[0], parts[1]);
    }
    List<TopicPartition> partitions = new ArrayList<>();
    for (int i = 0; i < Integer.parseInt(arguments[0]); i++) {
      partitions.add(new TopicPartition(arguments[1], i));
    }
    long records = Long.parseLong(arguments[2]);
    Scanner lines = new Scanner(System.in);
    while (lines.hasNextLine()) {
      lines.nextLine();
      long read = 0;
      long bytes = 0;
      ByteArrayDeserializer plain = new ByteArrayDeserializer();
      try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties, plain, plain)) {
        consumer.assign(partitions);
        consumer.seekToBeginning(partitions);
        while (read < records) {
          for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
            read++;
            bytes += record.value().length;
          }
        }
      }
      System.out.println(read + (bytes == 0 ? " empty" : ""));
    }
  }
}
