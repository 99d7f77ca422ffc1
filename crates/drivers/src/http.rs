//! One request over HTTP, on a connection that is made for it.

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use recovery::ports::BoxError;

/// Why there was no answer to read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GetError {
    #[error("the answer is too long")]
    TooLong,
    #[error("it does not speak HTTP as an agent does")]
    Broken(#[source] BoxError),
}

/// Asks for `path`. An answer of more than `max_bytes` is not read.
pub(crate) async fn get(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    host: &str,
    path: &str,
    max_bytes: usize,
) -> Result<(StatusCode, Bytes), GetError> {
    let broken = |error: hyper::Error| GetError::Broken(error.into());
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let request = Request::get(path).header(HOST, host).header(CONNECTION, "close");
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| GetError::Broken(error.into()))?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        match Limited::new(response.into_body(), max_bytes).collect().await {
            Ok(body) => Ok((status, body.to_bytes())),
            Err(error) if error.is::<LengthLimitError>() => Err(GetError::TooLong),
            Err(error) => Err(GetError::Broken(error)),
        }
    };
    // The connection is driven here and not by a task, so that nothing of it outlives the caller's deadline.
    let mut connection = std::pin::pin!(connection);
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        // Whatever ended the connection is told by the answer.
        _ = &mut connection => answer.await,
    }
}
