// Conversations of RabbitMQ's Java client for AMQP 1.0 with a node. The arguments are the port of the node, a queue that
// is not used, and the ports of all nodes, the leader's first. Each conversation is a line: "pass NAME", or "fail NAME:
// ERROR".

import com.rabbitmq.client.amqp.Address;
import com.rabbitmq.client.amqp.AmqpException;
import com.rabbitmq.client.amqp.Connection;
import com.rabbitmq.client.amqp.ConnectionSettings.Affinity.Operation;
import com.rabbitmq.client.amqp.ConnectionSettings.AffinityStrategy;
import com.rabbitmq.client.amqp.Consumer;
import com.rabbitmq.client.amqp.Environment;
import com.rabbitmq.client.amqp.Management;
import com.rabbitmq.client.amqp.Message;
import com.rabbitmq.client.amqp.Publisher;
import com.rabbitmq.client.amqp.Requester;
import com.rabbitmq.client.amqp.Responder;
import com.rabbitmq.client.amqp.impl.AmqpEnvironmentBuilder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

public class RabbitMqAmqp {
  static final long WAIT_S = 20;
  static final List<Integer> PORTS = new ArrayList<>();

  interface Conversation {
    void run(Connection connection, Management management, String queue) throws Exception;
  }

  static void converse(Environment environment, String name, Conversation conversation) {
    String queue = "java-" + UUID.randomUUID();
    try (Connection connection = environment.connectionBuilder().build();
        Management management = connection.management()) {
      conversation.run(connection, management, queue);
      management.queueDelete(queue);
      System.out.println("pass " + name);
    } catch (Throwable error) {
      System.out.println("fail " + name + ": " + error);
    }
  }

  static void check(boolean isTrue, Object found) {
    if (!isTrue) throw new AssertionError(String.valueOf(found));
  }

  static List<Publisher.Status> publish(Publisher publisher, int count) throws InterruptedException {
    BlockingQueue<Publisher.Status> outcomes = new LinkedBlockingQueue<>();
    for (int number = 0; number < count; number++) {
      Message message = publisher.message(String.valueOf(number).getBytes(StandardCharsets.UTF_8));
      publisher.publish(message, context -> outcomes.add(context.status()));
    }
    List<Publisher.Status> all = new ArrayList<>();
    for (int number = 0; number < count; number++) all.add(outcomes.poll(WAIT_S, TimeUnit.SECONDS));
    return all;
  }

  static List<Publisher.Status> publish(Connection connection, String queue, int count) throws Exception {
    try (Publisher publisher = connection.publisherBuilder().queue(queue).build()) {
      return publish(publisher, count);
    }
  }

  record Got(Consumer.Context context, Message message) {
    String text() {
      return new String(message.body(), StandardCharsets.UTF_8);
    }
  }

  static Consumer consumer(Connection connection, String queue, BlockingQueue<Got> messages) {
    return connection.consumerBuilder().queue(queue)
        .messageHandler((context, message) -> messages.add(new Got(context, message))).build();
  }

  static Got next(BlockingQueue<Got> messages) throws InterruptedException {
    Got got = messages.poll(WAIT_S, TimeUnit.SECONDS);
    check(got != null, "no message");
    return got;
  }

  static void inOrder(Connection connection, Management management, String queue) throws Exception {
    management.queue(queue).quorum().queue().declare();
    check(publish(connection, queue, 1000).stream().allMatch(Publisher.Status.ACCEPTED::equals), "not accepted");
    check(management.queueInfo(queue).messageCount() == 1000, management.queueInfo(queue).messageCount());
    BlockingQueue<Got> messages = new LinkedBlockingQueue<>();
    try (Consumer consumer = consumer(connection, queue, messages)) {
      for (int number = 0; number < 1000; number++) {
        Got got = next(messages);
        check(got.text().equals(String.valueOf(number)), got.text());
        got.context().accept();
      }
    }
    check(management.queueInfo(queue).messageCount() == 0, management.queueInfo(queue).messageCount());
  }

  static void topology(Connection connection, Management management, String queue) throws Exception {
    String exchange = queue + "-events";
    Management.QueueInfo info = management.queue(queue).quorum().queue().maxLength(100).declare();
    check(info.durable() && info.type() == Management.QueueType.QUORUM && !info.exclusive(), info);
    check(((Number) info.arguments().get("x-max-length")).intValue() == 100, info.arguments());
    check(info.leader() != null && !info.members().isEmpty(), info);
    management.queue(queue).quorum().queue().maxLength(100).declare();
    management.exchange(exchange).type(Management.ExchangeType.TOPIC).declare();
    management.binding().sourceExchange(exchange).destinationQueue(queue).key("a.#").argument("x", "y").bind();
    try (Publisher publisher = connection.publisherBuilder().exchange(exchange).key("a.b").build()) {
      check(publish(publisher, 3).contains(Publisher.Status.ACCEPTED), "not accepted");
      management.unbind().sourceExchange(exchange).destinationQueue(queue).key("a.#").argument("x", "y").unbind();
      check(publish(publisher, 1).contains(Publisher.Status.RELEASED), "not released");
    }
    check(management.queuePurge(queue).messageCount() == 3, "another count");
    management.exchangeDelete(exchange);
    try {
      management.queueInfo("no-such-queue");
      throw new AssertionError("an unknown queue has facts");
    } catch (AmqpException.AmqpEntityDoesNotExistException expected) {
      check(expected.getMessage().contains("no-such-queue") || expected.getMessage().contains("404"), expected);
    }
    try {
      management.queue(queue).quorum().queue().maxLength(7).declare();
      throw new AssertionError("a queue has other arguments");
    } catch (AmqpException expected) {
      check(expected.getMessage().contains("409"), expected);
    }
  }

  static void outcomes(Connection connection, Management management, String queue) throws Exception {
    String dead = queue + "-dead";
    management.queue(dead).quorum().queue().declare();
    management.queue(queue).quorum().queue().deadLetterExchange("").deadLetterRoutingKey(dead).declare();
    publish(connection, queue, 2);
    BlockingQueue<Got> messages = new LinkedBlockingQueue<>();
    try (Consumer consumer = consumer(connection, queue, messages)) {
      next(messages).context().requeue(Map.of("x-opt-try", "first"));
      Got second = next(messages);
      Got again = next(messages);
      if (!second.text().equals("1")) {
        Got other = again;
        again = second;
        second = other;
      }
      check("first".equals(again.message().annotation("x-opt-try")), again.message());
      second.context().discard();
      again.context().discard(Map.of("x-opt-reason", "worn"));
    }
    messages.clear();
    try (Consumer consumer = consumer(connection, dead, messages)) {
      for (int number = 0; number < 2; number++) {
        Got got = next(messages);
        check(queue.equals(got.message().annotation("x-first-death-queue")), got.message());
        check("rejected".equals(got.message().annotation("x-first-death-reason")), got.message());
        check(got.text().equals("1") || "worn".equals(got.message().annotation("x-opt-reason")), got.message());
        got.context().accept();
      }
    }
    management.queueDelete(dead);
  }

  static void batches(Connection connection, Management management, String queue) throws Exception {
    management.queue(queue).quorum().queue().declare();
    publish(connection, queue, 100);
    BlockingQueue<Got> messages = new LinkedBlockingQueue<>();
    try (Consumer consumer = consumer(connection, queue, messages)) {
      for (int round = 0; round < 10; round++) {
        Consumer.BatchContext batch = null;
        for (int number = 0; number < 10; number++) {
          Got got = next(messages);
          if (batch == null) batch = got.context().batch(10);
          batch.add(got.context());
        }
        batch.accept();
      }
      while (consumer.unsettledMessageCount() > 0) Thread.sleep(10);
    }
    check(management.queueInfo(queue).messageCount() == 0, management.queueInfo(queue).messageCount());
  }

  static void preSettled(Connection connection, Management management, String queue) throws Exception {
    management.queue(queue).quorum().queue().declare();
    publish(connection, queue, 10);
    BlockingQueue<Message> messages = new LinkedBlockingQueue<>();
    try (Consumer consumer = connection.consumerBuilder().queue(queue).preSettled()
        .messageHandler((context, message) -> messages.add(message)).build()) {
      for (int number = 0; number < 10; number++) check(messages.poll(WAIT_S, TimeUnit.SECONDS) != null, number);
    }
    check(management.queueInfo(queue).messageCount() == 0, management.queueInfo(queue).messageCount());
  }

  static void fullQueue(Connection connection, Management management, String queue) throws Exception {
    management.queue(queue).quorum().queue().maxLength(1)
        .overflowStrategy(Management.OverflowStrategy.REJECT_PUBLISH).declare();
    check(publish(connection, queue, 20).contains(Publisher.Status.REJECTED), "not rejected");
  }

  static void remoteProcedures(Connection connection, Management management, String queue) throws Exception {
    management.queue(queue).quorum().queue().declare();
    try (Responder responder = connection.responderBuilder().requestQueue(queue)
            .handler((context, request) -> context.message(request.body())).build();
        Requester requester = connection.requesterBuilder().requestAddress().queue(queue).requester().build()) {
      for (int number = 0; number < 20; number++) {
        byte[] question = ("question " + number).getBytes(StandardCharsets.UTF_8);
        Message reply = requester.publish(requester.message(question)).get(WAIT_S, TimeUnit.SECONDS);
        check(new String(reply.body(), StandardCharsets.UTF_8).equals("question " + number), reply);
      }
    }
  }

  static void unknownQueue(Connection connection, Management management, String queue) throws Exception {
    try {
      connection.publisherBuilder().queue("no-such-queue").build();
      throw new AssertionError("a publisher was opened");
    } catch (AmqpException.AmqpEntityDoesNotExistException expected) {
      check(expected.getMessage().contains("no-such-queue"), expected);
    }
  }

  /** Return the port of the node to which a connection with affinity leads. */
  static int portFor(Environment environment, String queue, Operation operation, AffinityStrategy strategy) {
    AtomicInteger port = new AtomicInteger();
    // The client gives up after five attempts: then it is connected to a node that is wrong.
    AtomicInteger attempt = new AtomicInteger(operation == Operation.PUBLISH ? 1 : 2);
    environment.connectionBuilder()
        .uris(PORTS.stream().map(each -> "amqp://guest:guest@127.0.0.1:" + each + "/%2f").toArray(String[]::new))
        .addressSelector(addresses -> {
          Address address = addresses.get(attempt.getAndIncrement() % addresses.size());
          port.set(address.port());
          return address;
        })
        .affinity().queue(queue).operation(operation).strategy(strategy).connection().build().close();
    return port.get();
  }

  static void affinity(Environment environment, Management management, String queue) {
    management.queue(queue).quorum().queue().declare();
    AffinityStrategy leader = (context, info) -> List.of(info.leader());
    AffinityStrategy followers = (context, info) ->
        info.members().stream().filter(member -> !member.equals(info.leader())).toList();
    int publishing = portFor(environment, queue, Operation.PUBLISH, leader);
    check(publishing == PORTS.get(0), publishing);
    int consuming = portFor(environment, queue, Operation.CONSUME, followers);
    check(PORTS.indexOf(consuming) > 0, consuming);
  }

  public static void main(String[] arguments) throws Exception {
    for (int number = 2; number < arguments.length; number++) PORTS.add(Integer.valueOf(arguments[number]));
    String uri = "amqp://guest:guest@127.0.0.1:" + arguments[0] + "/%2f";
    try (Environment environment =
        new AmqpEnvironmentBuilder().connectionSettings().uri(uri).environmentBuilder().build()) {
      converse(environment, "in order", RabbitMqAmqp::inOrder);
      converse(environment, "topology", RabbitMqAmqp::topology);
      converse(environment, "outcomes", RabbitMqAmqp::outcomes);
      converse(environment, "batches", RabbitMqAmqp::batches);
      converse(environment, "pre-settled", RabbitMqAmqp::preSettled);
      converse(environment, "full queue", RabbitMqAmqp::fullQueue);
      converse(environment, "remote procedures", RabbitMqAmqp::remoteProcedures);
      converse(environment, "unknown queue is refused", RabbitMqAmqp::unknownQueue);
      converse(environment, "affinity", (connection, management, queue) -> affinity(environment, management, queue));
    }
    System.exit(0);
  }
}
