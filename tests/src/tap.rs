//! Stands between agents and a controller, passes everything on, and knows one request when it sees it:
//! UnregisterBroker.
//!
//! What becomes of that is the story's choice: it can be lost, delivered late, or delivered without an
//! answer.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::lab::HUB;

/// The API key of `UnregisterBroker`.
const UNREGISTER: i16 = 64;

/// What becomes of an `UnregisterBroker` that comes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnUnregister {
    /// It is passed on, and so is its answer.
    Pass,
    /// It is kept until [`Tap::deliver`].
    Keep,
    /// It is passed on, and no answer comes back.
    Mute,
}

/// The way to one controller.
#[derive(Debug)]
pub struct Tap {
    at: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug)]
struct Shared {
    on_unregister: OnUnregister,
    seen: usize,
    /// Requests on their way, each with its connection to the controller.
    kept: Vec<(TcpStream, Vec<u8>)>,
}

impl Tap {
    /// Listens on the bed's own address, for whoever wants to reach the controller at `to`.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start(to: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((HUB, 0)).context("the tap cannot listen")?;
        let at = listener.local_addr()?;
        let shared = Shared { on_unregister: OnUnregister::Pass, seen: 0, kept: Vec::new() };
        let shared = Arc::new(Mutex::new(shared));
        let theirs = Arc::clone(&shared);
        // It ends with the story's process.
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&theirs);
                thread::spawn(move || drop(relay(client, to, &shared)));
            }
        });
        Ok(Self { at, shared })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.at
    }

    /// Says what becomes of the next ones.
    pub fn set(&self, on_unregister: OnUnregister) {
        lock(&self.shared).on_unregister = on_unregister;
    }

    /// How many came by so far.
    #[must_use]
    pub fn seen(&self) -> usize {
        lock(&self.shared).seen
    }

    /// Delivers what was kept, at last, though whoever sent it has given up.
    ///
    /// # Errors
    /// When nothing was kept, or the controller is gone.
    pub fn deliver(&self) -> Result<()> {
        let kept = std::mem::take(&mut lock(&self.shared).kept);
        ensure!(!kept.is_empty(), "no request was kept");
        for (mut controller, frame) in kept {
            controller.write_all(&frame).context("the controller's connection is gone")?;
        }
        Ok(())
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes requests on, one whole frame after the other, and answers as they come.
fn relay(mut client: TcpStream, to: SocketAddr, shared: &Arc<Mutex<Shared>>) -> Result<()> {
    let mut controller = TcpStream::connect_timeout(&to, Duration::from_secs(2))?;
    let mute = Arc::new(AtomicBool::new(false));
    let (answers, asker, quiet) = (controller.try_clone()?, client.try_clone()?, Arc::clone(&mute));
    thread::spawn(move || pass_back(answers, asker, &quiet));
    while let Some(frame) = frame(&mut client)? {
        let key = frame.get(4..6).map(|key| i16::from_be_bytes([key[0], key[1]]));
        if key == Some(UNREGISTER) {
            let mut shared = lock(shared);
            shared.seen += 1;
            match shared.on_unregister {
                OnUnregister::Pass => {}
                OnUnregister::Mute => mute.store(true, Ordering::SeqCst),
                OnUnregister::Keep => {
                    shared.kept.push((controller.try_clone()?, frame));
                    continue;
                }
            }
        }
        controller.write_all(&frame)?;
    }
    if lock(shared).kept.is_empty() {
        controller.shutdown(Shutdown::Both)?;
    }
    Ok(())
}

fn pass_back(mut from: TcpStream, mut to: TcpStream, mute: &AtomicBool) {
    let mut bytes = [0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if !mute.load(Ordering::SeqCst) && to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    // A controller that is gone is told to whoever waits, unless it is to hear nothing.
    if !mute.load(Ordering::SeqCst) {
        let _ = to.shutdown(Shutdown::Both);
    }
}

/// One request with its length; `None` at the end.
fn frame(client: &mut TcpStream) -> Result<Option<Vec<u8>>> {
    let mut size = [0; 4];
    if client.read_exact(&mut size).is_err() {
        return Ok(None);
    }
    let length = usize::try_from(u32::from_be_bytes(size))?;
    ensure!(length < 1 << 20, "a request of {length} bytes");
    let mut frame = vec![0; 4 + length];
    frame[..4].copy_from_slice(&size);
    client.read_exact(&mut frame[4..])?;
    Ok(Some(frame))
}
