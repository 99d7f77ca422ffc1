//! Whoever reaches the agent's pages can neither stop them nor make them grow: heads that never end, garbage,
//! answers that nobody reads, and as many connections as one host can make.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drivers::clients::own::OwnClients;
use fakes::World;
use jiff::{SignedDuration, Timestamp};
use recovery::cycle::Cycle;
use recovery::status::Status;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use understudy::http;
use understudy::telemetry::Metrics;

/// More than a head may take, on a busy machine.
const LONG: Duration = Duration::from_secs(20);

async fn pages() -> (SocketAddr, JoinHandle<std::io::Result<()>>, watch::Sender<Status>) {
    let world = World::new();
    let first = Cycle::new(World::topology(), World::policy(), world.ports()).1.borrow().clone();
    // It ticks until long after the test.
    let at = Some(Timestamp::now() + SignedDuration::from_mins(10));
    let (set, seen) = watch::channel(Status { at, ..first });
    let listener = http::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let own = Arc::new(OwnClients::new("standby-1".into(), BTreeSet::new(), BTreeSet::new()));
    let peers = http::peer_pages(watch::channel(http::ForPeers { own, cluster: Arc::new(world) }).1);
    (address, tokio::spawn(http::serve(listener, None, seen, Arc::new(Metrics::default()), peers)), set)
}

/// From another address of the loopback than everybody else's: a peer.
async fn answers(to: SocketAddr) -> bool {
    let ask = async {
        let socket = TcpSocket::new_v4()?;
        socket.bind("127.0.0.2:0".parse::<SocketAddr>().unwrap())?;
        let mut stream = socket.connect(to).await?;
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = timeout(Duration::from_secs(5), ask).await;
    answer.is_ok_and(|answer| answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")))
}

/// Until the other side closes it, or for [`LONG`].
async fn closed(mut stream: TcpStream) -> Option<Duration> {
    let begun = Instant::now();
    let mut rest = Vec::new();
    let end = timeout(LONG, stream.read_to_end(&mut rest)).await;
    end.ok().map(|_| begun.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_never_ends_is_not_waited_for() {
    let (address, server, _set) = pages().await;
    let mut slow = TcpStream::connect(address).await.unwrap();
    let silent = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"GET /livez HTTP/1.1\r\n").await.unwrap();
    let (reading, mut writing) = slow.into_split();
    let dribble = tokio::spawn(async move {
        while writing.write_all(b"x-a: b\r\n").await.is_ok() {
            sleep(Duration::from_millis(200)).await;
        }
    });
    assert!(answers(address).await);
    let mut reading = reading;
    let mut rest = Vec::new();
    timeout(LONG, reading.read_to_end(&mut rest)).await.expect("it is closed").ok();
    assert!(closed(silent).await.is_some(), "one that says nothing is closed as well");
    dribble.abort();
    assert!(answers(address).await);
    server.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_and_heads_without_measure_are_closed() {
    let (address, server, _set) = pages().await;
    let long = [&b"GET /livez HTTP/1.1\r\nx: "[..], &vec![b'a'; 1 << 20]].concat();
    let many: Vec<u8> = (0..10_000).flat_map(|n| format!("h{n}: v\r\n").into_bytes()).collect();
    let many = [&b"GET /livez HTTP/1.1\r\n"[..], &many].concat();
    let binary: Vec<u8> = (0..100_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    for sent in [b"\0\0\0\0".to_vec(), b"\x16\x03\x01\x02\x00".repeat(100), long, many, binary] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The other side may close before it has read all of it.
        let _ = timeout(LONG, stream.write_all(&sent)).await.expect("it is read or refused");
        assert!(closed(stream).await.is_some());
        assert!(answers(address).await);
    }
    server.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_cannot_keep_the_others_out() {
    let (address, server, _set) = pages().await;
    let mut held = Vec::new();
    for _ in 0..400 {
        held.push(TcpStream::connect(address).await.unwrap());
    }
    assert!(answers(address).await, "a peer is answered meanwhile");
    // What is too much is closed at once, and what is held is closed in the end.
    let begun = Instant::now();
    let last = closed(held.pop().unwrap()).await.unwrap();
    assert!(last < Duration::from_secs(3), "{last:?}");
    for stream in held {
        assert!(closed(stream).await.is_some());
    }
    assert!(begun.elapsed() < LONG);
    let mut again = TcpStream::connect(address).await.unwrap();
    again.write_all(b"GET /livez HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    again.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains(" 200 "), "it is answered again: {answer}");
    server.abort();
}
