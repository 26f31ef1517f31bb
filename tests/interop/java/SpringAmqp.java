// Conversations of Spring's client for AMQP 1.0 with a node: its template, its administrator, and its listeners. The
// arguments are the port of the node, and a quorum queue. Each conversation is a line: "pass NAME", or "fail NAME: ERROR".

import com.rabbitmq.client.amqp.AmqpException;
import com.rabbitmq.client.amqp.Consumer;
import com.rabbitmq.client.amqp.Environment;
import com.rabbitmq.client.amqp.impl.AmqpEnvironmentBuilder;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.springframework.amqp.AmqpRejectAndDontRequeueException;
import org.springframework.amqp.core.AmqpAcknowledgment;
import org.springframework.amqp.core.AmqpAcknowledgment.Status;
import org.springframework.amqp.core.Binding;
import org.springframework.amqp.core.BindingBuilder;
import org.springframework.amqp.core.Declarables;
import org.springframework.amqp.core.FanoutExchange;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.core.MessageBuilder;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.core.QueueBuilder;
import org.springframework.amqp.core.TopicExchange;
import org.springframework.amqp.rabbit.annotation.EnableRabbit;
import org.springframework.amqp.rabbit.annotation.RabbitListener;
import org.springframework.amqp.rabbit.listener.RabbitListenerEndpointRegistry;
import org.springframework.amqp.rabbitmq.client.AmqpConnectionFactory;
import org.springframework.amqp.rabbitmq.client.RabbitAmqpAdmin;
import org.springframework.amqp.rabbitmq.client.RabbitAmqpTemplate;
import org.springframework.amqp.rabbitmq.client.SingleAmqpConnectionFactory;
import org.springframework.amqp.rabbitmq.client.config.RabbitAmqpListenerContainerFactory;
import org.springframework.amqp.rabbitmq.client.listener.RabbitAmqpListenerContainer;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.messaging.handler.annotation.SendTo;

public class SpringAmqp {
  static final long WAIT_S = 20;
  static final int BATCH = 10;
  static int port;
  static String quorum;

  /** What the listeners were given. */
  record Got(String listener, String text) {}

  static final BlockingQueue<Got> GOT = new LinkedBlockingQueue<>();

  @Configuration
  @EnableRabbit
  public static class Application {
    @Bean
    Environment environment() {
      return new AmqpEnvironmentBuilder().build();
    }

    @Bean
    AmqpConnectionFactory connectionFactory(Environment environment) {
      return new SingleAmqpConnectionFactory(environment).setUri("amqp://guest:guest@127.0.0.1:" + port + "/%2f");
    }

    @Bean
    RabbitAmqpAdmin admin(AmqpConnectionFactory connectionFactory) {
      return new RabbitAmqpAdmin(connectionFactory);
    }

    @Bean
    RabbitAmqpTemplate template(AmqpConnectionFactory connectionFactory) {
      return new RabbitAmqpTemplate(connectionFactory);
    }

    @Bean
    RabbitAmqpListenerContainerFactory rabbitListenerContainerFactory(AmqpConnectionFactory connectionFactory) {
      return new RabbitAmqpListenerContainerFactory(connectionFactory);
    }

    @Bean
    RabbitAmqpListenerContainerFactory inBatches(AmqpConnectionFactory connectionFactory) {
      RabbitAmqpListenerContainerFactory factory = new RabbitAmqpListenerContainerFactory(connectionFactory);
      factory.setBatchSize(BATCH);
      factory.setBatchReceiveTimeout(500L);
      return factory;
    }

    /** What an application declares when it starts. */
    @Bean
    Declarables declarables() {
      TopicExchange topics = new TopicExchange("spring-topics");
      FanoutExchange dead = new FanoutExchange("spring-dead");
      Queue manual = QueueBuilder.durable("spring-manual").deadLetterExchange("spring-dead").build();
      Queue automatic = QueueBuilder.durable("spring-automatic").deadLetterExchange("spring-dead").build();
      Queue letters = new Queue("spring-dead-letters");
      return new Declarables(topics, dead, manual, automatic, letters, new Queue("spring-batches"),
          new Queue("spring-upper"), new Queue("spring-later"), new Queue("spring-forward"),
          new Queue("spring-forwarded"), new Queue("spring-paused"), new Queue("spring-plain"),
          BindingBuilder.bind(letters).to(dead),
          BindingBuilder.bind(new Queue("spring-plain")).to(topics).with("orders.#"));
    }

    private final Map<String, Integer> seen = new HashMap<>();

    @RabbitListener(id = "manual", queues = "spring-manual", concurrency = "2",
        ackMode = "#{T(org.springframework.amqp.core.AcknowledgeMode).MANUAL}")
    void manual(String text, AmqpAcknowledgment acknowledgment, Consumer.Context context) {
      boolean isFirst;
      synchronized (seen) {
        isFirst = seen.merge(text, 1, Integer::sum) == 1;
      }
      GOT.add(new Got("manual", text));
      switch (text) {
        case "requeue" -> acknowledgment.acknowledge(isFirst ? Status.REQUEUE : Status.ACCEPT);
        case "reject" -> acknowledgment.acknowledge(Status.REJECT);
        case "discard" -> context.discard(Map.of("x-opt-reason", "worn"));
        default -> acknowledgment.acknowledge();
      }
    }

    @RabbitListener(id = "automatic", queues = "spring-automatic")
    void automatic(String text) {
      boolean isFirst;
      synchronized (seen) {
        isFirst = seen.merge(text, 1, Integer::sum) == 1;
      }
      GOT.add(new Got("automatic", text));
      if (text.equals("error") && isFirst) throw new IllegalStateException("comes again");
      if (text.equals("reject")) throw new AmqpRejectAndDontRequeueException("goes to the dead letters");
    }

    @RabbitListener(id = "batches", queues = "spring-batches", containerFactory = "inBatches")
    void batches(List<String> texts) {
      GOT.add(new Got("batches", String.join(" ", texts)));
    }

    @RabbitListener(id = "paused", queues = "spring-paused")
    void paused(String text) {
      GOT.add(new Got("paused", text));
    }

    @RabbitListener(queues = "spring-upper")
    String upper(String text) {
      return text.toUpperCase();
    }

    @RabbitListener(queues = "spring-later")
    CompletableFuture<String> later(String text) {
      return CompletableFuture.supplyAsync(() -> text + " later");
    }

    @RabbitListener(queues = "spring-forward")
    @SendTo("spring-topics/orders.forwarded")
    String forward(String text) {
      return "forwarded " + text;
    }
  }

  interface Conversation {
    void run(AnnotationConfigApplicationContext context, RabbitAmqpAdmin admin, RabbitAmqpTemplate template)
        throws Exception;
  }

  static void converse(AnnotationConfigApplicationContext context, String name, Conversation conversation) {
    try {
      GOT.clear();
      conversation.run(context, context.getBean(RabbitAmqpAdmin.class), context.getBean(RabbitAmqpTemplate.class));
      System.out.println("pass " + name);
    } catch (Throwable error) {
      System.out.println("fail " + name + ": " + error);
    }
  }

  static void check(boolean isTrue, Object found) {
    if (!isTrue) throw new AssertionError(String.valueOf(found));
  }

  static <T> T done(CompletableFuture<T> future) throws Exception {
    return future.get(WAIT_S, TimeUnit.SECONDS);
  }

  static Throwable failure(CompletableFuture<?> future) throws Exception {
    try {
      throw new AssertionError("done: " + done(future));
    } catch (ExecutionException expected) {
      return expected.getCause();
    }
  }

  /** Wait for texts that a listener is given; return them in order. */
  static List<String> got(String listener, int count) throws InterruptedException {
    List<String> texts = new ArrayList<>();
    while (texts.size() < count) {
      Got got = GOT.poll(WAIT_S, TimeUnit.SECONDS);
      check(got != null, listener + " was given " + texts);
      check(got.listener().equals(listener), got);
      texts.add(got.text());
    }
    return texts;
  }

  static void empty(RabbitAmqpAdmin admin, String... queues) throws InterruptedException {
    long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_S);
    for (String queue : queues) {
      while (admin.getQueueInfo(queue).getMessageCount() > 0) {
        check(System.nanoTime() < deadline, queue + " holds " + admin.getQueueInfo(queue).getMessageCount());
        Thread.sleep(20);
      }
    }
  }

  static void declarations(
      AnnotationConfigApplicationContext context, RabbitAmqpAdmin admin, RabbitAmqpTemplate template)
      throws Exception {
    check(admin.getQueueInfo("spring-manual").getConsumerCount() == 2, admin.getQueueInfo("spring-manual"));
    String name = "spring-" + UUID.randomUUID();
    Queue queue = QueueBuilder.durable(name).maxLength(100L).ttl(60_000).build();
    check(name.equals(admin.declareQueue(queue)), queue);
    check(name.equals(admin.declareQueue(queue)), queue);
    Binding binding = BindingBuilder.bind(queue).to(new TopicExchange("spring-topics")).with("declared.*");
    admin.declareBinding(binding);
    for (int number = 0; number < 3; number++) done(template.convertAndSend("spring-topics", "declared.now", "text"));
    check(admin.getQueueProperties(name).get(RabbitAmqpAdmin.QUEUE_TYPE).equals("classic"), name);
    check(admin.getQueueInfo(name).getMessageCount() == 3, admin.getQueueInfo(name));
    check(admin.purgeQueue(name) == 3, admin.getQueueInfo(name));
    admin.removeBinding(binding);
    failure(template.convertAndSend("spring-topics", "declared.now", "text"));
    try {
      admin.declareQueue(QueueBuilder.durable(name).maxLength(7L).build());
      throw new AssertionError("the queue has other arguments");
    } catch (AmqpException expected) {
      check(expected.getMessage().contains("409"), expected);
    }
    String made = admin.declareQueue().getName();
    check(admin.getQueueInfo(made).getMessageCount() == 0, made);
    for (String each : List.of(made, name)) {
      check(admin.deleteQueue(each) && admin.getQueueInfo(each) == null, each);
    }
    admin.declareExchange(new FanoutExchange(name));
    check(admin.deleteExchange(name), name);
  }

  static void confirms(
      AnnotationConfigApplicationContext context, RabbitAmqpAdmin admin, RabbitAmqpTemplate template)
      throws Exception {
    CompletableFuture<?>[] all = IntStream.range(0, 500)
        .mapToObj(number -> template.convertAndSend(quorum, "text " + number))
        .toArray(CompletableFuture[]::new);
    done(CompletableFuture.allOf(all));
    for (CompletableFuture<?> each : all) check(Boolean.TRUE.equals(each.get()), each);
    check(done(template.receiveAndConvert(quorum)).equals("text 0"), "another text");
    check(admin.getQueueInfo(quorum).getType().equals("quorum"), admin.getQueueInfo(quorum).getType());
    check(admin.purgeQueue(quorum) == all.length - 1, "another count");
    check(done(template.convertAndSend("spring-topics", "orders.new", "routed")), "not confirmed");
    String refusal = failure(template.convertAndSend("spring-topics", "invoices.new", "unroutable")).toString();
    check(refusal.contains("AmqpNackReceivedException"), refusal);
    check(done(template.receiveAndConvert("spring-plain")).equals("routed"), "another text");
  }

  static void properties(
      AnnotationConfigApplicationContext context, RabbitAmqpAdmin admin, RabbitAmqpTemplate template)
      throws Exception {
    Message sent = MessageBuilder.withBody("body".getBytes()).setMessageId("id-1").setCorrelationId("id-2")
        .setContentType("text/plain").setContentEncoding("utf-8").setPriority(7).setUserId("guest")
        .setHeader("text", "value").setHeader("number", 7L).setHeader("true", true).setHeader("real", 1.5).build();
    done(template.send("spring-plain", sent));
    Message received = done(template.receive("spring-plain"));
    check(new String(received.getBody()).equals("body"), received);
    check(received.getMessageProperties().getMessageId().equals("id-1"), received);
    check(received.getMessageProperties().getCorrelationId().equals("id-2"), received);
    check(received.getMessageProperties().getContentType().equals("text/plain"), received);
    check(received.getMessageProperties().getContentEncoding().equals("utf-8"), received);
    check(received.getMessageProperties().getUserId().equals("guest"), received);
    Map<String, Object> headers = Map.of("text", "value", "number", 7L, "true", true, "real", 1.5);
    check(received.getMessageProperties().getHeaders().equals(headers), received);
  }

  static void acknowledgements(
      AnnotationConfigApplicationContext context, RabbitAmqpAdmin admin, RabbitAmqpTemplate template)
      throws Exception {
    List<String> texts = List.of("accept", "requeue", "reject", "discard");
    for (String text : texts) done(template.convertAndSend("spring-manual", text));
    List<String> got = got("manual", 5);
    check(got.stream().filter("requeue"::equals).count() == 2 && got.containsAll(texts), got);
    List<String> dead = List.of(
        (String) done(template.receiveAndConvert("spring-dead-letters")),
        (String) done(template.receiveAndConvert("spring-dead-letters")));
    check(dead.contains("reject") && dead.contains("discard"), dead);
    empty(admin, "spring-manual", "spring-dead-letters");
  }

  static void exceptions(
      AnnotationConfigApplicationContext context, RabbitAmqpAdmin admin, RabbitAmqpTemplate template)
      throws Exception {
    List<String> texts = List.of("well", "error", "reject");
    for (String text : texts) done(template.convertAndSend("spring-automatic", text));
    List<String> got = got("automatic", 4);
    check(got.stream().filter("error"::equals).count() == 2 && got.containsAll(texts), got);
    check(done(template.receiveAndConvert("spring-dead-letters")).equals("reject"), "another text");
    empty(admin, "spring-automatic", "spring-dead-letters");
  }

  static void batches(
      AnnotationConfigApplicationContext context, RabbitAmqpAdmin admin, RabbitAmqpTemplate template)
      throws Exception {
    List<String> expected = new ArrayList<>();
    for (int number = 0; number < 2 * BATCH + 3; number++) {
      expected.add("text" + number);
      done(template.convertAndSend("spring-batches", "text" + number));
    }
    List<String> texts = new ArrayList<>();
    while (texts.size() < expected.size()) {
      List<String> batch = List.of(got("batches", 1).get(0).split(" "));
      check(batch.size() <= BATCH, batch);
      texts.addAll(batch);
    }
    check(texts.equals(expected), texts);
    empty(admin, "spring-batches");
  }

  static void remoteProcedures(
      AnnotationConfigApplicationContext context, RabbitAmqpAdmin admin, RabbitAmqpTemplate template)
      throws Exception {
    check(done(template.convertSendAndReceive("spring-upper", "text")).equals("TEXT"), "another reply");
    check(done(template.convertSendAndReceive("spring-later", "text")).equals("text later"), "another reply");
    done(template.convertAndSend("spring-forward", "text"));
    check(done(template.receiveAndConvert("spring-plain")).equals("forwarded text"), "another text");
    CompletableFuture<Object> reply = template.convertSendAndReceive("spring-topics", "orders.question", "how many?");
    check(done(template.<String, String>receiveAndReply("spring-plain", text -> "3: " + text)), "no reply");
    check(done(reply).equals("3: how many?"), done(reply));
    done(template.convertAndSend("spring-plain", "no question"));
    String refusal = failure(template.<String, String>receiveAndReply("spring-plain", text -> text)).toString();
    check(refusal.contains("Failed to process RPC request"), refusal);
    empty(admin, "spring-plain");
  }

  static void pauses(
      AnnotationConfigApplicationContext context, RabbitAmqpAdmin admin, RabbitAmqpTemplate template)
      throws Exception {
    RabbitAmqpListenerContainer container = (RabbitAmqpListenerContainer)
        context.getBean(RabbitListenerEndpointRegistry.class).getListenerContainer("paused");
    container.pause();
    done(template.convertAndSend("spring-paused", "held"));
    check(GOT.poll(500, TimeUnit.MILLISECONDS) == null, "a message while the listener was paused");
    container.resume();
    check(got("paused", 1).equals(List.of("held")), "another text");
    CompletableFuture<Void> stopped = new CompletableFuture<>();
    container.stop(() -> stopped.complete(null));
    done(stopped);
    done(template.convertAndSend("spring-paused", "kept"));
    check(admin.getQueueInfo("spring-paused").getConsumerCount() == 0, admin.getQueueInfo("spring-paused"));
    check(admin.getQueueInfo("spring-paused").getMessageCount() == 1, admin.getQueueInfo("spring-paused"));
    container.start();
    check(got("paused", 1).equals(List.of("kept")), "another text");
  }

  public static void main(String[] arguments) {
    port = Integer.parseInt(arguments[0]);
    quorum = arguments[1];
    try (AnnotationConfigApplicationContext context = new AnnotationConfigApplicationContext(Application.class)) {
      converse(context, "declarations", SpringAmqp::declarations);
      converse(context, "confirms", SpringAmqp::confirms);
      converse(context, "properties", SpringAmqp::properties);
      converse(context, "acknowledgements", SpringAmqp::acknowledgements);
      converse(context, "exceptions of listeners", SpringAmqp::exceptions);
      converse(context, "batches", SpringAmqp::batches);
      converse(context, "remote procedures", SpringAmqp::remoteProcedures);
      converse(context, "pause, stop and start", SpringAmqp::pauses);
    }
    System.exit(0);
  }
}
