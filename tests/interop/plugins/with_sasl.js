// Loaded before rhea's examples. They name no user, and then rhea leaves out SASL, which a node requires as RabbitMQ does.
'use strict';

const { options } = require('rhea');

options.username = options.username || 'anonymous';
