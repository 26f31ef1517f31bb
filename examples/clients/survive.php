<?php
// Publish 2,000 numbered messages and consume them, on nodes that may be killed.
//
//   php survive.php [HOST:PORT...]      each node; by default the nodes of `qq up`
//
// It needs: composer require php-amqplib/php-amqplib

use PhpAmqpLib\Channel\AMQPChannel;
use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Exception\AMQPBasicCancelException;
use PhpAmqpLib\Exception\AMQPExceptionInterface;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

require 'vendor/autoload.php';

const QUEUE = 'survive-php';
const MESSAGES = 2000;

/** Return a new connection to any node, in a random order so that clients spread over the nodes. Try for ever. */
function connect(array $nodes): AMQPStreamConnection
{
    while (true) {
        shuffle($nodes);
        foreach ($nodes as $node) {
            [$host, $port] = explode(':', $node);
            $login = ['host' => $host, 'port' => (int) $port, 'user' => 'guest', 'password' => 'guest'];
            try {
                return AMQPStreamConnection::create_connection([$login], [
                    'heartbeat' => 5, // s: notice a host that is gone
                    'read_write_timeout' => 10, // s: at least two heartbeats
                    'connection_timeout' => 5, // s: a host that is gone refuses nothing
                ]);
            } catch (AMQPExceptionInterface | ErrorException $error) {
                echo "cannot connect to $node: {$error->getMessage()}\n";
            }
        }
        sleep(1);
    }
}

function declared(AMQPStreamConnection $connection): AMQPChannel
{
    $channel = $connection->channel();
    $channel->queue_declare(QUEUE, false, true, false, false, false, new AMQPTable(['x-queue-type' => 'quorum']));
    return $channel;
}

/** Close a connection that may be broken. */
function end_of(AMQPStreamConnection $connection): void
{
    try {
        $connection->close();
    } catch (AMQPExceptionInterface | ErrorException) {
        // It is closed.
    }
}

/** Publish messages from this number on until all are confirmed or the connection is lost. */
function publish_from(int &$number, AMQPStreamConnection $connection): void
{
    $channel = declared($connection);
    $channel->confirm_select();
    $refused = false;
    $channel->set_nack_handler(function () use (&$refused): void {
        $refused = true; // by a full queue
    });
    while ($number <= MESSAGES) {
        $refused = false;
        $persistent = ['delivery_mode' => AMQPMessage::DELIVERY_MODE_PERSISTENT];
        $channel->basic_publish(new AMQPMessage((string) $number, $persistent), '', QUEUE);
        $channel->wait_for_pending_acks(30);
        if ($refused) {
            sleep(1);
        } else {
            $number += 1;
        }
    }
}

function publish(array $nodes): void
{
    $number = 1;
    while ($number <= MESSAGES) {
        $connection = connect($nodes);
        try {
            publish_from($number, $connection);
        } catch (AMQPExceptionInterface | ErrorException $error) {
            // Whether this message is stored is unknown, so it is published again: it may come twice.
            echo "publisher: {$error->getMessage()} at message $number\n";
        }
        end_of($connection);
    }
    echo MESSAGES . " messages are confirmed\n";
}

/** Consume until each message has come. An error ends it: the consumer is cancelled, or the connection is lost. */
function consume_into(array &$seen, AMQPStreamConnection $connection): void
{
    $channel = declared($connection);
    $channel->basic_qos(0, 100, false);
    $channel->basic_consume(QUEUE, '', false, false, false, false, function (AMQPMessage $message) use (&$seen): void {
        $seen[$message->getBody()] = true; // the work: doing it twice does no harm
        $message->ack();
    });
    while (count($seen) < MESSAGES) {
        $channel->wait();
    }
}

function consume(array $nodes): void
{
    $seen = [];
    while (count($seen) < MESSAGES) {
        $connection = connect($nodes);
        try {
            consume_into($seen, $connection);
        } catch (AMQPBasicCancelException) {
            echo "consumer: cancelled, because its queue was deleted: declared and consumed again\n";
        } catch (AMQPExceptionInterface | ErrorException $error) {
            echo "consumer: {$error->getMessage()} after " . count($seen) . " messages\n";
        }
        end_of($connection);
    }
    echo MESSAGES . " messages are consumed\n";
}

$nodes = array_slice($argv, 1) ?: ['127.0.0.1:5672', '127.0.0.1:5673', '127.0.0.1:5674'];
// PHP has no threads: a process for each.
if (pcntl_fork() === 0) {
    publish($nodes);
} else {
    consume($nodes);
    pcntl_wait($status);
}
