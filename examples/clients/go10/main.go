// Publish 2,000 numbered messages and consume them over AMQP 1.0, on nodes that may be killed.
//
//	go run . [URL...]      the address of each node; by default the nodes of `qq up`
package main

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"time"

	"github.com/Azure/go-amqp"
	rmq "github.com/rabbitmq/rabbitmq-amqp-go-client/pkg/rabbitmqamqp"
)

const (
	queue    = "survive-go10"
	messages = 2000
)

var (
	urls = []string{
		"amqp://guest:guest@127.0.0.1:5672/",
		"amqp://guest:guest@127.0.0.1:5673/",
		"amqp://guest:guest@127.0.0.1:5674/",
	}
	ctx = context.Background()
)

// connect returns a connection to any node, with the queue declared. It tries until a node answers.
func connect() *rmq.AmqpConnection {
	for {
		for _, i := range rand.Perm(len(urls)) {
			connection, err := open(urls[i])
			if err == nil {
				return connection
			}
			fmt.Println("cannot connect:", err)
		}
		time.Sleep(time.Second)
	}
}

func open(url string) (*rmq.AmqpConnection, error) {
	dialing, cancel := context.WithTimeout(ctx, 5*time.Second) // a host that is gone refuses nothing
	defer cancel()
	connection, err := rmq.Dial(dialing, url, &rmq.AmqpConnOptions{
		SASLType:    amqp.SASLTypePlain("guest", "guest"),
		IdleTimeout: 10 * time.Second, // notice a host that is gone
		RecoveryConfiguration: &rmq.RecoveryConfiguration{
			ActiveRecovery: false, // the loops below connect again
		},
	})
	if err != nil {
		return nil, err
	}
	_, err = connection.Management().DeclareQueue(dialing, &rmq.QuorumQueueSpecification{Name: queue})
	if err != nil {
		connection.Close(ctx)
		return nil, err
	}
	return connection, nil
}

// publish publishes all messages, and returns when each is accepted.
func publish() {
	number := 1
	for number <= messages {
		connection := connect()
		var err error
		number, err = publishFrom(number, connection)
		connection.Close(ctx)
		if err != nil {
			// Whether this message is stored is unknown, so it is published again: it may come twice.
			fmt.Printf("publisher: %v at message %d\n", err, number)
		}
	}
	fmt.Printf("%d messages are confirmed\n", messages)
}

// publishFrom publishes one message after the other, and returns the first that is not accepted.
func publishFrom(number int, connection *rmq.AmqpConnection) (int, error) {
	publisher, err := connection.NewPublisher(ctx, &rmq.QueueAddress{Queue: queue}, nil)
	if err != nil {
		return number, err
	}
	for ; number <= messages; number++ {
		waiting, cancel := context.WithTimeout(ctx, 10*time.Second)
		result, err := publisher.Publish(waiting, rmq.NewMessage([]byte(strconv.Itoa(number))))
		cancel()
		if err != nil {
			return number, err
		}
		if _, isAccepted := result.Outcome.(*rmq.StateAccepted); !isAccepted {
			return number, fmt.Errorf("refused: %v", result.Outcome) // by a full queue
		}
	}
	return number, nil
}

// consume returns when each message has come.
func consume() {
	seen := map[string]bool{}
	for len(seen) < messages {
		connection := connect()
		err := consumeFrom(connection, seen)
		connection.Close(ctx)
		if err != nil {
			fmt.Printf("consumer: %v after %d messages\n", err, len(seen))
		}
	}
	fmt.Printf("%d messages are consumed\n", len(seen))
}

func consumeFrom(connection *rmq.AmqpConnection, seen map[string]bool) error {
	consumer, err := connection.NewConsumer(ctx, queue, &rmq.ConsumerOptions{InitialCredits: 100})
	if err != nil {
		return err
	}
	for len(seen) < messages {
		delivery, err := consumer.Receive(ctx)
		if err != nil {
			return err
		}
		seen[string(delivery.Message().GetData())] = true // the work: doing it twice does no harm
		if err := delivery.Accept(ctx); err != nil {
			return err
		}
	}
	return consumer.Close(ctx)
}

func main() {
	if len(os.Args) > 1 {
		urls = os.Args[1:]
	}
	go publish()
	consume()
}
