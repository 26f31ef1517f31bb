// Tests of @cloudamqp/amqp-client, whose package has none in it: each call of its channels, and the sessions above them.
'use strict';

const assert = require('node:assert/strict');
const { randomUUID } = require('node:crypto');
const { AMQPClient, AMQPSession } = require('@cloudamqp/amqp-client');

const URL = process.env.URL;
const QUORUM = { 'x-queue-type': 'quorum' };

async function withChannel(body) {
  const connection = await new AMQPClient(URL).connect();
  try {
    await body(await connection.channel(), connection);
  } finally {
    if (!connection.closed) await connection.close();
  }
}

function arrived(messages, count) {
  return new Promise((resolve) => {
    const look = setInterval(() => {
      if (messages.length < count) return;
      clearInterval(look);
      resolve();
    }, 5);
  });
}

async function withSession(body) {
  const session = await AMQPSession.connect(URL, { reconnectInterval: 200 });
  try {
    await body(session);
  } finally {
    await session.stop();
  }
}

suite('channel', () => {
  test('opens after another was closed', () =>
    withChannel(async (channel, connection) => {
      await channel.close();
      const next = await connection.channel();
      assert.deepEqual(await next.basicGet((await next.queueDeclare('', { exclusive: true })).name), null);
    }));

  test('many channels at once', () =>
    withChannel(async (_, connection) => {
      const channels = await Promise.all(Array.from({ length: 50 }, () => connection.channel()));
      const declared = await Promise.all(channels.map((each) => each.queueDeclare('', { exclusive: true })));
      assert.equal(new Set(declared.map((queue) => queue.name)).size, 50);
    }));

  test('declares, tells and deletes queues', () =>
    withChannel(async (channel) => {
      const name = randomUUID();
      assert.deepEqual(await channel.queueDeclare(name, { durable: true }, QUORUM), { name, messageCount: 0, consumerCount: 0 });
      await channel.confirmSelect();
      for (const body of ['one', 'two']) await channel.basicPublish('', name, body);
      assert.equal((await channel.queueDeclare(name, { passive: true })).messageCount, 2);
      assert.equal((await channel.queuePurge(name)).messageCount, 2);
      assert.equal((await channel.queueDelete(name)).messageCount, 0);
    }));

  test('binds exchanges to queues and to exchanges', () =>
    withChannel(async (channel) => {
      const [source, between] = [randomUUID(), randomUUID()];
      await channel.exchangeDeclare(source, 'topic', { autoDelete: false, durable: false });
      await channel.exchangeDeclare(between, 'fanout', { durable: false });
      const { name } = await channel.queueDeclare('', { exclusive: true });
      await channel.exchangeBind(between, source, 'a.#');
      await channel.queueBind(name, between, '');
      await channel.confirmSelect();
      await channel.basicPublish(source, 'a.b', 'bound');
      assert.equal((await channel.basicGet(name, { noAck: true })).bodyString(), 'bound');
      await channel.exchangeUnbind(between, source, 'a.#');
      await channel.basicPublish(source, 'a.b', 'no more');
      await channel.exchangeBind(between, source, 'c');
      await channel.queueUnbind(name, between, '');
      await channel.basicPublish(source, 'c', 'no more');
      assert.equal(await channel.basicGet(name), null);
      await channel.exchangeDelete(between);
      await channel.exchangeDelete(source);
    }));

  test('properties and headers of each type come back', () =>
    withChannel(async (channel) => {
      const { name } = await channel.queueDeclare('', { exclusive: true });
      const sent = {
        contentType: 'text/plain',
        contentEncoding: 'identity',
        deliveryMode: 2,
        priority: 3,
        correlationId: 'c',
        replyTo: 'r',
        expiration: '60000',
        messageId: 'm',
        timestamp: new Date(1700000000000),
        type: 't',
        userId: 'guest',
        appId: 'a',
        headers: { text: 'x', whole: 1, large: 2 ** 40, part: 1.5, yes: true, none: null, list: [1, 'two'], table: { in: 'side' } },
      };
      await channel.basicPublish('', name, 'body', sent);
      const message = await channel.basicGet(name, { noAck: true });
      assert.deepEqual(message.properties, sent);
      assert.equal(message.bodyString(), 'body');
    }));

  test('a message of many frames comes back, and an empty one', () =>
    withChannel(async (channel) => {
      const { name } = await channel.queueDeclare('', { exclusive: true });
      const large = Buffer.alloc(1 << 20, 'x');
      await channel.basicPublish('', name, large);
      await channel.basicPublish('', name, '');
      assert.ok(large.equals((await channel.basicGet(name, { noAck: true })).body));
      assert.equal((await channel.basicGet(name, { noAck: true })).bodySize, 0);
    }));

  test('consumers are limited by prefetch, and acknowledge', () =>
    withChannel(async (channel) => {
      const { name } = await channel.queueDeclare('', { exclusive: true, autoDelete: false });
      await channel.prefetch(2);
      const messages = [];
      const consumer = await channel.basicConsume(name, { noAck: false }, (message) => messages.push(message));
      await channel.confirmSelect();
      await Promise.all(Array.from({ length: 5 }, (_, number) => channel.basicPublish('', name, String(number))));
      await arrived(messages, 2);
      await messages[1].ack(true);
      await arrived(messages, 4);
      assert.deepEqual(messages.map((each) => each.bodyString()), ['0', '1', '2', '3']);
      await messages[2].nack(true);
      await messages[3].reject(true);
      await arrived(messages, 6);
      assert.ok(messages[4].redelivered && messages[5].redelivered);
      await consumer.cancel();
      await channel.basicRecover(true);
      assert.equal((await channel.queueDeclare(name, { passive: true })).consumerCount, 0);
      assert.equal((await channel.queueDelete(name)).messageCount, 3);
    }));

  test('a consumer is an asynchronous generator', () =>
    withChannel(async (channel) => {
      const { name } = await channel.queueDeclare('', { exclusive: true });
      for (const body of ['a', 'b', 'c']) await channel.basicPublish('', name, body);
      const consumer = await channel.basicConsume(name, { noAck: true });
      const bodies = [];
      for await (const message of consumer.messages) {
        bodies.push(message.bodyString());
        if (bodies.length === 3) break;
      }
      assert.deepEqual(bodies, ['a', 'b', 'c']);
    }));

  test('each publish is confirmed with its number', () =>
    withChannel(async (channel) => {
      const { name } = await channel.queueDeclare('', { exclusive: true });
      await channel.confirmSelect();
      const tags = await Promise.all(Array.from({ length: 100 }, () => channel.basicPublish('', name, 'x')));
      assert.deepEqual(tags, Array.from({ length: 100 }, (_, number) => number + 1));
      assert.equal((await channel.queueDelete(name)).messageCount, 100);
    }));

  test('a refused publish is rejected', () =>
    withChannel(async (channel) => {
      const { name } = await channel.queueDeclare('', { exclusive: true }, { 'x-max-length': 1, 'x-overflow': 'reject-publish' });
      await channel.confirmSelect();
      await channel.basicPublish('', name, 'fits');
      await assert.rejects(channel.basicPublish('', name, 'too many'), /rejected/i);
    }));

  test('what no queue gets is returned', () =>
    withChannel(async (channel) => {
      const returned = [];
      channel.onReturn = (message) => returned.push(message);
      await channel.confirmSelect();
      await channel.basicPublish('amq.direct', 'nowhere', 'back', {}, true);
      await arrived(returned, 1);
      assert.deepEqual([returned[0].replyCode, returned[0].replyText], [312, 'NO_ROUTE']);
      assert.equal(returned[0].bodyString(), 'back');
    }));

  test('transactions are committed and rolled back', () =>
    withChannel(async (channel, connection) => {
      const { name } = await channel.queueDeclare('', { exclusive: true });
      const other = await connection.channel();
      await channel.txSelect();
      await channel.basicPublish('', name, 'rolled back');
      await channel.txRollback();
      await channel.basicPublish('', name, 'committed');
      assert.equal(await other.basicGet(name), null);
      await channel.txCommit();
      assert.equal((await other.basicGet(name, { noAck: true })).bodyString(), 'committed');
    }));

  test('flow is answered', () => withChannel(async (channel) => assert.equal(await channel.basicFlow(true), true)));

  test('an error closes the channel, and not the connection', () =>
    withChannel(async (channel, connection) => {
      await assert.rejects(channel.queueDeclare(randomUUID(), { passive: true }), /404/);
      assert.ok(channel.closed);
      const next = await connection.channel();
      assert.ok((await next.queueDeclare('', { exclusive: true })).name.startsWith('amq.gen-'));
    }));

  test('a consumer is told that its queue was deleted', () =>
    withChannel(async (channel, connection) => {
      const { name } = await channel.queueDeclare('', { exclusive: true });
      const consumer = await channel.basicConsume(name, {}, () => {});
      await (await connection.channel()).queueDelete(name);
      await assert.rejects(consumer.wait(), /cancel/i);
    }));

  test('a wrong password is told', async () => {
    const wrong = new AMQPClient(URL.replace('amqp://', 'amqp://guest:wrong@'));
    await assert.rejects(wrong.connect(), /403|ACCESS_REFUSED/);
  });
});

suite('session', () => {
  test('publishes with confirms, gets and subscribes', () =>
    withSession(async (session) => {
      const queue = await session.queue(randomUUID(), { durable: true, arguments: QUORUM });
      await queue.publish('one');
      assert.equal((await queue.get({ noAck: true })).bodyString(), 'one');
      const bodies = [];
      const subscription = await queue.subscribe({ prefetch: 1 }, (message) => void bodies.push(message.bodyString()));
      for (const body of ['two', 'three']) await queue.publish(body, { confirm: true });
      await arrived(bodies, 2);
      assert.deepEqual(bodies, ['two', 'three']);
      await subscription.cancel();
      await queue.delete();
    }));

  test('exchanges of each type', () =>
    withSession(async (session) => {
      const queue = await session.queue('', { exclusive: true, autoDelete: false });
      const made = [
        await session.directExchange(randomUUID(), { autoDelete: true }),
        await session.fanoutExchange(randomUUID(), { autoDelete: true }),
        await session.topicExchange(randomUUID(), { autoDelete: true }),
        await session.headersExchange(randomUUID(), { autoDelete: true }),
      ];
      for (const exchange of made) {
        await queue.bind(exchange, 'key', { 'x-match': 'any', kind: 'x' });
        await exchange.publish('hello', { routingKey: 'key', headers: { kind: 'x' } });
        assert.equal((await queue.consumeOne({ timeout: 5000 })).bodyString(), 'hello');
      }
    }));

  test('calls and answers', () =>
    withSession(async (session) => {
      const name = randomUUID();
      const server = await session.rpcServer(name, (message) => message.bodyString().toUpperCase());
      assert.equal((await session.rpcCall(name, 'ask', { timeout: 5000 })).bodyString(), 'ASK');
      const client = await session.rpcClient();
      const answers = await Promise.all(['a', 'b', 'c'].map((body) => client.call(name, body, { timeout: 5000 })));
      assert.deepEqual(answers.map((each) => each.bodyString()), ['A', 'B', 'C']);
      await client.close();
      await server.close();
    }));
});
