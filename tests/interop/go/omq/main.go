// Publishes to queues and consumes from them over AMQP 1.0, with the flags and the frames of omq. omq itself is in no
// registry. Each consumed message is a line: its priority, its publisher and its number.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/go-amqp"
)

var (
	uri         = "amqp://localhost:5672"
	publishTo   = "/queues/omq"
	consumeFrom = "/queues/omq"
	credits     = 1
	priority    = 4
	pmessages   = 1<<31 - 1
	cmessages   = 1<<31 - 1
	published   atomic.Int64
	consumed    atomic.Int64
	lines       = bufio.NewWriter(os.Stdout)
	lock        sync.Mutex
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func connect(ctx context.Context) (*amqp.Conn, *amqp.Session) {
	conn, err := amqp.Dial(ctx, uri, &amqp.ConnOptions{SASLType: amqp.SASLTypeAnonymous(), HostName: "vhost:/"})
	check(err)
	session, err := conn.NewSession(ctx, nil)
	check(err)
	return conn, session
}

func publish(ctx context.Context, publisher int) {
	conn, session := connect(ctx)
	sender, err := session.NewSender(ctx, publishTo, &amqp.SenderOptions{
		SettlementMode: amqp.SenderSettleModeUnsettled.Ptr(), TargetDurability: amqp.DurabilityConfiguration})
	check(err)
	for number := range pmessages {
		body := make([]byte, 12)
		binary.BigEndian.PutUint32(body, uint32(publisher))
		binary.BigEndian.PutUint32(body[4:], uint32(number))
		message := amqp.NewMessage(body)
		message.Header = &amqp.MessageHeader{Durable: true, Priority: uint8(priority)}
		message.Properties = &amqp.MessageProperties{}
		// Returns when the message is accepted, and with an error if its outcome is another.
		check(sender.Send(ctx, message, nil))
		published.Add(1)
	}
	check(sender.Close(ctx))
	check(session.Close(ctx))
	check(conn.Close())
}

func consume(ctx context.Context) {
	conn, session := connect(ctx)
	receiver, err := session.NewReceiver(ctx, consumeFrom, &amqp.ReceiverOptions{
		Credit: int32(credits), SourceDurability: amqp.DurabilityConfiguration})
	check(err)
	for consumed.Add(1) <= int64(cmessages) {
		waiting, cancel := context.WithTimeout(ctx, 30*time.Second)
		message, err := receiver.Receive(waiting, nil)
		cancel()
		check(err)
		check(receiver.AcceptMessage(ctx, message))
		body := message.GetData()
		lock.Lock()
		fmt.Fprintln(lines, message.Header.Priority, binary.BigEndian.Uint32(body), binary.BigEndian.Uint32(body[4:]))
		lock.Unlock()
	}
	check(receiver.Close(ctx))
	check(session.Close(ctx))
	check(conn.Close())
}

func main() {
	if len(os.Args) < 2 || os.Args[1] != "amqp" {
		check(fmt.Errorf("usage: omq amqp FLAGS"))
	}
	flags := flag.NewFlagSet("amqp", flag.ExitOnError)
	flags.StringVar(&uri, "uri", uri, "")
	publishers := flags.Int("publishers", 1, "")
	consumers := flags.Int("consumers", 1, "")
	flags.StringVar(&publishTo, "publish-to", publishTo, "")
	flags.StringVar(&consumeFrom, "consume-from", consumeFrom, "")
	flags.IntVar(&priority, "message-priority", priority, "")
	flags.IntVar(&pmessages, "pmessages", pmessages, "of each publisher")
	flags.IntVar(&cmessages, "cmessages", cmessages, "of all consumers")
	flags.IntVar(&credits, "consumer-credits", credits, "")
	check(flags.Parse(os.Args[2:]))
	var group sync.WaitGroup
	start := func(work func()) {
		group.Add(1)
		go func() {
			defer group.Done()
			work()
		}()
	}
	for publisher := range *publishers {
		start(func() { publish(context.Background(), publisher) })
	}
	for range *consumers {
		start(func() { consume(context.Background()) })
	}
	group.Wait()
	check(lines.Flush())
	fmt.Fprintln(os.Stderr, "accepted", published.Load())
}
