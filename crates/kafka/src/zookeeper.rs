//! The few calls of ZooKeeper that a takeover needs where a cluster has no controllers of its own: who is registered,
//! who is the controller, and the removal of what a dead broker left.
//!
//! Spoken here and not by a client crate: the one that is kept up brings a second runtime's sockets and two dozen crates
//! with it, for five calls in a session of some milliseconds. Jute, ZooKeeper's encoding, is big-endian numbers, and
//! strings and lists with their lengths before them.

mod digest_md5;

pub(crate) use self::digest_md5::directives;

use std::io;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use secrecy::ExposeSecret;
use tokio::time::{Instant, timeout_at};

use crate::Dialer;
use crate::security::Login;
use crate::wire::{Stream, WireError, nonce};
use recovery::model::Endpoint;

/// The longest answer that is read. ZooKeeper's own limit for what a node holds is 1 MiB (`jute.maxbuffer`).
const LONGEST: usize = 4 << 20;
/// What a session is asked to live for once nobody speaks in it: it is closed long before.
const SESSION: i32 = 4_000;
/// The length of a session's password.
const PASSWORD: [u8; 16] = [0; 16];
/// Any version of a node.
const ANY: i32 = -1;
/// There is no such node.
const NO_NODE: i32 = -101;
/// A login was refused.
const AUTH_FAILED: i32 = -115;
/// The same, or none was tried, where every client must log in (`sessionRequireClientSASLAuth`).
const MUST_LOG_IN: i32 = -124;

/// The operations, by ZooKeeper's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Delete = 2,
    GetData = 4,
    GetChildren = 8,
    Sync = 9,
    Multi = 14,
    Sasl = 102,
    Close = -11,
}

/// A node's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZNode {
    /// What it holds.
    pub data: Bytes,
    /// The session that it ends with; 0 for one that stays.
    pub session: i64,
}

/// One session with one server.
pub struct ZooKeeper {
    dialer: Dialer,
    at: Endpoint,
    stream: Stream,
    inbox: BytesMut,
    last: i32,
    until: Instant,
}

impl ZooKeeper {
    /// Begins a session at one server, for calls that all end within `limit`, and logs in there.
    ///
    /// # Errors
    /// See [`WireError`]. A server without a quorum closes the connection.
    pub async fn open(dialer: &Dialer, at: &Endpoint, limit: Duration) -> Result<Self, WireError> {
        let until = Instant::now() + limit;
        let (stream, material) = dialer.stream(at, until).await?;
        let (dialer, at, inbox) = (dialer.clone(), at.clone(), BytesMut::new());
        let mut opened = Self { dialer, at, stream, inbox, last: 0, until };
        opened.begin().await?;
        if let Some(login) = material.as_ref().and_then(|material| material.login.as_ref()) {
            opened.log_in(login).await?;
        }
        Ok(opened)
    }

    async fn begin(&mut self) -> Result<(), WireError> {
        let mut hello = BytesMut::new();
        hello.put_i32(0);
        hello.put_i64(0);
        hello.put_i32(SESSION);
        hello.put_i64(0);
        put_bytes(&mut hello, &PASSWORD);
        hello.put_u8(0);
        self.send(&hello, "connect").await?;
        let mut said = self.frame("connect").await?;
        let (_, lives) = (said.try_get_i32().ok(), said.try_get_i32().ok());
        match lives {
            Some(lives) if lives > 0 => Ok(()),
            Some(_) => Err(self.nonsense("a ZooKeeper that gives no session")),
            None => Err(self.nonsense("its first words are none of ZooKeeper's")),
        }
    }

    /// By DIGEST-MD5. The server's own proof is asked for, too.
    async fn log_in(&mut self, login: &Login) -> Result<(), WireError> {
        let challenge = self.token(login, &[]).await?;
        let (user, password) = (login.config.user(), login.secret.expose_secret());
        let proof = digest_md5::prove(&challenge, user, password, &nonce(&self.at)?);
        let proof = proof.map_err(|why| self.refused(&why))?;
        let answer = self.token(login, proof.message.as_bytes()).await?;
        proof.check(&answer).map_err(|why| self.refused(&why))
    }

    /// One message of the mechanism, and the server's answer.
    async fn token(&mut self, login: &Login, message: &[u8]) -> Result<Bytes, WireError> {
        let mut request = BytesMut::new();
        put_bytes(&mut request, message);
        let (user, (file, key)) = (login.config.user(), login.secret_file());
        match self.call(Op::Sasl, "sasl", &request).await {
            Ok(Ok(mut said)) => get_bytes(&mut said).ok_or_else(|| self.nonsense("a login is cut short")),
            Ok(Err(AUTH_FAILED | MUST_LOG_IN)) => Err(self.refused(&format!(
                "the password of user {user} is refused: put it into {file} ({key}), as user_{user} has it in the \
                 section `Server` of ZooKeeper's JAAS file"
            ))),
            Ok(Err(code)) => Err(self.no("sasl", &format!("as {user}"), code)),
            Err(error) => Err(error),
        }
    }

    /// Has the server catch up with the one that leads.
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn sync(&mut self, path: &str) -> Result<(), WireError> {
        let mut request = BytesMut::new();
        put_bytes(&mut request, path.as_bytes());
        self.call(Op::Sync, "sync", &request).await?.map(drop).map_err(|code| self.no("sync", path, code))
    }

    /// The names of the nodes below `path`; `None` if that is not there.
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn children(&mut self, path: &str) -> Result<Option<Vec<String>>, WireError> {
        match self.read(Op::GetChildren, "getChildren", path).await? {
            Some(said) => children(said).map(Some).ok_or_else(|| self.nonsense("a list is cut short")),
            None => Ok(None),
        }
    }

    /// What the node at `path` holds; `None` if it is not there.
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn get(&mut self, path: &str) -> Result<Option<ZNode>, WireError> {
        match self.read(Op::GetData, "getData", path).await? {
            Some(said) => node(said).map(Some).ok_or_else(|| self.nonsense("a node is cut short")),
            None => Ok(None),
        }
    }

    /// Removes all of `paths`, or none of them. `Ok(false)`: one of them was gone.
    ///
    /// # Errors
    /// See [`WireError`]. Without an answer nobody knows whether they are removed.
    pub async fn remove(&mut self, paths: &[&str]) -> Result<bool, WireError> {
        let mut request = BytesMut::new();
        for path in paths {
            put_header(&mut request, Op::Delete as i32, false);
            put_bytes(&mut request, path.as_bytes());
            request.put_i32(ANY);
        }
        put_header(&mut request, -1, true);
        let path = paths.join(", ");
        let code = match self.call(Op::Multi, "delete", &request).await? {
            Ok(said) => failed(said).ok_or_else(|| self.nonsense("the answer to a removal is cut short"))?,
            Err(code) => code,
        };
        match code {
            0 => Ok(true),
            NO_NODE => Ok(false),
            code => Err(self.no("delete", &path, code)),
        }
    }

    /// Ends the session, so that the server need not keep it. Whatever becomes of that.
    pub async fn close(mut self) {
        let _ = self.call(Op::Close, "close", &[]).await;
    }

    async fn read(&mut self, op: Op, name: &str, path: &str) -> Result<Option<Bytes>, WireError> {
        let mut request = BytesMut::new();
        put_bytes(&mut request, path.as_bytes());
        request.put_u8(0);
        match self.call(op, name, &request).await? {
            Ok(said) => Ok(Some(said)),
            Err(NO_NODE) => Ok(None),
            Err(code) => Err(self.no(name, path, code)),
        }
    }

    /// One request and its answer; `Err` within: ZooKeeper's error code.
    async fn call(&mut self, op: Op, name: &str, request: &[u8]) -> Result<Result<Bytes, i32>, WireError> {
        self.last += 1;
        let mut whole = BytesMut::new();
        whole.put_i32(self.last);
        whole.put_i32(op as i32);
        whole.extend_from_slice(request);
        self.send(&whole, name).await?;
        let mut said = self.frame(name).await?;
        match (said.try_get_i32(), said.try_get_i64(), said.try_get_i32()) {
            (Ok(id), Ok(_), Ok(code)) if id == self.last => Ok(if code == 0 { Ok(said) } else { Err(code) }),
            _ => Err(self.nonsense("it answers what was not asked")),
        }
    }

    async fn send(&mut self, request: &[u8], name: &str) -> Result<(), WireError> {
        let mut framed = BytesMut::new();
        put_bytes(&mut framed, request);
        match timeout_at(self.until, self.stream.send(&framed)).await {
            Ok(sent) => sent.map_err(|source| self.closed(name, source)),
            Err(_) => Err(self.silent(name)),
        }
    }

    async fn frame(&mut self, name: &str) -> Result<Bytes, WireError> {
        loop {
            if let Some(mut length) = self.inbox.get(..4) {
                let length = usize::try_from(length.get_i32()).unwrap_or(usize::MAX);
                if length > LONGEST {
                    return Err(self.nonsense("its answer would be longer than any of ZooKeeper's"));
                }
                if self.inbox.len() >= 4 + length {
                    self.inbox.advance(4);
                    return Ok(self.inbox.split_to(length).freeze());
                }
            }
            match timeout_at(self.until, self.stream.read(&mut self.inbox)).await {
                Ok(Ok(0)) => return Err(self.closed(name, io::ErrorKind::UnexpectedEof.into())),
                Ok(Ok(_)) => {}
                Ok(Err(source)) => return Err(self.closed(name, source)),
                Err(_) => return Err(self.silent(name)),
            }
        }
    }

    fn refused(&self, why: &str) -> WireError {
        self.dialer.unauthenticated(&self.at, why)
    }

    fn silent(&self, api: &str) -> WireError {
        WireError::Silent { at: self.at.clone(), api: api.to_owned() }
    }

    fn closed(&self, api: &str, source: io::Error) -> WireError {
        self.dialer.closed(&self.at, api, source)
    }

    fn nonsense(&self, why: &str) -> WireError {
        WireError::Nonsense { at: self.at.clone(), why: why.to_owned() }
    }

    fn no(&self, name: &str, path: &str, code: i32) -> WireError {
        let (at, api, message) = (self.at.clone(), format!("{name} {path}"), String::new());
        let code = i16::try_from(code).unwrap_or(i16::MIN);
        WireError::Code { at, api, code, name: name_of(code).to_owned(), message }
    }
}

/// ZooKeeper's names for the error codes that these calls can meet.
fn name_of(code: i16) -> &'static str {
    match code {
        -2 => "RuntimeInconsistency",
        -4 => "ConnectionLoss",
        -5 => "MarshallingError",
        -6 => "Unimplemented",
        -7 => "OperationTimeout",
        -101 => "NoNode",
        -102 => "NoAuth: the node's ACL keeps this agent out",
        -111 => "NotEmpty",
        -112 => "SessionExpired",
        -115 => "AuthFailed",
        -124 => {
            "SessionClosedRequireAuth: every client must log in, so set sasl in [cluster.zookeeper_security]"
        }
        _ => "no code that is known here",
    }
}

fn put_bytes(to: &mut BytesMut, bytes: &[u8]) {
    to.put_i32(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
    to.extend_from_slice(bytes);
}

/// What stands before each operation of a multi, and at its end.
fn put_header(to: &mut BytesMut, op: i32, done: bool) {
    to.put_i32(op);
    to.put_u8(u8::from(done));
    to.put_i32(-1);
}

fn get_bytes(from: &mut Bytes) -> Option<Bytes> {
    match from.try_get_i32().ok()? {
        -1 => Some(Bytes::new()),
        length => {
            let length = usize::try_from(length).ok().filter(|length| *length <= from.len())?;
            Some(from.split_to(length))
        }
    }
}

pub(crate) fn children(mut said: Bytes) -> Option<Vec<String>> {
    let count = said.try_get_i32().ok()?;
    (0..count).map(|_| String::from_utf8(get_bytes(&mut said)?.to_vec()).ok()).collect()
}

pub(crate) fn node(mut said: Bytes) -> Option<ZNode> {
    let data = get_bytes(&mut said)?;
    // Four numbers of eight bytes and three of four stand before the owner in what ZooKeeper calls `Stat`.
    const BEFORE: usize = 4 * 8 + 3 * 4;
    let session = said.get(BEFORE..)?.try_get_i64().ok()?;
    Some(ZNode { data, session })
}

/// The first error code in the answer to a multi; 0 if all of it was done.
pub(crate) fn failed(mut said: Bytes) -> Option<i32> {
    let mut first = 0;
    loop {
        let (op, done, _) =
            (said.try_get_i32().ok()?, said.try_get_u8().ok()? != 0, said.try_get_i32().ok()?);
        if done {
            return Some(first);
        }
        // Those that were not tried, because another one failed, say -2: RuntimeInconsistency.
        if op == -1 {
            let code = said.try_get_i32().ok()?;
            first = if matches!(first, 0 | -2) { code } else { first };
        }
    }
}

#[cfg(test)]
mod tests;
