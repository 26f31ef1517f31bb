// Publishes 2000 numbers with RabbitMQ's Java client for AMQP 1.0, and consumes them. The client connects again by
// itself when its node dies, and the program publishes again what was not accepted. The arguments are the addresses of
// the nodes.

import com.rabbitmq.client.amqp.AmqpException;
import com.rabbitmq.client.amqp.BackOffDelayPolicy;
import com.rabbitmq.client.amqp.Connection;
import com.rabbitmq.client.amqp.Environment;
import com.rabbitmq.client.amqp.Publisher;
import com.rabbitmq.client.amqp.impl.AmqpEnvironmentBuilder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

public class Recovering {
  static final String QUEUE = "recovering-java";
  static final int MESSAGES = 2000;

  static Publisher.Status publish(Publisher publisher, String text) throws Exception {
    CompletableFuture<Publisher.Status> outcome = new CompletableFuture<>();
    byte[] body = text.getBytes(StandardCharsets.UTF_8);
    publisher.publish(publisher.message(body), context -> outcome.complete(context.status()));
    return outcome.get(5, TimeUnit.SECONDS);
  }

  public static void main(String[] addresses) throws Exception {
    String[] uris =
        Arrays.stream(addresses).map(each -> "amqp://guest:guest@" + each + "/%2f").toArray(String[]::new);
    Environment environment =
        new AmqpEnvironmentBuilder().connectionSettings().uris(uris).environmentBuilder().build();
    Connection connection = environment.connectionBuilder().recovery()
        .backOffDelayPolicy(BackOffDelayPolicy.fixed(Duration.ofMillis(200))).connectionBuilder().build();
    connection.management().queue(QUEUE).quorum().queue().declare();
    Set<String> consumed = ConcurrentHashMap.newKeySet();
    connection.consumerBuilder().queue(QUEUE).messageHandler((context, message) -> {
      consumed.add(new String(message.body(), StandardCharsets.UTF_8));
      context.accept();
    }).build();
    Publisher publisher = connection.publisherBuilder().queue(QUEUE).build();
    for (int number = 0; number < MESSAGES; number++) {
      boolean isAccepted = false;
      while (!isAccepted) {
        try {
          isAccepted = publish(publisher, String.valueOf(number)) == Publisher.Status.ACCEPTED;
        } catch (AmqpException | TimeoutException connectionIsLost) {
          Thread.sleep(100);
        }
      }
      Thread.sleep(2);
    }
    while (consumed.size() < MESSAGES) Thread.sleep(10);
    // The outcomes of the last messages are under way.
    Thread.sleep(500);
    environment.close();
    System.out.println(consumed.size() + " messages are consumed");
    System.exit(0);
  }
}
