// Publish 2,000 numbered messages and consume them, on nodes that may be killed.
//
//	go run . [URL...]      the address of each node; by default the nodes of `qq up`
package main

import (
	"errors"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	queue    = "survive-go"
	messages = 2000
)

var urls = []string{
	"amqp://guest:guest@127.0.0.1:5672/",
	"amqp://guest:guest@127.0.0.1:5673/",
	"amqp://guest:guest@127.0.0.1:5674/",
}

var errRefused = errors.New("refused") // by a full queue

// connect returns a channel of a new connection to any node, with the queue declared. It tries until a node answers.
func connect() (*amqp.Connection, *amqp.Channel) {
	for {
		for _, i := range rand.Perm(len(urls)) {
			connection, channel, err := open(urls[i])
			if err == nil {
				return connection, channel
			}
			fmt.Println("cannot connect:", err)
		}
		time.Sleep(time.Second)
	}
}

func open(url string) (*amqp.Connection, *amqp.Channel, error) {
	connection, err := amqp.DialConfig(url, amqp.Config{
		Heartbeat: 5 * time.Second,                   // notice a host that is gone
		Dial:      amqp.DefaultDial(5 * time.Second), // a host that is gone refuses nothing
	})
	if err != nil {
		return nil, nil, err
	}
	channel, err := connection.Channel()
	if err == nil {
		_, err = channel.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	}
	if err != nil {
		connection.Close()
		return nil, nil, err
	}
	return connection, channel, nil
}

// publish publishes all messages, and returns when each is confirmed.
func publish() {
	number := 1
	for number <= messages {
		connection, channel := connect()
		var err error
		number, err = publishFrom(number, connection, channel)
		connection.Close() // ends the goroutines of a broken connection, too
		if err != nil {
			// Whether this message is stored is unknown, so it is published again: it may come twice.
			fmt.Printf("publisher: %v at message %d\n", err, number)
		}
	}
	fmt.Printf("%d messages are confirmed\n", messages)
}

// publishFrom publishes one message after the other, and returns the first that is not confirmed.
func publishFrom(number int, connection *amqp.Connection, channel *amqp.Channel) (int, error) {
	if err := channel.Confirm(false); err != nil {
		return number, err
	}
	// A confirm never comes on a lost connection.
	closed := connection.NotifyClose(make(chan *amqp.Error, 1))
	for ; number <= messages; number++ {
		confirm, err := channel.PublishWithDeferredConfirm("", queue, false, false, amqp.Publishing{
			DeliveryMode: amqp.Persistent,
			Body:         []byte(strconv.Itoa(number)),
		})
		if err != nil {
			return number, err
		}
		select {
		case <-confirm.Done():
			if !confirm.Acked() {
				return number, errRefused
			}
		case err := <-closed:
			return number, err
		}
	}
	return number, nil
}

// consume returns when each message has come.
func consume() {
	seen := map[string]bool{}
	for len(seen) < messages {
		connection, channel := connect()
		err := channel.Qos(100, 0, false)
		if err == nil {
			var deliveries <-chan amqp.Delivery
			deliveries, err = channel.Consume(queue, "", false, false, false, false, nil)
			// The channel of deliveries is closed with the connection, and when the queue is deleted.
			for delivery := range deliveries {
				seen[string(delivery.Body)] = true // the work: doing it twice does no harm
				if err = delivery.Ack(false); err != nil || len(seen) == messages {
					break
				}
			}
		}
		connection.Close()
		if len(seen) < messages {
			fmt.Printf("consumer: cancelled or lost after %d messages (%v)\n", len(seen), err)
		}
	}
	fmt.Printf("%d messages are consumed\n", len(seen))
}

func main() {
	if len(os.Args) > 1 {
		urls = os.Args[1:]
	}
	go publish()
	consume()
}
