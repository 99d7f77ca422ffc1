//! How long an NFS server keeps what a client holds that has died, as this host's kernel was told when it
//! mounted.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::mountinfo::{Mounts, unescape};

/// The lease of the server that `log_dirs` are on: of their mount, or of any other mount of the same server.
/// `sources` names what will be mounted, as `server:/path`, where it is not yet. `None`: this host has
/// nothing mounted from there, or its kernel (before Linux 5.5) does not say. Waits for nobody.
#[must_use]
pub fn of(log_dirs: &[PathBuf], sources: &[String]) -> Option<Duration> {
    // Names in it may be of any bytes.
    let stats = String::from_utf8_lossy(&fs::read("/proc/self/mountstats").ok()?).into_owned();
    let mounts = Mounts::read().ok()?;
    let mounted = log_dirs.iter().filter_map(|dir| mounts.covering(dir)).map(|mount| mount.source.as_str());
    let servers = mounted.chain(sources.iter().map(String::as_str)).filter_map(server);
    longest(&stats, &servers.collect::<Vec<_>>())
}

/// `server` of `server:/path`.
fn server(source: &str) -> Option<&str> {
    source.rsplit_once(":/").map(|(server, _)| server)
}

/// The longest lease of any of `servers`.
fn longest(stats: &str, servers: &[&str]) -> Option<Duration> {
    let mut ours = false;
    let mut found = None;
    for line in stats.lines() {
        if let Some(header) = line.strip_prefix("device ") {
            let source = header.split(' ').next().unwrap_or_default();
            let source = String::from_utf8_lossy(&unescape(source.as_bytes())).into_owned();
            ours = server(&source).is_some_and(|server| servers.contains(&server));
        }
        if ours {
            found = found.max(lease(line));
        }
    }
    found
}

/// `nfsv4: bm0=…,sessions,lease_time=90,lease_expired=0`
fn lease(line: &str) -> Option<Duration> {
    let line = line.trim_start().strip_prefix("nfsv4:")?;
    let seconds = line.split(',').find_map(|word| word.trim().strip_prefix("lease_time="))?;
    seconds.parse().ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATS: &str = "device rootfs mounted on / with fstype rootfs\n\
        device filer:/kafka01 mounted on /srv/a with fstype nfs4 statvers=1.1\n\
        \topts:\trw,vers=4.1\n\
        \tnfsv4:\tbm0=0xfdffbfff,acl=0x3,sessions,pnfs=not configured,lease_time=30,lease_expired=0\n\
        device [fd00::1]:/b mounted on /srv/b with fstype nfs4 statvers=1.1\n\
        \tnfsv4:\tbm0=0xfdffbfff,acl=0x3,sessions,pnfs=not configured,lease_time=90,lease_expired=0\n\
        device old:/c mounted on /srv/c with fstype nfs4 statvers=1.1\n\
        \tnfsv4:\tbm0=0xfdffbfff,acl=0x3\n";

    #[test]
    fn the_lease_is_that_of_the_same_server() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(longest(STATS, &["filer"]), seconds(30));
        assert_eq!(longest(STATS, &["[fd00::1]"]), seconds(90));
        assert_eq!(longest(STATS, &["filer", "[fd00::1]"]), seconds(90));
        assert_eq!(
            (longest(STATS, &["old"]), longest(STATS, &["other"]), longest("", &["filer"])),
            (None, None, None)
        );
    }
}
