package listeners;

import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.springframework.amqp.AmqpException;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.core.QueueBuilder;
import org.springframework.amqp.rabbit.annotation.Exchange;
import org.springframework.amqp.rabbit.annotation.QueueBinding;
import org.springframework.amqp.rabbit.annotation.RabbitListener;
import org.springframework.amqp.rabbit.config.DirectRabbitListenerContainerFactory;
import org.springframework.amqp.rabbit.config.SimpleRabbitListenerContainerFactory;
import org.springframework.amqp.rabbit.connection.ConnectionFactory;
import org.springframework.amqp.rabbit.connection.CorrelationData;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.boot.autoconfigure.amqp.DirectRabbitListenerContainerFactoryConfigurer;
import org.springframework.boot.autoconfigure.amqp.SimpleRabbitListenerContainerFactoryConfigurer;
import org.springframework.context.annotation.Bean;

/**
 * Publishes to a listener of each kind, and prints every 100 ms how many messages each has had: `NAME=COUNT ...`.
 *
 * <p>After a line on its input it publishes no more, waits until each message that was confirmed was consumed, prints
 * `missing=COUNT`, and ends.
 */
@SpringBootApplication
public class Program {
  private static final String QUORUM_SIMPLE = "quorum-simple";
  private static final String QUORUM_DIRECT = "quorum-direct";
  private static final String ASKED = "asked";
  private static final String RETRIED = "retried";
  private static final String DEAD = "dead";
  private static final String NEWS = "news";
  private static final long PAUSE_MS = 10;
  private static final long AGAIN_MS = 100;
  private static final long DRAIN_S = 30;

  private final ConcurrentMap<String, AtomicLong> counts = new ConcurrentHashMap<>();
  private final Set<String> confirmed = ConcurrentHashMap.newKeySet();
  private final Set<String> consumed = ConcurrentHashMap.newKeySet();
  private final AtomicLong unconfirmed = new AtomicLong();
  private volatile boolean stopping;

  public static void main(String[] arguments) throws Exception {
    var context = SpringApplication.run(Program.class, arguments);
    boolean complete = context.getBean(Program.class).run(context.getBean(RabbitTemplate.class));
    context.close();
    System.exit(complete ? 0 : 1);
  }

  // Queues

  @Bean
  static Queue quorumSimple() {
    return QueueBuilder.durable(QUORUM_SIMPLE).quorum().build();
  }

  @Bean
  static Queue quorumDirect() {
    return QueueBuilder.durable(QUORUM_DIRECT).quorum().build();
  }

  @Bean
  static Queue asked() {
    return QueueBuilder.durable(ASKED).quorum().build();
  }

  @Bean
  static Queue retried() {
    return QueueBuilder.durable(RETRIED).quorum().deadLetterExchange("").deadLetterRoutingKey(DEAD).build();
  }

  @Bean
  static Queue dead() {
    return QueueBuilder.durable(DEAD).quorum().build();
  }

  // Containers

  @Bean
  static SimpleRabbitListenerContainerFactory simple(
      SimpleRabbitListenerContainerFactoryConfigurer configurer, ConnectionFactory connections) {
    var factory = new SimpleRabbitListenerContainerFactory();
    configurer.configure(factory, connections);
    return factory;
  }

  @Bean
  static DirectRabbitListenerContainerFactory direct(
      DirectRabbitListenerContainerFactoryConfigurer configurer, ConnectionFactory connections) {
    var factory = new DirectRabbitListenerContainerFactory();
    configurer.configure(factory, connections);
    return factory;
  }

  // Listeners

  @RabbitListener(queues = QUORUM_SIMPLE, containerFactory = "simple", concurrency = "2")
  void takeFromSimple(String id) {
    consumed.add(id);
    count(QUORUM_SIMPLE);
  }

  @RabbitListener(queues = QUORUM_DIRECT, containerFactory = "direct", concurrency = "2")
  void takeFromDirect(String id) {
    consumed.add(id);
    count(QUORUM_DIRECT);
  }

  @RabbitListener(
      containerFactory = "simple",
      bindings =
          @QueueBinding(
              value = @org.springframework.amqp.rabbit.annotation.Queue,
              exchange = @Exchange(name = NEWS, type = "fanout")))
  void takeFromExclusiveSimple(String ignored) {
    count("exclusive-simple");
  }

  @RabbitListener(
      containerFactory = "direct",
      bindings =
          @QueueBinding(
              value = @org.springframework.amqp.rabbit.annotation.Queue,
              exchange = @Exchange(name = NEWS, type = "fanout")))
  void takeFromExclusiveDirect(String ignored) {
    count("exclusive-direct");
  }

  @RabbitListener(queues = ASKED, containerFactory = "direct")
  String answer(String question) {
    return question.toUpperCase();
  }

  @RabbitListener(queues = RETRIED, containerFactory = "simple")
  void fail(String text) {
    count("attempts");
    throw new IllegalStateException(text);
  }

  @RabbitListener(queues = DEAD, containerFactory = "direct")
  void takeDead(String ignored) {
    count(DEAD);
  }

  // Publishers

  private boolean run(RabbitTemplate template) throws Exception {
    Thread[] threads = {
      new Thread(() -> publishConfirmed(template)),
      new Thread(() -> publishOthers(template)),
      new Thread(() -> ask(template)),
      new Thread(this::report),
    };
    for (Thread thread : threads) {
      thread.setDaemon(true);
      thread.start();
    }
    System.in.read();
    stopping = true;
    for (int i = 0; i < 3; i++) {
      threads[i].join();
    }
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(DRAIN_S);
    while (System.nanoTime() < end && (unconfirmed.get() > 0 || !consumed.containsAll(confirmed))) {
      Thread.sleep(AGAIN_MS);
    }
    long missing = confirmed.stream().filter(id -> !consumed.contains(id)).count();
    System.out.println("missing=" + missing + " unconfirmed=" + unconfirmed + " confirmed=" + confirmed.size());
    return missing == 0 && unconfirmed.get() == 0;
  }

  private void publishConfirmed(RabbitTemplate template) {
    for (long number = 0; !stopping; number++) {
      for (String queue : new String[] {QUORUM_SIMPLE, QUORUM_DIRECT}) {
        unconfirmed.incrementAndGet();
        publish(template, queue, queue + "/" + number);
      }
      pause(PAUSE_MS);
    }
  }

  /** Publish until it is confirmed. */
  private void publish(RabbitTemplate template, String queue, String id) {
    CorrelationData data = new CorrelationData(id);
    try {
      template.convertAndSend("", queue, id, data);
    } catch (AmqpException error) {
      again(template, queue, id);
      return;
    }
    data.getFuture()
        .whenComplete(
            (confirm, error) -> {
              if (confirm != null && confirm.isAck() && data.getReturned() == null) {
                confirmed.add(id);
                unconfirmed.decrementAndGet();
                count("confirmed");
              } else {
                again(template, queue, id);
              }
            });
  }

  private void again(RabbitTemplate template, String queue, String id) {
    Thread later =
        new Thread(
            () -> {
              pause(AGAIN_MS);
              publish(template, queue, id);
            });
    later.setDaemon(true);
    later.start();
  }

  private void publishOthers(RabbitTemplate template) {
    while (!stopping) {
      for (Map.Entry<String, String> target : Map.of(NEWS, "", "", RETRIED).entrySet()) {
        try {
          template.convertAndSend(target.getKey(), target.getValue(), "x");
        } catch (AmqpException error) {
          count("refused");
        }
      }
      pause(AGAIN_MS);
    }
  }

  private void ask(RabbitTemplate template) {
    while (!stopping) {
      try {
        Object answer = template.convertSendAndReceive("", ASKED, "question");
        count("QUESTION".equals(answer) ? "answers" : "unanswered");
      } catch (AmqpException error) {
        count("unasked");
      }
      pause(PAUSE_MS);
    }
  }

  // Reports

  private void count(String name) {
    counts.computeIfAbsent(name, unused -> new AtomicLong()).incrementAndGet();
  }

  private void report() {
    while (true) {
      StringBuilder line = new StringBuilder();
      counts.forEach((name, count) -> line.append(name).append('=').append(count).append(' '));
      System.out.println(line.toString().trim());
      pause(AGAIN_MS);
    }
  }

  private static void pause(long milliseconds) {
    try {
      Thread.sleep(milliseconds);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }
}
