//! What the NFS tier's hosts are made of, built once: `<cache>/nfs-bed-<recipe>-<parts>`.
//!
//! - `linux`: a User-mode Linux, which finds a C library of its own age in `lib`;
//! - `root.ext4`: what its guests boot from, a Debian 12 with systemd, an NFS client and Java, and never
//!   write to;
//! - `root/`: the same as a directory, without what a server does not need: nfs-ganesha runs in it.
//!
//! The name has a hash of the recipe (packages, suites, and each file that we put in) and one of the versions
//! and checksums of the packages whose suite moves. The directory appears by one rename, when it is complete;
//! each use verifies it against its list of checksums, so that one that is stale, damaged or added to is
//! built anew.

mod build;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::cache::Staging;
use crate::kafka::fnv1a;
use crate::{cache, preflight, shell};

/// What is installed in the guests, beside what every Debian has.
const PACKAGES: &[&str] = &[
    "ca-certificates",
    "dbus",
    "iproute2",
    "kmod",
    "netbase",
    "nfs-common",
    "nfs-ganesha",
    "nfs-ganesha-vfs",
    "openjdk-17-jre-headless",
    "procps",
    "systemd",
    "systemd-sysv",
    "udev",
    "util-linux",
];
/// The guests' Debian.
const SUITE: &str = "bookworm";
/// Where the kernel and its C library come from: the first that has both. From 7.2 on, User-mode Linux runs
/// its processes without ptrace, which makes it several times quicker; trixie's does not.
const KERNEL_SUITES: &[&str] = &["forky", "sid", "trixie"];
/// What is put into the guests: path, mode, content.
const FILES: &[(&str, u32, &str)] = &[
    ("usr/local/sbin/bed-setup", 0o755, include_str!("../../nfs-bed/bed-setup")),
    ("etc/systemd/system/bed-setup.service", 0o644, include_str!("../../nfs-bed/bed-setup.service")),
    ("etc/systemd/system/bed-exec.service", 0o644, include_str!("../../nfs-bed/bed-exec.service")),
];
/// What makes a guest's root file system of an installed Debian.
const FURNISH: &str = include_str!("../../nfs-bed/furnish");

const PREFIX: &str = "nfs-bed-";
/// The packages whose suite moves, by version and checksum.
const PARTS: &str = "PARTS";
/// In the format of b2sum, so that a person can check it too. It takes a quarter of the time of SHA-256.
const MANIFEST: &str = "B2SUMS";

/// Why this machine cannot run the NFS tier; `None` where it can.
pub(crate) fn obstacle() -> Option<String> {
    if !preflight::is_root().unwrap_or_default() {
        return Some("its server and its guests take root: run this as root".to_owned());
    }
    let uids = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if uids.split_whitespace().collect::<Vec<_>>() != ["0", "0", "4294967295"] {
        return Some(
            "root of a user namespace may not open files by handle, as an NFS server does".to_owned(),
        );
    }
    if !preflight::is_debian() {
        return Some("its guests are made with apt and debootstrap: run this on Debian 12".to_owned());
    }
    if let Err(error) = File::options().read(true).write(true).open("/dev/net/tun") {
        return Some(format!("guests have their links by /dev/net/tun, which cannot be opened: {error}"));
    }
    if std::env::consts::ARCH != "x86_64" {
        return Some("User-mode Linux is for x86-64 alone".to_owned());
    }
    None
}

/// Returns the directory of a complete, verified bed; builds it if need be.
///
/// # Errors
/// A package cannot be had, or the cache directory cannot be written.
pub(crate) fn ensure() -> Result<PathBuf> {
    let cache = cache::dir()?;
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let prefix = format!("{PREFIX}{:016x}-", fnv1a(recipe().as_bytes()));
    for entry in fs::read_dir(&cache)?.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(&prefix) {
            continue;
        }
        let home = entry.path();
        let Err(problem) = verify(&home) else { return Ok(home) };
        eprintln!("the cached NFS bed is not usable, building it anew: {problem:#}");
        fs::remove_dir_all(&home)
            .with_context(|| format!("cannot remove {}: remove it by hand", home.display()))?;
    }
    let staging = Staging::new(&cache, "nfs-bed-staging-")?;
    let home = build::build(staging.path(), |parts| cache.join(directory(parts)))?;
    let built = staging.path().join("bed");
    if let Err(error) = fs::rename(&built, &home) {
        // Another run may have been quicker; then its copy serves as well.
        verify(&home).with_context(|| format!("cannot put it into place at {}: {error}", home.display()))?;
    }
    verify(&home)?;
    let said = shell::stdout_of(Command::new(home.join("linux")).arg("--version"));
    said.context("the kernel of the NFS tier's hosts does not start")?;
    Ok(home)
}

/// Everything of ours that the bed depends on.
fn recipe() -> String {
    let files: String =
        FILES.iter().map(|(path, mode, content)| format!("{path} {mode:o}\n{content}")).collect();
    let (packages, kernels) = (PACKAGES.join(" "), KERNEL_SUITES.join(" "));
    format!("{SUITE} {packages}\n{kernels}\n{files}{FURNISH}{}", include_str!("build.rs"))
}

fn directory(parts: &str) -> String {
    format!("{PREFIX}{:016x}-{:016x}", fnv1a(recipe().as_bytes()), fnv1a(parts.as_bytes()))
}

/// Checks that a bed is the one that its name says, with every file as it was built and none besides.
fn verify(home: &Path) -> Result<()> {
    let read = |name: &str| {
        let path = home.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let (parts, sums) = (read(PARTS)?, read(MANIFEST)?);
    let name = home.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    ensure!(name == directory(&parts), "its parts are not those that its name says");
    let listed: BTreeSet<String> = sums.lines().filter_map(listed).collect();
    for file in ["./linux", "./root.ext4"] {
        ensure!(listed.contains(file), "{file} is not among its files");
    }
    let present: BTreeSet<String> = files(home)?.lines().map(str::to_owned).collect();
    if let Some(file) = listed.symmetric_difference(&present).next() {
        bail!("{file} is missing, or does not belong there");
    }
    let mut check = Command::new("b2sum");
    shell::run(check.args(["--check", "--quiet", "--strict", MANIFEST]).current_dir(home))
        .context("a file is damaged")
}

/// The file that a line of b2sum is about. One that begins with a backslash has the name's own doubled.
fn listed(line: &str) -> Option<String> {
    let (_, name) = line.split_once("  ")?;
    Some(if line.starts_with('\\') { name.replace("\\\\", "\\") } else { name.to_owned() })
}

/// Every file of a bed but its lists, relative to it.
fn files(home: &Path) -> Result<String> {
    let mut find = Command::new("find");
    let names = ["!", "-path", "./PARTS", "!", "-path", "./B2SUMS"];
    shell::stdout_of(find.args([".", "-type", "f"]).args(names).current_dir(home))
}

fn write_manifest(home: &Path) -> Result<()> {
    let script = "find . -type f ! -path ./PARTS ! -path ./B2SUMS -print0 | sort -z | xargs -0 b2sum";
    let sums = shell::stdout_of(Command::new("sh").args(["-c", script]).current_dir(home))?;
    fs::write(home.join(MANIFEST), sums)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that looks like a bed to `verify`.
    fn small_bed(cache: &Path) -> PathBuf {
        let home = cache.join(directory("kernel 7.2\n"));
        fs::create_dir_all(home.join("root/etc")).unwrap();
        for (name, text) in
            [("linux", "kernel"), ("root.ext4", "image"), ("root/etc/fstab", "/"), ("root/a\\x2db", "")]
        {
            fs::write(home.join(name), text).unwrap();
        }
        fs::write(home.join(PARTS), "kernel 7.2\n").unwrap();
        write_manifest(&home).unwrap();
        verify(&home).unwrap();
        home
    }

    fn problem_after(break_it: impl FnOnce(&Path)) -> String {
        let cache = tempfile::tempdir().unwrap();
        let home = small_bed(cache.path());
        break_it(&home);
        format!("{:#}", verify(&home).unwrap_err())
    }

    #[test]
    fn what_was_changed_added_or_deleted_is_noticed() {
        let damaged = problem_after(|home| fs::write(home.join("root/etc/fstab"), "?").unwrap());
        assert!(damaged.starts_with("a file is damaged"), "{damaged}");
        let added = problem_after(|home| fs::write(home.join("root/etc/new"), "").unwrap());
        assert_eq!(added, "./root/etc/new is missing, or does not belong there");
        let deleted = problem_after(|home| fs::remove_file(home.join("root/etc/fstab")).unwrap());
        assert_eq!(deleted, "./root/etc/fstab is missing, or does not belong there");
        let empty = problem_after(|home| {
            fs::remove_file(home.join("root.ext4")).unwrap();
            write_manifest(home).unwrap();
        });
        assert_eq!(empty, "./root.ext4 is not among its files");
    }

    #[test]
    fn another_kernel_does_not_pass_for_this_one() {
        let other = problem_after(|home| fs::write(home.join(PARTS), "kernel 6.12\n").unwrap());
        assert_eq!(other, "its parts are not those that its name says");
    }
}
