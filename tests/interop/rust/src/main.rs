//! Conversations of fe2o3-amqp with a node over AMQP 1.0. The arguments are the port of a node and an empty queue. Each
//! conversation is a line: "pass NAME", or "fail NAME: ERROR".

use std::error::Error;
use std::time::Duration;

use fe2o3_amqp::link::{Receiver, Sender};
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::messaging::{Modified, Outcome};
use fe2o3_amqp::{Connection, Session};
use tokio::time::timeout;

type Done = Result<(), Box<dyn Error>>;

const WAIT: Duration = Duration::from_secs(20);

fn check(is_true: bool, found: impl std::fmt::Debug) -> Done {
    if is_true {
        Ok(())
    } else {
        Err(format!("{found:?}").into())
    }
}

async fn in_order(mut session: SessionHandle<()>, address: &str) -> Done {
    let mut sender = Sender::attach(&mut session, "sender", address).await?;
    let mut outcomes = Vec::new();
    for number in 0..1000u32 {
        outcomes.push(sender.send_batchable(number).await?);
    }
    for outcome in outcomes {
        let outcome = timeout(WAIT, outcome).await??;
        check(matches!(outcome, Outcome::Accepted(_)), outcome)?;
    }
    let mut receiver = Receiver::attach(&mut session, "receiver", address).await?;
    for number in 0..1000u32 {
        let delivery = timeout(WAIT, receiver.recv::<u32>()).await??;
        check(*delivery.body() == number, delivery.body())?;
        receiver.accept(&delivery).await?;
    }
    sender.close().await?;
    receiver.close().await?;
    session.end().await?;
    Ok(())
}

async fn large(mut session: SessionHandle<()>, address: &str) -> Done {
    let body = "large ".repeat(1 << 18);
    let mut sender = Sender::attach(&mut session, "sender", address).await?;
    sender.send(body.clone()).await?;
    let mut receiver = Receiver::attach(&mut session, "receiver", address).await?;
    let delivery = timeout(WAIT, receiver.recv::<String>()).await??;
    check(*delivery.body() == body, delivery.body().len())?;
    receiver.accept(&delivery).await?;
    sender.close().await?;
    receiver.close().await?;
    session.end().await?;
    Ok(())
}

async fn outcomes(mut session: SessionHandle<()>, address: &str) -> Done {
    let mut sender = Sender::attach(&mut session, "sender", address).await?;
    sender.send("again").await?;
    let mut receiver = Receiver::attach(&mut session, "receiver", address).await?;
    let delivery = timeout(WAIT, receiver.recv::<String>()).await??;
    receiver.release(&delivery).await?;
    let delivery = timeout(WAIT, receiver.recv::<String>()).await??;
    let failed = Modified {
        delivery_failed: Some(true),
        undeliverable_here: None,
        message_annotations: None,
    };
    receiver.modify(&delivery, failed).await?;
    let delivery = timeout(WAIT, receiver.recv::<String>()).await??;
    let count = delivery
        .message()
        .header
        .as_ref()
        .map(|header| header.delivery_count);
    check(count == Some(1), count)?;
    receiver.reject(&delivery, None).await?;
    sender.close().await?;
    receiver.close().await?;
    session.end().await?;
    Ok(())
}

async fn unknown_queue(mut session: SessionHandle<()>, _address: &str) -> Done {
    let refused = Sender::attach(&mut session, "sender", "/queues/no-such-queue")
        .await
        .err();
    check(format!("{refused:?}").contains("no-such-queue"), refused)?;
    session.end().await?;
    Ok(())
}

// In a single thread: with several, the client loses an outcome that comes before it expects it.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Done {
    let arguments: Vec<String> = std::env::args().collect();
    let url = format!("amqp://guest:guest@127.0.0.1:{}", arguments[1]);
    let address = format!("/queues/{}", arguments[2]);
    macro_rules! converse {
        ($name:literal, $conversation:ident) => {
            let mut connection = Connection::open($name, url.as_str()).await?;
            let session = Session::begin(&mut connection).await?;
            match $conversation(session, &address).await {
                Ok(()) => println!("pass {}", $name),
                Err(error) => println!("fail {}: {error}", $name),
            }
            connection.close().await?;
        };
    }
    converse!("in order", in_order);
    converse!("large", large);
    converse!("outcomes", outcomes);
    converse!("unknown queue is refused", unknown_queue);
    Ok(())
}
