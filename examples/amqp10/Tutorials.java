// RabbitMQ's tutorials 1 to 6 over AMQP 1.0, with RabbitMQ's Java client.
//
//   java -cp 'JARS/*' Tutorials.java [URL...]      the address of each node; by default the first two nodes of `qq up`
//
// Senders and receivers are connected to different nodes. JARS has com.rabbitmq.client:amqp-client:1.5.0 with all that
// it needs.

import static java.nio.charset.StandardCharsets.UTF_8;

import com.rabbitmq.client.amqp.Connection;
import com.rabbitmq.client.amqp.Consumer;
import com.rabbitmq.client.amqp.Environment;
import com.rabbitmq.client.amqp.Management;
import com.rabbitmq.client.amqp.Management.ExchangeType;
import com.rabbitmq.client.amqp.Message;
import com.rabbitmq.client.amqp.Publisher;
import com.rabbitmq.client.amqp.Requester;
import com.rabbitmq.client.amqp.impl.AmqpEnvironmentBuilder;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.Stream;

public class Tutorials {
  static final int WAIT_S = 30;
  static final Environment environment = new AmqpEnvironmentBuilder().build();
  static String[] urls = {"amqp://guest:guest@127.0.0.1:5672/%2f", "amqp://guest:guest@127.0.0.1:5673/%2f"};
  static int connected = 0;

  /** Return a connection to the next node. */
  static Connection connect() {
    return environment.connectionBuilder().uri(urls[connected++ % urls.length]).build();
  }

  static void declare(Connection connection, String queue) {
    try (Management management = connection.management()) {
      management.queue().name(queue).quorum().queue().declare();
      management.queuePurge(queue);
    }
  }

  /** Bind a new queue to an exchange, and return its name. */
  static String subscribe(Connection connection, String exchange, ExchangeType type, String... keys) {
    try (Management management = connection.management()) {
      management.exchange().name(exchange).type(type).declare();
      String queue = management.queue().exclusive(true).autoDelete(true).declare().name();
      for (String key : keys) {
        management.binding().sourceExchange(exchange).destinationQueue(queue).key(key).bind();
      }
      return queue;
    }
  }

  /** Publish a message, and return its outcome. */
  static Publisher.Status publish(Publisher publisher, String text) throws Exception {
    CompletableFuture<Publisher.Status> outcome = new CompletableFuture<>();
    publisher.publish(publisher.message(text.getBytes(UTF_8)), context -> outcome.complete(context.status()));
    return outcome.get(WAIT_S, TimeUnit.SECONDS);
  }

  static Publisher to(Connection connection, String queue) {
    return connection.publisherBuilder().queue(queue).build();
  }

  static Publisher to(Connection connection, String exchange, String key) {
    return connection.publisherBuilder().exchange(exchange).key(key).build();
  }

  /** Consume messages, which come as texts into the result. */
  static Consumer consume(Connection connection, String queue, BlockingQueue<String> texts) {
    return connection
        .consumerBuilder()
        .queue(queue)
        .initialCredits(1)
        .messageHandler(
            (context, message) -> {
              texts.add(new String(message.body(), UTF_8));
              context.accept();
            })
        .build();
  }

  static String next(BlockingQueue<String> texts) throws Exception {
    return texts.poll(WAIT_S, TimeUnit.SECONDS);
  }

  static String helloWorld() throws Exception {
    try (Connection sending = connect(); Connection receiving = connect()) {
      declare(sending, "hello10");
      publish(to(sending, "hello10"), "Hello World!");
      BlockingQueue<String> texts = new LinkedBlockingQueue<>();
      consume(receiving, "hello10", texts);
      return next(texts);
    }
  }

  static String workQueues() throws Exception {
    try (Connection sending = connect(); Connection first = connect(); Connection second = connect()) {
      declare(sending, "task_queue10");
      BlockingQueue<String> done = new LinkedBlockingQueue<>();
      consume(first, "task_queue10", done);
      consume(second, "task_queue10", done);
      Publisher publisher = to(sending, "task_queue10");
      for (int number = 0; number < 10; number++) publish(publisher, "task " + number);
      int count = 0;
      while (count < 10 && next(done) != null) count++;
      return count + " tasks done by 2 workers";
    }
  }

  static String publishSubscribe() throws Exception {
    try (Connection sending = connect(); Connection first = connect(); Connection second = connect()) {
      BlockingQueue<String> one = new LinkedBlockingQueue<>(), other = new LinkedBlockingQueue<>();
      consume(first, subscribe(first, "logs10", ExchangeType.FANOUT, ""), one);
      consume(second, subscribe(second, "logs10", ExchangeType.FANOUT, ""), other);
      publish(to(sending, "logs10", ""), "info: Hello World!");
      return next(one) + " | " + next(other);
    }
  }

  /** Return the routing keys that reach a queue, of those that are published. */
  static String routed(String exchange, ExchangeType type, String... keys) throws Exception {
    try (Connection sending = connect(); Connection receiving = connect()) {
      BlockingQueue<String> texts = new LinkedBlockingQueue<>();
      consume(receiving, subscribe(receiving, exchange, type, keys), texts);
      int count = 0;
      for (String key : List.of("info", "error", "warning", "kern.info", "cron.critical")) {
        try (Publisher publisher = to(sending, exchange, key)) {
          if (publish(publisher, key) == Publisher.Status.ACCEPTED) count++; // else it reached no queue
        }
      }
      String[] found = new String[count];
      for (int place = 0; place < count; place++) found[place] = next(texts);
      return Stream.of(found).collect(Collectors.joining(", "));
    }
  }

  static int fibonacci(int n) {
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
  }

  static String remoteProcedureCall() throws Exception {
    try (Connection serving = connect(); Connection calling = connect()) {
      declare(serving, "rpc_queue10");
      serving
          .responderBuilder()
          .requestQueue("rpc_queue10")
          .handler(
              (context, request) -> {
                int n = Integer.parseInt(new String(request.body(), UTF_8));
                return context.message(String.valueOf(fibonacci(n)).getBytes(UTF_8));
              })
          .build();
      Requester requester = calling.requesterBuilder().requestAddress().queue("rpc_queue10").requester().build();
      Message request = requester.message("10".getBytes(UTF_8));
      Message reply = requester.publish(request).get(WAIT_S, TimeUnit.SECONDS);
      return "fib(10) = " + new String(reply.body(), UTF_8);
    }
  }

  public static void main(String[] arguments) throws Exception {
    if (arguments.length > 0) urls = arguments;
    System.out.println("1 hello world: " + helloWorld());
    System.out.println("2 work queues: " + workQueues());
    System.out.println("3 publish/subscribe: " + publishSubscribe());
    System.out.println("4 routing: " + routed("direct_logs10", ExchangeType.DIRECT, "warning", "error"));
    System.out.println("5 topics: " + routed("topic_logs10", ExchangeType.TOPIC, "kern.*", "*.critical"));
    System.out.println("6 remote procedure call: " + remoteProcedureCall());
    environment.close();
  }
}
