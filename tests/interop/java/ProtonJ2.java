// Conversations of Apache Qpid ProtonJ2 with a node over AMQP 1.0. The arguments are the port of a node and an empty
// queue. Each conversation is a line: "pass NAME", or "fail NAME: ERROR".

import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Map;
import java.util.Queue;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.qpid.protonj2.client.Client;
import org.apache.qpid.protonj2.client.Connection;
import org.apache.qpid.protonj2.client.ConnectionOptions;
import org.apache.qpid.protonj2.client.Delivery;
import org.apache.qpid.protonj2.client.DeliveryState;
import org.apache.qpid.protonj2.client.Message;
import org.apache.qpid.protonj2.client.OutputStreamOptions;
import org.apache.qpid.protonj2.client.Receiver;
import org.apache.qpid.protonj2.client.ReceiverOptions;
import org.apache.qpid.protonj2.client.Sender;
import org.apache.qpid.protonj2.client.StreamDelivery;
import org.apache.qpid.protonj2.client.StreamReceiver;
import org.apache.qpid.protonj2.client.StreamSender;
import org.apache.qpid.protonj2.client.StreamSenderMessage;
import org.apache.qpid.protonj2.client.Tracker;

public class ProtonJ2 {
  static final long WAIT_S = 20;
  static int port;
  static String address;

  interface Conversation {
    void run(Connection connection) throws Exception;
  }

  static void converse(Client client, String name, Conversation conversation) {
    ConnectionOptions options = new ConnectionOptions().user("guest").password("guest");
    try (Connection connection = client.connect("127.0.0.1", port, options)) {
      conversation.run(connection);
      System.out.println("pass " + name);
    } catch (Throwable error) {
      System.out.println("fail " + name + ": " + error);
    }
  }

  static void check(boolean isTrue, Object found) {
    if (!isTrue) throw new AssertionError(String.valueOf(found));
  }

  static DeliveryState.Type outcome(Tracker tracker) throws Exception {
    return tracker.settlementFuture().get(WAIT_S, TimeUnit.SECONDS).remoteState().getType();
  }

  static void inOrder(Connection connection) throws Exception {
    Sender sender = connection.openSender(address);
    Queue<Tracker> trackers = new ArrayDeque<>();
    for (int number = 0; number < 1000; number++) trackers.add(sender.send(Message.create("message " + number)));
    for (Tracker tracker : trackers) check(outcome(tracker) == DeliveryState.Type.ACCEPTED, tracker.remoteState());
    Receiver receiver = connection.openReceiver(address);
    for (int number = 0; number < 1000; number++) {
      Delivery delivery = receiver.receive(WAIT_S, TimeUnit.SECONDS);
      check(("message " + number).equals(delivery.message().body()), delivery);
    }
    receiver.close();
  }

  static void drain(Connection connection) throws Exception {
    Sender sender = connection.openSender(address);
    for (int number = 0; number < 3; number++) outcome(sender.send(Message.create("message " + number)));
    Receiver receiver = connection.openReceiver(address, new ReceiverOptions().creditWindow(0));
    receiver.addCredit(10);
    receiver.drain().get(WAIT_S, TimeUnit.SECONDS);
    check(receiver.queuedDeliveries() == 3, receiver.queuedDeliveries());
    for (int number = 0; number < 3; number++) receiver.receive().accept();
    receiver.close();
  }

  static void outcomes(Connection connection) throws Exception {
    outcome(connection.openSender(address).send(Message.create("again")));
    ReceiverOptions options = new ReceiverOptions().autoAccept(false);
    Receiver receiver = connection.openReceiver(address, options);
    receiver.receive(WAIT_S, TimeUnit.SECONDS).release();
    receiver.receive(WAIT_S, TimeUnit.SECONDS).modified(true, false);
    Delivery delivery = receiver.receive(WAIT_S, TimeUnit.SECONDS);
    check(delivery.message().deliveryCount() == 1, delivery.message().deliveryCount());
    delivery.reject("amqp:internal-error", "of no use");
    receiver.close();
  }

  static void values(Connection connection) throws Exception {
    Message<Map<String, Object>> sent = Message.create(Map.of("number", 7L, "text", "é"));
    sent.messageId("identity").correlationId("correlated").subject("a subject").priority((byte) 3).durable(true);
    sent.property("name", "value").annotation("x-note", "noted");
    outcome(connection.openSender(address).send(sent));
    Receiver receiver = connection.openReceiver(address);
    Message<Map<String, Object>> got = receiver.receive(WAIT_S, TimeUnit.SECONDS).message();
    check(got.body().equals(sent.body()), got.body());
    check("identity".equals(got.messageId()) && "correlated".equals(got.correlationId()), got);
    check("a subject".equals(got.subject()) && got.priority() == 3 && got.durable(), got);
    check("value".equals(got.property("name")) && "noted".equals(got.annotation("x-note")), got);
    receiver.close();
  }

  static void streams(Connection connection) throws Exception {
    byte[] octets = new byte[1 << 20];
    new Random(1).nextBytes(octets);
    StreamSender sender = connection.openStreamSender(address);
    StreamSenderMessage message = sender.beginMessage();
    try (var stream = message.body(new OutputStreamOptions().bodyLength(octets.length))) {
      for (int at = 0; at < octets.length; at += 1 << 16) stream.write(octets, at, 1 << 16);
    }
    message.tracker().awaitSettlement(WAIT_S, TimeUnit.SECONDS);
    StreamReceiver receiver = connection.openStreamReceiver(address);
    StreamDelivery delivery = receiver.receive(WAIT_S, TimeUnit.SECONDS);
    byte[] got = delivery.message().body().readAllBytes();
    delivery.accept();
    check(Arrays.equals(octets, got), got.length);
    receiver.close();
  }

  static void abortedStream(Connection connection) throws Exception {
    StreamSender sender = connection.openStreamSender(address);
    StreamSenderMessage aborted = sender.beginMessage();
    var stream = aborted.body();
    stream.write(new byte[1 << 17]);
    stream.flush();
    aborted.abort();
    outcome(connection.openSender(address).send(Message.create("whole")));
    Receiver receiver = connection.openReceiver(address);
    check("whole".equals(receiver.receive(WAIT_S, TimeUnit.SECONDS).message().body()), "another message");
    receiver.close();
  }

  static void anonymous(Connection connection) throws Exception {
    Tracker tracker = connection.send(Message.create("addressed").to(address));
    check(outcome(tracker) == DeliveryState.Type.ACCEPTED, tracker.remoteState());
    Receiver receiver = connection.openReceiver(address);
    check("addressed".equals(receiver.receive(WAIT_S, TimeUnit.SECONDS).message().body()), "another message");
    receiver.close();
  }

  static void unknownQueue(Connection connection) throws Exception {
    try {
      connection.openReceiver("/queues/no-such-queue").openFuture().get(WAIT_S, TimeUnit.SECONDS);
      throw new AssertionError("a receiver was opened");
    } catch (ExecutionException refused) {
      check(refused.getMessage().contains("no queue"), refused);
    }
  }

  public static void main(String[] arguments) throws Exception {
    port = Integer.parseInt(arguments[0]);
    address = "/queues/" + arguments[1];
    try (Client client = Client.create()) {
      converse(client, "in order", ProtonJ2::inOrder);
      converse(client, "drain", ProtonJ2::drain);
      converse(client, "outcomes", ProtonJ2::outcomes);
      converse(client, "values", ProtonJ2::values);
      converse(client, "streams", ProtonJ2::streams);
      converse(client, "aborted stream", ProtonJ2::abortedStream);
      converse(client, "anonymous", ProtonJ2::anonymous);
      converse(client, "unknown queue is refused", ProtonJ2::unknownQueue);
    }
    System.exit(0);
  }
}
