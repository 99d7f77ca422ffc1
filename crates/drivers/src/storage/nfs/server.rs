//! Is there an NFSv4 server? Asked by the one call that changes nothing and needs no permission: `NULL`
//! (RFC 5531, RFC 7530 15.1), over TCP, without a portmapper. It leaves neither a client id nor a mount.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};

const PORT: u16 = 2049;

/// Asks nobody for a reply that is longer, in bytes.
const LONGEST: u32 = 1024;

const XID: u32 = 0x756e_6472;
const LAST_FRAGMENT: u32 = 1 << 31;
const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
const NFS: u32 = 100_003;
const VERSION: u32 = 4;
const NULL: u32 = 0;
const AUTH_NONE: u32 = 0;
const ACCEPTED: u32 = 0;
const SUCCESS: u32 = 0;

/// Where the server of `source` is asked, by the mount's options; `None` if not over TCP.
pub(super) fn address(source: &str, options: &str) -> Option<(String, u16)> {
    let (server, _) = source.rsplit_once(":/")?;
    let server = server.trim_start_matches('[').trim_end_matches(']').to_owned();
    let value = |key: &str| options.split(',').filter_map(|option| option.strip_prefix(key)).next_back();
    let rdma = options.split(',').any(|option| option == "rdma");
    if rdma || value("proto=").is_some_and(|proto| !matches!(proto, "tcp" | "tcp6")) {
        return None;
    }
    // 0 has `mount` ask a portmapper, which NFSv4 does not need.
    let port = value("port=").and_then(|port| port.parse().ok()).filter(|port| *port != 0);
    Some((server, port.unwrap_or(PORT)))
}

/// Confirms that the server's name resolves and that an NFSv4 server answers there, all within `limit`.
///
/// # Errors
/// What happened, for people.
pub(super) async fn answers((server, port): &(String, u16), limit: Duration) -> Result<(), String> {
    let at = format!("{server} port {port}");
    let until = Instant::now() + limit;
    let found = match timeout_at(until, lookup_host((server.as_str(), *port))).await {
        Ok(Ok(found)) => found.collect::<Vec<_>>(),
        Ok(Err(error)) => {
            return Err(format!(
                "{server} does not resolve on this host ({error}): correct source, or this host's DNS or /etc/hosts"
            ));
        }
        Err(_) => {
            return Err(format!(
                "{server} did not resolve within {limit:?}: does this host's DNS server answer?"
            ));
        }
    };
    let asked = async {
        let mut stream = TcpStream::connect(found.as_slice()).await?;
        ask(&mut stream).await
    };
    match timeout_at(until, asked).await {
        Ok(Ok(None)) => Ok(()),
        Ok(Ok(Some(why))) => Err(format!("{at} {why}")),
        Ok(Err(error)) => Err(format!("no NFS server answers at {at}: {error}")),
        Err(_) => Err(format!("no NFS server answers at {at} within {limit:?}")),
    }
}

/// What is wrong with the answer; `None` if it is that of an NFSv4 server.
async fn ask(stream: &mut TcpStream) -> io::Result<Option<&'static str>> {
    let words =
        [XID, CALL, RPC_VERSION, NFS, VERSION, NULL, AUTH_NONE, 0, AUTH_NONE, 0].map(u32::to_be_bytes);
    let call = words.concat();
    let length = LAST_FRAGMENT | u32::try_from(call.len()).unwrap_or_default();
    stream.write_all(&[length.to_be_bytes().as_slice(), &call].concat()).await?;
    let length = stream.read_u32().await? & !LAST_FRAGMENT;
    if length > LONGEST {
        return Ok(Some("does not speak NFS"));
    }
    let mut reply = vec![0; usize::try_from(length).unwrap_or_default()];
    stream.read_exact(&mut reply).await?;
    Ok(judge(&reply))
}

fn judge(reply: &[u8]) -> Option<&'static str> {
    let word = |at: usize| reply.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
    if (word(0), word(4)) != (Some(XID), Some(REPLY)) {
        return Some("does not speak NFS");
    }
    match word(8) {
        Some(ACCEPTED) => {}
        Some(_) => return Some("refuses every call: see the server's security flavours"),
        None => return Some("does not speak NFS"),
    }
    // What the server verifies itself by stands before the result.
    let verifier = word(16).and_then(|length| usize::try_from(length).ok()).filter(|length| *length <= 400);
    match verifier.and_then(|length| word(20 + length.next_multiple_of(4))) {
        Some(SUCCESS) => None,
        Some(_) => Some("serves no NFSv4: switch NFSv4.1 on there"),
        None => Some("does not speak NFS"),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// A server that answers a call with these words after the transaction's id.
    async fn server(reply: Option<&'static [u32]>) -> (String, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut call = [0; 44];
            stream.read_exact(&mut call).await.unwrap();
            let expected = [LAST_FRAGMENT | 40, XID, 0, 2, 100_003, 4, 0, 0, 0, 0, 0].map(u32::to_be_bytes);
            assert_eq!(call.as_slice(), expected.concat());
            let Some(reply) = reply else { return std::future::pending::<()>().await };
            let words = [&[LAST_FRAGMENT | (4 + reply.len() as u32 * 4), XID], reply].concat();
            let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
            stream.write_all(&bytes).await.unwrap();
        });
        ("127.0.0.1".to_owned(), port)
    }

    #[tokio::test]
    async fn a_server_is_told_from_what_is_none() {
        for (reply, said) in [
            // Accepted, no verifier, success; and the same behind a verifier of five bytes.
            ([REPLY, 0, 0, 0, 0].as_slice(), None),
            (&[REPLY, 0, 6, 5, 0, 0, 0], None),
            // The program is not there, or in versions 2 to 3 only.
            (&[REPLY, 0, 0, 0, 1], Some("serves no NFSv4")),
            (&[REPLY, 0, 0, 0, 2, 2, 3], Some("serves no NFSv4")),
            (&[REPLY, 1, 1, 1], Some("refuses every call")),
            (&[CALL, 2, 100_003, 4, 0], Some("does not speak NFS")),
            (&[REPLY, 0, 0, u32::MAX, 0], Some("does not speak NFS")),
            (&[REPLY], Some("does not speak NFS")),
        ] {
            let found = answers(&server(Some(reply)).await, LIMIT).await;
            match (said, &found) {
                (None, Ok(())) => {}
                (Some(said), Err(why)) if why.contains(said) => {}
                _ => panic!("{reply:?}: {found:?}, not {said:?}"),
            }
        }
    }

    #[tokio::test]
    async fn nobody_is_waited_for() {
        let why = answers(&server(None).await, Duration::from_millis(100)).await.unwrap_err();
        assert!(why.contains("within 100ms"), "{why}");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = ("127.0.0.1".to_owned(), listener.local_addr().unwrap().port());
        drop(listener);
        let why = answers(&at, LIMIT).await.unwrap_err();
        assert!(why.contains("no NFS server answers") && why.contains(&format!("port {}", at.1)), "{why}");
    }

    #[test]
    fn the_server_is_where_the_mount_would_go() {
        for (source, options, expected) in [
            ("svm1:/k", "vers=4.1,proto=tcp,hard", Some(("svm1", 2049))),
            ("[fd00::1]:/k", "proto=tcp6,port=20490", Some(("fd00::1", 20490))),
            ("svm1:/k", "port=0", Some(("svm1", 2049))),
            ("svm1:/k", "proto=rdma", None),
            ("svm1:/k", "vers=4.2,rdma", None),
        ] {
            let expected = expected.map(|(server, port)| (server.to_owned(), port));
            assert_eq!(address(source, options), expected, "{source} {options}");
        }
    }
}
