//! Publish 2,000 numbered messages and consume them, on nodes that may be killed.
//!
//!     cargo run -- [HOST:PORT...]      each node; by default the nodes of `qq up`

use std::{collections::HashSet, env, time::Duration};

use futures_lite::StreamExt;
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Result,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
        ConfirmSelectOptions, QueueDeclareOptions,
    },
    types::{AMQPValue, FieldTable},
};
use tokio::time::sleep;

const QUEUE: &str = "survive-rust";
const MESSAGES: usize = 2000;
const PAUSE: Duration = Duration::from_secs(1);

/// Return a channel of a new connection to any node, with the queue declared. Try until a node answers.
async fn connect(nodes: &[String]) -> (Connection, Channel) {
    let mut shuffled = nodes.to_vec();
    loop {
        fastrand::shuffle(&mut shuffled); // so that clients spread over the nodes
        for node in &shuffled {
            match open(node).await {
                Ok(opened) => return opened,
                Err(error) => println!("cannot connect to {node}: {error}"),
            }
        }
        sleep(PAUSE).await;
    }
}

async fn open(node: &str) -> Result<(Connection, Channel)> {
    // Heartbeats (s) notice a host that is gone, which refuses no connection either: hence the timeout (ms).
    let uri = format!("amqp://guest:guest@{node}/%2f?heartbeat=5&connection_timeout=5000");
    let connection = Connection::connect(&uri, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    channel.queue_declare(QUEUE.into(), QueueDeclareOptions::durable(), arguments).await?;
    Ok((connection, channel))
}

/// Publish all messages, and return when each is confirmed.
async fn publish(nodes: &[String]) {
    let mut number = 1;
    while number <= MESSAGES {
        let (_connection, channel) = connect(nodes).await;
        if let Err(error) = publish_from(&mut number, &channel).await {
            // Whether this message is stored is unknown, so it is published again: it may come twice.
            println!("publisher: {error} at message {number}");
        }
    }
    println!("{MESSAGES} messages are confirmed");
}

async fn publish_from(number: &mut usize, channel: &Channel) -> Result<()> {
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    while *number <= MESSAGES {
        let confirm = channel
            .basic_publish(
                "".into(),
                QUEUE.into(),
                BasicPublishOptions::default(),
                number.to_string().as_bytes(),
                BasicProperties::default().with_delivery_mode(2), // persistent
            )
            .await?;
        match confirm.await? {
            Confirmation::Nack(_) => sleep(PAUSE).await, // a full queue has refused it: publish it again
            _ => *number += 1,
        }
    }
    Ok(())
}

/// Return when each message has come.
async fn consume(nodes: &[String]) {
    let mut seen = HashSet::new();
    while seen.len() < MESSAGES {
        let (_connection, channel) = connect(nodes).await;
        if let Err(error) = consume_into(&mut seen, &channel).await {
            println!("consumer: {error} after {} messages", seen.len());
        }
    }
    println!("{MESSAGES} messages are consumed");
}

async fn consume_into(seen: &mut HashSet<Vec<u8>>, channel: &Channel) -> Result<()> {
    channel.basic_qos(100, BasicQosOptions::default()).await?;
    let mut consumer = channel
        .basic_consume(QUEUE.into(), "".into(), BasicConsumeOptions::default(), FieldTable::default())
        .await?;
    while let Some(delivery) = consumer.next().await {
        let delivery = delivery?;
        seen.insert(delivery.data.clone()); // the work: doing it twice does no harm
        delivery.ack(BasicAckOptions::default()).await?;
        if seen.len() == MESSAGES {
            return Ok(());
        }
    }
    // A consumer that the broker cancels has a stream that ends.
    println!("consumer: cancelled, because its queue was deleted: declared and consumed again");
    Ok(())
}

#[tokio::main]
async fn main() {
    let mut nodes: Vec<String> = env::args().skip(1).collect();
    if nodes.is_empty() {
        nodes = [5672, 5673, 5674].map(|port| format!("127.0.0.1:{port}")).to_vec();
    }
    tokio::join!(publish(&nodes), consume(&nodes));
}
