//! A client that waits for an answer.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::{self, JoinHandle};

use anyhow::{Result, anyhow, ensure};
use jiff::Timestamp;

use crate::agent::Agent;
use crate::eventually;
use crate::scenario::PATIENCE;

/// A client that has sent the begin of a request, and reads: it has nothing more to send, so by itself it
/// would never learn that the other end is gone.
#[derive(Debug)]
pub struct SilentClient(JoinHandle<Result<(ErrorKind, Timestamp)>>);

impl SilentClient {
    /// Connects to a broker.
    ///
    /// # Errors
    /// When nobody accepts it.
    pub fn connect(at: SocketAddr) -> Result<Self> {
        let mut stream = TcpStream::connect(at)?;
        // A hundred bytes are announced, and few come.
        stream.write_all(&[0, 0, 0, 100, 0, 18, 0, 0])?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(thread::spawn(move || match stream.read(&mut [0]) {
            Err(error) => Ok((error.kind(), Timestamp::now())),
            Ok(read) => Err(anyhow!("{read} bytes of answer to half a request")),
        })))
    }

    /// Waits until an agent has been told by a peer who is connected there.
    ///
    /// # Errors
    /// When that takes longer than [`PATIENCE`].
    pub fn is_known_to(&self, agent: &Agent) -> Result<()> {
        eventually("the standby to know who is connected", PATIENCE, || {
            let said = fs::read_to_string(agent.running()?.log())?;
            ensure!(said.contains("a peer tells who is connected there"), "it has not been told yet");
            Ok(())
        })
    }

    /// What ended its wait, and when.
    ///
    /// # Errors
    /// When it was answered.
    pub fn ended(self) -> Result<(ErrorKind, Timestamp)> {
        self.0.join().map_err(|_| anyhow!("it panicked"))?
    }
}
