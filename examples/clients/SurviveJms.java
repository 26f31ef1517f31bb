// Publishes 2,000 numbered messages and consumes them with Apache Qpid JMS, on nodes that may be killed.
//
//   java -cp 'JARS/*' SurviveJms.java [HOST:PORT...]      each node; by default the nodes of `qq up`
//
// JARS has org.apache.qpid:qpid-jms-client:2.10.0 with all that it needs.

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.qpid.jms.JmsConnectionFactory;

public class SurviveJms {
  static final String QUEUE = "/queues/survive-jms";
  static final int MESSAGES = 2000;

  public static void main(String[] arguments) throws Exception {
    List<String> nodes =
        arguments.length > 0 ? Arrays.asList(arguments) : List.of("127.0.0.1:5672", "127.0.0.1:5673", "127.0.0.1:5674");
    // A host that is gone sends no frame for 10 s. The client tries the nodes in a random order, for ever.
    String uri =
        nodes.stream().map(node -> "amqp://" + node + "?amqp.idleTimeout=10000").collect(Collectors.joining(","));
    JmsConnectionFactory factory =
        new JmsConnectionFactory(
            "guest",
            "guest",
            "failover:(" + uri + ")?failover.randomize=true&failover.maxReconnectDelay=1000&jms.sendTimeout=10000");
    Thread publisher = new Thread(() -> publish(factory));
    publisher.start();
    consume(factory);
    publisher.join();
    System.exit(0);
  }

  /** Publish all messages, each until it is accepted. */
  static void publish(JmsConnectionFactory factory) {
    try (Connection connection = factory.createConnection()) {
      connection.start();
      Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
      MessageProducer producer = session.createProducer(session.createQueue(QUEUE));
      for (int number = 1; number <= MESSAGES; number++) {
        boolean isAccepted = false;
        while (!isAccepted) {
          try {
            producer.send(session.createTextMessage(String.valueOf(number))); // returns when a majority has it
            isAccepted = true;
          } catch (JMSException error) {
            // Whether this message is stored is unknown, so it is published again: it may come twice.
            System.out.println("publisher: " + error.getMessage() + " at message " + number);
          }
        }
      }
      System.out.println(MESSAGES + " messages are confirmed");
    } catch (JMSException error) {
      throw new IllegalStateException(error);
    }
  }

  /** Consume until each message has come. */
  static void consume(JmsConnectionFactory factory) throws Exception {
    Set<String> seen = new HashSet<>();
    try (Connection connection = factory.createConnection()) {
      connection.start();
      Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
      MessageConsumer consumer = session.createConsumer(session.createQueue(QUEUE));
      while (seen.size() < MESSAGES) {
        Message message = consumer.receive(1000);
        if (message == null) continue;
        seen.add(((TextMessage) message).getText()); // the work: doing it twice does no harm
        try {
          message.acknowledge();
        } catch (JMSException lost) {
          System.out.println("consumer: " + lost.getMessage()); // the message comes again
        }
      }
      Thread.sleep(500); // the last acknowledgement is under way
    }
    System.out.println(seen.size() + " messages are consumed");
  }
}
