//! A request, and no more of HTTP than that takes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};

/// Asks `address` for `path`, and returns status code and body.
///
/// # Errors
/// When it does not answer within `limit`, or not in HTTP.
pub fn get(address: SocketAddr, path: &str, limit: Duration) -> Result<(u16, String)> {
    send(address, "GET", path, "", limit)
}

/// Sends `address` a request, and returns status code and body.
pub(crate) fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
    limit: Duration,
) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    // HTTP/1.0: the answer is not chunked and ends with the connection.
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer that is not HTTP")?;
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    Ok((status.with_context(|| format!("no status in {head:?}"))?, body.to_owned()))
}
