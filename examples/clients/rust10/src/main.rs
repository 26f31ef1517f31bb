//! Publish 2,000 numbered messages and consume them over AMQP 1.0, on nodes that may be killed.
//!
//!     cargo run -- [HOST:PORT...]      each node; by default the nodes of `qq up`

use std::{collections::HashSet, env, error::Error, time::Duration};

use fe2o3_amqp::{
    Connection, Receiver, Sender, Session,
    connection::ConnectionHandle,
    link::receiver::CreditMode,
    session::SessionHandle,
    types::messaging::{Header, Message, Outcome},
};
use tokio::time::{sleep, timeout};

const QUEUE: &str = "/queues/survive-rust10";
const MESSAGES: usize = 2000;
const PAUSE: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(5); // a host that is gone refuses nothing

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Return a session of a new connection to any node. Try until a node answers.
async fn connect(nodes: &[String], name: &str) -> (ConnectionHandle<()>, SessionHandle<()>) {
    let mut shuffled = nodes.to_vec();
    loop {
        fastrand::shuffle(&mut shuffled); // so that clients spread over the nodes
        for node in &shuffled {
            match open(node, name).await {
                Ok(opened) => return opened,
                Err(error) => println!("cannot connect to {node}: {error}"),
            }
        }
        sleep(PAUSE).await;
    }
}

async fn open(node: &str, name: &str) -> Result<(ConnectionHandle<()>, SessionHandle<()>)> {
    let uri = format!("amqp://guest:guest@{node}");
    let opening = Connection::builder()
        .container_id(name)
        .idle_time_out(10_000u32) // notice a host that is gone
        .open(uri.as_str());
    let mut connection = timeout(ANSWER, opening).await??;
    let session = timeout(ANSWER, Session::begin(&mut connection)).await??;
    Ok((connection, session))
}

/// Publish all messages, each until it is accepted.
async fn publish(nodes: &[String]) {
    let mut number = 1;
    while number <= MESSAGES {
        let (_connection, mut session) = connect(nodes, "publisher").await;
        if let Err(error) = publish_from(&mut number, &mut session).await {
            // Whether this message is stored is unknown, so it is published again: it may come twice.
            println!("publisher: {error} at message {number}");
        }
    }
    println!("{MESSAGES} messages are confirmed");
}

async fn publish_from(number: &mut usize, session: &mut SessionHandle<()>) -> Result<()> {
    let mut sender = timeout(ANSWER, Sender::attach(session, "publisher", QUEUE)).await??;
    while *number <= MESSAGES {
        let header = Header { durable: true, ..Default::default() };
        let message = Message::builder().header(header).value(number.to_string()).build();
        match timeout(ANSWER, sender.send(message)).await?? {
            Outcome::Accepted(_) => *number += 1,
            // A full queue has refused it, or the queue is gone: publish it again.
            outcome => {
                println!("publisher: {outcome:?}");
                sleep(PAUSE).await;
            }
        }
    }
    sender.close().await?;
    Ok(())
}

/// Return when each message has come.
async fn consume(nodes: &[String]) {
    let mut seen = HashSet::new();
    while seen.len() < MESSAGES {
        let (_connection, mut session) = connect(nodes, "consumer").await;
        if let Err(error) = consume_into(&mut seen, &mut session).await {
            println!("consumer: {error} after {} messages", seen.len());
        }
    }
    println!("{MESSAGES} messages are consumed");
}

async fn consume_into(seen: &mut HashSet<String>, session: &mut SessionHandle<()>) -> Result<()> {
    let attaching = Receiver::builder()
        .name("consumer")
        .source(QUEUE)
        .credit_mode(CreditMode::Auto(100)) // the prefetch count
        .attach(session);
    let mut receiver = timeout(ANSWER, attaching).await??;
    while seen.len() < MESSAGES {
        let delivery = receiver.recv::<String>().await?;
        seen.insert(delivery.body().clone()); // the work: doing it twice does no harm
        receiver.accept(&delivery).await?;
    }
    receiver.close().await?; // the outcomes are sent before it
    Ok(())
}

// In a single thread: with several, the client loses an outcome that comes before it expects it.
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut nodes: Vec<String> = env::args().skip(1).collect();
    if nodes.is_empty() {
        nodes = [5672, 5673, 5674].map(|port| format!("127.0.0.1:{port}")).to_vec();
    }
    tokio::join!(publish(&nodes), consume(&nodes));
}
