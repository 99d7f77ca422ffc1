//! What must be on the machine before anything is built or run, and getting it.
//!
//! The list is for a Debian 12 that has a Rust toolchain and nothing else.

use std::env;
use std::fmt;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::shell;

/// How much of the list is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// Compiling, and the tests that run in process.
    Build,
    /// Also real hosts and a real Kafka.
    Stories,
    /// Also hosts with kernels of their own, and a real NFS server.
    Nfs,
}

/// Something is missing that this program could not install: exit code 2.
#[derive(Debug)]
pub(crate) struct Missing(pub(crate) String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

struct Need {
    scope: Scope,
    /// For the person who reads what is missing: what it is and what it is for.
    what: &'static str,
    /// The Debian package that brings it.
    package: &'static str,
    found: fn() -> bool,
}

const NEEDS: &[Need] = &[
    need(Scope::Build, "cc, a C compiler", "gcc", || on_path("cc")),
    need(Scope::Build, "the C library's headers", "libc6-dev", || compiles("#include <stdlib.h>")),
    // librdkafka is C, but its configure script refuses to go on without a C++ compiler.
    need(Scope::Build, "g++, for librdkafka's configure script", "g++", || {
        ["g++", "clang++", "c++"].into_iter().any(on_path)
    }),
    need(Scope::Build, "make, to build librdkafka", "make", || on_path("make")),
    need(Scope::Build, "pkg-config, to find OpenSSL and zlib", "pkg-config", || on_path("pkg-config")),
    need(Scope::Build, "OpenSSL's headers", "libssl-dev", || pkg_config_knows("openssl")),
    need(Scope::Build, "zlib's headers", "zlib1g-dev", || pkg_config_knows("zlib")),
    need(Scope::Build, "bindfs, for tests on a storage that stalls", "bindfs", || on_path("bindfs")),
    // The tests of the etcd ledger start a cluster of their own. Nothing uses the service that the package
    // brings.
    need(Scope::Build, "etcd, for the tests of the etcd ledger", "etcd-server", || on_path("etcd")),
    need(Scope::Build, "setpriv, to end test servers with their test", "util-linux", || on_path("setpriv")),
    // Neither needs to run: a test starts its own bus, and systemd's tool reads files.
    need(Scope::Build, "dbus-daemon, for the tests of the systemd driver", "dbus-daemon", || {
        on_path("dbus-daemon")
    }),
    need(Scope::Build, "systemd-analyze, to judge the units", "systemd", || on_path("systemd-analyze")),
    need(
        Scope::Build,
        "python3 with venv, for a simulated EC2 and for ONTAP's own clients",
        "python3-venv",
        || shell::succeeds(Command::new("python3").args(["-c", "import venv, ensurepip"])),
    ),
    need(Scope::Stories, "Java 17 or newer, for Kafka", "openjdk-17-jre-headless", || {
        java_major().is_some_and(|major| major >= 17)
    }),
    need(Scope::Stories, "mvn, to fetch Kafka", "maven", || on_path("mvn")),
    need(Scope::Stories, "ip, for the hosts' networks", "iproute2", || on_path("ip")),
    need(Scope::Stories, "unshare, nsenter and setpriv, for the hosts", "util-linux", || {
        ["unshare", "nsenter", "setpriv"].into_iter().all(on_path)
    }),
    need(Scope::Stories, "bindfs, for storage that stalls or is denied", "bindfs", || on_path("bindfs")),
    need(Scope::Stories, "nft, for links that lose packets", "nftables", || on_path("nft")),
    need(Scope::Nfs, "debootstrap, to make the guests' root file system", "debootstrap", || {
        on_path("debootstrap")
    }),
    need(Scope::Nfs, "mkfs.ext4, to make the guests' disk", "e2fsprogs", || on_path("mkfs.ext4")),
    need(Scope::Nfs, "patchelf, for a kernel that wants a newer C library", "patchelf", || {
        on_path("patchelf")
    }),
];

const fn need(scope: Scope, what: &'static str, package: &'static str, found: fn() -> bool) -> Need {
    Need { scope, what, package, found }
}

/// Makes sure that everything in `scope` is there: as root it installs what is missing, else it says how.
///
/// # Errors
/// [`Missing`] when a person has to act; anything else when the installation failed.
pub(crate) fn ensure(scope: Scope) -> Result<()> {
    let missing = missing(scope);
    if !missing.is_empty() {
        for need in &missing {
            eprintln!("missing: {} (Debian package {})", need.what, need.package);
        }
        install(&missing)?;
    }
    if scope >= Scope::Stories {
        ensure_namespaces()?;
    }
    Ok(())
}

fn missing(scope: Scope) -> Vec<&'static Need> {
    NEEDS.iter().filter(|need| need.scope <= scope && !(need.found)()).collect()
}

fn install(needs: &[&Need]) -> Result<()> {
    let packages: Vec<&str> = needs.iter().map(|need| need.package).collect();
    let names = packages.join(" ");
    if !on_path("apt-get") {
        let text =
            format!("there is no apt-get here: install what Debian calls {names}, then run this again");
        return Err(Missing(text).into());
    }
    if !is_root()? {
        let text = format!(
            "something is missing and only root can install it. Run this, then try again:\n{}",
            by_hand(&names)
        );
        return Err(Missing(text).into());
    }
    eprintln!("installing: {names}");
    apt_get(&["update", "--quiet=2"])
        .context("cannot refresh the package lists: check the network and the apt sources")?;
    let mut install = vec!["install", "--yes", "--quiet=2", "--no-install-recommends"];
    install.extend(&packages);
    apt_get(&install).with_context(|| format!("cannot install {names}: run apt-get by hand to see why"))?;
    let still: Vec<&str> = needs.iter().filter(|need| !(need.found)()).map(|need| need.what).collect();
    if !still.is_empty() {
        let text = format!(
            "installed {names}, and still not found: {}. Another version may come first in PATH",
            still.join("; ")
        );
        return Err(Missing(text).into());
    }
    Ok(())
}

fn by_hand(names: &str) -> String {
    format!("  sudo sh -c 'apt-get update && apt-get install --yes --no-install-recommends {names}'")
}

/// Runs apt-get unattended; retries and waiting for another apt's lock are its own, and bounded.
fn apt_get(args: &[&str]) -> Result<()> {
    shell::run(
        Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .args([
                "-o",
                "Acquire::Retries=3",
                "-o",
                "Acquire::http::Timeout=60",
                "-o",
                "DPkg::Lock::Timeout=300",
            ])
            .args(args),
    )
}

/// Hosts are namespaces: whether we may make them depends on the kernel and on the container we may be in.
fn ensure_namespaces() -> Result<()> {
    let root = is_root()?;
    let mut unshare = Command::new("unshare");
    if !root {
        unshare.args(["--user", "--map-root-user"]);
    }
    unshare.args(["--net", "--mount", "--pid", "--fork", "--mount-proc", "true"]);
    let tried = unshare.stdin(Stdio::null()).output().context("cannot start unshare")?;
    if tried.status.success() {
        return Ok(());
    }
    let advice = if root {
        "root may not make namespaces here. Run this on a machine of its own or a virtual one, or in a container \
         started with --privileged"
    } else {
        "ordinary users may not make namespaces here. Run this as root, or allow it with one of\n  \
         sudo sysctl -w kernel.unprivileged_userns_clone=1             (Debian)\n  \
         sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu)"
    };
    let said = String::from_utf8_lossy(&tried.stderr);
    Err(Missing(format!("{}: {advice}", said.trim())).into())
}

/// Whether this is root, of whatever user namespace.
pub(crate) fn is_root() -> Result<bool> {
    let owner = fs::metadata("/proc/self").context("cannot read /proc/self: is /proc mounted?")?.uid();
    Ok(owner == 0)
}

/// Whether packages come from Debian's archive.
pub(crate) fn is_debian() -> bool {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    release.lines().any(|line| line == "ID=debian") && on_path("apt-get")
}

fn on_path(program: &str) -> bool {
    let executable = |path: &Path| {
        fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|dir| executable(&dir.join(program))))
}

fn pkg_config_knows(library: &str) -> bool {
    shell::succeeds(Command::new("pkg-config").args(["--exists", library]))
}

fn compiles(source: &str) -> bool {
    let check = || -> Result<()> {
        let mut child = Command::new("cc")
            .args(["-fsyntax-only", "-x", "c", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        if let Some(mut input) = child.stdin.take() {
            writeln!(input, "{source}")?;
        }
        ensure!(child.wait()?.success());
        Ok(())
    };
    check().is_ok()
}

fn java_major() -> Option<u32> {
    let output = Command::new("java").arg("-version").stdin(Stdio::null()).output().ok()?;
    parse_java_major(&String::from_utf8_lossy(&output.stderr))
}

/// `openjdk version "17.0.15" 2025-04-15` → 17. Java 8 calls itself `1.8.0`, which is old enough as it
/// stands.
fn parse_java_major(text: &str) -> Option<u32> {
    let (_, version) = text.split_once("version \"")?;
    version.split(['.', '"', '-', '+']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn java_versions_are_read_as_java_prints_them() {
        assert_eq!(parse_java_major("openjdk version \"17.0.15\" 2025-04-15\nOpenJDK ..."), Some(17));
        assert_eq!(parse_java_major("openjdk version \"25\" 2025-09-16"), Some(25));
        assert_eq!(parse_java_major("openjdk version \"26-ea\" 2026-03-17"), Some(26));
        assert_eq!(parse_java_major("java version \"1.8.0_392\""), Some(1));
        assert_eq!(parse_java_major("bash: java: command not found"), None);
    }

    #[test]
    fn a_program_is_found_on_the_path_or_not_at_all() {
        assert!(on_path("sh"));
        assert!(!on_path("no-such-program-as-this"));
    }

    #[test]
    fn a_missing_header_is_noticed() {
        assert!(compiles("#include <stdlib.h>"));
        assert!(!compiles("#include <no/such/header.h>"));
    }

    #[test]
    fn the_advice_is_one_command_with_every_package() {
        let text = by_hand("maven make");
        assert_eq!(text.lines().count(), 1);
        assert!(text.contains("--no-install-recommends maven make"), "{text}");
    }
}
