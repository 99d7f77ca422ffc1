//! An identity provider's token endpoint, for OAUTHBEARER.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

/// What somebody asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The header with the client's id and secret.
    pub authorization: String,
    /// The form.
    pub form: String,
}

/// The endpoint. It ends with its runtime.
#[derive(Debug, Clone)]
pub struct Provider {
    /// Where it listens.
    pub at: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    answer: Arc<Mutex<Option<(u16, String)>>>,
    may_answer: Arc<Notify>,
}

fn held<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap()
}

impl Provider {
    /// Listens on this host. It answers nobody before it is told what.
    pub async fn start(acceptor: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let this =
            Self { at, asked: Arc::default(), answer: Arc::default(), may_answer: Arc::new(Notify::new()) };
        let serves = this.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serves.clone().serve(stream, acceptor.clone()));
            }
        });
        this
    }

    /// What it answers from now on, and to who waits: a status and a body.
    pub fn answers(&self, status: u16, body: &str) {
        *held(&self.answer) = Some((status, body.to_owned()));
        self.may_answer.notify_waiters();
    }

    /// It answers nobody.
    pub fn hangs(&self) {
        *held(&self.answer) = None;
    }

    /// What it was asked so far.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        held(&self.asked).clone()
    }

    async fn serve(self, stream: TcpStream, acceptor: Option<TlsAcceptor>) {
        let service = service_fn(|request| self.answer(request));
        let _ = match acceptor {
            None => http1::Builder::new().serve_connection(TokioIo::new(stream), service).await,
            Some(acceptor) => {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                http1::Builder::new().serve_connection(TokioIo::new(stream), service).await
            }
        };
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let header = request.headers().get(AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned());
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let form = String::from_utf8(body.to_vec()).unwrap();
        held(&self.asked).push(Asked { authorization: header.unwrap_or_default(), form });
        loop {
            let told = self.may_answer.notified();
            let answer = held(&self.answer).clone();
            if let Some((status, body)) = answer {
                return Ok(Response::builder().status(status).body(body.into()).unwrap());
            }
            told.await;
        }
    }
}
