//! What the kernel's NFS client says of its own file systems, in `/proc`. Nothing here waits for a server.
//!
//! A mount that is gone from mountinfo proves little: after a lazy unmount, or while an `umount` hangs, its
//! file system lives on with open files and unwritten pages. The kernel takes it from
//! `/proc/fs/nfsfs/volumes` when it is really gone, after its last page was written or thrown away. That is
//! the sign to wait for.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use super::super::mountinfo::unescape;

const VOLUMES: &str = "fs/nfsfs/volumes";

/// One NFS file system that the kernel holds, whether or not it is mounted anywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Volume {
    /// As mountinfo writes it: `0:45`.
    pub(super) device: String,
    /// The server's address.
    pub(super) server: Option<IpAddr>,
    /// The file system's id on its server, as the server tells it.
    pub(super) fsid: String,
}

/// Every NFS file system of this network namespace. None, where the kernel says that it has no NFS client;
/// that the list cannot be seen says nothing of the kind.
pub(super) fn volumes(proc: &Path) -> io::Result<Vec<Volume>> {
    let unseen = match fs::read_to_string(proc.join(VOLUMES)) {
        Ok(text) => return Ok(parse_volumes(&text)),
        Err(error) => error,
    };
    let known = fs::read_to_string(proc.join("filesystems"));
    let no_client = known.is_ok_and(|known| !known.split_whitespace().any(|word| word == "nfs4"));
    if unseen.kind() == io::ErrorKind::NotFound && no_client {
        return Ok(Vec::new());
    }
    let why = format!(
        "{} cannot be read ({unseen}), so nobody can tell what the kernel still holds of a dead mount. Does the agent's \
         unit hide parts of /proc (ProcSubset=)?",
        proc.join(VOLUMES).display()
    );
    Err(io::Error::new(unseen.kind(), why))
}

/// `v4 0a630001  801 0:45         98:0                              no`
pub(super) fn parse_volumes(text: &str) -> Vec<Volume> {
    let lines = text.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_version, server, _port, device, fsid, ..] = words.as_slice() else { return None };
        Some(Volume { device: (*device).to_owned(), server: hex_address(server), fsid: (*fsid).to_owned() })
    });
    lines.collect()
}

fn hex_address(hex: &str) -> Option<IpAddr> {
    match hex.len() {
        8 => u32::from_str_radix(hex, 16).ok().map(|bits| Ipv4Addr::from_bits(bits).into()),
        32 => u128::from_str_radix(hex, 16).ok().map(|bits| Ipv6Addr::from_bits(bits).into()),
        _ => None,
    }
}

/// Devices of `volumes` that are mounted nowhere in this mount namespace, and may be of `server`.
pub(super) fn orphans<'a>(
    volumes: &'a [Volume],
    mounted: &BTreeSet<&str>,
    server: Option<IpAddr>,
) -> Vec<&'a Volume> {
    let elsewhere =
        |volume: &Volume| matches!((volume.server, server), (Some(one), Some(other)) if one != other);
    // 0:0 is one that is just being made.
    let real = volumes.iter().filter(|volume| volume.device != "0:0");
    real.filter(|volume| !mounted.contains(volume.device.as_str()) && !elsewhere(volume)).collect()
}

/// Whether anything was ever written through what is mounted at `target`, by this kernel's own counters.
/// `None` if they do not say.
pub(super) fn ever_written(proc: &Path, target: &Path) -> Option<bool> {
    parse_written(&fs::read_to_string(proc.join("self/mountstats")).ok()?, target)
}

/// Pages made dirty (`vfsupdatepage`, which counts mapped files too) and bytes written, of the one mount at
/// `target`.
pub(super) fn parse_written(text: &str, target: &Path) -> Option<bool> {
    const UPDATED_PAGES: usize = 7;
    const BYTES_WRITTEN: [usize; 4] = [1, 3, 5, 7];
    let at_target = |header: &str| {
        let words: Vec<&str> = header.split(' ').collect();
        let [_device, _source, "mounted", "on", point, "with", "fstype", ..] = words.as_slice() else {
            return false;
        };
        let point = unescape(point.as_bytes());
        point == target.as_os_str().as_encoded_bytes()
    };
    let mut sections: Vec<Vec<&str>> = Vec::new();
    for line in text.lines() {
        if line.starts_with("device ") {
            sections.push(Vec::new());
        }
        sections.last_mut()?.push(line);
    }
    sections.retain(|section| section.first().is_some_and(|header| at_target(header)));
    // Of stacked mounts nobody can tell which section is whose.
    let [section] = sections.as_slice() else { return None };
    let counters = |name: &str| -> Option<Vec<u64>> {
        let line = section.iter().find_map(|line| line.trim_start().strip_prefix(name))?;
        line.split_whitespace().map(|word| word.parse().ok()).collect()
    };
    let (events, bytes) = (counters("events:")?, counters("bytes:")?);
    let mut written = *events.get(UPDATED_PAGES)? > 0;
    for index in BYTES_WRITTEN {
        written |= *bytes.get(index)? > 0;
    }
    Some(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUMES: &str = "\
NV SERVER   PORT DEV          FSID                              FSC
v4 0a630001  801 0:45         98:0                              no
v4 fd000000000000000000000000000001  801 0:46         c10a1819257f4d4d:a0d6372e2f44b4e3 no
v3 0a630002  801 0:0          0:0                               no
";

    const STATS: &str = "\
device proc mounted on /proc with fstype proc
device svm1:/kafka01 mounted on /mnt/kafka\\040a with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.1
\tage:\t12
\tevents:\t1 2 0 0 1 2 3 0 0 0 0 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0
\tbytes:\t0 0 0 0 0 0 0 0
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
device svm1:/kafka02 mounted on /mnt/b with fstype nfs4 statvers=1.1
\tevents:\t1 2 0 0 1 2 3 9 0 0 0 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0
\tbytes:\t0 0 0 0 0 0 0 0
device svm1:/kafka03 mounted on /mnt/c with fstype nfs4 statvers=1.1
\tevents:\t1 2 0 0 1 2 3 0 0 0 0 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0
\tbytes:\t5 0 0 512 0 512 0 0
device svm1:/kafka04 mounted on /mnt/d with fstype nfs4 statvers=1.1
device svm1:/kafka05 mounted on /mnt/d with fstype nfs4 statvers=1.1
";

    #[test]
    fn file_systems_are_read_with_their_servers() {
        let volumes = parse_volumes(VOLUMES);
        assert_eq!(volumes.len(), 3);
        assert_eq!(volumes[0].server, Some([10, 99, 0, 1].into()));
        assert_eq!((volumes[0].device.as_str(), volumes[0].fsid.as_str()), ("0:45", "98:0"));
        assert_eq!(volumes[1].server, Some("fd00::1".parse().unwrap()));
    }

    #[test]
    fn a_list_that_cannot_be_seen_is_not_an_empty_one() {
        let proc = tempfile::tempdir().unwrap();
        let said = volumes(proc.path()).unwrap_err().to_string();
        assert!(said.contains("fs/nfsfs/volumes cannot be read") && said.contains("ProcSubset="), "{said}");
        fs::write(proc.path().join("filesystems"), "nodev\tproc\nnodev\tnfs4\n").unwrap();
        volumes(proc.path()).unwrap_err();
        fs::write(proc.path().join("filesystems"), "nodev\tproc\nnodev\tnfsd\n\text4\n").unwrap();
        assert_eq!(volumes(proc.path()).unwrap(), []);
        fs::create_dir_all(proc.path().join("fs/nfsfs/volumes")).unwrap();
        volumes(proc.path()).unwrap_err();
    }

    #[test]
    fn what_is_mounted_nowhere_is_told_unless_it_is_of_another_server() {
        let volumes = parse_volumes(VOLUMES);
        let devices = |mounted: &[&'static str], server: Option<&str>| -> Vec<String> {
            let mounted = mounted.iter().copied().collect();
            let server = server.map(|text| text.parse().unwrap());
            orphans(&volumes, &mounted, server).iter().map(|volume| volume.device.clone()).collect()
        };
        assert_eq!(devices(&["0:45"], None), ["0:46"]);
        assert_eq!(devices(&[], Some("10.99.0.1")), ["0:45"]);
        assert_eq!(devices(&["0:45"], Some("10.99.0.1")), Vec::<String>::new());
        assert_eq!(devices(&["0:45", "0:46"], None), Vec::<String>::new());
    }

    #[test]
    fn a_mount_that_was_never_written_through_is_known_by_its_counters() {
        assert_eq!(parse_written(STATS, Path::new("/mnt/kafka a")), Some(false));
        assert_eq!(parse_written(STATS, Path::new("/mnt/b")), Some(true), "a page was made dirty");
        assert_eq!(parse_written(STATS, Path::new("/mnt/c")), Some(true), "written past the cache");
        assert_eq!(parse_written(STATS, Path::new("/mnt/d")), None, "two at one place");
        assert_eq!(parse_written(STATS, Path::new("/proc")), None, "no counters");
        assert_eq!(parse_written(STATS, Path::new("/mnt/e")), None);
    }
}
