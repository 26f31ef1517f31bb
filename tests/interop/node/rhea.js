// Conversations of rhea and rhea-promise with a node over AMQP 1.0: the package has tests of its own classes only.
'use strict';

const assert = require('node:assert/strict');
const { randomBytes, randomUUID } = require('node:crypto');
const amqp = require('amqplib');
const rhea = require('rhea');
const { Connection } = require('rhea-promise');

const { URL, QQ_INTEROP_PORT } = process.env;
const OPTIONS = {
  host: '127.0.0.1', port: Number(QQ_INTEROP_PORT), username: 'guest', password: 'guest', reconnect: false,
};
const MIB = 1 << 20;

async function withQueue(body, options = {}) {
  const connection = await amqp.connect(URL);
  const channel = await connection.createChannel();
  const queue = `rhea-${randomUUID()}`;
  await channel.assertQueue(queue, { arguments: { 'x-queue-type': 'quorum', ...options } });
  try {
    await body(queue, channel);
  } finally {
    await channel.deleteQueue(queue);
    await connection.close();
  }
}

// Publish the bodies, and return the names of their outcomes.
function published(target, messages) {
  return new Promise((resolve, reject) => {
    const container = rhea.create_container();
    const outcomes = [];
    let sent = 0;
    const settled = (outcome) => (context) => {
      outcomes.push(outcome);
      if (outcomes.length === messages.length) context.connection.close();
    };
    container.on('sendable', ({ sender }) => {
      while (sender.sendable() && sent < messages.length) sender.send(messages[sent++]);
    });
    ['accepted', 'rejected', 'released'].forEach((outcome) => container.on(outcome, settled(outcome)));
    ['sender_error', 'session_error', 'connection_error', 'disconnected'].forEach((event) => container.on(event, (context) => {
      reject((context.sender || context.session || context.connection).error || new Error(event));
    }));
    container.on('connection_close', () => resolve(outcomes));
    container.connect(OPTIONS).open_sender(target);
  });
}

// Consume so many messages; `settle(context)` settles each.
function consumed(source, count, settle = ({ delivery }) => delivery.accept()) {
  return new Promise((resolve, reject) => {
    const container = rhea.create_container();
    const messages = [];
    container.on('message', (context) => {
      messages.push(context.message);
      settle(context, messages.length);
      if (messages.length === count) context.connection.close();
    });
    ['receiver_error', 'session_error', 'connection_error', 'disconnected'].forEach((event) => container.on(event, (context) => {
      reject((context.receiver || context.session || context.connection).error || new Error(event));
    }));
    container.on('connection_close', () => resolve(messages));
    container.connect(OPTIONS).open_receiver({ source, autoaccept: false, autosettle: true, credit_window: 100 });
  });
}

suite('rhea', () => {
  test('publishes and consumes in order', () => withQueue(async (queue) => {
    const address = `/queues/${queue}`;
    const bodies = Array.from({ length: 1000 }, (_, number) => number);
    const outcomes = await published(address, bodies.map((body) => ({ body, durable: true })));
    assert.deepEqual(outcomes, bodies.map(() => 'accepted'));
    assert.deepEqual((await consumed(address, 1000)).map(({ body }) => body), bodies);
  }));

  test('keeps properties and types of values', () => withQueue(async (queue) => {
    const address = `/queues/${queue}`;
    const message = {
      message_id: randomUUID(),
      correlation_id: rhea.types.wrap_ulong(7),
      subject: 'a subject',
      reply_to: '/queues/answers',
      content_type: 'text/plain',
      group_id: 'group',
      application_properties: { text: 'é', number: 12, yes: true, half: 0.5 },
      message_annotations: { 'x-note': 'noted' },
      durable: true,
      priority: 3,
      body: { list: [1, 'two', null], map: { key: 'value' } },
    };
    await published(address, [message]);
    const [got] = await consumed(address, 1);
    for (const name of ['message_id', 'subject', 'reply_to', 'content_type', 'group_id', 'application_properties', 'priority', 'body']) {
      assert.deepEqual(got[name], message[name], name);
    }
    assert.equal(Number(got.correlation_id), 7);
    assert.equal(got.message_annotations['x-note'], 'noted');
  }));

  test('gets large messages whole', () => withQueue(async (queue) => {
    const address = `/queues/${queue}`;
    const contents = [0, 1, MIB, 10 * MIB].map((size) => randomBytes(size));
    await published(address, contents.map((content) => ({ body: rhea.message.data_section(content) })));
    const got = await consumed(address, contents.length);
    got.forEach(({ body }, index) => assert.ok(contents[index].equals(body.content)));
  }));

  test('has a rejected message dead-lettered', () => withQueue((dead) => withQueue(async (queue) => {
    await published(`/queues/${queue}`, [{ body: 'refused' }]);
    await consumed(`/queues/${queue}`, 1, ({ delivery }) => delivery.reject());
    const [message] = await consumed(`/queues/${dead}`, 1);
    assert.equal(message.body, 'refused');
    assert.equal(message.message_annotations['x-first-death-queue'], queue);
    assert.equal(message.message_annotations['x-opt-deaths'][0].reason, 'rejected');
  }, { 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': dead })));

  test('gets released and modified messages again', () => withQueue(async (queue) => {
    await published(`/queues/${queue}`, [{ body: 'again' }]);
    const messages = await consumed(`/queues/${queue}`, 4, ({ delivery }, count) => {
      if (count === 1) delivery.release();
      else if (count < 4) delivery.modified({ delivery_failed: true, message_annotations: { 'x-try': count } });
      else delivery.accept();
    });
    assert.deepEqual(messages.map(({ delivery_count: count }) => count || 0), [0, 0, 1, 2]);
    assert.equal(messages[3].message_annotations['x-try'], 3);
  }));

  test('is told that a queue is full, and that there is none', () => withQueue(async (queue) => {
    const outcomes = await published(`/queues/${queue}`, Array.from({ length: 5 }, () => ({ body: 'more' })));
    assert.equal(outcomes[0], 'accepted');
    assert.equal(outcomes[4], 'rejected');
    assert.deepEqual(await published('/exchanges/amq.direct/no-such-key', [{ body: 'lost' }]), ['released']);
    await assert.rejects(published('/queues/no-such-queue', [{ body: 'lost' }]), { condition: 'amqp:not-found' });
  }, { 'x-max-length': 1, 'x-overflow': 'reject-publish' }));

  test('drains a queue', () => withQueue(async (queue) => {
    await published(`/queues/${queue}`, [{ body: 1 }, { body: 2 }, { body: 3 }]);
    const got = await new Promise((resolve, reject) => {
      const container = rhea.create_container();
      const bodies = [];
      container.on('receiver_open', ({ receiver }) => {
        receiver.add_credit(10);
        receiver.drain_credit();
      });
      container.on('message', ({ message }) => bodies.push(message.body));
      container.on('receiver_drained', ({ connection }) => connection.close());
      container.on('disconnected', () => reject(new Error('disconnected')));
      container.on('connection_close', () => resolve(bodies));
      container.connect(OPTIONS).open_receiver({ source: `/queues/${queue}`, credit_window: 0 });
    });
    assert.deepEqual(got, [1, 2, 3]);
  }));
});

suite('rhea-promise', () => {
  test('waits for the outcome of a message', () => withQueue(async (queue) => {
    const connection = await new Connection(OPTIONS).open();
    const sender = await connection.createAwaitableSender({ target: { address: `/queues/${queue}` } });
    const delivery = await sender.send({ body: 'awaited' });
    assert.ok(delivery.settled);
    const [message] = await consumed(`/queues/${queue}`, 1);
    assert.equal(message.body, 'awaited');
    await sender.close();
    await connection.close();
  }));

  test('is told the error of a link', async () => {
    const connection = await new Connection(OPTIONS).open();
    const error = await new Promise((resolve, reject) => {
      const source = { address: '/queues/no-such-queue' };
      connection.createReceiver({ source, credit_window: 0, onError: ({ receiver }) => resolve(receiver.error) }).catch(reject);
    });
    assert.equal(error.condition, 'amqp:not-found');
    await connection.close();
  });
});
