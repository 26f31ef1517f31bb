// Publish 2,000 numbered messages and consume them over AMQP 1.0, on nodes that may be killed.
//
//   dotnet run -- [HOST:PORT...]      each node; by default the nodes of `qq up`
//
// It needs: dotnet add package RabbitMQ.AMQP.Client --version 1.2.0

using System.Collections.Concurrent;
using RabbitMQ.AMQP.Client;
using RabbitMQ.AMQP.Client.Impl;

const string Queue = "survive-dotnet10";
const int Messages = 2000;
var answer = TimeSpan.FromSeconds(5);

var nodes = args.Length > 0 ? args : ["127.0.0.1:5672", "127.0.0.1:5673", "127.0.0.1:5674"];
var settings = ConnectionSettingsBuilder.Create()
    .Uris(nodes.Select(node => new Uri($"amqp://guest:guest@{node}")).ToList()) // each attempt takes any of them
    .ContainerId(Queue)
    .RecoveryConfiguration(new RecoveryConfiguration().BackOffDelayPolicy(new EachSecond()))
    .Build();
var environment = AmqpEnvironment.Create(settings);
// The client connects again by itself. It declares nothing anew, because the queue is durable.
var connection = await Repeated(() => environment.CreateConnectionAsync());
await Repeated(() => connection.Management().Queue(Queue).Type(QueueType.QUORUM).DeclareAsync());

var seen = new ConcurrentDictionary<string, bool>();
await Repeated(() => connection.ConsumerBuilder().Queue(Queue).InitialCredits(100).MessageHandler((context, message) =>
{
    seen[message.BodyAsString()] = true; // the work: doing it twice does no harm
    context.Accept();
    return Task.CompletedTask;
}).BuildAndStartAsync());

var publisher = await Repeated(() => connection.PublisherBuilder().Queue(Queue).BuildAsync());
for (var number = 1; number <= Messages; number++)
{
    while (!await IsAccepted($"{number}"))
    {
        // Whether this message is stored may be unknown, so it is published again: it may come twice.
        await Task.Delay(500);
    }
}
Console.WriteLine($"{Messages} messages are confirmed");
while (seen.Count < Messages)
{
    await Task.Delay(10);
}
await Task.Delay(500); // the outcomes of the last messages are under way
await environment.CloseAsync();
Console.WriteLine($"{seen.Count} messages are consumed");

async Task<bool> IsAccepted(string text)
{
    try
    {
        var result = await publisher.PublishAsync(new AmqpMessage(text)).WaitAsync(answer);
        return result.Outcome.State == OutcomeState.Accepted;
    }
    catch (Exception error)
    {
        Console.WriteLine($"publisher: {error.Message} at message {text}");
        return false;
    }
}

// Return the result of an action. Repeat it when its node dies meanwhile.
async Task<T> Repeated<T>(Func<Task<T>> action)
{
    while (true)
    {
        try
        {
            return await action().WaitAsync(answer);
        }
        catch (Exception error)
        {
            Console.WriteLine($"again: {error.Message}");
            await Task.Delay(1000);
        }
    }
}

// Try for ever: the default policy ends after 12 attempts.
class EachSecond : IBackOffDelayPolicy
{
    public int CurrentAttempt { get; private set; }

    public int Delay()
    {
        CurrentAttempt++;
        return 1000;
    }

    public void Reset() => CurrentAttempt = 0;

    public bool IsActive() => true;
}
