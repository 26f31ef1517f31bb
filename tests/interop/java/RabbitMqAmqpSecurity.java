// Conversations of RabbitMQ's Java client for AMQP 1.0 about TLS, certificates and tokens of OAuth 2. The arguments are
// the ports of the node, plain and TLS, the directory of certificates, and the address of the token endpoint. Each
// conversation is a line: "pass NAME", or "fail NAME: ERROR".

import com.rabbitmq.client.amqp.AmqpException.AmqpSecurityException;
import com.rabbitmq.client.amqp.Connection;
import com.rabbitmq.client.amqp.ConnectionBuilder;
import com.rabbitmq.client.amqp.ConnectionSettings;
import com.rabbitmq.client.amqp.Environment;
import com.rabbitmq.client.amqp.Publisher;
import com.rabbitmq.client.amqp.Resource;
import com.rabbitmq.client.amqp.impl.AmqpEnvironmentBuilder;
import java.io.FileInputStream;
import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLHandshakeException;
import javax.net.ssl.TrustManagerFactory;

public class RabbitMqAmqpSecurity {
  static final long WAIT_S = 20;
  static final String VHOST = "java-security";
  static final Pattern TOKEN = Pattern.compile("\"access_token\": *\"([^\"]+)\"");
  static int port;
  static int tlsPort;
  static Path certificates;
  static String tokens;

  interface Conversation {
    void run(Environment environment) throws Exception;
  }

  static void converse(String name, Conversation conversation) {
    try (Environment environment = new AmqpEnvironmentBuilder().build()) {
      conversation.run(environment);
      System.out.println("pass " + name);
    } catch (Throwable error) {
      System.out.println("fail " + name + ": " + error);
    }
  }

  static void check(boolean isTrue, Object found) {
    if (!isTrue) throw new AssertionError(String.valueOf(found));
  }

  static void await(CountDownLatch latch, String what) throws InterruptedException {
    check(latch.await(WAIT_S, TimeUnit.SECONDS), what);
  }

  static AmqpSecurityException refused(ConnectionBuilder builder) {
    try (Connection connection = builder.build()) {
      throw new AssertionError("connected: " + connection);
    } catch (AmqpSecurityException expected) {
      return expected;
    }
  }

  // TLS

  static KeyStore trusted(String certificate) throws Exception {
    KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null, null);
    try (InputStream file = new FileInputStream(certificates.resolve(certificate).toFile())) {
      store.setCertificateEntry("trusted", CertificateFactory.getInstance("X.509").generateCertificate(file));
    }
    return store;
  }

  static SSLContext context(String trusted, String client) throws Exception {
    TrustManagerFactory authorities = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    authorities.init(trusted(trusted));
    KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
    KeyStore store = KeyStore.getInstance("PKCS12");
    char[] password = "secret".toCharArray();
    if (client == null) {
      store.load(null, null);
    } else {
      try (InputStream file = new FileInputStream(certificates.resolve(client).toFile())) {
        store.load(file, password);
      }
    }
    keys.init(store, password);
    SSLContext context = SSLContext.getInstance("TLSv1.3");
    context.init(keys.getKeyManagers(), authorities.getTrustManagers(), null);
    return context;
  }

  static ConnectionBuilder tls(Environment environment, SSLContext context) {
    return environment.connectionBuilder().host("localhost").port(tlsPort).tls().sslContext(context).connection();
  }

  static ConnectionBuilder external(Environment environment, String client) throws Exception {
    return tls(environment, context("ca.pem", client))
        .username(UUID.randomUUID().toString())
        .saslMechanism(ConnectionSettings.SASL_MECHANISM_EXTERNAL);
  }

  static void verifiedAndUnverified(Environment environment) throws Exception {
    try (Connection verified = tls(environment, context("ca.pem", null)).build();
        Connection unverified = environment.connectionBuilder().host("localhost").port(tlsPort)
            .tls().trustEverything().connection().build()) {
      Traffic publishing = new Traffic(verified, unverified);
      publishing.send(1000);
      publishing.receive(1000);
      verified.management().queueDelete(publishing.queue);
    }
  }

  static void anotherAuthority(Environment environment) throws Exception {
    AmqpSecurityException refusal = refused(tls(environment, context("other.pem", null)));
    check(refusal.getCause() instanceof SSLHandshakeException, refusal.getCause());
  }

  static void anotherHostName(Environment environment) throws Exception {
    SSLContext context = context("ca.pem", null);
    AmqpSecurityException refusal = refused(tls(environment, context).host("127.0.0.1"));
    check(refusal.getCause().getMessage().contains("subject alternative names"), refusal.getCause());
    environment.connectionBuilder().host("127.0.0.1").port(tlsPort)
        .tls().sslContext(context).hostnameVerification(false).connection().build().close();
  }

  static void passwordAndVirtualHost(Environment environment) throws Exception {
    ConnectionBuilder builder = tls(environment, context("ca.pem", null)).virtualHost(VHOST);
    builder.username("guest").password("guest").build().close();
    refused(builder.password("wrong"));
  }

  static void userOfCertificate(Environment environment) throws Exception {
    try (Connection connection = external(environment, "anna.p12").build();
        Connection elsewhere = external(environment, "anna.p12").virtualHost(VHOST).build()) {
      for (Connection each : List.of(connection, elsewhere)) {
        Traffic traffic = new Traffic(each, each);
        traffic.send(10);
        traffic.receive(10);
        each.management().queueDelete(traffic.queue);
      }
    }
  }

  static void certificateWithoutUser(Environment environment) throws Exception {
    refused(external(environment, "berta.p12"));
  }

  static void externalWithoutCertificate(Environment environment) throws Exception {
    refused(external(environment, null));
  }

  // Tokens

  static String token(String query) throws Exception {
    HttpRequest request = HttpRequest.newBuilder(URI.create(tokens + query))
        .POST(HttpRequest.BodyPublishers.ofString("grant_type=client_credentials")).build();
    String answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body();
    Matcher found = TOKEN.matcher(answer);
    check(found.find(), answer);
    return found.group(1);
  }

  static ConnectionBuilder withToken(Environment environment, String token) {
    return environment.connectionBuilder().host("127.0.0.1").port(port).username("").password(token);
  }

  static ConnectionBuilder withTokens(Environment environment, String query, boolean isShared) {
    return environment.connectionBuilder().host("127.0.0.1").port(port)
        .oauth2().tokenEndpointUri(tokens + query).clientId("rabbitmq").clientSecret("rabbitmq").shared(isShared)
        .connection();
  }

  static Resource.StateListener refusals(CountDownLatch refused) {
    return context -> {
      if (context.currentState() == Resource.State.CLOSED
          && context.failureCause() instanceof AmqpSecurityException) refused.countDown();
    };
  }

  static void validToken(Environment environment) throws Exception {
    try (Connection connection = withToken(environment, token("?lifetime=600")).build()) {
      Traffic traffic = new Traffic(connection, connection);
      traffic.send(10);
      traffic.receive(10);
      connection.management().queueDelete(traffic.queue);
    }
  }

  static void wrongTokens(Environment environment) throws Exception {
    refused(withToken(environment, token("?lifetime=600") + "x"));
    refused(withToken(environment, token("?lifetime=-3600")));
    refused(withTokens(environment, "?lifetime=-3600", false));
  }

  static void scopes(Environment environment) throws Exception {
    String queue = "java-" + UUID.randomUUID();
    String token = token("?lifetime=600&scopes=configure");
    // The session ends when a link is refused, so each link has a connection.
    try (Connection connection = withToken(environment, token).build();
        Connection another = withToken(environment, token).build()) {
      connection.management().queue(queue).declare();
      try {
        connection.publisherBuilder().queue(queue).build();
        throw new AssertionError("a publisher without the scope");
      } catch (AmqpSecurityException expected) {
        check(expected.getMessage().contains("write access"), expected);
      }
      try {
        another.consumerBuilder().queue(queue).messageHandler((context, message) -> {}).build();
        throw new AssertionError("a consumer without the scope");
      } catch (AmqpSecurityException expected) {
        check(expected.getMessage().contains("read access"), expected);
      }
      another.management().queueDelete(queue);
    }
  }

  static void expiry(Environment environment) throws Exception {
    CountDownLatch refused = new CountDownLatch(3);
    Connection connection =
        withToken(environment, token("?lifetime=3")).listeners(refusals(refused)).build();
    Traffic traffic = new Traffic(connection, connection, refusals(refused));
    traffic.send(1);
    traffic.receive(1);
    await(refused, "connection, publisher and consumer are open");
  }

  /** The endpoint gives two tokens, and the connection ends with the second of them. */
  static void expiryOfNewerToken(Environment environment) throws Exception {
    CountDownLatch refused = new CountDownLatch(3);
    long start = System.nanoTime();
    Connection connection =
        withTokens(environment, "?lifetime=4&count=2", false).listeners(refusals(refused)).build();
    Traffic traffic = new Traffic(connection, connection, refusals(refused));
    Thread.sleep(5_000);
    traffic.send(1);
    traffic.receive(1);
    await(refused, "connection, publisher and consumer are open");
    long afterMs = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - start);
    check(afterMs > 6_000 && afterMs < 15_000, afterMs);
  }

  static void renewal(Environment environment, boolean isShared) throws Exception {
    AtomicInteger changes = new AtomicInteger();
    List<Traffic> all = new ArrayList<>();
    for (int number = 0; number < 5; number++) {
      Connection connection = withTokens(environment, "?lifetime=4", isShared)
          .listeners(context -> {
            if (context.failureCause() != null) changes.incrementAndGet();
          }).build();
      all.add(new Traffic(connection, connection));
    }
    for (int round = 0; round < 5; round++) {
      for (Traffic traffic : all) {
        traffic.send(10);
        traffic.receive(10);
      }
      Thread.sleep(2_000);
    }
    check(changes.get() == 0, changes);
  }

  /** Publishes to an exclusive queue or, if the consumer has a connection of its own, to another queue. */
  static class Traffic {
    final String queue = "java-" + UUID.randomUUID();
    final Publisher publisher;
    final BlockingQueue<String> received = new LinkedBlockingQueue<>();
    int sent;
    int next;

    Traffic(Connection publishing, Connection consuming, Resource.StateListener... listeners) {
      publishing.management().queue(queue).exclusive(publishing == consuming).declare();
      publisher = publishing.publisherBuilder().queue(queue).listeners(listeners).build();
      consuming.consumerBuilder().queue(queue).listeners(listeners)
          .messageHandler((context, message) -> {
            context.accept();
            received.add(new String(message.body(), StandardCharsets.UTF_8));
          }).build();
    }

    void send(int count) throws InterruptedException {
      CountDownLatch accepted = new CountDownLatch(count);
      for (int number = 0; number < count; number++) {
        byte[] body = String.valueOf(sent++).getBytes(StandardCharsets.UTF_8);
        publisher.publish(publisher.message(body), context -> {
          if (context.status() == Publisher.Status.ACCEPTED) accepted.countDown();
        });
      }
      await(accepted, "not accepted");
    }

    void receive(int count) throws InterruptedException {
      for (int number = 0; number < count; number++) {
        String text = received.poll(WAIT_S, TimeUnit.SECONDS);
        check(String.valueOf(next++).equals(text), text);
      }
    }
  }

  public static void main(String[] arguments) {
    port = Integer.parseInt(arguments[0]);
    tlsPort = Integer.parseInt(arguments[1]);
    certificates = Path.of(arguments[2]);
    tokens = arguments[3];
    converse("verified and unverified certificates", RabbitMqAmqpSecurity::verifiedAndUnverified);
    converse("another authority is refused", RabbitMqAmqpSecurity::anotherAuthority);
    converse("another host name is refused", RabbitMqAmqpSecurity::anotherHostName);
    converse("password and virtual host over TLS", RabbitMqAmqpSecurity::passwordAndVirtualHost);
    converse("user of a certificate", RabbitMqAmqpSecurity::userOfCertificate);
    converse("certificate without a user is refused", RabbitMqAmqpSecurity::certificateWithoutUser);
    converse("EXTERNAL without a certificate is refused", RabbitMqAmqpSecurity::externalWithoutCertificate);
    converse("valid token", RabbitMqAmqpSecurity::validToken);
    converse("wrong tokens are refused", RabbitMqAmqpSecurity::wrongTokens);
    converse("scopes of a token", RabbitMqAmqpSecurity::scopes);
    converse("expiry of a token", RabbitMqAmqpSecurity::expiry);
    converse("expiry of a newer token", RabbitMqAmqpSecurity::expiryOfNewerToken);
    converse("renewal of a shared token", environment -> renewal(environment, true));
    converse("renewal of a token for each connection", environment -> renewal(environment, false));
    System.exit(0);
  }
}
