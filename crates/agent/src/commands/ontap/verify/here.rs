//! The scratch volume mounted on this very host, with a lock on it, as Kafka has its log dirs.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, fcntl_lock};
use tokio::process::Command;
use tokio::time::timeout;

/// How long one operation may take. Soft mounts give up by themselves, after two tries of 5 s.
const LIMIT: Duration = Duration::from_secs(30);

/// From where the scratch volume is used.
pub(super) trait Guest {
    /// What mounting it gives.
    type Mounted: Mounted;

    /// By which address ONTAP sees it, as far as this host can tell.
    fn address(&self) -> io::Result<IpAddr>;

    /// Mounts a junction, and takes a lock there as Kafka does.
    async fn mount(&self, junction: &str) -> Result<Self::Mounted, String>;
}

/// A mount, and a locked file in it.
pub(super) trait Mounted {
    /// Writes to the file that is open and locked, through to the server.
    async fn write(&self) -> io::Result<()>;

    /// Makes a file that was not there; and writes to it, through to the server.
    async fn create(&self, name: &str) -> io::Result<io::Result<()>>;

    /// Takes the mount off, lazily if it must be.
    async fn unmount(self) -> Result<(), String>;
}

/// This very host, by a LIF of the SVM.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lif(pub(super) IpAddr);

/// `soft`, so that nothing hangs for ever once it is denied; `noac`, so that nothing is answered by a cache.
fn options(lif: IpAddr) -> String {
    let proto = if lif.is_ipv4() { "tcp" } else { "tcp6" };
    format!("vers=4.1,proto={proto},soft,timeo=50,retrans=1,retry=0,noac,nosharecache")
}

/// A mount, and a locked file in it.
#[derive(Debug)]
pub(super) struct Here {
    dir: PathBuf,
    locked: Arc<File>,
}

impl Guest for Lif {
    type Mounted = Here;

    /// Nothing is sent.
    fn address(&self) -> io::Result<IpAddr> {
        let Self(lif) = *self;
        let unspecified: IpAddr =
            if lif.is_ipv4() { [0, 0, 0, 0].into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind(SocketAddr::new(unspecified, 0))?;
        socket.connect(SocketAddr::new(lif, 2049))?;
        Ok(socket.local_addr()?.ip().to_canonical())
    }

    async fn mount(&self, junction: &str) -> Result<Here, String> {
        let Self(lif) = *self;
        let dir = std::env::temp_dir().join(format!("understudy-verify-{}", std::process::id()));
        fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let server = if lif.is_ipv4() { lif.to_string() } else { format!("[{lif}]") };
        let source = format!("{server}:{junction}");
        let mount = ["-t", "nfs4", "-o", &options(lif), &source, &dir.to_string_lossy()];
        if let Err(why) = command("mount", &mount).await {
            // One that came to no end in time may be there all the same.
            let _ = unmount(&dir).await;
            let _ = fs::remove_dir(&dir);
            return Err(format!("{source} could not be mounted here: {why}"));
        }
        match off_thread({
            let path = dir.join(".lock");
            move || locked(&path)
        })
        .await
        {
            Ok(locked) => Ok(Here { dir, locked: Arc::new(locked) }),
            Err(error) => {
                let _ = unmount(&dir).await;
                Err(format!("no lock could be taken on {source}: {error}"))
            }
        }
    }
}

impl Mounted for Here {
    async fn write(&self) -> io::Result<()> {
        let file = Arc::clone(&self.locked);
        off_thread(move || (&*file).write_all(b"understudy\n").and_then(|()| file.sync_data())).await
    }

    async fn create(&self, name: &str) -> io::Result<io::Result<()>> {
        let path = self.dir.join(format!("{name}-{}", std::process::id()));
        off_thread(move || {
            let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
            Ok(file.write_all(b"understudy\n").and_then(|()| file.sync_data()))
        })
        .await
    }

    async fn unmount(self) -> Result<(), String> {
        drop(self.locked);
        unmount(&self.dir).await
    }
}

fn locked(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().append(true).create(true).open(path)?;
    fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

async fn unmount(dir: &Path) -> Result<(), String> {
    command("umount", &["--force", "--lazy", &dir.to_string_lossy()]).await?;
    fs::remove_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))
}

async fn command(program: &str, arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new(program);
    let running = command.args(arguments).kill_on_drop(true).output();
    match timeout(LIMIT, running).await {
        Err(_) => Err(format!("{program}: no end within {} s", LIMIT.as_secs())),
        Ok(Err(error)) => Err(format!("{program}: {error}")),
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// On a thread that may hang without anybody waiting for it.
async fn off_thread<T: Send + 'static>(
    act: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match timeout(LIMIT, tokio::task::spawn_blocking(act)).await {
        Ok(Ok(done)) => done,
        Ok(Err(panicked)) => Err(io::Error::other(panicked)),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `proto=tcp` is IPv4 alone, nfs(5).
    #[test]
    fn the_transport_is_that_of_the_address() {
        for (lif, proto) in [("10.0.0.50", "proto=tcp"), ("fd00::50", "proto=tcp6")] {
            let options = options(lif.parse().unwrap());
            assert!(options.split(',').any(|option| option == proto), "{lif}: {options}");
        }
    }
}
