//! The NFS tier: hosts that are real machines, each with a kernel of its own (User-mode Linux) and systemd as
//! process 1, and a real NFS server.
//!
//! What a shared directory cannot show is here: leases and locks, what a dead client had not yet written,
//! clients that hang, servers that refuse. Guests and server are on the bridge of the [`Lab`](crate::Lab),
//! beside its other hosts. It takes root: the server opens files by handle, and guests have their links by
//! `/dev/net/tun`.

mod classes;
mod exec;
mod guest;
pub(crate) mod install;
pub mod kafka;
mod power;
pub mod scenario;
mod server;
mod storage;
pub mod units;

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};

pub use exec::serve_commands;
pub use guest::{Guest, GuestSpec};
pub use kafka::{GuestAgent, GuestHome};
pub use server::{Export, NfsServer, ServerLock};
pub use storage::NfsOntap;

use crate::lab::Lab;
use crate::shell;

/// Names the directory that holds the guests' kernel and root file system.
const BED: &str = "UNDERSTUDY_NFS_BED";

/// What guests and server of one story are made of.
#[derive(Debug)]
pub struct NfsBed {
    parts: Parts,
    /// What guests see of the outside, at the same path: read-only, and to write to.
    see: Vec<PathBuf>,
    write: Vec<PathBuf>,
    disks: PathBuf,
    logs: PathBuf,
    umid: PathBuf,
}

/// The files that `cargo xtask setup` made.
#[derive(Debug)]
struct Parts {
    linux: PathBuf,
    image: PathBuf,
    root: PathBuf,
    /// Where all of this is.
    bed: PathBuf,
}

impl NfsBed {
    /// Makes ready what all guests of a story share.
    ///
    /// # Errors
    /// When the bed has not been built, or we are not root.
    pub fn open(lab: &Lab) -> Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "guests and their NFS server take root");
        let bed = env::var_os(BED).map(PathBuf::from).with_context(|| {
            format!(
                "{BED} is not set: run the stories through `cargo xtask test --tier nfs`, which builds it"
            )
        })?;
        let parts =
            Parts { linux: bed.join("linux"), image: bed.join("root.ext4"), root: bed.join("root"), bed };
        // A guest's memory is a file there, which must not outlive the story however that ends.
        shell::sh("mount -t tmpfs -o mode=1777,exec tmpfs /dev/shm")?;
        let mut see = vec![shell::build_dir()?];
        for variable in ["UNDERSTUDY_KAFKA_HOME", "UNDERSTUDY_BIN"] {
            let path = env::var_os(variable).map(PathBuf::from);
            // The whole directory, for a guest cannot see a single file.
            let path = path.map(|path| if path.is_file() { path.with_file_name("") } else { path });
            see.extend(path);
        }
        for path in &mut see {
            *path = path.canonicalize().with_context(|| format!("there is no {}", path.display()))?;
        }
        see.sort();
        see.dedup();
        let umid = PathBuf::from("/dev/shm/guests");
        std::fs::create_dir(&umid)?;
        Ok(Self {
            parts,
            see,
            write: vec![lab.artifacts().canonicalize()?],
            disks: lab.shared("guests")?,
            logs: lab.artifacts().join("logs"),
            umid,
        })
    }

    /// A new guest, booted: its first address is `address`.
    ///
    /// # Errors
    /// When the name is too long, or it is not up in two minutes; the end of its console is in the message.
    pub fn guest(&self, name: &str, address: &str, spec: &GuestSpec) -> Result<Arc<Guest>> {
        let guest = self.prepare_guest(name, address, spec)?;
        guest.boot()?;
        Ok(guest)
    }

    /// [`NfsBed::guest`] without its first boot: several boot quicker beside each other, by
    /// [`Guest::power_on`].
    ///
    /// # Errors
    /// When the name is too long or the address bad.
    pub fn prepare_guest(&self, name: &str, address: &str, spec: &GuestSpec) -> Result<Arc<Guest>> {
        Ok(Arc::new(Guest::create(self, name, address, spec)?))
    }

    /// Starts the NFS server, with these exports.
    ///
    /// # Errors
    /// When it does not serve after half a minute.
    pub fn server(&self, lab: &Lab, exports: Vec<Export>) -> Result<Arc<NfsServer>> {
        self.server_with_lease(lab, exports, server::LEASE)
    }

    /// [`NfsBed::server`], which keeps what a silent client holds for `lease` seconds.
    ///
    /// # Errors
    /// As there.
    pub fn server_with_lease(&self, lab: &Lab, exports: Vec<Export>, lease: u32) -> Result<Arc<NfsServer>> {
        Ok(Arc::new(NfsServer::start(&self.parts.root, lab, exports, lease)?))
    }
}

/// A path as it can stand on a kernel's command line.
fn plain(path: &Path) -> Result<&str> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    let odd = text.contains([' ', ',', ':', '"', '=']);
    ensure!(!odd, "{text:?} cannot be given to a guest: build in a path without spaces, commas, colons, =");
    Ok(text)
}
