// Tests of rascal, whose package has none in it: topology, publications with confirms, subscriptions with each way of
// recovery, shovels, and what happens after a connection was closed by the broker.
'use strict';

const assert = require('node:assert/strict');
const { randomUUID } = require('node:crypto');
const { once } = require('node:events');
const { BrokerAsPromised, withDefaultConfig } = require('rascal');
const { closeConnection, until } = require('./brokers');

const { URL } = process.env;

function configuration(extra = {}) {
  const id = randomUUID();
  const quorum = { options: { durable: true, arguments: { 'x-queue-type': 'quorum' } } };
  return {
    vhosts: {
      '/': {
        connection: { url: URL, retry: { min: 100, max: 500 } },
        exchanges: { events: { type: 'topic' }, dead: { type: 'fanout' } },
        queues: {
          [`work-${id}`]: { options: { durable: true, arguments: { ...quorum.options.arguments, 'x-dead-letter-exchange': 'dead' } } },
          [`dead-${id}`]: quorum,
          [`copy-${id}`]: quorum,
        },
        bindings: [`events[${id}.#] -> work-${id}`, `dead -> dead-${id}`],
        publications: {
          event: { exchange: 'events', routingKey: `${id}.made`, confirm: true },
          unrouted: { exchange: 'events', routingKey: 'nowhere', confirm: true, options: { mandatory: true } },
          direct: { queue: `copy-${id}` },
        },
        subscriptions: { work: { queue: `work-${id}`, prefetch: 5 }, dead: { queue: `dead-${id}` }, copy: { queue: `copy-${id}` } },
        ...extra.vhost && extra.vhost(id),
      },
    },
    ...extra.root && extra.root(id),
  };
}

async function withBroker(body, extra) {
  const broker = await BrokerAsPromised.create(withDefaultConfig(configuration(extra)));
  broker.on('error', () => {});
  try {
    await body(broker);
  } finally {
    await broker.nuke();
  }
}

async function published(broker, name, content, overrides) {
  const publication = await broker.publish(name, content, overrides);
  return new Promise((resolve, reject) => {
    publication.on('success', resolve);
    publication.on('error', reject);
    publication.on('return', (message) => reject(new Error(`returned: ${message.fields.replyText}`)));
  });
}

async function subscribed(broker, name, take) {
  const subscription = await broker.subscribe(name);
  subscription.on('error', () => {});
  subscription.on('message', take);
  return subscription;
}

suite('rascal', () => {
  test('what is published with confirms is consumed', () =>
    withBroker(async (broker) => {
      const contents = [];
      const subscription = await subscribed(broker, 'work', (message, content, ackOrNack) => {
        contents.push(content);
        ackOrNack();
      });
      for (const content of ['text', { an: 'object' }, Buffer.from('octets')]) await published(broker, 'event', content);
      await until(() => contents.length === 3);
      assert.deepEqual(contents, ['text', { an: 'object' }, Buffer.from('octets')]);
      await subscription.cancel();
      await broker.purge();
    }));

  test('what no queue gets is returned', () =>
    withBroker((broker) => assert.rejects(published(broker, 'unrouted', 'back'), /returned: NO_ROUTE/)));

  test('a nacked message is dead-lettered', () =>
    withBroker(async (broker) => {
      await subscribed(broker, 'work', (message, content, ackOrNack) => ackOrNack(new Error('no')));
      const dead = [];
      await subscribed(broker, 'dead', (message, content, ackOrNack) => {
        dead.push(message.properties.headers['x-death'][0].reason);
        ackOrNack();
      });
      await published(broker, 'event', 'dies');
      await until(() => dead.length === 1);
      assert.deepEqual(dead, ['rejected']);
    }));

  test('a message is republished, with how often, and then forwarded', () =>
    withBroker(async (broker) => {
      const seen = [];
      const strategy = [{ strategy: 'republish', attempts: 2 }, { strategy: 'forward', publication: 'direct' }];
      await subscribed(broker, 'work', (message, content, ackOrNack) => {
        const recovery = message.properties.headers.rascal.recovery;
        seen.push(recovery ? Object.values(recovery)[0].republished || 0 : 0);
        ackOrNack(new Error('again'), strategy);
      });
      const copies = [];
      await subscribed(broker, 'copy', (message, content, ackOrNack) => {
        copies.push(content);
        ackOrNack();
      });
      await published(broker, 'event', 'retried');
      await until(() => copies.length === 1);
      assert.deepEqual(seen, [0, 1, 2]);
    }));

  test('a message that is requeued comes again, marked', () =>
    withBroker(async (broker) => {
      const marks = [];
      await subscribed(broker, 'work', (message, content, ackOrNack) => {
        marks.push(message.fields.redelivered);
        if (marks.length < 3) ackOrNack(new Error('again'), { strategy: 'nack', requeue: true });
        else ackOrNack();
      });
      await published(broker, 'event', 'requeued');
      await until(() => marks.length === 3);
      assert.deepEqual(marks, [false, true, true]);
    }));

  test('a shovel moves messages to another exchange', () => {
    const extra = {
      root: () => ({ shovels: { moved: { subscription: 'work', publication: 'direct' } } }),
    };
    return withBroker(async (broker) => {
      const copies = [];
      await subscribed(broker, 'copy', (message, content, ackOrNack) => {
        copies.push(content);
        ackOrNack();
      });
      await published(broker, 'event', 'moved');
      await until(() => copies.length === 1);
      assert.deepEqual(copies, ['moved']);
    }, extra);
  });

  test('subscriptions go on after the connection was closed', () => {
    const name = randomUUID();
    const socketOptions = { clientProperties: { connection_name: name } };
    return withBroker(async (broker) => {
      const contents = [];
      await subscribed(broker, 'work', (message, content, ackOrNack) => {
        contents.push(content);
        ackOrNack();
      });
      await published(broker, 'event', 'before');
      await until(() => contents.includes('before'));
      const lost = once(broker, 'disconnect');
      await closeConnection(name);
      await lost;
      await once(broker, 'connect');
      await published(broker, 'event', 'after');
      await until(() => contents.includes('after'));
    }, { vhost: () => ({ connection: { url: URL, socketOptions, retry: { min: 100, max: 500 } } }) });
  });
});
