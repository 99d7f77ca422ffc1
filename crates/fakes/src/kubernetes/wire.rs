//! A wire to an API server that can be cut in the middle of a request, lose answers, be slow, or give old answers.
//!
//! Plain HTTP on this side, so that what passes can be seen; TLS to the API server. One request a connection.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;

use super::ControlPlane;

/// What is wrong with the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The answers to so many writes are lost; what was asked for is done.
    Lost(usize),
    /// Of the next write so many percent pass, and then nothing does any more. At 100 all of it has, and the answer is
    /// lost.
    Torn(u8),
    /// Every answer comes so late.
    Late(Duration),
    /// What was read before is told again.
    Old,
    /// So many requests are answered with this code.
    Refused(u16, usize),
}

/// The wire.
pub struct Wire {
    url: String,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    fault: Option<Fault>,
    asked: Vec<String>,
    /// The last answer to each reading, by its path.
    read: BTreeMap<String, Vec<u8>>,
}

/// What becomes of one request.
enum Fate {
    Pass,
    Answer(Vec<u8>),
    Cut(u8),
    Wait(Duration),
}

impl Wire {
    /// A wire to the API server that works.
    pub async fn to(plane: &ControlPlane) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (port, connector) = (plane.api_port(), trusting(&plane.ca()));
        let state = Arc::<Mutex<State>>::default();
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, port, connector.clone(), Arc::clone(&shared)));
            }
        });
        Self { url, state, task }
    }

    /// Where clients ask.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What is wrong with it from now on.
    pub fn set(&self, fault: Option<Fault>) {
        self.state.lock().unwrap().fault = fault;
    }

    /// The requests so far, each as its method and path.
    #[must_use]
    pub fn asked(&self) -> Vec<String> {
        self.state.lock().unwrap().asked.clone()
    }

    /// How many of them were to change something.
    #[must_use]
    pub fn writes(&self) -> usize {
        self.asked().iter().filter(|asked| !asked.starts_with("GET ")).count()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn trusting(ca: &str) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&fs::read(ca).unwrap()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    TlsConnector::from(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

impl State {
    fn fate(&mut self, line: &str) -> Fate {
        self.asked.push(line.to_owned());
        let writes = !line.starts_with("GET ");
        match self.fault {
            Some(Fault::Lost(left)) if writes && left > 0 => {
                self.fault = Some(Fault::Lost(left - 1));
                Fate::Cut(100)
            }
            Some(Fault::Torn(percent)) if writes => Fate::Cut(percent),
            Some(Fault::Late(late)) => Fate::Wait(late),
            Some(Fault::Old) if !writes => self.read.get(line).cloned().map_or(Fate::Pass, Fate::Answer),
            Some(Fault::Refused(code, left)) if left > 0 => {
                self.fault = Some(Fault::Refused(code, left - 1));
                Fate::Answer(refusal(code))
            }
            _ => Fate::Pass,
        }
    }
}

fn refusal(code: u16) -> Vec<u8> {
    let body = format!(
        r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"not now","code":{code}}}"#
    );
    let head = format!("HTTP/1.1 {code} x\r\nContent-Type: application/json\r\nConnection: close\r\n");
    format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

async fn carry(mut client: TcpStream, port: u16, connector: TlsConnector, state: Arc<Mutex<State>>) {
    let Some(request) = read_request(&mut client).await else { return };
    let text = String::from_utf8_lossy(&request).into_owned();
    let line = text.lines().next().unwrap_or_default().trim_end_matches(" HTTP/1.1").to_owned();
    let fate = state.lock().unwrap().fate(&line);
    let (percent, lost) = match fate {
        Fate::Answer(answer) => {
            let _ = client.write_all(&answer).await;
            return;
        }
        Fate::Cut(percent) => (percent, true),
        Fate::Wait(late) => {
            sleep(late).await;
            (100, false)
        }
        Fate::Pass => (100, false),
    };
    // One that is down is one to whom no connection comes about: this one ends then.
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let Ok(mut server) = connector.connect(name, server).await else { return };
    let whole = with_close(&request);
    if server.write_all(&whole[..whole.len() * usize::from(percent) / 100]).await.is_err() {
        return;
    }
    if percent < 100 {
        // The API server sees the connection end.
        let _ = server.flush().await;
        return;
    }
    if line.contains("watch=true") {
        // It ends with whoever ends it first.
        let _ = tokio::io::copy_bidirectional(&mut server, &mut client).await;
        return;
    }
    let mut answer = Vec::new();
    let _ = server.read_to_end(&mut answer).await;
    if lost || answer.is_empty() {
        return;
    }
    if line.starts_with("GET ") {
        state.lock().unwrap().read.insert(line, answer.clone());
    }
    let _ = client.write_all(&answer).await;
}

/// The same request, after whose answer the connection ends.
fn with_close(request: &[u8]) -> Vec<u8> {
    let end = request.windows(2).position(|two| two == b"\r\n").unwrap_or_default();
    [&request[..end], b"\r\nConnection: close", &request[end..]].concat()
}

/// One HTTP request, whole.
async fn read_request(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut request = Vec::new();
    loop {
        let mut some = vec![0; 64 << 10];
        let n = from.read(&mut some).await.ok().filter(|n| *n > 0)?;
        request.extend_from_slice(&some[..n]);
        let Some(head) = request.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let text = String::from_utf8_lossy(&request[..head]).to_lowercase();
        let length =
            text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        if request.len() >= head + 4 + length.unwrap_or(0) {
            return Some(request);
        }
    }
}
