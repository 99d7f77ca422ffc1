//! A fake ONTAP, and a host whose configuration names it.

use std::path::PathBuf;
use std::process::Command;

use fakes::ontap::{Fake, Table, World};
use ontap_client::Fingerprint;
use serde_json::{Value, json};

use crate::common::{Said, Site, said};

/// By which the owner of broker 1 mounts.
pub(crate) const OWNER: [u8; 4] = [10, 0, 0, 101];

pub(crate) struct Bed {
    pub(crate) fake: Fake,
    site: Site,
    config: PathBuf,
}

/// The SVM as TR-4947 wants it, with the volume `kafka01` of broker 1, which 10.0.0.101 has mounted by 16
/// connections.
pub(crate) fn good_world() -> World {
    let mut world = World::small();
    world.policy("svm1", "kafka1", &[&["10.0.0.101"]]);
    world.volume("svm1", "kafka01", "kafka1");
    world.policy("svm1", "root", &[&["10.0.0.0/8"]]);
    world.volume("svm1", "svm1_root", "root");
    world.update(Table::Volumes, &[("name", "svm1_root")], json!({ "nas": { "path": "/" } }));
    let good = json!({
        "snapshot_policy": { "name": "none" }, "efficiency": { "dedupe": "background" },
        "~cli": { "is_preserve_unlink_enabled": true },
    });
    world.update(Table::Volumes, &[("name", "kafka01")], good);
    let service = json!({ "transport": { "tcp_max_transfer_size": 262_144 } });
    world.update(Table::NfsServices, &[("svm.name", "svm1")], service);
    for _ in 1..16 {
        world.connect("kafka01", OWNER.into(), std::time::Duration::ZERO);
    }
    world
}

impl Bed {
    pub(crate) async fn new(world: World) -> Self {
        let fake = Fake::https(world).await.unwrap();
        let site = Site::new();
        std::fs::write(site.path("password"), "secret\n").unwrap();
        let login = format!(
            "url = \"{}\"\nuser = \"admin\"\npassword_file = {:?}\npin = \"{}\"\n",
            fake.url(),
            site.path("password"),
            pin(&fake),
        );
        let storage = format!(
            "driver = \"nfs\"\n[[broker.storage.mount]]\nsource = \"10.0.0.50:/kafka01\"\ntarget = {:?}\n\
             [broker.storage.grant]\nsvm = \"svm1\"\nvolumes = [\"kafka01\"]\naddresses = [\"10.0.0.102\"]\n\
             [broker.storage.grant.ontap]\n{login}",
            site.path("logs"),
        );
        let fence = format!(
            "driver = \"ontap_export\"\nsvm = \"svm1\"\nvolumes = [\"kafka01\"]\naddresses = [\"10.0.0.101\"]\n\
             [host.fence.ontap]\n{login}"
        );
        let config = site.on("standby-1", |text| {
            let stored = text.replace("driver = \"mounted\"\nrequire_mount = false\n", &storage);
            let fenced = stored.replace("driver = \"exec\"\ncommand = [\"/bin/false\"]\n", &fence);
            assert!(stored != text && fenced != stored);
            fenced
        });
        Self { fake, site, config }
    }

    /// Runs the binary beside the fake, which answers from this process.
    pub(crate) async fn run(&self, arguments: &[&str]) -> Said {
        self.run_in(&[], arguments).await
    }

    /// The same with more in its environment.
    pub(crate) async fn run_in(&self, environment: &[(&str, &str)], arguments: &[&str]) -> Said {
        let mut command = self.command(arguments);
        command.envs(environment.iter().copied());
        tokio::task::spawn_blocking(move || said(command.output().unwrap())).await.unwrap()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.site.command_with(&self.config, arguments)
    }

    /// Where the agent answers.
    pub(crate) fn listen(&self) -> String {
        self.site.listen.clone()
    }

    /// A file of the site.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.site.path(name)
    }

    /// Replaces the text of the configuration.
    pub(crate) fn edit(&self, act: impl FnOnce(String) -> String) {
        let text = std::fs::read_to_string(&self.config).unwrap();
        std::fs::write(&self.config, act(text)).unwrap();
    }

    /// The requests that could change something.
    pub(crate) fn writes(&self) -> Vec<String> {
        let all = self.fake.requests().into_iter();
        all.filter(|request| request.method != "GET").map(|r| format!("{} {}", r.method, r.path)).collect()
    }
}

/// Of the fake's certificate.
pub(crate) fn pin(fake: &Fake) -> String {
    Fingerprint::of(fake.certificate_der().unwrap()).to_string()
}

/// `check: verdict` of every finding that is no pass, with what was found.
pub(crate) fn odd(report: &Value) -> Vec<(String, String)> {
    let findings = report["findings"].as_array().unwrap().iter();
    findings
        .filter(|finding| finding["verdict"] != "pass")
        .map(|finding| {
            let text = |field: &str| finding[field].as_str().unwrap().to_owned();
            (format!("{}: {}", text("check"), text("verdict")), text("found"))
        })
        .collect()
}
