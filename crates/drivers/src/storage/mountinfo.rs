//! `/proc/self/mountinfo`: what is mounted where, without touching anything that is mounted.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};

/// One mount, as the kernel tells it (`proc_pid_mountinfo(5)`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(super) id: u32,
    parent: u32,
    /// The file system's device number, such as `0:45`: the same for every mount of it.
    pub(super) device: String,
    /// Where it is mounted.
    pub(super) point: PathBuf,
    /// File system type, such as `nfs4`.
    pub(super) fs_type: String,
    /// What is mounted, such as `svm1:/kafka01`.
    pub(super) source: String,
    /// Options of the mount and of its file system, together.
    pub(super) options: Vec<String>,
}

impl Mount {
    /// Whether the option stands there, word for word.
    pub(super) fn has(&self, option: &str) -> bool {
        self.options.iter().any(|o| o == option)
    }

    /// What the option `name` is set to.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }

    /// Whether hosts share it, so that one sees the files and the POSIX locks of another. CIFS, 9p, virtiofs
    /// and the like are left out: their locks may end at the host.
    pub(crate) fn is_shared(&self) -> bool {
        const SHARED: [&str; 10] = [
            "nfs",
            "nfs4",
            "ceph",
            "fuse.ceph-fuse",
            "fuse.glusterfs",
            "lustre",
            "gpfs",
            "beegfs",
            "gfs2",
            "ocfs2",
        ];
        SHARED.contains(&self.fs_type.as_str())
    }

    /// `svm1:/kafka01 (nfs4) at /mnt/kafka`.
    pub(crate) fn words(&self) -> String {
        format!("{} ({}) at {}", self.source, self.fs_type, self.point.display())
    }
}

/// The mounts of this process's mount namespace.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mounts(Vec<Mount>);

impl Mounts {
    /// Reads them. The file is the kernel's own: reading it waits for no server.
    pub(crate) fn read() -> io::Result<Self> {
        const FILE: &str = "/proc/self/mountinfo";
        Self::parse(&std::fs::read(FILE)?).map_err(|line| {
            let line = String::from_utf8_lossy(line).into_owned();
            io::Error::new(io::ErrorKind::InvalidData, format!("{FILE} has a line of unknown form: {line}"))
        })
    }

    /// Parses the file, or gives back the line that is none.
    pub(super) fn parse(text: &[u8]) -> Result<Self, &[u8]> {
        let lines = text.split(|b| *b == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| parse_line(line).ok_or(line)).collect::<Result<_, _>>().map(Self)
    }

    /// The mount that an absolute path without symbolic links lies on.
    ///
    /// Follows the mounts down the path by their parents, as the kernel does: what a later mount covers
    /// is not seen, however well its path fits.
    pub(crate) fn covering(&self, path: &Path) -> Option<&Mount> {
        let mut here = self.root()?;
        let mut prefix = PathBuf::new();
        // The kernel numbers mounts anew while the file is read, piece by piece: were two to name each other
        // as parents, this would go round for ever. None is passed twice.
        let mut left = self.0.len();
        for component in path.components() {
            prefix.push(component);
            while let Some(next) = self.mounted_on(here, &prefix).filter(|_| left > 0) {
                here = next;
                left -= 1;
            }
        }
        Some(here)
    }

    /// The mount whose mount point is exactly `path`, if it is the one seen there.
    pub(super) fn at(&self, path: &Path) -> Option<&Mount> {
        self.covering(path).filter(|mount| mount.point == path)
    }

    /// The devices of everything that is mounted.
    pub(super) fn devices(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|mount| mount.device.as_str())
    }

    /// The mount at `/` that hangs on none of the others.
    fn root(&self) -> Option<&Mount> {
        let known = |id: u32| self.0.iter().any(|mount| mount.id == id);
        let mut roots = self.0.iter().filter(|mount| mount.point == Path::new("/"));
        roots.find(|mount| mount.parent == mount.id || !known(mount.parent))
    }

    fn mounted_on(&self, parent: &Mount, point: &Path) -> Option<&Mount> {
        self.0
            .iter()
            .rev()
            .find(|mount| mount.parent == parent.id && mount.id != parent.id && mount.point == point)
    }
}

/// `36 35 98:0 /sub /mnt rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|b| *b == b' ');
    let mut number = || std::str::from_utf8(words.next()?).ok()?.parse().ok();
    let (id, parent) = (number()?, number()?);
    let (device, _root, point) = (words.next()?, words.next()?, words.next()?);
    let mount_options = words.next()?;
    // Any number of optional fields ends with a single hyphen.
    words.by_ref().find(|word| *word == b"-")?;
    let (fs_type, source) = (words.next()?, words.next()?);
    let fs_options = words.next().unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(&unescape(bytes)).into_owned();
    let options = [mount_options, fs_options].into_iter().flat_map(|o| o.split(|b| *b == b','));
    Some(Mount {
        id,
        parent,
        device: text(device),
        point: PathBuf::from(OsString::from_vec(unescape(point))),
        fs_type: text(fs_type),
        source: text(source),
        options: options.filter(|o| !o.is_empty()).map(text).collect(),
    })
}

/// Space, tab, line feed and backslash are written as `\040` and the like.
pub(super) fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let code = (*first == b'\\').then(|| tail.get(..3)).flatten().and_then(octal);
        let (byte, next) = code.map_or((*first, tail), |byte| (byte, &tail[3..]));
        plain.push(byte);
        rest = next;
    }
    plain
}

fn octal(digits: &[u8]) -> Option<u8> {
    let text = std::str::from_utf8(digits).ok().filter(|t| t.bytes().all(|b| b.is_ascii_digit()))?;
    u8::from_str_radix(text, 8).ok()
}

/// Whether two NFS sources are the same, whether or not they end in a slash.
pub(super) fn same_source(one: &str, other: &str) -> bool {
    let trim = |source: &str| match source.trim_end_matches('/') {
        bare if bare.ends_with(':') || bare.is_empty() => format!("{bare}/"),
        bare => bare.to_owned(),
    };
    trim(one) == trim(other)
}

/// Reads a path that people may have written with a slash at its end, with `.` or with doubled slashes.
pub(super) fn plainly<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    PathBuf::deserialize(deserializer).map(|path| path.components().collect())
}

/// Whether a path can be looked up as it stands: absolute, and without `.`, `..` or doubled slashes.
pub(super) fn is_plain(path: &Path) -> bool {
    let rebuilt: PathBuf = path.components().collect();
    path.is_absolute()
        && rebuilt.as_os_str().as_bytes() == path.as_os_str().as_bytes()
        && !path.components().any(|c| c == std::path::Component::ParentDir)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOST: &[u8] = b"\
28 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro
29 28 0:25 / /proc rw,nosuid - proc proc rw
40 28 0:50 / /mnt/kafka rw,noatime shared:2 master:1 - nfs4 svm1:/kafka01 rw,vers=4.1,hard,nconnect=16
41 40 0:51 / /mnt/kafka/sub\\040dir ro,relatime - nfs4 svm1:/sub rw,vers=4.1
42 28 0:52 / /opt/a rw - tmpfs old rw
43 28 0:53 / /opt rw - tmpfs cover rw
44 40 0:54 / /mnt/kafka/stacked rw - tmpfs below rw
45 44 0:55 / /mnt/kafka/stacked rw - tmpfs above rw
";

    fn source(path: &str) -> String {
        Mounts::parse(HOST).unwrap().covering(Path::new(path)).unwrap().source.clone()
    }

    #[test]
    fn a_path_lies_on_the_mount_that_is_seen_there() {
        assert_eq!(source("/"), "/dev/vda1");
        assert_eq!(source("/mnt/kafka2/broker1"), "/dev/vda1");
        assert_eq!(source("/mnt/kafka/broker1"), "svm1:/kafka01");
        assert_eq!(source("/mnt/kafka/sub dir/x"), "svm1:/sub");
        assert_eq!(source("/mnt/kafka/stacked/x"), "above");
        assert_eq!(source("/opt/a/x"), "cover", "a covered mount is not seen");
    }

    #[test]
    fn only_a_mount_point_has_a_mount_at_it() {
        let mounts = Mounts::parse(HOST).unwrap();
        assert_eq!(mounts.at(Path::new("/mnt/kafka")).unwrap().words(), "svm1:/kafka01 (nfs4) at /mnt/kafka");
        assert!(mounts.at(Path::new("/mnt/kafka")).unwrap().has("nconnect=16"));
        assert_eq!(mounts.at(Path::new("/mnt/kafka/broker1")), None);
        assert_eq!(mounts.at(Path::new("/opt/a")), None);
    }

    #[test]
    fn this_hosts_own_file_is_understood() {
        let mounts = Mounts::read().unwrap();
        assert_eq!(mounts.covering(Path::new("/proc")).unwrap().fs_type, "proc");
    }

    #[test]
    fn a_line_of_unknown_form_is_an_error() {
        let bad: &[u8] = b"36 35 98:0 / /mnt rw ext3 /dev/root rw\n";
        assert_eq!(Mounts::parse(bad).unwrap_err(), &bad[..bad.len() - 1]);
    }

    #[test]
    fn sources_and_paths_are_compared_as_people_mean_them() {
        assert!(same_source("svm1:/kafka01/", "svm1:/kafka01"));
        assert!(same_source("svm1:/", "svm1://"));
        assert!(!same_source("svm1:/kafka01", "svm2:/kafka01"));
        assert!(is_plain(Path::new("/mnt/kafka")) && is_plain(Path::new("/")));
        for odd in ["mnt", "/mnt/", "/mnt//kafka", "/mnt/./kafka", "/mnt/../kafka", ""] {
            assert!(!is_plain(Path::new(odd)), "{odd}");
        }
    }

    #[test]
    fn mounts_that_hang_on_each_other_are_not_followed_for_ever() {
        let text = b"1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 / / rw - ext4 b rw\n1 2 8:3 / / rw - ext4 c rw\n";
        let mounts = Mounts::parse(text).unwrap();
        assert!(mounts.covering(Path::new("/mnt/kafka")).is_some());
    }

    /// As the kernel writes a field (`mangle` in `fs/proc_namespace.c`).
    fn escape(field: &[u8]) -> Vec<u8> {
        let escaped = |b: &u8| match b {
            b' ' | b'\t' | b'\n' | b'\\' => format!("\\{b:03o}").into_bytes(),
            b => vec![*b],
        };
        field.iter().flat_map(escaped).collect()
    }

    proptest! {
        #[test]
        fn whatever_bytes_come_the_parser_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(mounts) = Mounts::parse(&bytes) {
                mounts.covering(Path::new("/mnt/kafka"));
            }
        }

        #[test]
        fn any_mount_point_comes_back_as_it_was(
            name in prop::collection::vec(any::<u8>().prop_filter("a name", |b| *b != 0 && *b != b'/'), 1..20),
            optional in prop::collection::vec("[a-z]{1,8}:[0-9]{1,3}", 0..3),
        ) {
            prop_assume!(name != b"." && name != b"..");
            let mut point = b"/mnt/".to_vec();
            point.extend(&name);
            let mut text = b"1 0 8:1 / / rw - ext4 /dev/vda1 rw\n2 1 0:9 / ".to_vec();
            text.extend(escape(&point));
            text.extend(format!(" rw {}", optional.iter().map(|o| format!("{o} ")).collect::<String>()).bytes());
            text.extend(b"- nfs4 a:/b rw,hard\n");
            let mounts = Mounts::parse(&text).unwrap();
            let path = PathBuf::from(OsString::from_vec(point));
            let mount = mounts.at(&path).unwrap();
            prop_assert_eq!((&mount.point, mount.source.as_str(), mount.has("hard")), (&path, "a:/b", true));
            prop_assert_eq!(mounts.covering(&path.join("x")), Some(mount));
        }
    }
}
