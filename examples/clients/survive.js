// Publish 2,000 numbered messages and consume them, on nodes that may be killed.
//
//   node survive.js [URL...]      the address of each node; by default the nodes of `qq up`
//
// It needs: npm install amqp-connection-manager@5 amqplib@0.10

const amqp = require('amqp-connection-manager');

const QUEUE = 'survive-node';
const MESSAGES = 2000;
const NODES = [5672, 5673, 5674].map((port) => `amqp://guest:guest@127.0.0.1:${port}/`);
const urls = process.argv.length > 2 ? process.argv.slice(2) : NODES;

// It takes the addresses in their order, and connects again by itself.
const connection = amqp.connect(urls.sort(() => Math.random() - 0.5), {
  heartbeatIntervalInSeconds: 5, // notice a host that is gone
  reconnectTimeInSeconds: 1,
  connectionOptions: {
    timeout: 5000, // a host that is gone refuses nothing
    noDelay: true, // otherwise a publish that waits for its confirm takes 40 ms longer
  },
});
connection.on('disconnect', ({ err }) => console.log(`connection lost: ${err && err.message}`));
connection.on('connectFailed', ({ err }) => console.log(`cannot connect: ${err && err.message}`));

const assertQueue = (channel) =>
  channel.assertQueue(QUEUE, { durable: true, arguments: { 'x-queue-type': 'quorum' } });

async function publish(publisher, body) {
  for (;;) {
    try {
      return await publisher.sendToQueue(QUEUE, body, { persistent: true }); // confirmed
    } catch (error) {
      // Unknown, or refused by a full queue: it is published again, and may come twice.
      console.log(`publisher: ${error.message} at message ${body}`);
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}

async function publishAll() {
  const publisher = connection.createChannel({ confirm: true, setup: assertQueue });
  for (let number = 1; number <= MESSAGES; number += 1) {
    await publish(publisher, Buffer.from(String(number)));
  }
  console.log(`${MESSAGES} messages are confirmed`);
}

function consumeAll() {
  const seen = new Set();
  return new Promise((resolve) => {
    connection.createChannel({
      // It runs after each connect.
      setup: async (channel) => {
        const consume = async () => {
          await assertQueue(channel);
          await channel.consume(QUEUE, handle);
        };
        const handle = (message) => {
          if (message === null) {
            console.log('consumer: cancelled, because its queue was deleted: declared and consumed again');
            consume().catch((error) => console.log(`consumer: ${error.message}`));
            return;
          }
          seen.add(message.content.toString()); // the work: doing it twice does no harm
          channel.ack(message);
          if (seen.size === MESSAGES) resolve();
        };
        await channel.prefetch(100);
        await consume();
      },
    });
  });
}

async function main() {
  await Promise.all([publishAll(), consumeAll()]);
  console.log(`${MESSAGES} messages are consumed`);
  await connection.close();
}

main();
