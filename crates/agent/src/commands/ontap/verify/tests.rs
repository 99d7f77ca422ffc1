//! On the fake: what holds is said to hold, each answer that a real system might give in its place is said to
//! differ, and nothing of the trial stays.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use fakes::ontap::{Fake, Fault, LockFace, Table, World};
use ontap_client::Fingerprint;
use rustix::io::Errno;
use serde_json::json;
use tempfile::NamedTempFile;
use tokio::sync::watch;

mod cache;
mod mounted;

use super::finding::{Assumption, Finding, Verdict};
use super::here::{Guest, Mounted};
use super::place::{Named, Role, places};
use super::*;

const RULES: &str = "/api/protocols/nfs/export-policies";
const LOCKS: &str = "/api/protocols/locks";
const CLI: &str = "/api/private/cli/vserver/export-policy";
const CACHE: &str = "/api/private/cli/vserver/export-policy/access-cache";
const VOLUMES: &str = "/api/storage/volumes";
const QTREES: &str = "/api/storage/qtrees";

/// The host that mounts the scratch volume.
const HERE: [u8; 4] = [10, 0, 0, 200];

fn short() -> Patience {
    let [act, lock, write, let_in, volume] = [10_000, 2_000, 100, 100, 5_000].map(Duration::from_millis);
    Patience { act, lock, write, let_in, volume }
}

struct Site {
    fake: Fake,
    place: Place,
    _password: NamedTempFile,
}

async fn site() -> Site {
    let mut world = World::small();
    world.lif("svm1", "lif2", [10, 0, 0, 51].into(), "node-02");
    world.policy("svm1", "kafka01", &[&["10.0.0.101"]]);
    world.volume("svm1", "kafka01", "kafka01");
    let fake = Fake::https(world).await.unwrap();
    let mut password = NamedTempFile::new().unwrap();
    password.write_all(b"secret\n").unwrap();
    let ontap = OntapConfig {
        url: Some(fake.url()),
        fsx: None,
        user: Some("admin".to_owned()),
        password_file: Some(password.path().to_owned()),
        certificate: None,
        key: None,
        ca: None,
        pin: Some(Fingerprint::of(fake.certificate_der().unwrap()).to_string()),
    };
    let volumes = BTreeSet::from(["kafka01".to_owned()]);
    let addresses = BTreeSet::from([[10, 0, 0, 101].into()]);
    let (fence, grant) = (ontap.clone(), ontap);
    let place = Place { fence, grant, svm: "svm1".to_owned(), volumes, addresses };
    Site { fake, place, _password: password }
}

/// A host that is let in as the fake's rules and its access cache have it.
#[derive(Clone, Copy)]
struct Host<'a>(&'a State<'a>);

struct State<'a> {
    fake: &'a Fake,
    mounts: bool,
    writes: bool,
    /// It can write no more once it was denied, whatever the rules say.
    dies: bool,
    /// What it is told when it cannot write.
    error: Errno,
    denied: AtomicBool,
    mounted: AtomicBool,
}

fn host(fake: &Fake) -> State<'_> {
    let (denied, mounted) = (AtomicBool::default(), AtomicBool::default());
    State { fake, mounts: true, writes: true, dies: false, error: Errno::ACCESS, denied, mounted }
}

impl Host<'_> {
    fn tries(self) -> io::Result<()> {
        let Self(state) = self;
        let gone = state.dies && state.denied.load(Ordering::Relaxed);
        let let_in = state.fake.allows(HERE.into(), scratch::NAME).may_write();
        if let_in && state.writes && !gone {
            return Ok(());
        }
        state.denied.store(true, Ordering::Relaxed);
        Err(state.error.into())
    }
}

impl Guest for Host<'_> {
    type Mounted = Self;

    fn address(&self) -> io::Result<IpAddr> {
        Ok(HERE.into())
    }

    async fn mount(&self, _junction: &str) -> Result<Self, String> {
        if !self.0.mounts {
            return Err("no route to host".to_owned());
        }
        self.0.fake.world(|world| world.lock(scratch::NAME, HERE.into(), ".lock"));
        self.0.mounted.store(true, Ordering::Relaxed);
        Ok(*self)
    }
}

impl Mounted for Host<'_> {
    async fn write(&self) -> io::Result<()> {
        let broken =
            self.0.fake.world(|world| world.find(Table::Locks, &[("volume.name", scratch::NAME)]).is_none());
        if broken { Err(Errno::IO.into()) } else { self.tries() }
    }

    async fn create(&self, _name: &str) -> io::Result<io::Result<()>> {
        self.tries().map(Ok)
    }

    async fn unmount(self) -> Result<(), String> {
        self.0.mounted.store(false, Ordering::Relaxed);
        Ok(())
    }
}

fn nobody_interrupts() -> Interrupt {
    let (_, told) = watch::channel(false);
    told.into()
}

/// A run of `verify --try`, with what is otherwise than usual.
struct Run<'a> {
    state: Option<&'a State<'a>>,
    shown: bool,
    interrupt: Interrupt,
    making: Duration,
}

impl Default for Run<'_> {
    fn default() -> Self {
        Self { state: None, shown: false, interrupt: nobody_interrupts(), making: MAKING }
    }
}

impl Site {
    async fn attempt(&self) -> Vec<Finding> {
        self.run(Run::default()).await
    }

    async fn attempt_on(&self, state: &State<'_>) -> Vec<Finding> {
        let findings = self.run(Run { state: Some(state), ..Run::default() }).await;
        assert!(!state.mounted.load(Ordering::Relaxed), "it is mounted still: {findings:?}");
        findings
    }

    async fn run(&self, run: Run<'_>) -> Vec<Finding> {
        let client = connect(&self.place.fence).await.unwrap();
        let maker = client.within(run.making);
        let guest = run.state.map(Host);
        let attempt = Attempt {
            accounts: Accounts { maker: &maker, client: &client },
            place: &self.place,
            aggregate: "aggr1",
            guest: guest.as_ref(),
            shown: run.shown,
            patience: short(),
        };
        let mut findings = Findings::on("svm1");
        attempt.run(&run.interrupt, &mut findings).await;
        findings.all
    }

    async fn look(&self) -> Vec<Finding> {
        let client = connect(&self.place.fence).await.unwrap();
        let mut findings = Findings::on("svm1");
        look::look(&client, &self.place, &mut findings).await;
        findings.all
    }

    fn is_clean(&self) -> bool {
        self.fake.world(|world| {
            let named = |table| world.find(table, &[("name", scratch::NAME)]).is_some();
            !named(Table::Volumes) && !named(Table::Policies)
        })
    }
}

fn verdict(findings: &[Finding], of: Assumption) -> Option<Verdict> {
    let all: Vec<Verdict> =
        findings.iter().filter(|finding| finding.assumption == of).map(|finding| finding.verdict).collect();
    assert!(all.len() < 2, "{of:?} is told twice: {findings:?}");
    all.first().copied()
}

fn differing(findings: &[Finding]) -> Vec<Assumption> {
    findings.iter().filter(|f| f.verdict == Verdict::Differs).map(|f| f.assumption).collect()
}

#[tokio::test]
async fn every_right_is_tried_and_nothing_stays() {
    let site = site().await;
    let before =
        site.fake.world(|world| [Table::Rules, Table::Locks, Table::Volumes].map(|t| world.rows(t).to_vec()));
    let findings = site.attempt().await;
    for held in [
        Assumption::Scratch,
        Assumption::EmptyPolicy,
        Assumption::RuleChange,
        Assumption::Flush,
        Assumption::BreakByUuid,
        Assumption::LetInAgain,
        Assumption::CleanedUp,
    ] {
        assert_eq!(verdict(&findings, held), Some(Verdict::Holds), "{held:?}: {findings:?}");
    }
    assert_eq!(differing(&findings), []);
    assert_eq!(verdict(&findings, Assumption::RuleBites), Some(Verdict::NotSeen), "nothing was mounted");
    assert_eq!(verdict(&findings, Assumption::NoEntry), Some(Verdict::NotSeen), "no entry was ever shown");
    assert!(site.is_clean());
    let after =
        site.fake.world(|world| [Table::Rules, Table::Locks, Table::Volumes].map(|t| world.rows(t).to_vec()));
    assert_eq!(before, after, "what was there before is as it was");
}

#[tokio::test]
async fn what_is_otherwise_is_told_and_nothing_stays_all_the_same() {
    for (fault, first) in [
        (Fault::lying_success().on("PATCH", RULES), Assumption::RuleChange),
        (Fault::denied().on("PATCH", RULES), Assumption::RuleChange),
        (Fault::denied().on("DELETE", LOCKS), Assumption::BreakByUuid),
        (Fault::denied().on("POST", CLI), Assumption::Flush),
        (Fault::denied().on("GET", CACHE), Assumption::NoEntry),
        (Fault::says(200, json!({})).on("GET", CACHE), Assumption::NoEntry),
    ] {
        let site = site().await;
        site.fake.inject(fault.clone());
        let findings = site.attempt().await;
        assert!(differing(&findings).contains(&first), "{fault:?}: {findings:?}");
        assert!(site.is_clean(), "{fault:?}: {findings:?}");
    }
}

/// What is tried is what the fence's account may do, whoever makes the scratch volume.
#[tokio::test]
async fn the_fences_own_account_is_the_one_that_is_tried() {
    for (readonly, differs) in [(false, vec![]), (true, vec![Assumption::RuleChange])] {
        let mut site = site().await;
        site.fake.world(|world| {
            world.account("fence", "secret");
            if readonly {
                world.readonly("fence");
            }
        });
        let maker = connect(&site.place.fence).await.unwrap();
        site.place.fence.user = Some("fence".to_owned());
        let client = connect(&site.place.fence).await.unwrap();
        let attempt = Attempt {
            accounts: Accounts { maker: &maker, client: &client },
            place: &site.place,
            aggregate: "aggr1",
            guest: None::<&Host<'_>>,
            shown: false,
            patience: short(),
        };
        let mut findings = Findings::on("svm1");
        attempt.run(&nobody_interrupts(), &mut findings).await;
        let findings = findings.all;
        assert_eq!(differing(&findings), differs, "{findings:?}");
        assert!(site.is_clean());
    }
}

#[tokio::test]
async fn what_cannot_be_made_leaves_nothing_and_what_cannot_be_deleted_is_told() {
    let site = site().await;
    site.fake.inject(Fault::denied().on("POST", VOLUMES));
    assert_eq!(differing(&site.attempt().await), [Assumption::Scratch]);
    assert!(site.is_clean());
    site.fake.heal();

    site.fake.inject(Fault::lying_success().on("DELETE", VOLUMES));
    let findings = site.attempt().await;
    assert_eq!(differing(&findings), [Assumption::CleanedUp], "{findings:?}");
    let by_hand = "`volume unmount -vserver svm1 -volume understudy_verify`, `volume offline -vserver svm1 -volume \
                   understudy_verify`, `volume delete -vserver svm1 -volume understudy_verify`, `vserver export-policy \
                   delete -vserver svm1 -policyname understudy_verify`";
    assert!(findings.iter().any(|finding| finding.found.contains(by_hand)), "{findings:?}");
    site.fake.heal();
    // What an earlier run left is never taken for one's own.
    let findings = site.attempt().await;
    let [only] = &findings[..] else { panic!("{findings:?}") };
    assert!(only.assumption == Assumption::Scratch && only.verdict == Verdict::Differs, "{only:?}");
    assert!(only.found.contains("already") && only.found.contains(by_hand), "{only:?}");
    assert!(!site.is_clean());
}

#[tokio::test]
async fn reading_tells_what_is_shown_and_what_is_not() {
    let site = site().await;
    assert!(site.fake.allows([10, 0, 0, 101].into(), "kafka01").may_write());
    site.fake.world(|world| world.show_locks(LockFace::Absent));
    let findings = site.look().await;
    assert_eq!(differing(&findings), [], "{findings:?}");
    let found = |of| findings.iter().find(|f| f.assumption == of).unwrap().found.clone();
    assert!(found(Assumption::LocksByVolume).starts_with("2 locks, 0 name their client"), "{findings:?}");
    assert!(found(Assumption::CacheByNode).contains("10.0.0.101 on node-02: positive"), "{findings:?}");
    assert!(found(Assumption::ConnectedClients).contains("writes it every 480 min"), "{findings:?}");

    // Otherwise in everything.
    let of_v41 = json!({ "protocol": { "v41_features": { "pnfs_enabled": true } } });
    site.fake.world(|world| {
        world.release(9, 11, 1);
        world.update(Table::NfsServices, &[], of_v41);
        world.does_not_know("polarity");
        world.deny("admin", "/api/storage/qtrees");
        world.deny("admin", LOCKS);
    });
    let open = json!({ "num_records": 1, "records": [{ "policy": "kafka01", "access": "read_write" }] });
    site.fake.inject(Fault::says(200, open).on("GET", &format!("{CLI}/check-access")));
    let mut found = differing(&site.look().await);
    found.sort();
    let all = [
        Assumption::Release,
        Assumption::PnfsOff,
        Assumption::Polarity,
        Assumption::LocksByVolume,
        Assumption::CheckAccess,
        Assumption::Qtrees,
    ];
    assert_eq!(found, all);
    // An account of an SVM: what it does not see of the cluster is no difference, and who may not read a
    // cache is told.
    site.fake.world(|world| world.deny("admin", "/api/cluster/nodes"));
    site.fake.inject(Fault::denied().on("GET", CACHE));
    let findings = site.look().await;
    assert_eq!(verdict(&findings, Assumption::Nodes), Some(Verdict::Holds), "{findings:?}");
    assert_eq!(verdict(&findings, Assumption::CacheByNode), Some(Verdict::Differs), "{findings:?}");
}

fn options() -> Verify {
    Verify {
        svm: None,
        r#try: true,
        aggregate: Some("aggr1".to_owned()),
        user: None,
        password_file: None,
        mount: None,
        report: None,
        yes: true,
    }
}

#[tokio::test]
async fn a_refused_login_is_tried_once() {
    let site = site().await;
    site.fake.world(|world| world.account("admin", "another"));
    site.fake.forget_requests();
    let error = of_place(&site.place, &options(), &mut Findings::on("svm1")).await.unwrap_err();
    assert!(format!("{error:#}").contains("login refused"), "{error:#}");
    assert_eq!(site.fake.requests().len(), 1);
}

/// A job that outlives the command's patience makes the volume all the same, and it is taken away.
#[tokio::test]
async fn a_volume_that_comes_late_is_waited_for_and_deleted() {
    let site = site().await;
    site.fake.world(|world| world.jobs_take(Duration::from_secs(2)));
    let client = connect(&site.place.fence).await.unwrap();
    let (hasty, place) = (client.within(Duration::from_secs(1)), ("svm1", "aggr1"));
    let (mut scratch, mut findings) = (scratch::Scratch::default(), Findings::on("svm1"));
    let why = scratch.make(&hasty, place, HERE.into(), &mut findings).await.unwrap_err();
    assert!(
        site.fake.world(|world| world.find(Table::Volumes, &[("name", scratch::NAME)]).is_none()),
        "{why}"
    );
    scratch.clean(&client, ("svm1", Duration::from_secs(60)), &mut findings).await;
    assert_eq!(verdict(&findings.all, Assumption::CleanedUp), Some(Verdict::Holds), "{findings:?}");
    site.fake.end_jobs();
    assert!(site.is_clean(), "{findings:?}");
}

/// One that never comes is told, for it may come later still.
#[tokio::test]
async fn a_volume_of_which_nothing_is_known_is_told() {
    let site = site().await;
    site.fake.world(|world| world.jobs_take(Duration::from_secs(3600)));
    let findings = site.run(Run { making: Duration::from_secs(1), ..Run::default() }).await;
    assert_eq!(verdict(&findings, Assumption::CleanedUp), Some(Verdict::Differs), "{findings:?}");
}

/// Whenever it is interrupted, what was made is taken away.
#[tokio::test]
async fn an_interrupt_leaves_nothing() {
    for after in [0, 100, 400, 1_200] {
        let site = site().await;
        site.fake.world(|world| world.jobs_take(Duration::from_millis(300)));
        let (tell, told) = watch::channel(false);
        let state = host(&site.fake);
        let run = Run { state: Some(&state), interrupt: told.into(), ..Run::default() };
        let (findings, ()) = tokio::join!(site.run(run), async {
            tokio::time::sleep(Duration::from_millis(after)).await;
            tell.send_replace(true);
        });
        assert!(site.is_clean(), "after {after} ms: {findings:?}");
        assert!(!state.mounted.load(Ordering::Relaxed), "after {after} ms: {findings:?}");
        assert_ne!(verdict(&findings, Assumption::CleanedUp), Some(Verdict::Differs), "{findings:?}");
    }
}

fn ontap(url: &str, user: &str) -> OntapConfig {
    OntapConfig {
        url: Some(url.to_owned()),
        fsx: None,
        user: Some(user.to_owned()),
        password_file: Some("/etc/understudy/password".into()),
        certificate: None,
        key: None,
        ca: None,
        pin: None,
    }
}

/// Two accounts, and two spellings of an address, are one SVM all the same; each does what is its own.
#[test]
fn fence_and_grant_of_one_svm_are_one_place_whatever_their_accounts() {
    let (fence, grant) =
        (ontap("https://cluster1-mgmt", "fence"), ontap("https://Cluster1-mgmt:443/", "grant"));
    let other = ontap("https://cluster2-mgmt", "fence");
    let (volumes, addresses) = (["kafka01".to_owned()], [IpAddr::from([10, 0, 0, 101])]);
    let named = |role, ontap| Named { role, ontap, svm: "svm1", volumes: &volumes, addresses: &addresses };
    let both = [named(Role::Grant, &grant), named(Role::Fence, &fence)];
    let places = places(both.into_iter(), &options()).unwrap();
    let [place] = &places[..] else { panic!("{places:?}") };
    assert_eq!([&place.fence.user, &place.grant.user], [&fence.user, &grant.user]);
    assert_eq!((place.volumes.len(), place.addresses.len()), (1, 1));
    let error = place::places([both[0], named(Role::Fence, &other)].into_iter(), &options()).unwrap_err();
    assert!(error.to_string().contains("svm1 at cluster1-mgmt:443, svm1 at cluster2-mgmt:443"), "{error}");
}

/// What was found in one place is told, and written down, though another one cannot be asked.
#[tokio::test]
async fn a_report_holds_what_was_found_until_something_went_wrong() {
    let (site, dir) = (site().await, tempfile::tempdir().unwrap());
    let path = dir.path().join("verify.json");
    std::fs::write(&path, "an older one").unwrap();
    let mut gone = site.place.clone();
    (gone.svm, gone.fence.user) = ("svm2".to_owned(), Some("nobody".to_owned()));
    let options = Verify { r#try: false, aggregate: None, ..options() };
    let log_format = crate::cli::LogFormat::default();
    let global = Global { config: "unused".into(), output: crate::cli::Output::Json, log_format, log: None };
    // Nobody answered the question, for instance.
    drop(ReportFile::at(&path).unwrap());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "an older one");

    let file = ReportFile::at(&path).unwrap();
    let error = verify(&global, &[site.place.clone(), gone], &options, Some(file)).await.unwrap_err();
    assert!(format!("{error:#}").contains("svm2"), "{error:#}");
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert!(report["findings"].as_array().unwrap().len() > 8, "{report}");
    assert!(report["broke_off"][0].as_str().unwrap().contains("login refused"), "{report}");
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["verify.json"]);
    assert!(ReportFile::at(dir.path()).is_err(), "a directory is no file");
}

#[test]
fn every_assumption_has_its_section() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
    let text = std::fs::read_to_string(path).unwrap();
    for one in Assumption::ALL {
        assert!(text.contains(&format!("\n### {}\n", one.label())), "{PAGE} has no section {}", one.label());
    }
}
