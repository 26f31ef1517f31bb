# Publish 2,000 numbered messages and consume them, on nodes that may be killed.
#
#   ruby survive.rb [HOST:PORT...]      each node; by default the nodes of `qq up`
#
# It needs: gem install bunny

require "bunny"
require "logger"
require "set"

QUEUE = "survive-ruby"
MESSAGES = 2000
NODES = ARGV.empty? ? %w[127.0.0.1:5672 127.0.0.1:5673 127.0.0.1:5674] : ARGV
LOST = [Bunny::Exception, AMQ::Protocol::Error, SystemCallError, IOError, Timeout::Error].freeze
$stdout.sync = true

# Return a new connection to any node, in a random order so that clients spread over the nodes. Try for ever.
def connect
  loop do
    NODES.shuffle.each do |node|
      host, port = node.split(":")
      connection = Bunny.new(
        host: host,
        port: Integer(port),
        heartbeat: 5, # notice a host that is gone
        connection_timeout: 5, # a host that is gone refuses nothing
        automatically_recover: false, # it tells a publisher nothing of its unconfirmed messages
        logger: Logger.new(IO::NULL)
      )
      return connection.start
    rescue *LOST => error
      puts "cannot connect to #{node}: #{error.message}"
    end
    sleep 1
  end
end

def declare(channel)
  channel.queue(QUEUE, durable: true, arguments: { "x-queue-type" => "quorum" })
end

# Without recovery, bunny raises the loss of a connection in the thread that has made it, wherever that thread is: by
# `without_losses` only in a block of `with_losses`.
def without_losses(&block) = Thread.handle_interrupt(Bunny::Exception => :never, &block)
def with_losses(&block) = Thread.handle_interrupt(Bunny::Exception => :immediate, &block)

# Close a connection that may be broken, with its threads. If its node is gone, bunny waits 15 s for an answer: hence the
# thread.
def close_later(connection)
  Thread.new do
    connection.close
  rescue *LOST
    # It is closed.
  end
end

# Publish messages until all are confirmed or the connection is lost; return the first unconfirmed one.
def publish_from(number, connection)
  with_losses do
    channel = connection.create_channel
    declare(channel)
    channel.confirm_select
    while number <= MESSAGES
      channel.default_exchange.publish(number.to_s, routing_key: QUEUE, persistent: true)
      if channel.wait_for_confirms
        number += 1
      else
        sleep 1 # a full queue has refused it: publish it again
      end
    end
  end
  number
rescue *LOST => error
  # Whether this message is stored is unknown, so it is published again: it may come twice.
  puts "publisher: #{error.class} at message #{number}"
  number
end

def publish
  number = 1
  while number <= MESSAGES
    connection = connect
    number = publish_from(number, connection)
    close_later(connection)
  end
  puts "#{MESSAGES} messages are confirmed"
end

# Consume until each message has come, or the consumer has an end.
def consume_into(seen, connection)
  with_losses do
    channel = connection.create_channel
    channel.prefetch(100)
    ended = Queue.new
    consumer = Bunny::Consumer.new(channel, declare(channel), channel.generate_consumer_tag, false)
    consumer.on_delivery do |delivery, _, body|
      seen << body # the work: doing it twice does no harm
      channel.ack(delivery.delivery_tag)
      ended << "all messages have come" if seen.size == MESSAGES
    end
    consumer.on_cancellation { ended << "cancelled, because its queue was deleted: declared and consumed again" }
    consumer.queue.subscribe_with(consumer)
    puts "consumer: #{ended.pop}"
  end
rescue *LOST => error
  puts "consumer: #{error.class} after #{seen.size} messages"
end

def consume
  seen = Set.new
  while seen.size < MESSAGES
    connection = connect
    consume_into(seen, connection)
    close_later(connection)
  end
  puts "#{MESSAGES} messages are consumed"
end

without_losses { [Thread.new { publish }, Thread.new { consume }] }.each(&:join)
