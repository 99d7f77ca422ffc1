//! The resources there are: where they live, what identifies a record, and what may be done to them.

use percent_encoding::percent_decode_str;

/// A kind of record that the fake keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Table {
    /// `/cluster`: one record.
    Cluster,
    /// `/cluster/nodes`.
    Nodes,
    /// `/cluster/jobs`.
    Jobs,
    /// `/svm/svms`.
    Svms,
    /// `/protocols/nfs/services`.
    NfsServices,
    /// `/protocols/nfs/export-policies`.
    Policies,
    /// `/protocols/nfs/export-policies/{id}/rules`.
    Rules,
    /// The clients of one rule: made from [`Table::Rules`].
    RuleClients,
    /// `/protocols/nfs/connected-clients`.
    ConnectedClients,
    /// `/protocols/nfs/connected-client-maps`: made from [`Table::ConnectedClients`].
    ClientMaps,
    /// `/protocols/nfs/connected-client-settings`: one record.
    ClientSettings,
    /// `/protocols/locks`.
    Locks,
    /// `/storage/volumes`.
    Volumes,
    /// `/storage/volumes/{uuid}/snapshots`.
    Snapshots,
    /// `/storage/aggregates`.
    Aggregates,
    /// `/storage/qos/policies`.
    QosPolicies,
    /// `/network/ip/interfaces`.
    Interfaces,
    /// `/snapmirror/relationships`.
    Snapmirror,
    /// `…/metrics` of a record of another table.
    Metrics,
    /// `volume show` of the command line: made from [`Table::Volumes`].
    CliVolumes,
    /// `network connections active show` of the command line.
    CliConnections,
    /// `vserver export-policy cache flush`, a command.
    CliCacheFlush,
    /// `vserver export-policy access-cache flush`, a command.
    CliAccessCacheFlush,
    /// `vserver export-policy access-cache show`: made from what the nodes remember.
    CliAccessCache,
    /// `vserver export-policy check-access`: made from the rules.
    CliCheckAccess,
    /// `/storage/qtrees`: those of its own, and one without a name for each volume.
    Qtrees,
}

/// One resource.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) table: Table,
    /// Below `/api`; a word in braces is a field of the record.
    pub(super) path: &'static str,
    /// What stands after the path for one record; nothing: there is no such form.
    pub(super) keys: &'static [&'static str],
    /// What a list shows when nothing is asked for, besides the keys.
    pub(super) defaults: &'static [&'static str],
    /// What `fields=*` leaves out.
    pub(super) expensive: &'static [&'static str],
    /// Letters of what is allowed: `g`et, `p`ost, patc`h`, `d`elete.
    pub(super) verbs: &'static str,
    /// Changes are jobs.
    pub(super) jobs: bool,
    /// The path itself is the one record.
    pub(super) single: bool,
}

const VOLUME_EXPENSIVE: &[&str] = &[
    "nas.path",
    "nas.security_style",
    "nas.unix_permissions",
    "guarantee",
    "autosize",
    "efficiency",
    "qos",
    "metric",
    "statistics",
    "space.physical_used",
    "space.logical_space",
    "is_svm_root",
];

const SVM_AND_NAME: &[&str] = &["svm", "name"];

impl Shape {
    /// To fill up from.
    pub(super) const NONE: Self = Self {
        table: Table::Cluster,
        path: "",
        keys: &[],
        defaults: &[],
        expensive: &[],
        verbs: "g",
        jobs: false,
        single: false,
    };

    const fn new(
        table: Table,
        path: &'static str,
        keys: &'static [&'static str],
        verbs: &'static str,
    ) -> Self {
        Self { table, path, keys, verbs, ..Self::NONE }
    }

    const fn defaults(mut self, fields: &'static [&'static str]) -> Self {
        self.defaults = fields;
        self
    }

    const fn expensive(mut self, fields: &'static [&'static str]) -> Self {
        self.expensive = fields;
        self
    }

    const fn jobs(mut self) -> Self {
        self.jobs = true;
        self
    }

    const fn single(mut self) -> Self {
        self.single = true;
        self
    }

    /// Whether `method` is allowed here.
    pub(super) fn allows(&self, method: &str) -> bool {
        let letter = match method {
            "GET" | "HEAD" => 'g',
            "POST" => 'p',
            "PATCH" => 'h',
            "DELETE" => 'd',
            _ => return false,
        };
        self.verbs.contains(letter)
    }

    /// Whether this is the command line in disguise, with rules of its own.
    pub(super) fn is_cli(&self) -> bool {
        self.path.starts_with("private/cli")
    }
}

/// `…/metrics` has no entry of its own below: it hangs under many.
pub(super) const METRICS: Shape =
    Shape::new(Table::Metrics, "metrics", &[], "g").defaults(&["timestamp", "duration", "status"]);

const SHAPES: &[Shape] = &[
    Shape::new(Table::Cluster, "cluster", &[], "gh").single(),
    Shape::new(Table::Nodes, "cluster/nodes", &["uuid"], "gh").defaults(&["name"]).jobs(),
    Shape::new(Table::Jobs, "cluster/jobs", &["uuid"], "gh"),
    Shape::new(Table::Svms, "svm/svms", &["uuid"], "gh").defaults(&["name"]),
    Shape::new(Table::NfsServices, "protocols/nfs/services", &["svm.uuid"], "gphd")
        .defaults(&["svm"])
        .expensive(&["metric", "statistics"]),
    Shape::new(Table::Policies, "protocols/nfs/export-policies", &["id"], "gphd").defaults(SVM_AND_NAME),
    Shape::new(Table::Rules, "protocols/nfs/export-policies/{policy.id}/rules", &["index"], "gphd")
        .defaults(&["policy", "svm"]),
    Shape::new(
        Table::RuleClients,
        "protocols/nfs/export-policies/{policy.id}/rules/{index}/clients",
        &["match"],
        "gpd",
    ),
    Shape::new(Table::ConnectedClients, "protocols/nfs/connected-clients", &[], "g")
        .defaults(&["svm", "node", "server_ip", "client_ip", "volume.name", "protocol"])
        .expensive(&["export_policy.id", "volume.uuid"]),
    Shape::new(Table::ClientMaps, "protocols/nfs/connected-client-maps", &[], "g").defaults(&[
        "svm",
        "node",
        "server_ip",
        "client_ips",
    ]),
    Shape::new(Table::ClientSettings, "protocols/nfs/connected-client-settings", &[], "gh").single(),
    Shape::new(Table::Locks, "protocols/locks", &["uuid"], "gd").defaults(&[
        "svm",
        "volume",
        "interface.name",
        "interface.uuid",
        "path",
    ]),
    Shape::new(Table::Volumes, "storage/volumes", &["uuid"], "gphd")
        .defaults(&["name"])
        .expensive(VOLUME_EXPENSIVE)
        .jobs(),
    Shape::new(Table::Snapshots, "storage/volumes/{volume.uuid}/snapshots", &["uuid"], "gphd")
        .defaults(&["name", "volume"])
        .jobs(),
    Shape::new(Table::Aggregates, "storage/aggregates", &["uuid"], "g")
        .defaults(&["name"])
        .expensive(&["metric", "statistics"]),
    Shape::new(Table::QosPolicies, "storage/qos/policies", &["uuid"], "gphd").defaults(SVM_AND_NAME).jobs(),
    Shape::new(Table::Interfaces, "network/ip/interfaces", &["uuid"], "gh")
        .defaults(&["name"])
        .expensive(&["metric", "statistics"]),
    Shape::new(Table::Snapmirror, "snapmirror/relationships", &["uuid"], "gh")
        .defaults(&["source.path", "destination.path"])
        .jobs(),
    Shape::new(Table::CliVolumes, "private/cli/volume", &[], "gh").defaults(&["vserver", "volume"]),
    Shape::new(Table::CliConnections, "private/cli/network/connections/active", &[], "g")
        .defaults(&["node", "cid", "vserver"]),
    Shape::new(Table::CliCacheFlush, "private/cli/vserver/export-policy/cache/flush", &[], "p"),
    Shape::new(Table::CliAccessCacheFlush, "private/cli/vserver/export-policy/access-cache/flush", &[], "p"),
    Shape::new(Table::CliAccessCache, "private/cli/vserver/export-policy/access-cache", &[], "g")
        .defaults(&["node", "vserver", "policy", "address"]),
    Shape::new(Table::CliCheckAccess, "private/cli/vserver/export-policy/check-access", &[], "g")
        .defaults(&["vserver", "volume", "path"]),
    Shape::new(Table::Qtrees, "storage/qtrees", &["volume.uuid", "id"], "g").defaults(&[
        "name",
        "volume.name",
        "svm",
    ]),
];

/// What a path points at.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) shape: &'static Shape,
    /// Fields with the values that the path gives them.
    pub(super) params: Vec<(String, String)>,
    /// One record, not the list.
    pub(super) instance: bool,
}

/// Finds what `path` points at; it starts with `/api`.
pub(super) fn route(path: &str) -> Option<Target> {
    let mut segments = path.trim_matches('/').split('/').map(decode);
    if segments.next()? != "api" {
        return None;
    }
    let mut segments: Vec<String> = segments.collect();
    if segments.first().is_some_and(|first| first == "v1") {
        segments.remove(0);
    }
    SHAPES.iter().find_map(|shape| {
        let pattern: Vec<&str> = shape.path.split('/').collect();
        let keys = segments.len().checked_sub(pattern.len())?;
        if keys != 0 && (keys != shape.keys.len() || shape.keys.is_empty()) {
            return None;
        }
        let mut params = Vec::new();
        for (pattern, segment) in pattern.iter().zip(&segments) {
            match pattern.strip_prefix('{').and_then(|field| field.strip_suffix('}')) {
                Some(field) => params.push((field.to_owned(), segment.clone())),
                None if pattern == segment => {}
                None => return None,
            }
        }
        let given = shape.keys.iter().zip(&segments[pattern.len()..]);
        params.extend(given.map(|(key, segment)| ((*key).to_owned(), segment.clone())));
        Some(Target { shape, params, instance: keys != 0 || shape.single })
    })
}

/// Whether `path` is below the passthrough to the command line.
pub(super) fn is_passthrough(path: &str) -> bool {
    path.trim_start_matches("/api/").trim_start_matches("v1/").starts_with("private/cli")
}

fn decode(segment: &str) -> String {
    percent_decode_str(segment).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_find_their_tables() {
        let target = route("/api/protocols/nfs/export-policies/5/rules/1/clients/10.0.0.0%2F24").unwrap();
        assert_eq!((target.shape.table, target.instance), (Table::RuleClients, true));
        let params: Vec<&str> = target.params.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(params, ["5", "1", "10.0.0.0/24"]);
        let list = route("/api/v1/storage/volumes").unwrap();
        assert_eq!((list.shape.table, list.instance), (Table::Volumes, false));
        assert!(route("/api/cluster").unwrap().instance);
        assert!(route("/api/no/such").is_none());
        assert!(route("/else").is_none());
    }
}
