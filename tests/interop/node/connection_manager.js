// Tests of amqp-connection-manager, whose package has none in it: its channels, and how it gets back after a connection
// was closed by the broker.
'use strict';

const assert = require('node:assert/strict');
const { randomUUID } = require('node:crypto');
const { once } = require('node:events');
const manager = require('amqp-connection-manager');
const { closeConnection, until } = require('./brokers');

const URLS = [process.env.URL];
const QUORUM = { durable: true, arguments: { 'x-queue-type': 'quorum' } };

async function withConnection(body, urls = URLS) {
  const name = randomUUID();
  const connection = manager.connect(urls, {
    heartbeatIntervalInSeconds: 5,
    reconnectTimeInSeconds: 0.2,
    connectionOptions: { clientProperties: { connection_name: name } },
  });
  try {
    await body(connection, name);
  } finally {
    await connection.close();
  }
}

suite('channel', () => {
  test('what is published before it is connected is sent', () =>
    withConnection(async (connection) => {
      const queue = randomUUID();
      const channel = connection.createChannel({ json: true, setup: (plain) => plain.assertQueue(queue, QUORUM) });
      const sent = [1, 2, 3].map((number) => channel.sendToQueue(queue, { number }, { persistent: true }));
      assert.deepEqual(await Promise.all(sent), [true, true, true]);
      const got = await channel.get(queue, { noAck: true });
      assert.deepEqual(JSON.parse(got.content), { number: 1 });
      assert.equal((await channel.checkQueue(queue)).messageCount, 2);
      await channel.purgeQueue(queue);
      assert.deepEqual(await channel.deleteQueue(queue), { messageCount: 0 });
    }));

  test('exchanges, bindings and setups that are added and taken away', () =>
    withConnection(async (connection) => {
      const [exchange, queue] = [randomUUID(), randomUUID()];
      const channel = connection.createChannel();
      await channel.waitForConnect();
      await channel.assertExchange(exchange, 'topic', { autoDelete: true });
      await channel.checkExchange(exchange);
      const setup = (plain) => plain.assertQueue(queue, { exclusive: true });
      await channel.addSetup(setup);
      await channel.bindQueue(queue, exchange, 'a.*');
      await channel.publish(exchange, 'a.b', Buffer.from('bound'));
      await until(async () => (await channel.checkQueue(queue)).messageCount === 1);
      await channel.unbindQueue(queue, exchange, 'a.*');
      await channel.removeSetup(setup, (plain) => plain.deleteQueue(queue));
      await channel.deleteExchange(exchange).catch(() => {});
    }));

  test('a publish that a full queue refuses is rejected', () =>
    withConnection(async (connection) => {
      const queue = randomUUID();
      const full = { exclusive: true, arguments: { 'x-max-length': 1, 'x-overflow': 'reject-publish' } };
      const channel = connection.createChannel({ setup: (plain) => plain.assertQueue(queue, full) });
      await channel.sendToQueue(queue, Buffer.from('fits'));
      await assert.rejects(channel.sendToQueue(queue, Buffer.from('too many')), /nacked/);
    }));

  test('a setup that fails is told, and the connection stays', () =>
    withConnection(async (connection) => {
      const channel = connection.createChannel({ setup: (plain) => plain.checkQueue(randomUUID()) });
      const [error] = await once(channel, 'error');
      channel.on('error', () => {});
      assert.match(error.message, /404/);
      const other = connection.createChannel();
      await other.waitForConnect();
    }));
});

suite('recovery', () => {
  test('consumers and exclusive queues are there again after the connection was closed', () =>
    withConnection(async (connection, name) => {
      const [queue, own] = [randomUUID(), randomUUID()];
      const bodies = [];
      const take = (message) => bodies.push(String(message.content));
      const channel = connection.createChannel({
        setup: async (plain) => {
          await plain.assertQueue(queue, QUORUM);
          await plain.assertQueue(own, { exclusive: true });
          await plain.prefetch(5);
        },
      });
      await channel.consume(queue, (message) => {
        take(message);
        channel.ack(message);
      });
      await channel.consume(own, take, { noAck: true });
      await channel.sendToQueue(queue, Buffer.from('before'));
      await until(() => bodies.includes('before'));
      const gone = once(connection, 'disconnect');
      const back = once(connection, 'connect');
      await closeConnection(name);
      await gone;
      const published = channel.sendToQueue(queue, Buffer.from('after, quorum'));
      await back;
      await published;
      await channel.sendToQueue(own, Buffer.from('after, exclusive'));
      await until(() => bodies.includes('after, quorum') && bodies.includes('after, exclusive'));
      // It would consume from the deleted queue again.
      await channel.cancelAll();
      await channel.deleteQueue(queue);
    }));

  test('a node that does not answer is stepped over', () =>
    withConnection(
      async (connection) => {
        const channel = connection.createChannel();
        await channel.waitForConnect();
        assert.ok(connection.isConnected());
      },
      ['amqp://127.0.0.1:1', ...URLS],
    ));
});
