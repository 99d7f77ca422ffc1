//! Storage that this host has to be let in to first.

use std::sync::Arc;

use async_trait::async_trait;

use crate::export::OntapGrant;
use recovery::model::{Epoch, Grace, HeldLock};
use recovery::ports::{Note, StepError, Storage};

/// Lets this host in before it attaches, and takes it out again after it released.
pub(super) struct Granted {
    pub(super) grant: OntapGrant,
    pub(super) inner: Arc<dyn Storage>,
}

#[async_trait]
impl Storage for Granted {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn attach(&self, epoch: Epoch) -> Result<Note, StepError> {
        let granted = self.grant.admit(epoch).await?;
        Ok(granted.and(self.inner.attach(epoch).await?))
    }

    /// What is still mounted keeps its access: an unmount without it hangs.
    async fn release(&self) -> Result<Note, StepError> {
        let released = self.inner.release().await?;
        Ok(released.and(self.grant.withdraw().await?))
    }

    async fn withdraw(&self) -> Result<Note, StepError> {
        self.inner.withdraw().await
    }

    async fn locks(&self) -> Result<Vec<HeldLock>, StepError> {
        self.inner.locks().await
    }

    async fn grace(&self) -> Option<Grace> {
        self.grant.grace().await
    }

    /// Only what is held is looked for at ONTAP: with `ontap_export` as the fence nothing is.
    async fn break_locks(&self) -> Result<Note, StepError> {
        match self.inner.locks().await {
            Ok(held) if held.is_empty() => Ok(Note::new("no lock is held, so none was broken")),
            _ => self.grant.break_locks().await,
        }
    }

    async fn check(&self) -> Result<Note, StepError> {
        let (granted, inner) = tokio::join!(self.grant.check(), self.inner.check());
        Ok(granted?.and(inner?))
    }

    async fn unlinks(&self) -> Result<Note, StepError> {
        self.inner.unlinks().await
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::IpAddr;

    use fakes::ontap::{Fake, Fault, Table, World};
    use ontap_client::Fingerprint;
    use tempfile::NamedTempFile;

    use super::*;
    use crate::{OntapExportConfig, OntapGrantConfig};
    use recovery::model::HostName;
    use recovery::ports::{Fence, chain};

    const VOLUMES: [&str; 2] = ["kafka01", "kafka02"];

    fn old() -> IpAddr {
        [10, 0, 0, 101].into()
    }

    fn new() -> IpAddr {
        [10, 0, 0, 102].into()
    }

    /// Storage that works only while the new owner is let in, and the old one is not.
    struct Mounts(Arc<Fake>);

    #[async_trait]
    impl Storage for Mounts {
        fn name(&self) -> &'static str {
            "mounts"
        }

        async fn attach(&self, _: Epoch) -> Result<Note, StepError> {
            for volume in VOLUMES {
                assert!(
                    self.0.allows(new(), volume).may_write() && !self.0.allows(old(), volume).may_write()
                );
            }
            Ok(Note::new("mounted"))
        }

        async fn release(&self) -> Result<Note, StepError> {
            assert!(VOLUMES.iter().all(|volume| self.0.allows(new(), volume).may_write()));
            Ok(Note::new("unmounted"))
        }

        async fn check(&self) -> Result<Note, StepError> {
            Ok(Note::new("free"))
        }

        async fn locks(&self) -> Result<Vec<HeldLock>, StepError> {
            let of_bytes = |row: &serde_json::Value| row["type"] == "byte_range";
            let held = self.0.world(|world| world.rows(Table::Locks).iter().any(of_bytes));
            let lock = || HeldLock { path: "/mnt/a/.lock".into(), by: "a client of the storage".to_owned() };
            Ok(held.then(lock).into_iter().collect())
        }

        async fn break_locks(&self) -> Result<Note, StepError> {
            panic!("only ONTAP breaks locks")
        }

        async fn withdraw(&self) -> Result<Note, StepError> {
            self.release().await
        }

        async fn unlinks(&self) -> Result<Note, StepError> {
            Ok(Note::new("gone"))
        }
    }

    struct Site {
        fake: Arc<Fake>,
        fence: Arc<dyn Fence>,
        storage: Granted,
        _password: NamedTempFile,
    }

    async fn site() -> Site {
        let mut world = World::small();
        for volume in VOLUMES {
            world.policy("svm1", volume, &[&["10.0.0.101"]]);
            world.volume("svm1", volume, volume);
        }
        let fake = Arc::new(Fake::https(world).await.unwrap());
        let mut password = NamedTempFile::new().unwrap();
        password.write_all(b"secret\n").unwrap();
        let pin = Fingerprint::of(fake.certificate_der().unwrap());
        let text = |address: IpAddr| {
            format!(
                "svm = \"svm1\"\nvolumes = {VOLUMES:?}\naddresses = [\"{address}\"]\n[ontap]\nurl = \"{}\"\n\
                 user = \"admin\"\npassword_file = {:?}\npin = \"{pin}\"",
                fake.url(),
                password.path()
            )
        };
        let fence = format!("proof = \"flushed\"\n{}", text(old()));
        let fence = toml::from_str::<OntapExportConfig>(&fence).unwrap().build().map(Arc::new).unwrap();
        let grant = toml::from_str::<OntapGrantConfig>(&text(new())).unwrap().build(&[]).unwrap();
        let storage = Granted { grant, inner: Arc::new(Mounts(Arc::clone(&fake))) };
        Site { fake, fence, storage, _password: password }
    }

    fn host() -> HostName {
        HostName::from("kafka-1")
    }

    fn owners(fake: &Fake) -> (usize, usize) {
        let of = |who| VOLUMES.iter().filter(|v| fake.world(|w| w.would_allow(who, v).may_write())).count();
        (of(old()), of(new()))
    }

    #[tokio::test]
    async fn a_takeover_lets_one_host_in_at_a_time_and_a_release_makes_room() {
        let site = site().await;
        let error = site.storage.attach(Epoch(3)).await.unwrap_err().to_string();
        assert!(error.contains("somebody else is still let in (kafka01: 10.0.0.101"), "{error}");
        assert_eq!(owners(&site.fake), (2, 0));
        assert!(site.storage.check().await.unwrap().text.contains("now: kafka01: 10.0.0.101"));

        site.fence.fence(&host(), Epoch(3)).await.unwrap();
        let _ = site.fence.prove(&host(), Epoch(3)).await.unwrap();
        assert_eq!(owners(&site.fake), (0, 0));
        site.fake.forget_requests();
        site.storage.attach(Epoch(3)).await.unwrap();
        assert_eq!((owners(&site.fake), site.fake.requests().len()), ((0, 2), 4 + 6 + 2 + 4));
        // Again, as after a crash; and the old owner's fence stays proven, and is not lifted over the new
        // one.
        site.fake.forget_requests();
        site.storage.attach(Epoch(3)).await.unwrap();
        assert_eq!(site.fake.requests().len(), 4);
        let _ = site.fence.prove(&host(), Epoch(3)).await.unwrap();
        assert!(site.fence.lift(&host()).await.unwrap().text.contains("kafka01: 10.0.0.102 (epoch 3)"));
        assert_eq!(owners(&site.fake), (0, 2));

        site.storage.release().await.unwrap();
        assert_eq!(owners(&site.fake), (0, 0));
        assert!(site.storage.check().await.unwrap().text.contains("kafka01: nobody (epoch 3)"));
        site.fence.lift(&host()).await.unwrap();
        assert_eq!(owners(&site.fake), (2, 0));
    }

    /// A lock of the old owner that its fence, which was not ONTAP's, has left.
    fn left_behind(fake: &Fake, volume: &str, path: &str, kind: &str) {
        fake.world(|world| {
            let uuid = world.lock(volume, old(), path);
            world.update(Table::Locks, &[("uuid", &uuid)], serde_json::json!({ "type": kind }));
        });
    }

    #[tokio::test]
    async fn kafkas_locks_are_broken_and_no_others() {
        let site = site().await;
        site.fake.forget_requests();
        assert!(site.storage.break_locks().await.unwrap().text.contains("no lock is held"));
        assert_eq!(site.fake.requests().len(), 0, "ONTAP is not asked for what is free");

        left_behind(&site.fake, "kafka01", ".lock", "byte_range");
        left_behind(&site.fake, "kafka02", "data/.lock", "byte_range");
        left_behind(&site.fake, "kafka01", "data/.lock", "share_level");
        left_behind(&site.fake, "kafka01", "other", "byte_range");
        site.fake.world(|world| {
            world.policy("svm1", "else", &[&["10.0.0.101"]]);
            world.volume("svm1", "elsewhere", "else");
        });
        left_behind(&site.fake, "elsewhere", ".lock", "byte_range");
        let note = site.storage.break_locks().await.unwrap();
        assert_eq!(note.details["locks_broken"], "2", "{note:?}");
        let left = site.fake.world(|world| world.rows(Table::Locks).len());
        assert_eq!(left, 2 + 3, "those of the client that was there from the beginning, and three of these");
        assert!(
            site.storage.break_locks().await.unwrap().text.starts_with("0 locks"),
            "nothing is left to break"
        );
    }

    #[tokio::test]
    async fn what_is_not_where_it_belongs_is_told_with_the_grace_period() {
        let site = site().await;
        assert_eq!(site.storage.grace().await, None);
        let of = |name: &'static str| [("name", name)];
        site.fake.world(|world| {
            world.update(
                Table::NfsServices,
                &[],
                serde_json::json!({ "protocol": { "v4_grace_seconds": 60 } }),
            );
            world.update(Table::Nodes, &of("node-01"), serde_json::json!({ "state": "taken_over" }));
            let away = serde_json::json!({ "node": { "name": "node-02" } });
            world.update(Table::Aggregates, &of("aggr1"), away);
            world.lif("svm1", "lif2", [10, 0, 0, 51].into(), "node-02");
            world.update(Table::Interfaces, &of("lif2"), serde_json::json!({ "state": "down" }));
            let away = serde_json::json!({ "location": { "node": { "name": "node-02" }, "is_home": false } });
            world.update(Table::Interfaces, &of("lif1"), away);
        });
        let grace = site.storage.grace().await.unwrap();
        assert_eq!(grace.at_most, Some(std::time::Duration::from_secs(60)));
        for words in [
            "node node-01 is taken_over",
            "aggregate aggr1 is on node-02 and belongs to node-01",
            "interface lif1 is on node-02 and belongs to node-01",
            "interface lif2 is down, and keeps the locks of its clients until it is up; and",
        ] {
            assert!(grace.why.contains(words), "{grace}");
        }
        // It grants no new lock after the move, and nothing is said of when the interface comes up.
        let said = grace.to_string();
        assert!(
            said.ends_with(
                "(since when it does not tell): for 1 min after such a move it grants no new lock"
            )
        );
        // An account of an SVM sees its interfaces and nothing else, and a system that is silent says
        // nothing.
        site.fake.world(|world| world.deny("admin", "/api/cluster/nodes"));
        site.fake.world(|world| world.deny("admin", "/api/storage/aggregates"));
        assert!(site.storage.grace().await.unwrap().why.contains("lif1 is on node-02"));
        site.fake.inject(Fault::status(503));
        assert_eq!(site.storage.grace().await, None);
    }

    /// After a giveback everything is where it belongs: only who looked before knows that it moved.
    #[tokio::test]
    async fn what_moved_back_is_told_where_it_was_seen() {
        let site = site().await;
        let url = site.fake.url();
        let client = site.storage.grant.client().await;
        let look = async || crate::moves::places(&client, "svm1", &["kafka01"]).await.unwrap();
        let at = |node: &str, home: bool| {
            let place = serde_json::json!({ "location": { "node": { "name": node }, "is_home": home } });
            site.fake.world(|world| world.update(Table::Interfaces, &[("name", "lif1")], place));
        };
        at("node-02", false);
        let before = look().await;
        at("node-01", true);
        assert_eq!(site.storage.grace().await, None, "nobody has seen it");
        let keep = |svm: &str, after, now: &_| crate::moves::keep((&url, svm), &before, now, after);
        let now = look().await;
        keep("svm2", tokio::time::Instant::now(), &now);
        let long_ago = tokio::time::Instant::now().checked_sub(std::time::Duration::from_secs(56));
        keep("svm1", long_ago.unwrap(), &now);
        assert_eq!(site.storage.grace().await, None, "another SVM's, or over");
        let lately = tokio::time::Instant::now().checked_sub(std::time::Duration::from_secs(20));
        keep("svm1", lately.unwrap(), &now);
        let grace = site.storage.grace().await.unwrap();
        let words = "ONTAP showed that interface lif1 went from node-02 to node-01 (20.";
        assert!(grace.why.starts_with(words) && grace.why.ends_with(" s ago at most)"), "{grace}");
        assert_eq!(grace.at_most, Some(std::time::Duration::from_secs(45)));
    }

    /// An interface that is down keeps its locks for as long as it is; no grace period ends that.
    #[tokio::test]
    async fn an_interface_that_is_down_is_no_move() {
        let site = site().await;
        let down = serde_json::json!({ "state": "down" });
        site.fake.world(|world| world.update(Table::Interfaces, &[("name", "lif1")], down));
        let grace = site.storage.grace().await.unwrap();
        assert_eq!(grace.at_most, None);
        let words =
            "ONTAP shows that interface lif1 is down, and keeps the locks of its clients until it is up";
        assert_eq!(grace.to_string(), words);
    }

    /// What serves other volumes, or nobody, may be wherever it is.
    #[tokio::test]
    async fn what_does_not_serve_the_volumes_is_not_told() {
        let site = site().await;
        site.fake.world(|world| {
            world.ha_pair("node-03", "node-04");
            world.aggregate("aggr9", "node-03");
            let away = serde_json::json!({ "node": { "name": "node-04" } });
            world.update(Table::Aggregates, &[("name", "aggr9")], away);
            let taken_over = serde_json::json!({ "state": "taken_over" });
            world.update(Table::Nodes, &[("name", "node-03")], taken_over);
            // One of another service, and one that was switched off.
            for (name, change) in [
                ("mgmt", serde_json::json!({ "services": ["management_https"], "state": "down" })),
                ("off", serde_json::json!({ "enabled": false, "state": "down" })),
            ] {
                world.lif("svm1", name, [10, 0, 0, 60].into(), "node-02");
                world.update(Table::Interfaces, &[("name", name)], change);
            }
        });
        assert_eq!(site.storage.grace().await, None);
    }

    /// The wide flush has every client of the SVM asked for anew: a takeover orders it if it must, and says
    /// so; a check never does.
    #[tokio::test]
    async fn only_a_takeover_flushes_what_is_remembered_of_others() {
        let site = site().await;
        let commands = "/api/private/cli/vserver/export-policy";
        let unknown =
            serde_json::json!({ "error": { "code": "262179", "message": "not a recognized command" } });
        site.fake.inject(Fault::says(400, unknown).on("POST", &format!("{commands}/access-cache/flush")));
        let is_wide = |path: &str| path.starts_with(&format!("{commands}/cache/flush"));
        let wide = || site.fake.requests().iter().filter(|request| is_wide(&request.path)).count();
        let error = site.fence.check(&host()).await.unwrap_err().to_string();
        assert!(error.contains("a check does not flush all of the SVM"), "{error}");
        assert_eq!(wide(), 0);
        let note = site.fence.fence(&host(), Epoch(3)).await.unwrap();
        assert!(wide() > 0 && note.details["access_cache"].contains("node-01 (all of svm1)"), "{note:?}");
    }

    /// Whoever is let in by the policy of a clone may write to that as well.
    #[tokio::test]
    async fn nobody_is_let_in_by_a_policy_that_a_clone_has_too() {
        let site = site().await;
        site.fake.world(|world| world.volume("svm1", "clone_of_kafka01", "kafka01"));
        site.fence.fence(&host(), Epoch(3)).await.unwrap();
        let _ = site.fence.prove(&host(), Epoch(3)).await.unwrap();
        for error in [site.storage.attach(Epoch(3)).await, site.storage.check().await] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains("kafka01 is that of clone_of_kafka01 too"), "{error}");
        }
        assert_eq!(owners(&site.fake), (0, 0));
    }

    #[tokio::test]
    async fn a_lock_that_cannot_be_broken_is_an_error() {
        let site = site().await;
        left_behind(&site.fake, "kafka01", ".lock", "byte_range");
        site.fake.inject(Fault::lying_success().on("DELETE", "/api/protocols/locks"));
        let error = site.storage.break_locks().await.unwrap_err().to_string();
        assert!(error.contains("locked again after 3 rounds"), "{error}");
        site.fake.heal();
        site.fake.inject(Fault::denied().on("DELETE", "/api/protocols/locks"));
        assert_eq!(site.storage.break_locks().await.unwrap_err().kind(), "failed");
    }

    #[tokio::test]
    async fn half_a_grant_is_an_error_and_carried_on_by_repeating_it() {
        const RULES: &str = "/api/protocols/nfs/export-policies";
        let faults = [Fault::lying_success(), Fault::denied(), Fault::status(503), Fault::dropped_reply()];
        for fault in faults {
            let site = site().await;
            site.fence.fence(&host(), Epoch(3)).await.unwrap();
            // Enough for one of the two rules and its repetitions.
            site.fake.inject(fault.on("PATCH", RULES).first(1));
            let first = site.storage.grant.admit(Epoch(3)).await;
            let (before, now) = owners(&site.fake);
            assert!(before == 0 && (first.is_err() || now == 2), "{first:?}");
            site.fake.heal();
            site.storage.attach(Epoch(3)).await.unwrap();
            assert_eq!(owners(&site.fake), (0, 2));
        }
        let site = site().await;
        site.fence.fence(&host(), Epoch(3)).await.unwrap();
        site.fake.inject(Fault::lying_success().on("PATCH", RULES));
        let error = chain(&site.storage.attach(Epoch(3)).await.unwrap_err());
        assert!(error.contains("ONTAP said it was done, but"), "{error}");
    }
}
