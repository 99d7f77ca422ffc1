//! Others on a host that set addresses, and take them off. systemd-networkd takes every address off its links that it
//! did not set, whenever it is started anew: an upgrade of systemd does that, and a broker's address is one of them.
//! Amazon Linux has a service that sets the addresses that EC2 tells.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Where files of the same name are looked for, the first one first (`systemd.network(5)`).
const PLACES: [&str; 4] = [
    "etc/systemd/network",
    "run/systemd/network",
    "usr/local/lib/systemd/network",
    "usr/lib/systemd/network",
];

/// The remedy where networkd would take an address off `interface`, whose index this is.
pub(super) fn forgets(interface: &str, index: u32) -> Option<String> {
    forgets_below(Path::new("/"), interface, index)
}

/// Where systemd has the service of `amazon-ec2-net-utils`, which Amazon Linux has, and where one of it is masked.
const NET_UTILS: &str = "usr/lib/systemd/system/policy-routes@.service";
const MASKS: &str = "etc/systemd/system";

/// The remedy where another service sets the addresses that EC2 gives `interface`.
pub(super) fn is_shared(interface: &str) -> Option<String> {
    is_shared_below(Path::new("/"), interface)
}

fn is_shared_below(root: &Path, interface: &str) -> Option<String> {
    let units =
        [format!("policy-routes@{interface}.service"), format!("refresh-policy-routes@{interface}.timer")];
    let is_masked = |unit: &String| {
        let to = fs::read_link(root.join(MASKS).join(unit));
        to.is_ok_and(|to| to == Path::new("/dev/null"))
    };
    let shared = root.join(NET_UTILS).exists() && !units.iter().all(is_masked);
    shared.then(|| {
        format!(
            "amazon-ec2-net-utils puts the addresses that EC2 gives {interface} on the link by itself, and takes them \
             off: run `systemctl mask --now {}`, so that the agent alone moves a broker's address",
            units.join(" ")
        )
    })
}

fn forgets_below(root: &Path, interface: &str, index: u32) -> Option<String> {
    let state = fs::read_to_string(root.join(format!("run/systemd/netif/links/{index}"))).ok()?;
    let managed = matches!(last(&state, "ADMIN_STATE"), Some("configured" | "configuring"));
    let file = last(&state, "NETWORK_FILE").filter(|_| managed)?;
    let name = Path::new(file).file_name()?.to_str()?;
    let own = fs::read_to_string(root.join(file.trim_start_matches('/'))).unwrap_or_default();
    let all = own + "\n" + &drop_ins(root, name);
    let keeps = ["static", "yes", "true", "on", "1"];
    if last(&all, "KeepConfiguration").is_some_and(|value| keeps.contains(&value)) {
        return None;
    }
    Some(format!(
        "systemd-networkd has {interface}, and takes addresses off it that it did not set whenever it is started anew, \
         as by an upgrade of systemd: write `[Network]` and `KeepConfiguration=static` into \
         /etc/systemd/network/{name}.d/understudy.conf, and run `networkctl reload`"
    ))
}

/// The drop-ins of a file, in the order of their names.
fn drop_ins(root: &Path, name: &str) -> String {
    let mut found = BTreeMap::new();
    for place in PLACES {
        let entries =
            fs::read_dir(root.join(place).join(format!("{name}.d"))).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.path().extension().is_some_and(|kind| kind == "conf")) {
            found.entry(entry.file_name()).or_insert_with(|| entry.path());
        }
    }
    found.values().filter_map(|path| fs::read_to_string(path).ok()).collect::<Vec<_>>().join("\n")
}

/// The value of `key` in the last line that sets it.
fn last<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let value = |line: &'t str| line.trim().strip_prefix(key)?.trim_start().strip_prefix('=');
    text.lines().filter_map(value).map(str::trim).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host whose link 2 has this state and this file of networkd's.
    fn host(state: &str, network: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let file = "/run/systemd/network/10-netplan-ens5.network";
        put(
            "run/systemd/netif/links/2",
            &format!("ADMIN_STATE={state}\nOPER_STATE=routable\nNETWORK_FILE={file}\n"),
        );
        put(file.trim_start_matches('/'), network);
        root
    }

    fn dropped_in(root: &Path, place: &str, file: &str, value: &str) {
        let dir = root.join(place).join("10-netplan-ens5.network.d");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(file), format!("[Network]\nKeepConfiguration = {value}\n")).unwrap();
    }

    #[test]
    fn a_link_of_networkds_forgets_what_others_set_until_it_is_told_to_keep_it() {
        let root = host("configured", "[Match]\nName=ens5\n[Network]\nDHCP=ipv4\n");
        let told = forgets_below(root.path(), "ens5", 2).unwrap();
        assert!(told.contains("/etc/systemd/network/10-netplan-ens5.network.d/understudy.conf"), "{told}");
        dropped_in(root.path(), "etc/systemd/network", "understudy.conf", "static");
        assert_eq!(forgets_below(root.path(), "ens5", 2), None);
        // The later name wins, and of the same name the one in /etc.
        dropped_in(root.path(), "run/systemd/network", "zz.conf", "dhcp");
        assert!(forgets_below(root.path(), "ens5", 2).is_some());
        dropped_in(root.path(), "etc/systemd/network", "zz.conf", "yes");
        assert_eq!(forgets_below(root.path(), "ens5", 2), None);
    }

    #[test]
    fn another_service_that_sets_addresses_is_told() {
        let root = host("unmanaged", "");
        assert_eq!(is_shared_below(root.path(), "ens5"), None);
        let file = root.path().join(NET_UTILS);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "").unwrap();
        assert!(
            is_shared_below(root.path(), "ens5").unwrap().contains("mask --now policy-routes@ens5.service")
        );
        let masks = root.path().join(MASKS);
        fs::create_dir_all(&masks).unwrap();
        for unit in ["policy-routes@ens5.service", "refresh-policy-routes@ens5.timer"] {
            std::os::unix::fs::symlink("/dev/null", masks.join(unit)).unwrap();
        }
        assert_eq!(is_shared_below(root.path(), "ens5"), None);
        assert!(is_shared_below(root.path(), "ens6").is_some());
    }

    #[test]
    fn a_link_that_is_not_networkds_keeps_what_others_set() {
        let root = host("unmanaged", "[Network]\nDHCP=ipv4\n");
        assert_eq!(forgets_below(root.path(), "ens5", 2), None);
        assert_eq!(forgets_below(root.path(), "ens6", 3), None);
        let root = host("configured", "[Network]\nKeepConfiguration=static\n");
        assert_eq!(forgets_below(root.path(), "ens5", 2), None);
    }
}
