//! Who this host's NFS client says it is, and the kernel parameters that Kafka on NFS depends on.
//!
//! A server knows a client by one string, in which the address has no part: "Linux NFSv4.1
//! UNIQUIFIER/HOSTNAME", without the uniquifier if there is none (`nfs4_init_uniform_client_string`). Two
//! hosts with the same string take each other's lease and locks away, again and again. A standby made from a
//! broker's image is such a pair.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use recovery::model::{HostName, NfsClientId};
use recovery::ports::Note;

/// Requests of one session under way at a time. TR-4947 raises the kernel's 64 to this.
const SESSION_SLOTS: u32 = 180;

/// Host names that any host may have.
const GENERIC: [&str; 9] =
    ["localhost", "(none)", "none", "debian", "ubuntu", "rocky", "almalinux", "rhel", "linux"];

/// Where the kernel keeps its uniquifier, the one for this network namespace first.
const UNIQUIFIERS: [&str; 2] =
    ["sys/fs/nfs/net/nfs_client/identifier", "sys/module/nfs/parameters/nfs4_unique_id"];
const PARAMETERS: &str = "sys/module/nfs/parameters";

/// What this kernel's NFS client is set to. `None`: the kernel does not tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NfsClient {
    /// Who it is; `None` if no NFS client is loaded.
    pub id: Option<NfsClientId>,
    /// The most requests of one session under way.
    pub session_slots: Option<u32>,
    /// Whether it takes locks back that it lost, which may be another's by then.
    pub recovers_lost_locks: Option<bool>,
}

impl NfsClient {
    /// Reads it. These files are the kernel's own: reading them waits for no server.
    ///
    /// # Errors
    /// When a file that is there cannot be read.
    pub fn read() -> io::Result<Self> {
        let node = rustix::system::uname();
        Self::read_below(Path::new("/"), &node.nodename().to_string_lossy())
    }

    fn read_below(root: &Path, node: &str) -> io::Result<Self> {
        let file = |path: &str| match fs::read_to_string(root.join(path)) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        if !root.join(PARAMETERS).exists() {
            return Ok(Self::default());
        }
        let mut uniquifier = String::new();
        for path in UNIQUIFIERS {
            // An identifier that was never set is shown as the null pointer that it is.
            let found = file(path)?.filter(|text| !text.is_empty() && text != "(null)");
            if let (Some(found), true) = (found, uniquifier.is_empty()) {
                uniquifier = found;
            }
        }
        let parameter = |name: &str| file(&format!("{PARAMETERS}/{name}"));
        Ok(Self {
            id: Some(NfsClientId { uniquifier, node: node.to_owned() }),
            session_slots: parameter("max_session_slots")?.and_then(|text| text.parse().ok()),
            recovers_lost_locks: parameter("recover_lost_locks")?.map(|text| text == "Y" || text == "1"),
        })
    }

    /// Whether this client may be let near the log dirs. `homes`: the hosts where brokers live, `peers`: who
    /// the clients of other hosts are.
    ///
    /// # Errors
    /// Everything that must not be, with what to do about it.
    pub fn judge(
        &self,
        here: &HostName,
        homes: &BTreeSet<HostName>,
        peers: &[(HostName, NfsClientId)],
    ) -> Result<Note, String> {
        let Some(id) = &self.id else {
            let why = "no NFS client is loaded in this kernel, so that nothing of it can be checked; run \
                       `modprobe nfs` (and have it loaded at boot), and check again";
            return Ok(Note::warning(why));
        };
        let mut wrong = identity(id, here, homes, peers);
        if self.recovers_lost_locks == Some(true) {
            wrong.push(
                "nfs.recover_lost_locks is on: locks that the server took away are taken back behind Kafka's back, though \
                 another host may have had them. Remove it from the kernel's command line and /etc/modprobe.d"
                    .to_owned(),
            );
        }
        if !wrong.is_empty() {
            return Err(wrong.join("; "));
        }
        let note = Note::new(format!("the servers know this host as \"{}\"", id.owner()));
        Ok(note.warn(weaknesses(id, self.session_slots, peers)).with("nfs_client", id.owner()))
    }
}

const REMEDY: &str = "give each host a uniquifier of its own that stays: `options nfs nfs4_unique_id=…` in \
                      /etc/modprobe.d (`uuidgen` makes one), then reboot. Never copy it to another host, and take it \
                      out of images";

fn identity(
    id: &NfsClientId,
    here: &HostName,
    homes: &BTreeSet<HostName>,
    peers: &[(HostName, NfsClientId)],
) -> Vec<String> {
    let mut wrong = Vec::new();
    let node = id.node.as_str();
    let short = node.split('.').next().unwrap_or(node);
    if id.uniquifier.is_empty() && GENERIC.contains(&short) {
        wrong.push(format!(
            "only its host name, `{node}`, tells this host's NFS client from others: {REMEDY}"
        ));
    }
    let copied = |home: &&HostName| *home != here && (home.0 == node || home.0 == short);
    if id.uniquifier.is_empty()
        && let Some(home) = homes.iter().find(copied)
    {
        wrong.push(format!(
            "this host has the name of {home}, where a broker lives, and so their NFS clients are one to the server: \
             each takes the other's locks away. Give this host its own name, and {REMEDY}"
        ));
    }
    for (peer, _) in peers.iter().filter(|(peer, theirs)| peer != here && theirs.owner() == id.owner()) {
        wrong.push(format!(
            "the NFS clients of this host and of {peer} are one to the server (\"{}\"): each takes the other's locks away. \
             Was one made from the other's image? {REMEDY}",
            id.owner()
        ));
    }
    wrong
}

fn weaknesses(id: &NfsClientId, slots: Option<u32>, peers: &[(HostName, NfsClientId)]) -> Vec<String> {
    let mut said = Vec::new();
    if id.uniquifier.is_empty() {
        said.push(format!("nothing but its host name makes it unlike others: {REMEDY}"));
    }
    for (peer, theirs) in peers {
        let twin = theirs.uniquifier == id.uniquifier && theirs.node != id.node;
        if twin && !id.uniquifier.is_empty() {
            said.push(format!(
                "{peer} has the same nfs4_unique_id, and only the host names differ: {REMEDY}"
            ));
        }
    }
    if let Some(slots) = slots.filter(|slots| *slots < SESSION_SLOTS) {
        said.push(format!(
            "nfs.max_session_slots is {slots}: no more requests of this host are under way at one server at a \
             time. TR-4947 sets it to {SESSION_SLOTS}: `options nfs max_session_slots={SESSION_SLOTS}` in /etc/modprobe.d"
        ));
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(uniquifier: &str, node: &str) -> NfsClientId {
        NfsClientId { uniquifier: uniquifier.to_owned(), node: node.to_owned() }
    }

    fn client(uniquifier: &str, node: &str) -> NfsClient {
        NfsClient {
            id: Some(id(uniquifier, node)),
            session_slots: Some(180),
            recovers_lost_locks: Some(false),
        }
    }

    fn judged(client: &NfsClient, peers: &[(&str, NfsClientId)]) -> Result<String, String> {
        let homes = BTreeSet::from(["kafka-1".into(), "kafka-2".into()]);
        let peers: Vec<_> = peers.iter().map(|(host, id)| (HostName::from(*host), id.clone())).collect();
        client.judge(&"standby-1".into(), &homes, &peers).map(|note| note.to_string())
    }

    #[test]
    fn the_kernels_files_are_read_as_it_writes_them() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let read = || NfsClient::read_below(root.path(), "standby-1").unwrap();
        assert_eq!(read(), NfsClient::default(), "nothing is loaded");
        put(UNIQUIFIERS[1], "\n");
        put(UNIQUIFIERS[0], "(null)\n");
        put("sys/module/nfs/parameters/max_session_slots", "64\n");
        put("sys/module/nfs/parameters/recover_lost_locks", "N\n");
        let found = read();
        assert_eq!(found.id.unwrap().owner(), "Linux NFSv4.1 standby-1");
        assert_eq!((found.session_slots, found.recovers_lost_locks), (Some(64), Some(false)));
        put(UNIQUIFIERS[1], "module\n");
        assert_eq!(read().id.unwrap().owner(), "Linux NFSv4.1 module/standby-1");
        put(UNIQUIFIERS[0], "namespace\n");
        assert_eq!(read().id.unwrap().owner(), "Linux NFSv4.1 namespace/standby-1");
    }

    #[test]
    fn a_client_of_its_own_is_good() {
        let text = judged(&client("f81d", "standby-1"), &[("kafka-1", id("77aa", "kafka-1"))]).unwrap();
        assert_eq!(text, "the servers know this host as \"Linux NFSv4.1 f81d/standby-1\"");
    }

    #[test]
    fn clones_are_refused_with_the_remedy() {
        for (bad, peers, said) in [
            (client("", "localhost"), vec![], "only its host name"),
            (client("", "localhost.localdomain"), vec![], "only its host name"),
            (client("", "kafka-1"), vec![], "has the name of kafka-1"),
            (client("", "kafka-1.example.com"), vec![], "has the name of kafka-1"),
            (client("f81d", "kafka-1"), vec![("kafka-1", id("f81d", "kafka-1"))], "and of kafka-1 are one"),
            (client("", "host-7"), vec![("standby-2", id("", "host-7"))], "and of standby-2 are one"),
        ] {
            let why = judged(&bad, &peers).unwrap_err();
            assert!(why.contains(said) && why.contains("nfs4_unique_id"), "{why}");
        }
        let eager = NfsClient { recovers_lost_locks: Some(true), ..client("f81d", "standby-1") };
        assert!(judged(&eager, &[]).unwrap_err().contains("recover_lost_locks is on"));
    }

    #[test]
    fn what_only_might_go_wrong_is_a_warning() {
        for (weak, peers, said) in [
            (client("", "standby-1"), vec![], "nothing but its host name"),
            (
                client("f81d", "standby-1"),
                vec![("kafka-1", id("f81d", "kafka-1"))],
                "has the same nfs4_unique_id",
            ),
            (
                NfsClient { session_slots: Some(64), ..client("f81d", "standby-1") },
                vec![],
                "max_session_slots is 64",
            ),
            (NfsClient::default(), vec![], "no NFS client is loaded"),
        ] {
            let text = judged(&weak, &peers).unwrap();
            assert!(text.contains("WARNING: ") && text.contains(said), "{text}");
        }
        // A peer that asks itself is no other host.
        assert!(judged(&client("f81d", "standby-1"), &[("standby-1", id("f81d", "standby-1"))]).is_ok());
    }
}
