//! Mounts that have to go: one of an earlier time that works no more, and ours when it is given back.
//!
//! What the kernel does, and what follows from it:
//!
//! - `umount2` looks its target up without asking the file system that is mounted there
//!   (`LOOKUP_MOUNTPOINT`), so it reaches a dead mount as long as the path above it is alive. With
//!   `MNT_DETACH` the mount is off the tree at once, open files or not; only then the caller itself may hang,
//!   when it was the last user and has to write dirty pages to a dead server. So it is a process with a
//!   deadline, and mountinfo says whether it did its part. `umount` from util-linux asks the file system
//!   nothing if it is called with `--no-canonicalize --internal-only`.
//! - A mount over a dead one would do as well for the path, and would help as little: **the kernel gives a
//!   new mount of the same export the same file system**, dead server connection, dirty pages and all. What
//!   must be fresh is the file system, and not the path. It is fresh when the old one is gone (`kernel`), or
//!   with `nosharecache` beside it.
//! - An old file system that lives on may hold pages of an earlier ownership, and writes them as soon as its
//!   server answers: into log dirs that others have written since. No fence holds that off, for the export
//!   now lets this host in. So one that was ever written through, by the kernel's own counters, and does not
//!   go, ends the takeover here: another standby takes it. One that was never written through is harmless and
//!   stays behind.

use std::time::Instant;

use super::kernel::Volume;
use super::*;

/// How long to wait for a file system to be gone after its last unmount. Nothing has to be written any more,
/// but the session with the server is ended.
const GONE_WITHIN: Duration = Duration::from_secs(3);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How often a dead mount is taken off that was mounted over another one.
const MOST_STACKED: usize = 8;

fn lives_on(what: &str, device: &str) -> String {
    format!(
        "{what} was taken off, but the kernel still holds it (device {device}), and as far as is known it was written \
         through: what it has not written yet would come over what others wrote since. Let another host take the broker \
         over; end what still uses it (a process in state D, or with files open there), or reboot this host"
    )
}

impl Nfs {
    /// Takes a mount of ours off that works no more. Returns whether the new one must not share its file
    /// system with it.
    pub(super) async fn clear(
        &self,
        config: &MountConfig,
        dead: &Mount,
        purpose: &str,
        why: &str,
    ) -> Result<bool, StepError> {
        let written = kernel::ever_written(&self.proc, &config.target);
        let mut taken_off = BTreeSet::new();
        for _ in 0..MOST_STACKED {
            let Some(mount) = self.mounted_at(&config.target, purpose)? else { break };
            if let Some(why) = config.stranger(Some(&mount)) {
                return Err(refused(purpose, why));
            }
            self.detach(config, &mount, purpose).await?;
            taken_off.insert(mount.device);
        }
        if let Some(mount) = self.mounted_at(&config.target, purpose)? {
            return Err(refused(purpose, format!("{} is mounted there again and again", mount.words())));
        }
        if self.is_gone(&taken_off, purpose).await? {
            return Ok(false);
        }
        if written == Some(false) && taken_off.len() == 1 {
            self.taken_off().harmless.extend(taken_off);
            return Ok(true);
        }
        self.taken_off().open.insert(config.target.clone(), dead.device.clone());
        Err(refused(purpose, lives_on(&format!("what was mounted there is dead ({why})"), &dead.device)))
    }

    /// Nothing that was mounted here before, and is mounted nowhere now, is of the export that has just been
    /// mounted. `orphans`: what there was before, while ours was not there; it may have been given one of
    /// them.
    pub(super) async fn alone(
        &self,
        config: &MountConfig,
        mount: &Mount,
        orphans: &[Volume],
        purpose: &str,
    ) -> Result<(), StepError> {
        let volumes = kernel::volumes(&self.proc).map_err(|e| failed(purpose, e.into()))?;
        let fsid = volumes.iter().find(|volume| volume.device == mount.device).map(|volume| &volume.fsid);
        let there =
            |orphan: &&Volume| volumes.contains(orphan) && (fsid.is_none() || fsid == Some(&orphan.fsid));
        let Some(orphan) = orphans.iter().find(there) else { return Ok(()) };
        self.detach(config, mount, purpose).await?;
        self.taken_off().open.insert(config.target.clone(), orphan.device.clone());
        Err(refused(purpose, lives_on("an earlier mount of this export", &orphan.device)))
    }

    /// Off the tree, whatever becomes of it.
    async fn detach(&self, config: &MountConfig, mount: &Mount, purpose: &str) -> Result<(), StepError> {
        let target = config.target.as_os_str();
        let lazily = ["--lazy", "--no-canonicalize", "--internal-only"].map(OsStr::new);
        let tried = self.run("umount", &[&lazily[..], &[target]].concat(), purpose).await;
        // It may be off and `umount` hang with the rest.
        match self.mounted_at(&config.target, purpose)? {
            Some(still) if still.id == mount.id => Err(tried.err().unwrap_or_else(|| {
                refused(
                    purpose,
                    format!("umount reports success, and the kernel still shows {}", still.words()),
                )
            })),
            _ => Ok(()),
        }
    }

    /// Unmounts what `attach` mounted. `Ok` means that this host can write nothing more through it.
    pub(super) async fn unmount(&self, config: &MountConfig) -> Result<Note, StepError> {
        let target = config.target.display();
        let purpose = format!("unmount {target}");
        let ours = |found: Option<Mount>| found.filter(|mount| same_source(&mount.source, &config.source));
        let Some(mount) = ours(self.mounted_at(&config.target, &purpose)?) else {
            self.nothing_left(config, &purpose).await?;
            return Ok(Note::new(format!("{} is not mounted at {target}", config.source)));
        };
        let shared = self.shared(&mount, &purpose)?;
        if shared && let Err(error) = self.prober.send(ProbeAct::Flush, &config.target).await {
            // It does not go with this mount, so that nothing else would show that all is written.
            let why = format!("{} is mounted elsewhere too, and could not be flushed", mount.device);
            return Err(refused(&purpose, format!("{why}: {}", recovery::ports::chain(&error))));
        }
        self.taken_off().open.insert(config.target.clone(), mount.device.clone());
        let quiet = ["--no-canonicalize", "--internal-only"].map(OsStr::new);
        let tried = self.run("umount", &[&quiet[..], &[config.target.as_os_str()]].concat(), &purpose).await;
        if let Some(still) = ours(self.mounted_at(&config.target, &purpose)?) {
            return Err(tried.err().unwrap_or_else(|| {
                refused(
                    &purpose,
                    format!("umount reports success, and the kernel still shows {}", still.words()),
                )
            }));
        }
        if !shared {
            self.nothing_left(config, &purpose).await?;
        }
        self.taken_off().open.remove(&config.target);
        let took = tried.map(|ended| format!(" in {}", human(ended.took))).unwrap_or_default();
        let how = if shared { "; its file system was flushed, and stays for other mounts" } else { "" };
        Ok(Note::new(format!("{target} was unmounted{took}{how}")))
    }

    /// Whether the file system of `mount` is mounted a second time, so that it stays.
    fn shared(&self, mount: &Mount, purpose: &str) -> Result<bool, StepError> {
        let mounts = Mounts::read().map_err(|e| failed(purpose, e.into()))?;
        Ok(mounts.devices().filter(|device| *device == mount.device).count() > 1)
    }

    /// Nothing that was once mounted at the target lives on in the kernel. Where this driver does not know
    /// what that was, it is any NFS file system that is mounted nowhere, and may be of that server.
    async fn nothing_left(&self, config: &MountConfig, purpose: &str) -> Result<(), StepError> {
        let known = self.taken_off().open.get(&config.target).cloned();
        let devices = match known {
            Some(device) => BTreeSet::from([device]),
            None => self.orphans(config, purpose)?.into_iter().map(|volume| volume.device).collect(),
        };
        if self.is_gone(&devices, purpose).await? {
            self.taken_off().open.remove(&config.target);
            return Ok(());
        }
        let devices = devices.into_iter().collect::<Vec<_>>().join(", ");
        let why = format!(
            "nothing is mounted there any more, but the kernel still holds an NFS file system (device {devices}) that may \
             have pages to write: an unmount that hangs, a process that has files open, or another mount namespace. Until \
             it is gone from /proc/fs/nfsfs/volumes nothing shows that this host writes no more"
        );
        Err(refused(purpose, why))
    }

    /// What may be of the server and is mounted nowhere, but for what was never written through.
    pub(super) fn orphans(&self, config: &MountConfig, purpose: &str) -> Result<Vec<Volume>, StepError> {
        let mounts = Mounts::read().map_err(|e| failed(purpose, e.into()))?;
        let volumes = kernel::volumes(&self.proc).map_err(|e| failed(purpose, e.into()))?;
        let orphans = kernel::orphans(&volumes, &mounts.devices().collect(), config.server());
        let mut taken_off = self.taken_off();
        // A number is given again once its file system is gone.
        taken_off.harmless.retain(|device| volumes.iter().any(|volume| volume.device == *device));
        let harmful = |volume: &&Volume| !taken_off.harmless.contains(&volume.device);
        Ok(orphans.into_iter().filter(harmful).cloned().collect())
    }

    /// Waits for the kernel to have let go of `devices`; false if it has not done so in time.
    async fn is_gone(&self, devices: &BTreeSet<String>, purpose: &str) -> Result<bool, StepError> {
        let until = Instant::now() + GONE_WITHIN.min(self.timeout);
        loop {
            let volumes = kernel::volumes(&self.proc).map_err(|e| failed(purpose, e.into()))?;
            if !volumes.iter().any(|volume| devices.contains(&volume.device)) {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}
