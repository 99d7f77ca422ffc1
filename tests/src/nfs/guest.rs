//! A guest: a host with a kernel of its own, and the faults that befall it.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use super::power::Power;
use super::{NfsBed, exec, plain};
use crate::eventually;
use crate::host::{BRIDGE, Output};
use crate::process::tail;
use crate::shell;

/// How long a guest may take to boot: some seconds where the machine is quiet.
const BOOT: Duration = Duration::from_secs(120);
/// How long a command may take that has no limit of its own.
const COMMAND: Duration = Duration::from_secs(120);

/// What kind of guest.
#[derive(Debug, Clone)]
pub struct GuestSpec {
    /// Its memory, in MiB. What it does not use costs nothing.
    pub memory_mib: u32,
    /// What its NFS client calls itself; its address by default. Two guests with one are two clients that the
    /// server takes for one.
    pub client_id: Option<String>,
}

impl Default for GuestSpec {
    /// Room for a Kafka.
    fn default() -> Self {
        Self { memory_mib: 1400, client_id: None }
    }
}

/// A guest. It has two links: `eth0`, on the bridge, and `mgmt0`, by which the bed speaks to it and which no
/// fault cuts.
#[derive(Debug)]
pub struct Guest {
    name: String,
    address: Ipv4Addr,
    management: Ipv4Addr,
    kernel: PathBuf,
    arguments: Vec<String>,
    console: PathBuf,
    umid: PathBuf,
    power: Mutex<Option<Power>>,
}

impl Guest {
    pub(super) fn create(bed: &NfsBed, name: &str, address: &str, spec: &GuestSpec) -> Result<Self> {
        ensure!(name.len() <= 10, "host name {name:?} is too long for the names of its links");
        let address: Ipv4Addr = address.parse().with_context(|| format!("guest {name}: {address:?}"))?;
        let [_, _, _, last] = address.octets();
        let management = Ipv4Addr::new(10, 78, last, 2);
        for link in [format!("t-{name}"), format!("m-{name}")] {
            shell::sh(&format!("ip tuntap add dev {link} mode tap"))?;
        }
        shell::sh(&format!("ip link set t-{name} master {BRIDGE} up"))?;
        shell::sh(&format!("ip addr add 10.78.{last}.1/30 dev m-{name}"))?;
        shell::sh(&format!("ip link set m-{name} up"))?;
        let arguments = arguments(bed, name, address, management, spec)?;
        let console = bed.logs.join(format!("{name}-console.log"));
        let kernel = bed.parts.linux.clone();
        Ok(Self {
            name: name.to_owned(),
            address,
            management,
            kernel,
            arguments,
            console,
            umid: bed.umid.join(name),
            power: Mutex::default(),
        })
    }

    /// Its host name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its first address.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Its address on the link that no fault cuts.
    #[must_use]
    pub fn management(&self) -> Ipv4Addr {
        self.management
    }

    /// What its kernel and its journal print.
    #[must_use]
    pub fn console(&self) -> &Path {
        &self.console
    }

    /// Switches it on, and waits until systemd has started everything.
    ///
    /// # Errors
    /// When it is not `running` in two minutes.
    pub fn boot(&self) -> Result<()> {
        self.power_on()?;
        self.wait_up()
    }

    /// Switches it on. No error if it is on.
    ///
    /// # Errors
    /// When its kernel cannot be started.
    pub fn power_on(&self) -> Result<()> {
        let mut power = self.power();
        if let Some(running) = power.as_mut()
            && running.is_on()?
        {
            return Ok(());
        }
        // Of an earlier life, which would be taken for another guest of this name.
        if self.umid.exists() {
            std::fs::remove_dir_all(&self.umid)?;
        }
        let on = Power::on(&self.kernel, &self.arguments, &self.console);
        *power = Some(on.with_context(|| format!("guest {} does not come up", self.name))?);
        Ok(())
    }

    /// Waits until systemd has started everything, without a failure.
    ///
    /// # Errors
    /// When it has not in two minutes; says what systemd says, and the end of the console.
    pub fn wait_up(&self) -> Result<()> {
        eventually(&format!("guest {} to be up", self.name), BOOT, || {
            let said = self.run_within(Duration::from_secs(10), &["systemctl", "is-system-running"])?;
            ensure!(said.stdout.trim() == "running", "systemd is {:?}", said.stdout.trim());
            Ok(())
        })
        .with_context(|| tail(&self.console, 1500))
    }

    /// Loss of power: every process dies at once, and nobody gets a farewell packet. What had not been
    /// written to its disk is lost. No error if it is off.
    ///
    /// # Errors
    /// When something survives.
    pub fn crash(&self) -> Result<()> {
        self.power().take().map_or(Ok(()), Power::off)
    }

    /// Whether it has power.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.power().as_mut().is_some_and(|power| power.is_on().unwrap_or_default())
    }

    /// It stands still, its kernel too, as a paused machine does.
    ///
    /// # Errors
    /// When it is off, or something goes on.
    pub fn freeze(&self) -> Result<()> {
        self.power().as_ref().ok_or_else(|| self.is_off())?.freeze()
    }

    /// It goes on from where it stood.
    ///
    /// # Errors
    /// When it is off.
    pub fn thaw(&self) -> Result<()> {
        self.power().as_ref().ok_or_else(|| self.is_off())?.thaw()
    }

    /// Cuts its data link: the link stays up, and nothing passes. The management link stays.
    ///
    /// # Errors
    /// When the link is not there.
    pub fn cut(&self) -> Result<()> {
        shell::sh(&format!("ip link set t-{} nomaster", self.name)).map(drop)
    }

    /// Joins it to the network again.
    ///
    /// # Errors
    /// When the link is not there.
    pub fn heal(&self) -> Result<()> {
        shell::sh(&format!("ip link set t-{} master {BRIDGE}", self.name)).map(drop)
    }

    /// Runs a command in it to its end, at most two minutes.
    ///
    /// # Errors
    /// When it does not answer; the command's own failure is in the [`Output`].
    pub fn run<S: AsRef<[u8]>>(&self, command: &[S]) -> Result<Output> {
        self.run_within(COMMAND, command)
    }

    /// [`Guest::run`] with a limit: a command that takes longer is ended there, with code 124, and one that
    /// cannot be ended (it waits in the kernel, for a file server) is an error soon after.
    ///
    /// # Errors
    /// As [`Guest::run`].
    pub fn run_within<S: AsRef<[u8]>>(&self, limit: Duration, command: &[S]) -> Result<Output> {
        self.ask(limit, b"", command)
    }

    /// Runs a command that must succeed, and returns what it printed.
    ///
    /// # Errors
    /// When it fails.
    pub fn sh(&self, script: &str) -> Result<String> {
        let output = self.run(&["sh", "-c", script])?;
        let failed =
            || format!("{script:?} on {} failed ({}): {}", self.name, output.code, output.stderr.trim());
        ensure!(output.code == 0, failed());
        Ok(output.stdout)
    }

    /// Writes a file on it, and makes sure that it is on the disk; directories above are made.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) -> Result<()> {
        let script =
            "mkdir -p \"$(dirname \"$0\")\" && cat >\"$0.new\" && mv \"$0.new\" \"$0\" && sync \"$0\"";
        let output = self.ask(COMMAND, content.as_ref(), &["sh", "-c", script, path])?;
        ensure!(output.code == 0, "cannot write {path} on {}: {}", self.name, output.stderr.trim());
        Ok(())
    }

    /// [`Guest::write`] of many, on the disk when all are.
    ///
    /// # Errors
    /// When one cannot be written.
    pub fn write_all(&self, files: &[(&str, &str)]) -> Result<()> {
        let script = "set -e; while read -r size path; do mkdir -p \"$(dirname \"$path\")\"; \
                      head -c \"$size\" >\"$path.new\"; mv \"$path.new\" \"$path\"; done; sync";
        let named = |(path, text): &(&str, &str)| format!("{} {path}\n{text}", text.len());
        let input: String = files.iter().map(named).collect();
        let output = self.ask(COMMAND, input.as_bytes(), &["sh", "-c", script])?;
        ensure!(output.code == 0, "cannot write files on {}: {}", self.name, output.stderr.trim());
        Ok(())
    }

    /// Reads a file of it.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(&self, path: &str) -> Result<String> {
        let output = self.run(&["cat", path])?;
        ensure!(output.code == 0, "cannot read {path} on {}: {}", self.name, output.stderr.trim());
        Ok(output.stdout)
    }

    /// Mounts an export at `target` by NFSv4.1, as the references recommend, and `options` besides.
    ///
    /// # Errors
    /// When it cannot be mounted in half a minute.
    pub fn mount_nfs(&self, source: &str, target: &str, options: &str) -> Result<()> {
        self.run(&["mkdir", "-p", target])?;
        let all = format!("vers=4.1,proto=tcp,hard,noatime,nconnect=4{options}");
        let mount = ["mount", "-t", "nfs4", "-o", &all, source, target];
        let output = self.run_within(Duration::from_secs(30), &mount)?;
        ensure!(output.code == 0, "{} cannot mount {source}: {}", self.name, output.stderr.trim());
        Ok(())
    }

    fn ask<S: AsRef<[u8]>>(&self, limit: Duration, input: &[u8], command: &[S]) -> Result<Output> {
        ensure!(self.is_on(), self.is_off());
        let seconds = limit.as_secs().max(1).to_string();
        let mut limited: Vec<&[u8]> = vec![b"timeout", b"--kill-after=2", seconds.as_bytes()];
        limited.extend(command.iter().map(AsRef::as_ref));
        exec::ask(self.management, input, &limited, limit + Duration::from_secs(10))
            .with_context(|| format!("guest {}", self.name))
    }

    fn is_off(&self) -> anyhow::Error {
        anyhow!("guest {} is off", self.name)
    }

    fn power(&self) -> MutexGuard<'_, Option<Power>> {
        self.power.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The kernel's command line: all that makes this guest another than the next.
fn arguments(
    bed: &NfsBed,
    name: &str,
    address: Ipv4Addr,
    management: Ipv4Addr,
    spec: &GuestSpec,
) -> Result<Vec<String>> {
    let [a, b, c, d] = address.octets();
    let list = |paths: &[PathBuf]| -> Result<String> {
        Ok(paths.iter().map(|path| plain(path)).collect::<Result<Vec<_>>>()?.join(":"))
    };
    let disk = bed.disks.join(format!("{name}.cow"));
    let client_id = spec.client_id.clone().unwrap_or_else(|| address.to_string());
    Ok(vec![
        // Where the kernel can: without it every system call of a guest's process takes a ptrace stop.
        "seccomp=auto".to_owned(),
        format!("mem={}M", spec.memory_mib),
        format!("umid={name}"),
        format!("uml_dir={}/", bed.umid.display()),
        // Its own disk holds what differs from the image that all share.
        format!("ubda={},{}", plain(&disk)?, plain(&bed.parts.image)?),
        "root=/dev/ubda".to_owned(),
        "rootfstype=ext4".to_owned(),
        "rw".to_owned(),
        "con=null".to_owned(),
        "con0=null,fd:1".to_owned(),
        "quiet".to_owned(),
        "selinux=0".to_owned(),
        format!(
            "vec0:transport=tap,ifname=t-{name},depth=64,gro=1,mac=02:00:{a:02x}:{b:02x}:{c:02x}:{d:02x}"
        ),
        format!("vec1:transport=tap,ifname=m-{name},depth=64,gro=1"),
        "net.ifnames=0".to_owned(),
        format!("systemd.hostname={name}"),
        format!("systemd.machine_id=be{:030x}", u32::from(address)),
        "systemd.journald.forward_to_console=1".to_owned(),
        format!("nfs.nfs4_unique_id={client_id}"),
        "nfs.recover_lost_locks=0".to_owned(),
        // ganesha 4.3 does not know what 7.2 asks for there.
        "nfsv4.directory_delegations=0".to_owned(),
        format!("bed.address={address}/24"),
        format!("bed.management={management}/30"),
        format!("bed.see={}", list(&bed.see)?),
        format!("bed.write={}", list(&bed.write)?),
        format!("bed.exec={}", plain(&shell::build_dir()?.join("guest_exec"))?),
    ])
}
