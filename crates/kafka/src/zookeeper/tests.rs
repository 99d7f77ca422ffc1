//! Sessions with a server that says what a test has it say. The bed's stories speak to a real one.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;
use crate::security::{Mechanism, Protocol, SaslConfig, SecurityConfig};

const LIMIT: Duration = Duration::from_secs(2);

fn framed(parts: &[&[u8]]) -> Vec<u8> {
    let mut frame = BytesMut::new();
    put_bytes(&mut frame, &parts.concat());
    frame.to_vec()
}

/// To the `id`th request.
fn reply(id: i32, code: i32, said: &[u8]) -> Vec<u8> {
    framed(&[&id.to_be_bytes(), &9_i64.to_be_bytes(), &code.to_be_bytes(), said])
}

fn session(lives: i32) -> Vec<u8> {
    framed(&[
        &0_i32.to_be_bytes(),
        &lives.to_be_bytes(),
        &7_i64.to_be_bytes(),
        &16_i32.to_be_bytes(),
        &PASSWORD,
        &[0],
    ])
}

fn text(text: &str) -> Vec<u8> {
    framed(&[text.as_bytes()])
}

/// A server that answers one request after the other with these, and what it was asked.
async fn server(answers: Vec<Vec<u8>>) -> (Endpoint, JoinHandle<Vec<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = Endpoint { host: "127.0.0.1".to_owned(), port: listener.local_addr().unwrap().port() };
    let told = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = Vec::new();
        for answer in answers {
            let length = stream.read_i32().await.unwrap();
            let mut request = vec![0; usize::try_from(length).unwrap()];
            stream.read_exact(&mut request).await.unwrap();
            asked.push(request);
            // In two pieces, as a network may have it.
            let (head, tail) = answer.split_at(answer.len() / 2);
            for piece in [head, tail] {
                stream.write_all(piece).await.unwrap();
                stream.flush().await.unwrap();
                tokio::task::yield_now().await;
            }
        }
        asked
    });
    (at, told)
}

async fn opened(answers: Vec<Vec<u8>>) -> (ZooKeeper, JoinHandle<Vec<Vec<u8>>>) {
    let all = std::iter::once(session(4000)).chain(answers).collect();
    let (at, asked) = server(all).await;
    (ZooKeeper::open(&Dialer::plaintext(), &at, LIMIT).await.unwrap(), asked)
}

fn stat(session: i64) -> Vec<u8> {
    [vec![1; 44], session.to_be_bytes().to_vec(), vec![0; 16]].concat()
}

#[tokio::test]
async fn what_is_registered_is_read_and_what_is_not_there_is_none() {
    let ids = [&2_i32.to_be_bytes()[..], &text("1"), &text("12")].concat();
    let broker = [text("{\"host\":\"b1\"}"), stat(0x1000_0000_0000_002a)].concat();
    let answers = vec![
        reply(1, 0, &text("/brokers/ids")),
        reply(2, 0, &ids),
        reply(3, 0, &broker),
        reply(4, NO_NODE, &[]),
        reply(5, -102, &[]),
    ];
    let (mut session, _) = opened(answers).await;
    session.sync("/brokers/ids").await.unwrap();
    assert_eq!(session.children("/brokers/ids").await.unwrap().unwrap(), ["1", "12"]);
    let node = session.get("/brokers/ids/1").await.unwrap().unwrap();
    assert_eq!((&node.data[..], node.session), (&b"{\"host\":\"b1\"}"[..], 0x1000_0000_0000_002a));
    assert_eq!(session.get("/controller").await.unwrap(), None);
    let error = session.get("/controller").await.unwrap_err().to_string();
    assert!(error.contains("getData /controller with error -102 (NoAuth"), "{error}");
}

/// The answer to a multi of two: each with a header, then one that ends it.
fn multi(results: [i32; 2]) -> Vec<u8> {
    let one = |code: i32| match code {
        0 => [&2_i32.to_be_bytes()[..], &[0], &0_i32.to_be_bytes()].concat(),
        code => [&(-1_i32).to_be_bytes()[..], &[0], &code.to_be_bytes(), &code.to_be_bytes()].concat(),
    };
    let end = [&(-1_i32).to_be_bytes()[..], &[1], &(-1_i32).to_be_bytes()].concat();
    [results.map(one).concat(), end].concat()
}

#[tokio::test]
async fn both_are_removed_or_none_is() {
    let answers = vec![
        reply(1, 0, &multi([0, 0])),
        reply(2, NO_NODE, &multi([-2, NO_NODE])),
        reply(3, 0, &multi([-2, NO_NODE])),
        reply(4, 0, &multi([-102, -2])),
    ];
    let (mut session, asked) = opened(answers).await;
    let both = ["/brokers/ids/1", "/controller"];
    assert!(session.remove(&both).await.unwrap());
    assert!(!session.remove(&both).await.unwrap(), "as ZooKeeper says it");
    assert!(!session.remove(&both).await.unwrap(), "as its list says it");
    let error = session.remove(&both).await.unwrap_err().to_string();
    assert!(error.contains("delete /brokers/ids/1, /controller with error -102"), "{error}");
    // The server is asked for all of them in one request.
    let request = String::from_utf8_lossy(&asked.await.unwrap()[1]).into_owned();
    assert!(both.iter().all(|path| request.contains(path)), "{request:?}");
}

#[tokio::test]
async fn who_is_no_zookeeper_or_has_no_quorum_is_told() {
    let opening = async |answers: Vec<Vec<u8>>| {
        let (at, _server) = server(answers).await;
        ZooKeeper::open(&Dialer::plaintext(), &at, LIMIT).await.err().unwrap().to_string()
    };
    // It ends the connection once it has taken the first words.
    assert!(opening(vec![Vec::new()]).await.contains("closed the connection without answering connect"));
    assert!(opening(vec![session(0)]).await.contains("gives no session"));
    assert!(opening(vec![b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()]).await.contains("longer than any"));
    assert!(opening(vec![framed(&[&[0; 5]])]).await.contains("none of ZooKeeper's"));
}

#[tokio::test]
async fn a_login_that_is_refused_or_proves_nothing_of_the_server_is_told() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "planted-secret\n").unwrap();
    let sasl = SaslConfig::with_password(Mechanism::DigestMd5, "kafka", file.path().to_owned());
    let config = SecurityConfig {
        protocol: Protocol::SaslPlaintext,
        ca: None,
        certificate: None,
        key: None,
        truststore: None,
        keystore: None,
        sasl: Some(sasl),
    };
    let dialer = Dialer::secured(&config, "cluster.zookeeper_security");
    let challenge = text("realm=\"zk-sasl-md5\",nonce=\"n\",charset=utf-8,algorithm=md5-sess");
    let opening = async |last: Vec<u8>| {
        let (at, asked) = server(vec![session(4000), reply(1, 0, &challenge), last]).await;
        let why = ZooKeeper::open(&dialer, &at, LIMIT).await.err().unwrap().to_string();
        let asked = asked.await.unwrap().concat();
        assert!(!String::from_utf8_lossy(&asked).contains("planted-secret"), "the password was sent");
        assert!(String::from_utf8_lossy(&asked).contains("username=\"kafka\",realm=\"zk-sasl-md5\""));
        why
    };
    let forged = opening(reply(2, 0, &text("rspauth=00000000000000000000000000000000"))).await;
    assert!(forged.contains("does not show that it knows the password itself"), "{forged}");
    for code in [AUTH_FAILED, MUST_LOG_IN] {
        let refused = opening(reply(2, code, &[])).await;
        let told =
            format!("put it into {} (cluster.zookeeper_security.sasl.password_file)", file.path().display());
        assert!(
            refused.contains("the password of user kafka is refused") && refused.contains(&told),
            "{refused}"
        );
    }
}

#[test]
fn what_is_cut_short_is_no_answer() {
    let whole = [&2_i32.to_be_bytes()[..], &text("1"), &text("12")].concat();
    for length in 0..whole.len() {
        assert_eq!(children(Bytes::copy_from_slice(&whole[..length])), None);
    }
    let whole = [text("x"), stat(5)].concat();
    assert_eq!(node(Bytes::from(whole.clone())).map(|node| node.session), Some(5));
    for length in 0..whole.len() - 16 {
        assert_eq!(node(Bytes::copy_from_slice(&whole[..length])), None, "{length}");
    }
    let whole = multi([0, -101]);
    for length in 0..whole.len() {
        assert_eq!(failed(Bytes::copy_from_slice(&whole[..length])), None);
    }
    assert_eq!(children(Bytes::from_static(&[0x7f, 0xff, 0xff, 0xff])), None, "a length that nobody means");
}
