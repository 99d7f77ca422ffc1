//! Mount options: those that Kafka's data does not survive, and what the kernel made of those that were asked
//! for.

use super::super::mountinfo::Mount;

/// Options that are refused, as `nfs(5)` names them, and why.
const DANGEROUS: [(&[&str], &str); 10] = [
    (&["soft", "softerr"], "a soft mount turns a slow server into lost writes; use hard"),
    (&["softreval"], "it answers from an old cache while the server is away; leave it out"),
    (
        &["nolock", "local_lock=all", "local_lock=flock", "local_lock=posix"],
        "locks would be known to this host only, so that a second Kafka would not be refused; leave it out",
    ),
    (
        &["nocto"],
        "without close-to-open consistency the new owner may read what its cache has and not what the old one \
         wrote; leave it out",
    ),
    (
        &["vers=2", "vers=3", "vers=4.0", "nfsvers=2", "nfsvers=3", "nfsvers=4.0", "v2", "v3", "v4.0"],
        "locks need the lease and the sessions of NFSv4.1, and only there a server can keep files that are \
         unlinked while open; use vers=4.1",
    ),
    (&["minorversion=0"], "NFSv4.0 has no sessions; use vers=4.1"),
    (&["proto=udp", "proto=udp6", "udp"], "NFSv4 needs a transport that keeps order; use proto=tcp"),
    (
        &["bg"],
        "mount would report success with nothing mounted, and mount it at any time later; leave it out",
    ),
    (&["ro"], "Kafka writes; use rw"),
    (&["remount", "bind", "rbind", "move"], "that mounts nothing of the server; leave it out"),
];

/// What is wrong with the options, one text for each dangerous one.
pub(super) fn problems(options: &str) -> Vec<String> {
    if options.contains(char::is_whitespace) || options.is_empty() {
        return vec!["must be words between commas, without spaces".to_owned()];
    }
    let why = |option: &str| DANGEROUS.iter().find(|(names, _)| names.contains(&option)).map(|(_, why)| why);
    options.split(',').filter_map(|option| Some(format!("`{option}`: {}", why(option)?))).collect()
}

/// What speaks against an NFS mount as the kernel shows it, whatever was asked for.
pub(in super::super) fn objections(mount: &Mount) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(version) = mount.value("vers")
        && !matches!(version, "4.1" | "4.2")
    {
        found.push(format!("it is mounted with NFS version {version}, and 4.1 is needed"));
    }
    if !mount.has("hard") {
        found.push("it is a soft mount, which turns a slow server into lost writes".to_owned());
    }
    if let Some(local) = mount.value("local_lock")
        && local != "none"
    {
        found.push(format!("its locks stay on this host (local_lock={local})"));
    }
    found.extend(mount.has("nocto").then(|| "it has no close-to-open consistency (nocto)".to_owned()));
    found.extend(mount.has("ro").then(|| "it is mounted read-only".to_owned()));
    found
}

/// Options that were asked for and are not in force: those that make the mount useless, and the others.
///
/// `nconnect` is one of the others: the kernel shares one client for all mounts of a server, so the
/// first mount decides it.
pub(super) fn missing(asked: &str, mount: &Mount) -> (Vec<String>, Vec<String>) {
    const OTHERS: [&str; 6] = ["proto=", "nconnect=", "noatime", "rsize=", "wsize=", "sec="];
    let asked = asked.split(',').map(|option| option.replacen("nfsvers=", "vers=", 1));
    let absent = asked.filter(|option| match option.strip_prefix("vers=") {
        // Asked for as 4, shown as 4.2.
        Some(_) => !mount.options.iter().any(|o| o == option || o.starts_with(&format!("{option}."))),
        None => !mount.has(option),
    });
    let known = absent.filter_map(|option| {
        let vital = option.starts_with("vers=") || matches!(option.as_str(), "hard" | "rw");
        (vital || OTHERS.iter().any(|o| option.starts_with(o))).then_some((vital, option))
    });
    let (vital, others): (Vec<_>, Vec<_>) = known.partition(|(vital, _)| *vital);
    let names = |options: Vec<(bool, String)>| options.into_iter().map(|(_, option)| option).collect();
    (names(vital), names(others))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::super::mountinfo::Mounts;
    use super::*;

    fn mounted(options: &str) -> Mount {
        let line = format!("1 0 0:1 / / rw,noatime - nfs4 svm1:/kafka01 {options}\n");
        Mounts::parse(line.as_bytes()).unwrap().at(Path::new("/")).unwrap().clone()
    }

    #[test]
    fn what_endangers_data_is_refused_with_the_reason() {
        assert!(problems(super::super::DEFAULT_OPTIONS).is_empty());
        assert!(
            problems("rw,hard,vers=4.2,nconnect=4,rsize=65536,timeo=600,sec=krb5p,noresvport").is_empty()
        );
        for (names, _) in DANGEROUS {
            for name in names {
                let said = problems(&format!("hard,{name},noatime"));
                assert!(said.len() == 1 && said[0].starts_with(&format!("`{name}`: ")), "{said:?}");
            }
        }
        assert_eq!(problems("soft,nolock,bg").len(), 3, "all at once");
        for odd in ["", "hard, noatime", "hard\tnoatime"] {
            assert_eq!(problems(odd).len(), 1, "{odd:?}");
        }
    }

    #[test]
    fn what_the_server_did_not_grant_is_seen() {
        let asked = "nfsvers=4.1,proto=tcp,hard,nconnect=16,noatime";
        let all = mounted("rw,vers=4.1,hard,proto=tcp,nconnect=16");
        assert_eq!(missing(asked, &all), (vec![], vec![]));
        let less = mounted("rw,vers=4.0,soft,proto=tcp");
        assert_eq!(
            missing(asked, &less),
            (vec!["vers=4.1".into(), "hard".into()], vec!["nconnect=16".into()])
        );
        assert_eq!(missing("vers=4", &mounted("rw,vers=4.2")), (vec![], vec![]));
    }

    #[test]
    fn a_mount_is_held_against_what_kafka_needs() {
        assert!(objections(&mounted("rw,vers=4.1,hard,local_lock=none")).is_empty());
        assert!(objections(&mounted("rw,vers=4.2,hard,local_lock=none")).is_empty());
        let bad = objections(&mounted("ro,vers=3,soft,nocto,local_lock=all"));
        assert_eq!(bad.len(), 5, "{bad:?}");
        assert_eq!(objections(&mounted("rw,vers=4.0,hard")).len(), 1);
    }
}
