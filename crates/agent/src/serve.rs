//! Answering over TCP to whoever asks, friend or not: each connection is short, and nobody has many.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::middleware::AddExtension;
use drivers::tls::Tls;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tower_service::Service;

use crate::access::AccessList;
use crate::guest::{Guest, Shown};

/// How long a request's head may take, and the pause before the next one on the same connection.
const HEAD: Duration = Duration::from_secs(5);

/// How long a connection may live, whatever it does. Agents make one for each question; a scraper makes a new
/// one.
const LIFE: Duration = Duration::from_secs(30);

/// The longest head that is read, in bytes. hyper's least is 8 KiB.
const LONGEST_HEAD: usize = 16 << 10;

/// How many connections there may be at a time, of everybody and of one address. An agent's peers ask twice a
/// second, and are answered in milliseconds.
const CONNECTIONS: usize = 256;
const OF_ONE_ADDRESS: usize = 32;

/// After an error of the listener itself, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// The pages as one connection has them.
type Pages = AddExtension<Router, ConnectInfo<Guest>>;

/// What makes connections TLS, and tells who is at the other end.
pub(crate) struct Door {
    pub(crate) tls: Arc<Tls>,
    pub(crate) access: watch::Receiver<AccessList>,
    /// The pages for who shows no certificate.
    pub(crate) open: Router,
}

/// Who is being answered, and how often.
#[derive(Debug, Clone, Default)]
struct Guests(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

/// A connection that counts for as long as it lives.
#[derive(Debug)]
struct Seat {
    guests: Guests,
    of: IpAddr,
}

impl Guests {
    fn all(&self) -> MutexGuard<'_, BTreeMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: there are too many.
    fn seat(&self, of: IpAddr) -> Option<Seat> {
        let mut all = self.all();
        let mine = all.get(&of).copied().unwrap_or_default();
        if mine >= OF_ONE_ADDRESS || all.values().sum::<usize>() >= CONNECTIONS {
            return None;
        }
        all.insert(of, mine + 1);
        Some(Seat { guests: self.clone(), of })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut all = self.guests.all();
        if let Some(count) = all.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.of);
            }
        }
    }
}

/// Answers until the task is dropped. A connection beyond the limits is closed at once, and costs the others
/// nothing. Behind a door each is encrypted, and `pages` are for who shows a certificate.
///
/// # Errors
/// Never by what anybody sends; the listener's own errors pass.
pub(crate) async fn serve(listener: TcpListener, pages: Router, door: Option<Door>) -> io::Result<()> {
    let door = door.map(Arc::new);
    let guests = Guests::default();
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) if is_of_one_connection(&error) => continue,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(PAUSE).await;
                continue;
            }
        };
        let Some(seat) = guests.seat(from.ip().to_canonical()) else { continue };
        let (pages, door) = (pages.clone(), door.clone());
        tokio::spawn(async move {
            let _seat = seat;
            let connection = async {
                let Some(door) = door else {
                    return answer(stream, pages, Guest::Remote(from, None)).await;
                };
                // One that cannot be agreed upon is told where it is asked: by the other side.
                let Ok(Ok((stream, names))) = timeout(HEAD, door.tls.accept(stream)).await else { return };
                let Some(names) = names else {
                    return answer(stream, door.open.clone(), Guest::Remote(from, None)).await;
                };
                let shown = Shown::Certificate(names.into(), door.access.clone());
                answer(stream, pages, Guest::Remote(from, Some(shown))).await;
            };
            let _ = timeout(LIFE, connection).await;
        });
    }
}

/// Answers on one connection. What ends it is the other side's business.
async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, pages: Router, guest: Guest) {
    let Ok(pages): Result<Pages, _> = pages.into_make_service_with_connect_info::<Guest>().call(guest).await;
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(LONGEST_HEAD);
    let _ = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(pages)).await;
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
