// Publish 2,000 numbered messages and consume them, on nodes that may be killed.
//
//   dotnet run -- [HOST:PORT...]      each node; by default the nodes of `qq up`
//
// It needs: dotnet add package RabbitMQ.Client --version 7.2.1

using System.Text;
using RabbitMQ.Client;
using RabbitMQ.Client.Events;
using RabbitMQ.Client.Exceptions;

const string Queue = "survive-dotnet";
const int Messages = 2000;

var nodes = args.Length > 0 ? args : ["127.0.0.1:5672", "127.0.0.1:5673", "127.0.0.1:5674"];
var endpoints = nodes.Select(AmqpTcpEndpoint.Parse).ToList();
var factory = new ConnectionFactory
{
    UserName = "guest",
    Password = "guest",
    RequestedHeartbeat = TimeSpan.FromSeconds(5), // notice a host that is gone
    RequestedConnectionTimeout = TimeSpan.FromSeconds(5), // a host that is gone refuses nothing
    AutomaticRecoveryEnabled = false, // the loops below connect again
};

await Task.WhenAll(Publish(), Consume());

// Return a new connection to any node. The client tries the endpoints in a random order. Try for ever.
async Task<IConnection> Connect()
{
    while (true)
    {
        try
        {
            return await factory.CreateConnectionAsync(endpoints);
        }
        catch (Exception error) when (IsLost(error))
        {
            Console.WriteLine($"cannot connect: {error.Message}");
            await Task.Delay(1000);
        }
    }
}

static bool IsLost(Exception error) =>
    error is RabbitMQClientException or IOException or TimeoutException or OperationCanceledException;

static Task Declare(IChannel channel) =>
    channel.QueueDeclareAsync(Queue, durable: true, exclusive: false, autoDelete: false,
        arguments: new Dictionary<string, object?> { ["x-queue-type"] = "quorum" });

async Task Publish()
{
    var number = 1;
    while (number <= Messages)
    {
        await using var connection = await Connect();
        try
        {
            // With both options BasicPublishAsync returns when the message is confirmed.
            await using var channel = await connection.CreateChannelAsync(
                new CreateChannelOptions(publisherConfirmationsEnabled: true, publisherConfirmationTrackingEnabled: true));
            await Declare(channel);
            while (number <= Messages)
            {
                await channel.BasicPublishAsync("", Queue, mandatory: false,
                    new BasicProperties { Persistent = true }, Encoding.UTF8.GetBytes($"{number}"));
                number++;
            }
        }
        catch (Exception error) when (IsLost(error))
        {
            // Refused by a full queue (PublishException), or unknown: it is published again, and may come twice.
            Console.WriteLine($"publisher: {error.Message} at message {number}");
            await Task.Delay(1000);
        }
    }
    Console.WriteLine($"{Messages} messages are confirmed");
}

async Task Consume()
{
    var seen = new HashSet<string>();
    while (seen.Count < Messages)
    {
        await using var connection = await Connect();
        var ended = new TaskCompletionSource<string>(TaskCreationOptions.RunContinuationsAsynchronously);
        try
        {
            await using var channel = await connection.CreateChannelAsync();
            await Declare(channel);
            await channel.BasicQosAsync(0, 100, false);
            var consumer = new AsyncEventingBasicConsumer(channel);
            consumer.ReceivedAsync += async (_, delivery) =>
            {
                seen.Add(Encoding.UTF8.GetString(delivery.Body.Span)); // the work: doing it twice does no harm
                await channel.BasicAckAsync(delivery.DeliveryTag, multiple: false);
                if (seen.Count == Messages)
                {
                    ended.TrySetResult("all messages have come");
                }
            };
            // Raised when the broker cancels the consumer, because its queue was deleted, and when the connection is lost.
            consumer.UnregisteredAsync += (_, _) =>
            {
                ended.TrySetResult($"cancelled or lost after {seen.Count} messages");
                return Task.CompletedTask;
            };
            await channel.BasicConsumeAsync(Queue, autoAck: false, consumer);
            Console.WriteLine($"consumer: {await ended.Task}");
        }
        catch (Exception error) when (IsLost(error))
        {
            Console.WriteLine($"consumer: {error.Message} after {seen.Count} messages");
        }
    }
    Console.WriteLine($"{Messages} messages are consumed");
}
