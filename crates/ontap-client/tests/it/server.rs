//! A server that notes what it is asked and answers as the test says; it can also hang up, or say nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ontap_client::{Auth, Client, ClientBuilder, Retry, Tls};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

/// What came.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: String,
    /// With its query, as it came.
    pub(crate) target: String,
    pub(crate) headers: BTreeMap<String, String>,
    /// Null if there was none.
    pub(crate) body: Value,
}

impl Seen {
    pub(crate) fn is(&self, method: &str, path: &str) -> bool {
        self.method == method && self.target.split('?').next() == Some(path)
    }
}

/// What goes back.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Json(u16, Value),
    Later(u16, Value, u64),
    Text(u16, &'static str),
    /// Hangs up without an answer.
    Drop,
    /// Says nothing until the client gives up.
    Hang,
}

/// A stand-in for ONTAP that does what it is told.
pub(crate) struct Server {
    pub(crate) port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
}

type Script = Arc<Mutex<dyn FnMut(usize, &Seen) -> Reply + Send>>;

impl Server {
    /// `script` is told how many requests came before this one.
    pub(crate) async fn start(script: impl FnMut(usize, &Seen) -> Reply + Send + 'static) -> Self {
        Self::listen(script, None).await
    }

    pub(crate) async fn listen(
        script: impl FnMut(usize, &Seen) -> Reply + Send + 'static,
        tls: Option<tokio_rustls::TlsAcceptor>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (script, noted): (Script, _) = (Arc::new(Mutex::new(script)), Arc::clone(&seen));
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (script, seen, tls) = (Arc::clone(&script), Arc::clone(&noted), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(tcp, &script, &seen).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(tcp).await {
                                serve(stream, &script, &seen).await;
                            }
                        }
                    }
                });
            }
        });
        Self { port, seen }
    }

    /// Answers each request with the next reply, and the last one ever after.
    pub(crate) async fn of(replies: Vec<Reply>) -> Self {
        Self::start(move |n, _| replies[n.min(replies.len() - 1)].clone()).await
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn builder(&self) -> ClientBuilder {
        let auth = Auth::Basic { user: "admin".to_owned(), password: "hunter2".into() };
        Client::builder(format!("http://127.0.0.1:{}", self.port), auth).tls(Tls::InsecurePlainHttp).retry(
            Retry {
                attempts: 3,
                first_wait: Duration::from_millis(5),
                longest_wait: Duration::from_millis(20),
            },
        )
    }

    pub(crate) fn client(&self) -> Client {
        self.builder().build().unwrap()
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, script: &Script, seen: &Mutex<Vec<Seen>>) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read(&mut stream).await {
        let before = {
            let mut seen = seen.lock().unwrap();
            seen.push(request.clone());
            seen.len() - 1
        };
        let reply = script.lock().unwrap()(before, &request);
        let (status, extra, body) = match reply {
            Reply::Json(status, body) => (status, String::new(), body.to_string()),
            Reply::Later(status, body, secs) => {
                (status, format!("Retry-After: {secs}\r\n"), body.to_string())
            }
            Reply::Text(status, body) => (status, String::new(), body.to_owned()),
            Reply::Drop => return,
            Reply::Hang => {
                let mut rest = Vec::new();
                let _ = stream.read_to_end(&mut rest).await;
                return;
            }
        };
        let length = body.len();
        let answer = format!("HTTP/1.1 {status} Status\r\nContent-Length: {length}\r\n{extra}\r\n{body}");
        if stream.write_all(answer.as_bytes()).await.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}

async fn read(stream: &mut BufReader<impl AsyncRead + Unpin>) -> Option<Seen> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok().filter(|bytes| *bytes > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() };
    Some(Seen { method, target, headers, body })
}
