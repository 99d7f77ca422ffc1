//! Ctrl-C, and what a service manager or a closed terminal sends: what was made is taken away first.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::output::say;

/// Whether somebody wants the command to end.
#[derive(Debug, Clone)]
pub(super) struct Interrupt(watch::Receiver<bool>);

impl Interrupt {
    /// From now on SIGINT, SIGTERM and SIGHUP end the process no more, but are told here.
    ///
    /// # Errors
    /// What the operating system says.
    pub(super) fn listen() -> io::Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let (tell, told) = watch::channel(false);
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
            say("interrupted: what was made is taken away first, which may take some minutes");
            tell.send_replace(true);
        });
        Ok(Self(told))
    }

    /// Whether it was told by now.
    pub(super) fn asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns once it is told.
    pub(super) async fn told(&self) {
        if self.0.clone().wait_for(|asked| *asked).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
impl From<watch::Receiver<bool>> for Interrupt {
    fn from(told: watch::Receiver<bool>) -> Self {
        Self(told)
    }
}
