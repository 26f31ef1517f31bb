// Publishes 2,000 numbered messages with RabbitMQ's Java client for AMQP 1.0 and consumes them, on nodes that may be
// killed.
//
//   java -cp 'JARS/*' SurviveAmqp10.java [HOST:PORT...]      each node; by default the nodes of `qq up`
//
// JARS has com.rabbitmq.client:amqp-client:1.5.0 with all that it needs.

import static java.nio.charset.StandardCharsets.UTF_8;

import com.rabbitmq.client.amqp.AmqpException;
import com.rabbitmq.client.amqp.BackOffDelayPolicy;
import com.rabbitmq.client.amqp.Connection;
import com.rabbitmq.client.amqp.Environment;
import com.rabbitmq.client.amqp.Publisher;
import com.rabbitmq.client.amqp.impl.AmqpEnvironmentBuilder;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

public class SurviveAmqp10 {
  static final String QUEUE = "survive-amqp10";
  static final int MESSAGES = 2000;

  public static void main(String[] arguments) throws Exception {
    List<String> nodes =
        arguments.length > 0 ? Arrays.asList(arguments) : List.of("127.0.0.1:5672", "127.0.0.1:5673", "127.0.0.1:5674");
    String[] uris = nodes.stream().map(node -> "amqp://guest:guest@" + node + "/%2f").toArray(String[]::new);
    Environment environment =
        new AmqpEnvironmentBuilder()
            .connectionSettings()
            .uris(uris) // in a random order
            .idleTimeout(Duration.ofSeconds(10)) // notice a host that is gone
            .environmentBuilder()
            .build();
    // The client connects again by itself. It declares nothing anew, because the queue is durable.
    Connection connection =
        retried(
            () ->
                environment
                    .connectionBuilder()
                    .recovery()
                    .backOffDelayPolicy(BackOffDelayPolicy.fixed(Duration.ofMillis(200)))
                    .connectionBuilder()
                    .build());
    retried(() -> connection.management().queue(QUEUE).quorum().queue().declare());
    Set<String> seen = ConcurrentHashMap.newKeySet();
    retried(
        () ->
            connection
                .consumerBuilder()
                .queue(QUEUE)
                .initialCredits(100)
                .messageHandler(
                    (context, message) -> {
                      seen.add(new String(message.body(), UTF_8)); // the work: doing it twice does no harm
                      context.accept();
                    })
                .build());
    Publisher publisher = retried(() -> connection.publisherBuilder().queue(QUEUE).build());
    for (int number = 1; number <= MESSAGES; number++) publish(publisher, String.valueOf(number));
    System.out.println(MESSAGES + " messages are confirmed");
    while (seen.size() < MESSAGES) Thread.sleep(10);
    Thread.sleep(500); // the outcomes of the last messages are under way
    environment.close();
    System.out.println(seen.size() + " messages are consumed");
    System.exit(0);
  }

  /** Return the result of an action. Repeat it when its node dies meanwhile. */
  static <T> T retried(Callable<T> action) throws Exception {
    while (true) {
      try {
        return action.call();
      } catch (AmqpException lost) {
        System.out.println("again: " + lost.getMessage());
        Thread.sleep(500);
      }
    }
  }

  /** Publish a message until it is accepted. */
  static void publish(Publisher publisher, String text) throws Exception {
    boolean isAccepted = false;
    while (!isAccepted) {
      CompletableFuture<Publisher.Status> outcome = new CompletableFuture<>();
      try {
        publisher.publish(publisher.message(text.getBytes(UTF_8)), context -> outcome.complete(context.status()));
        isAccepted = outcome.get(5, TimeUnit.SECONDS) == Publisher.Status.ACCEPTED;
      } catch (AmqpException | TimeoutException lost) {
        // Whether this message is stored is unknown, so it is published again: it may come twice.
        Thread.sleep(100);
      }
    }
  }
}
