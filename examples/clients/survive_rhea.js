// Publish 2,000 numbered messages and consume them over AMQP 1.0 with rhea, on nodes that may be killed.
//
//   node survive_rhea.js [HOST:PORT...]      each node; by default the nodes of `qq up`
'use strict';

const rhea = require('rhea');

const QUEUE = '/queues/survive-rhea';
const MESSAGES = 2000;
const nodes = process.argv.length > 2 ? process.argv.slice(2) : ['127.0.0.1:5672', '127.0.0.1:5673', '127.0.0.1:5674'];
let tries = Math.floor(Math.random() * nodes.length);

const options = {
  username: 'guest',
  password: 'guest',
  // Each attempt takes the next node. The client tries for ever, with 0.1 to 1 s between attempts.
  connection_details: () => {
    const [host, port] = nodes[tries++ % nodes.length].split(':');
    return { host, port: Number(port) };
  },
  initial_reconnect_delay: 100,
  max_reconnect_delay: 1000,
  idle_time_out: 10000, // notice a host that is gone
};

// Publish all messages, each until it is accepted: a message at a time, so that their order stays.
function publish() {
  let number = 1;
  let underWay = false;
  const container = rhea.create_container();
  const send = ({ sender }) => {
    if (number <= MESSAGES && !underWay && sender.sendable()) {
      underWay = true;
      sender.send({ body: String(number), durable: true });
    }
  };
  container.on('sendable', send);
  container.on('accepted', (context) => {
    underWay = false;
    number += 1;
    if (number > MESSAGES) {
      console.log(`${MESSAGES} messages are confirmed`);
      context.connection.close();
    } else {
      send(context);
    }
  });
  ['rejected', 'released'].forEach((outcome) => container.on(outcome, (context) => { // a full queue; a link that ends
    underWay = false;
    setTimeout(send, 100, context);
  }));
  container.on('disconnected', () => {
    // Whether the message under way is stored is unknown, so it is published again: it may come twice.
    underWay = false;
  });
  container.connect({ ...options, container_id: 'publisher' }).open_sender(QUEUE);
}

// Consume until each message has come.
function consume() {
  const seen = new Set();
  const container = rhea.create_container();
  container.on('message', ({ message, delivery, connection }) => {
    seen.add(message.body); // the work: doing it twice does no harm
    delivery.accept();
    if (seen.size === MESSAGES) {
      console.log(`${MESSAGES} messages are consumed`);
      connection.close();
    }
  });
  container.connect({ ...options, container_id: 'consumer' })
    .open_receiver({ source: QUEUE, credit_window: 100, autoaccept: false });
}

publish();
consume();
