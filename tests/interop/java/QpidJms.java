// Conversations of Apache Qpid JMS with a node over AMQP 1.0. The arguments are the port of a node and an empty queue.
// Each conversation is a line: "pass NAME", or "fail NAME: ERROR".

import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSException;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.ObjectMessage;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.qpid.jms.JmsConnectionFactory;

public class QpidJms {
  static final long WAIT_MS = 20_000;
  static final long NOTHING_MS = 500;
  static String port;
  static String address;

  interface Conversation {
    void run(Connection connection) throws Exception;
  }

  static final String LOGIN = "?jms.username=guest&jms.password=guest";

  static Connection connect(String options) throws JMSException {
    return connectTo("amqp://127.0.0.1:" + port + LOGIN + options);
  }

  static Connection connectTo(String uri) throws JMSException {
    Connection connection = new JmsConnectionFactory(uri).createConnection();
    connection.start();
    return connection;
  }

  static void converse(String name, Conversation conversation) {
    try (Connection connection = connect("")) {
      conversation.run(connection);
      System.out.println("pass " + name);
    } catch (Throwable error) {
      System.out.println("fail " + name + ": " + error);
    }
  }

  static void check(boolean isTrue, Object found) {
    if (!isTrue) throw new AssertionError(String.valueOf(found));
  }

  static void publish(Session session, String... texts) throws JMSException {
    MessageProducer producer = session.createProducer(session.createQueue(address));
    for (String text : texts) producer.send(session.createTextMessage(text));
    producer.close();
  }

  static MessageConsumer consumer(Session session) throws JMSException {
    return session.createConsumer(session.createQueue(address));
  }

  static void expect(MessageConsumer consumer, String... texts) throws JMSException {
    for (String text : texts) {
      TextMessage message = (TextMessage) consumer.receive(WAIT_MS);
      check(message != null && text.equals(message.getText()), message);
    }
  }

  static void inOrder(Connection connection) throws Exception {
    Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
    String[] texts = new String[1000];
    for (int number = 0; number < texts.length; number++) texts[number] = "message " + number;
    publish(session, texts);
    MessageConsumer consumer = consumer(session);
    expect(consumer, texts);
    check(consumer.receive(NOTHING_MS) == null, "more messages");
  }

  static void duplicatesOk(Connection connection) throws Exception {
    Session session = connection.createSession(Session.DUPS_OK_ACKNOWLEDGE);
    publish(session, "a", "b", "c");
    expect(consumer(session), "a", "b", "c");
  }

  static void clientAcknowledge(Connection connection) throws Exception {
    Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
    publish(session, "a", "b", "c");
    MessageConsumer consumer = consumer(session);
    expect(consumer, "a");
    consumer.receive(WAIT_MS).acknowledge();
    expect(consumer, "c");
    session.close();
    session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
    Message again = consumer(session).receive(WAIT_MS);
    check("c".equals(((TextMessage) again).getText()), again);
    again.acknowledge();
  }

  static void recover(Connection connection) throws Exception {
    Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
    publish(session, "a", "b");
    MessageConsumer consumer = consumer(session);
    expect(consumer, "a", "b");
    session.recover();
    Message first = consumer.receive(WAIT_MS);
    check(first.getJMSRedelivered() && first.getIntProperty("JMSXDeliveryCount") == 2, first);
    check("a".equals(((TextMessage) first).getText()), first);
    consumer.receive(WAIT_MS).acknowledge();
    check(consumer.receive(NOTHING_MS) == null, "more messages");
  }

  static void kindsOfMessages(Connection connection) throws Exception {
    Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
    Queue queue = session.createQueue(address);
    MessageProducer producer = session.createProducer(queue);
    BytesMessage octets = session.createBytesMessage();
    octets.writeBytes(new byte[] {0, 1, 2});
    MapMessage map = session.createMapMessage();
    map.setLong("long", Long.MAX_VALUE);
    map.setString("text", "é");
    ObjectMessage object = session.createObjectMessage(Integer.valueOf(7));
    object.setStringProperty("name", "value");
    object.setJMSCorrelationID("correlated");
    object.setJMSType("kind");
    object.setJMSReplyTo(queue);
    // It has a high priority, so it would overtake the two other messages.
    producer.send(object, DeliveryMode.NON_PERSISTENT, 9, 60_000);
    producer.send(octets);
    producer.send(map);
    MessageConsumer consumer = consumer(session);
    object = (ObjectMessage) consumer.receive(WAIT_MS);
    octets = (BytesMessage) consumer.receive(WAIT_MS);
    map = (MapMessage) consumer.receive(WAIT_MS);
    check(octets.getBodyLength() == 3 && octets.getJMSDeliveryMode() == DeliveryMode.PERSISTENT, octets);
    check(map.getLong("long") == Long.MAX_VALUE && "é".equals(map.getString("text")), map);
    check(object.getObject().equals(7) && "value".equals(object.getStringProperty("name")), object);
    check("correlated".equals(object.getJMSCorrelationID()) && "kind".equals(object.getJMSType()), object);
    check(((Queue) object.getJMSReplyTo()).getQueueName().equals(address), object.getJMSReplyTo());
    check(object.getJMSPriority() == 9 && object.getJMSExpiration() > 0, object);
    check(object.getJMSDeliveryMode() == DeliveryMode.NON_PERSISTENT, object);
  }

  static void large(Connection connection) throws Exception {
    Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
    byte[] sent = new byte[1 << 20];
    new Random(1).nextBytes(sent);
    BytesMessage message = session.createBytesMessage();
    message.writeBytes(sent);
    session.createProducer(session.createQueue(address)).send(message);
    message = (BytesMessage) consumer(session).receive(WAIT_MS);
    byte[] got = new byte[(int) message.getBodyLength()];
    message.readBytes(got);
    check(Arrays.equals(sent, got), got.length);
  }

  static void anonymousProducer(Connection connection) throws Exception {
    Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
    session.createProducer(null).send(session.createQueue(address), session.createTextMessage("addressed"));
    expect(consumer(session), "addressed");
  }

  static void transacted(Connection connection) throws Exception {
    try {
      connection.createSession(Session.SESSION_TRANSACTED);
      throw new AssertionError("a transacted session was opened");
    } catch (JMSException refused) {
      check(refused.getMessage().contains("not-implemented"), refused);
    }
  }

  static void unknownQueue(Connection connection) throws Exception {
    Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
    try {
      session.createConsumer(session.createQueue("/queues/no-such-queue"));
      throw new AssertionError("a consumer was opened");
    } catch (JMSException refused) {
      check(refused.getMessage().contains("not-found"), refused);
    }
  }

  static void temporaryQueue(Connection connection) throws Exception {
    Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
    Queue queue = session.createTemporaryQueue();
    session.createProducer(queue).send(session.createTextMessage("temporary"));
    check(session.createConsumer(queue).receive(WAIT_MS) != null, "nothing");
  }

  static void listener(Connection connection) throws Exception {
    Session session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
    publish(session, "a", "b", "c");
    CountDownLatch three = new CountDownLatch(3);
    consumer(session).setMessageListener(message -> three.countDown());
    check(three.await(WAIT_MS, TimeUnit.MILLISECONDS), three);
  }

  static void failover(Connection connection) throws Exception {
    String uris = "failover:(amqp://127.0.0.1:1,amqp://127.0.0.1:" + port + ")";
    try (Connection second = connectTo(uris + LOGIN)) {
      Session session = second.createSession(Session.AUTO_ACKNOWLEDGE);
      publish(session, "by the second address");
      expect(consumer(session), "by the second address");
    }
  }

  public static void main(String[] arguments) throws Exception {
    port = arguments[0];
    address = "/queues/" + arguments[1];
    converse("in order", QpidJms::inOrder);
    converse("duplicates", QpidJms::duplicatesOk);
    converse("client acknowledge", QpidJms::clientAcknowledge);
    converse("recover", QpidJms::recover);
    converse("kinds of messages", QpidJms::kindsOfMessages);
    converse("large", QpidJms::large);
    converse("anonymous producer", QpidJms::anonymousProducer);
    converse("transacted session is refused", QpidJms::transacted);
    converse("unknown queue is refused", QpidJms::unknownQueue);
    converse("listener", QpidJms::listener);
    converse("temporary queue", QpidJms::temporaryQueue);
    converse("failover", QpidJms::failover);
    System.exit(0);
  }
}
