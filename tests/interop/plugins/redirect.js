// Has tests that know only the standard port reach the broker under test: QQ_INTEROP_PORT takes the place of 5672.
'use strict';

const net = require('node:net');

const AMQP_PORT = '5672';
const connect = net.connect;

net.connect = (...args) => {
  if (String(args[0]) === AMQP_PORT) {
    args[0] = process.env.QQ_INTEROP_PORT;
  } else if (args[0] && String(args[0].port) === AMQP_PORT) {
    args[0] = { ...args[0], port: process.env.QQ_INTEROP_PORT };
  }
  return connect(...args);
};
