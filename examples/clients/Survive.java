import com.rabbitmq.client.Address;
import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeoutException;

/**
 * Publish 2,000 numbered messages and consume them, on nodes that may be killed.
 *
 * java -cp 'lib/*' Survive.java [HOST:PORT...]      each node; by default the nodes of `qq up`
 *
 * It needs com.rabbitmq:amqp-client:5.25.0 and org.slf4j:slf4j-api:1.7.36 in lib.
 */
public class Survive {
    static final String QUEUE = "survive-java";
    static final int MESSAGES = 2000;

    static Connection connect(String[] nodes) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUsername("guest");
        factory.setPassword("guest");
        factory.setRequestedHeartbeat(5); // s: notice a host that is gone
        factory.setConnectionTimeout(5000); // ms: a host that is gone refuses nothing
        factory.setNetworkRecoveryInterval(1000); // ms between attempts
        List<Address> addresses = new ArrayList<>();
        for (String node : nodes) {
            addresses.add(Address.parseAddress(node));
        }
        Collections.shuffle(addresses); // so that clients spread over the nodes
        // Connection, channels, queues and consumers come back by themselves, at any of the addresses.
        return factory.newConnection(addresses);
    }

    static void declare(Channel channel) throws IOException {
        channel.queueDeclare(QUEUE, true, false, false, Map.of("x-queue-type", "quorum"));
    }

    static void publish(Channel channel, int number) throws InterruptedException {
        byte[] body = Integer.toString(number).getBytes();
        while (true) {
            try {
                channel.basicPublish("", QUEUE, MessageProperties.PERSISTENT_TEXT_PLAIN, body);
                if (channel.waitForConfirms(30_000)) {
                    return;
                }
                System.out.println("publisher: message " + number + " is refused by a full queue");
            } catch (IOException | ShutdownSignalException | TimeoutException error) {
                // Unknown, and recovery does not publish again: it is published again, and may come twice.
                System.out.println("publisher: " + error + " at message " + number);
            }
            Thread.sleep(1000);
        }
    }

    static void consume(Channel channel, Set<String> seen, CountDownLatch all) throws IOException {
        declare(channel);
        channel.basicConsume(QUEUE, false, (tag, delivery) -> {
            seen.add(new String(delivery.getBody())); // the work: doing it twice does no harm
            try {
                channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
            } catch (AlreadyClosedException error) {
                return; // it comes again after the recovery, with a new tag
            }
            if (seen.size() == MESSAGES) {
                all.countDown();
            }
        }, tag -> {
            System.out.println("consumer: cancelled, because its queue was deleted: declared and consumed again");
            consume(channel, seen, all);
        });
    }

    public static void main(String[] arguments) throws Exception {
        String[] local = {"127.0.0.1:5672", "127.0.0.1:5673", "127.0.0.1:5674"};
        Connection connection = connect(arguments.length > 0 ? arguments : local);
        Set<String> seen = ConcurrentHashMap.newKeySet();
        CountDownLatch all = new CountDownLatch(1);

        Channel consumer = connection.createChannel();
        consumer.basicQos(100);
        consume(consumer, seen, all);

        Channel publisher = connection.createChannel();
        declare(publisher);
        publisher.confirmSelect();
        for (int number = 1; number <= MESSAGES; number++) {
            publish(publisher, number);
        }
        System.out.println(MESSAGES + " messages are confirmed");
        all.await();
        System.out.println(MESSAGES + " messages are consumed");
        connection.close();
    }
}
