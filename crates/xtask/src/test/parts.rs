//! The parts of a run, and what they share: everything is built once, by the first part that needs it.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::{gate, quarantine};
use crate::bed::Bed;
use crate::preflight::{self, Scope};
use crate::report::{Report, Tally};
use crate::suite::{self, Outcome, Place, Test};
use crate::workspace::{Programs, Workspace};
use crate::{
    cache, chaos, conformance, ec2_bed, kafka, kubernetes_bed, nfs_bed, older, shell, sim, terraform_bed,
    tools,
};

/// The package whose tests ask an EC2.
const AWS: &str = "crates/aws";

/// What the stories begin with whose hosts are instances of an EC2.
const ON_EC2: &str = "ec2::";
/// What the tests begin with that OpenTofu judges.
const ON_TERRAFORM: &str = "terraform::";
/// The package whose tests ask a Kubernetes.
const KUBERNETES: &str = "crates/kubernetes";
/// The executable with the stories on Kubernetes, and the name of their part.
const KUBERNETES_STORIES: &str = "kubernetes";

/// A story that takes minutes, and differs from the daemon's own story in who asks for the archive.
const BY_HAND: &str = "a_takeover_starts_kafka_with_the_classes_that_the_standby_made_ready";

/// The stories that are told on Kafka 3.2.3 with ZooKeeper as well.
const WITH_ZOOKEEPER: [&str; 4] = [
    "the_daemon_recovers_a_broker_whose_host_dies",
    "a_killed_broker_is_restarted_in_place",
    "a_host_that_thaws_after_the_takeover_does_no_harm",
    "an_old_host_that_comes_back_does_not_start_its_broker",
];

/// A story of `--tier netns`.
pub(crate) fn is_plain(test: &Test) -> bool {
    test.is_story() && test.binary.target == "stories" && test.name() != BY_HAND
}

/// A part of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Format,
    Clippy,
    Licences,
    /// Only where `Cargo.lock` changed since they last passed, and the tool is there.
    LicencesIfChanged,
    Unit,
    DocTests,
    Conformance,
    /// So many simulated clusters, from seed 0 on.
    Seeds(u64),
    /// The pinned ones.
    GateStories,
    Stories,
    Marathon,
    Corners,
    /// Some of the stories, on a cluster with ZooKeeper.
    ZooKeeper,
    Nfs,
    /// The tests of Terraform's configuration; what judges it is built if need be.
    Terraform,
    /// The tests of the drivers for EC2, and their stories.
    Ec2,
    /// The package's tests, and the stories; what they run on is built if need be.
    Kubernetes,
    /// The stories, if what they run on was built before.
    KubernetesIfThere,
}

impl Part {
    /// It needs Kafka, and hosts of its own.
    pub(super) fn takes_hosts(self) -> bool {
        use Part::{Corners, Ec2, GateStories, Kubernetes, KubernetesIfThere, Marathon, Nfs, Stories};
        matches!(
            self,
            GateStories | Stories | Marathon | Corners | Nfs | Ec2 | Kubernetes | KubernetesIfThere
        )
    }
}

/// What was built, for all parts.
struct Built {
    programs: Programs,
    tests: Vec<Test>,
}

/// Runs parts.
pub(super) struct Runner {
    workspace: Workspace,
    filter: Option<String>,
    /// `Some(None)`: it was tried, and does not compile.
    built: Option<Option<Built>>,
    bed: Option<Option<Bed>>,
    /// Where the simulated EC2 has its Python, once it was made.
    ec2: Option<PathBuf>,
    /// Where the Kubernetes for tests is, once it was found or built.
    kubernetes: Option<PathBuf>,
    /// Where OpenTofu is, once it was found or built.
    terraform: Option<PathBuf>,
}

impl Runner {
    pub(super) fn new(workspace: Workspace, filter: Option<String>) -> Self {
        Self { workspace, filter, built: None, bed: None, ec2: None, kubernetes: None, terraform: None }
    }

    pub(super) fn run(&mut self, part: Part, report: &mut Report) {
        match part {
            Part::Format => self.format(report),
            Part::Clippy => self.clippy(report),
            Part::Licences => {
                report.part("licences and bans", |_| self.licences());
            }
            Part::LicencesIfChanged => self.licences_if_changed(report),
            Part::Unit => self.unit_tests(report),
            Part::DocTests => {
                // `e2e` has none, and the libraries of the others share what is built.
                let mut doc = self.workspace.cargo("test");
                report.part("doc tests", |_| shell::run(doc.args(["--workspace", "--quiet", "--doc"])));
            }
            Part::Conformance => {
                report.part("ONTAP conformance", |tally| conformance::run_for_test(&self.workspace, tally));
            }
            Part::Seeds(seeds) => {
                report.part("simulation", |_| sim::run_for_test(&self.workspace, seeds));
            }
            Part::GateStories => self.gate_stories(report),
            Part::Stories => self
                .stories(report, "stories", |test| test.binary.target == "stories" && test.name() != BY_HAND),
            Part::Marathon => {
                if let Some(bed) = self.bed(report) {
                    report.part("fault marathon", |_| chaos::run_for_test(bed));
                }
            }
            Part::Corners => self.corners(report),
            Part::ZooKeeper => self.zookeeper(report),
            Part::Nfs => self.nfs(report),
            Part::Terraform => self.terraform(report),
            Part::Ec2 => self.ec2(report),
            Part::Kubernetes => self.kubernetes(report),
            Part::KubernetesIfThere => {
                let stories = |test: &Test| test.binary.target == KUBERNETES_STORIES;
                self.kubernetes_stories(report, stories);
            }
        }
    }

    fn format(&self, report: &mut Report) {
        report.part("format", |_| {
            shell::run(self.workspace.cargo("fmt").args(["--all", "--check"]))
                .context("`cargo fmt --all` puts it right")
        });
    }

    fn clippy(&self, report: &mut Report) {
        report.part("clippy", |_| {
            let mut clippy = self.workspace.cargo("clippy");
            shell::run(clippy.args(["--workspace", "--all-targets", "--", "--deny", "warnings"]))
        });
    }

    fn licences(&self) -> Result<()> {
        let mut check = Command::new(tools::DENY.ensure(&self.workspace)?);
        check.current_dir(&self.workspace.root);
        shell::run(check.args(["--workspace", "check", "bans", "licenses", "sources"]))?;
        fs::write(self.licences_passed()?, "").context("cannot note that the licences passed")
    }

    /// The file that says: with these dependencies they passed.
    fn licences_passed(&self) -> Result<PathBuf> {
        let mut hasher = DefaultHasher::new();
        for name in ["Cargo.lock", "deny.toml"] {
            fs::read(self.workspace.root.join(name))
                .with_context(|| format!("cannot read {name}"))?
                .hash(&mut hasher);
        }
        Ok(cache::dir()?.join("tools").join(format!("licences-{:016x}", hasher.finish())))
    }

    fn licences_if_changed(&self, report: &mut Report) {
        let name = "licences and bans";
        match (self.licences_passed().is_ok_and(|file| file.exists()), tools::DENY.is_there()) {
            (true, _) => report.skip(name, "Cargo.lock is what it was when they last passed"),
            (false, false) => report.skip(name, "`cargo xtask test --tier licences` builds the tool for it"),
            (false, true) => {
                report.part(name, |_| self.licences());
            }
        }
    }

    fn built(&mut self, report: &mut Report) -> Option<&Built> {
        if self.built.is_none() {
            let built = report.part("build", |_| {
                let programs = suite::build(&self.workspace)?;
                Ok(Built { tests: suite::list(&self.workspace, &programs)?, programs })
            });
            self.built = Some(built);
        }
        self.built.as_ref()?.as_ref()
    }

    /// Kafka, the agent and the bed's own programs.
    fn bed(&mut self, report: &mut Report) -> Option<&mut Bed> {
        if self.bed.is_none() {
            let programs = self.built(report)?.programs.clone();
            self.bed = Some(report.part("kafka", |_| Bed::of(&self.workspace, programs)));
        }
        self.bed.as_mut()?.as_mut()
    }

    fn selected(&self, test: &Test) -> bool {
        self.filter.as_ref().is_none_or(|part| test.path.contains(part))
    }

    fn unit_tests(&mut self, report: &mut Report) {
        let Some(built) = self.built(report) else { return };
        let tests: Vec<Test> = built.tests.iter().filter(|test| !test.is_story()).cloned().collect();
        let tests: Vec<Test> = tests.into_iter().filter(|test| self.selected(test)).collect();
        self.add_ec2(report, &tests);
        if tests.iter().any(|test| test.binary.package == KUBERNETES) {
            self.find_kubernetes(report);
        }
        if tests.iter().any(|test| test.path.starts_with(ON_TERRAFORM)) {
            self.terraform = terraform_bed::there();
            if self.terraform.is_none() {
                report.skip("Terraform", terraform_bed::HINT);
            }
        }
        self.tell(report, "unit tests", false, tests);
    }

    fn gate_stories(&mut self, report: &mut Report) {
        let Some(built) = self.built(report) else { return };
        let missing = gate::missing(&built.tests);
        let left_out = report.part("quarantine", |_| {
            ensure!(missing.is_empty(), "no test has these names of the gate's stories: {missing:?}");
            let entries = quarantine::read(&self.workspace.root)?;
            let stale = quarantine::stale(&entries, jiff::Zoned::now().date());
            ensure!(stale.is_empty(), "older than {} days, mend or remove: {stale:?}", quarantine::DAYS);
            Ok(entries)
        });
        let Some(left_out) = left_out else { return };
        for entry in left_out.iter().filter(|entry| gate::STORIES.contains(&entry.name.as_str())) {
            report.skip("quarantine", format!("{}: {} (seen {})", entry.name, entry.symptom, entry.seen));
        }
        let wanted = |test: &Test| left_out.iter().all(|entry| entry.name != test.name());
        self.stories(report, "stories", |test| gate::STORIES.contains(&test.name()) && wanted(test));
        let kubernetes = |test: &Test| gate::KUBERNETES_STORY == test.name() && wanted(test);
        self.kubernetes_stories(report, kubernetes);
    }

    /// The stories that `select` wants.
    fn stories(&mut self, report: &mut Report, name: &'static str, select: impl Fn(&Test) -> bool) {
        let Some(built) = self.built(report) else { return };
        let tests: Vec<Test> =
            built.tests.iter().filter(|test| test.is_story() && select(test)).cloned().collect();
        let tests: Vec<Test> = tests.into_iter().filter(|test| self.selected(test)).collect();
        if tests.is_empty() {
            return;
        }
        self.add_ec2(report, &tests);
        if self.bed(report).is_some() {
            self.tell(report, name, true, tests);
        }
    }

    /// Makes the Python of the simulated EC2, where one of `tests` wants it.
    fn add_ec2(&mut self, report: &mut Report, tests: &[Test]) {
        let wants = |test: &Test| test.binary.package == AWS || test.path.starts_with(ON_EC2);
        if self.ec2.is_none() && tests.iter().any(wants) {
            self.ec2 = report.part("an EC2 for tests", |_| ec2_bed::ensure());
        }
    }

    fn tell(&self, report: &mut Report, name: &'static str, on_the_bed: bool, tests: Vec<Test>) {
        let bed = self.bed.as_ref().and_then(Option::as_ref).filter(|_| on_the_bed);
        let (root, outputs) = (&self.workspace.root, self.workspace.root.join("target/tests"));
        let (ec2, kubernetes, terraform) =
            (self.ec2.clone(), self.kubernetes.clone(), self.terraform.clone());
        let pinned = self.filter.is_none();
        let place = Place { root, bed, ec2, kubernetes, terraform, seed: None, pinned, outputs };
        let mut ran = Vec::new();
        report.part(name, |tally| {
            ran = suite::run(&place, tests)?;
            let failed = ran.iter().filter(|ran| matches!(ran.outcome, Outcome::Failed(_))).count() as u64;
            let not_run = ran.iter().filter(|ran| matches!(ran.outcome, Outcome::NotRun(_))).count() as u64;
            *tally = Tally { passed: ran.len() as u64 - failed - not_run, failed };
            if failed == 0 {
                return Ok(());
            }
            match bed {
                Some(bed) => bail!("what the failed stories left is in {}", bed.artifacts.display()),
                None => bail!("{failed} tests failed"),
            }
        });
        report.ran(ran);
    }

    fn corners(&mut self, report: &mut Report) {
        self.stories(report, "corners", |test| {
            let elsewhere = ["upgrade::", "with_zookeeper::"].iter().any(|part| test.path.starts_with(part));
            test.binary.target == "corners" && !elsewhere || test.name() == BY_HAND
        });
        let upgrade = |test: &Test| test.binary.target == "corners" && test.path.starts_with("upgrade::");
        if self.wants(report, upgrade) {
            match older::obstacle(&self.workspace) {
                // Building the older agent takes minutes where it is not kept yet.
                None if self.add_older_agent(report) => self.stories(report, "two versions", upgrade),
                None => {}
                Some(why) => report.skip("two versions", why),
            }
        }
        let any_kafka = |test: &Test| test.path.starts_with("on_any_kafka::");
        self.on_kafka(report, ("older kafka", &kafka::OLDER), "corners on the older kafka", any_kafka);
    }

    fn zookeeper(&mut self, report: &mut Report) {
        let with = ("kafka with zookeeper", &kafka::WITH_ZOOKEEPER);
        self.on_kafka(report, with, "stories with zookeeper", |test| {
            test.path.starts_with("with_zookeeper::") || WITH_ZOOKEEPER.contains(&test.name())
        });
    }

    /// Stories on another Kafka than today's.
    fn on_kafka(
        &mut self,
        report: &mut Report,
        (part, release): (&'static str, &kafka::Release),
        stories: &'static str,
        select: impl Fn(&Test) -> bool,
    ) {
        if self.wants(report, &select) && self.bed(report).is_some() {
            let Some(bed) = self.bed.take().flatten() else { return };
            let other = report.part(part, |_| bed.with_kafka(release));
            self.bed = Some(other);
            self.stories(report, stories, select);
            // The next part has today's again.
            self.bed = None;
        }
    }

    fn wants(&mut self, report: &mut Report, select: impl Fn(&Test) -> bool) -> bool {
        let filter = self.filter.clone();
        let selected = |test: &Test| filter.as_ref().is_none_or(|part| test.path.contains(part));
        self.built(report).is_some_and(|built| built.tests.iter().any(|test| select(test) && selected(test)))
    }

    fn add_older_agent(&mut self, report: &mut Report) -> bool {
        if self.bed(report).is_none() {
            return false;
        }
        let Some(Some(bed)) = &mut self.bed else { return false };
        report.part("older agent", |_| bed.add_older_agent(&self.workspace)).is_some()
    }

    fn nfs(&mut self, report: &mut Report) {
        let nfs = |test: &Test| test.binary.target == "nfs";
        if !self.wants(report, nfs) {
            return;
        }
        if let Some(why) = nfs_bed::obstacle() {
            report.skip("NFS stories", why);
            return;
        }
        let Some(bed) = self.bed(report) else { return };
        let hosts = report.part("NFS hosts", |_| preflight::ensure(Scope::Nfs).and_then(|()| bed.add_nfs()));
        if hosts.is_some() {
            self.stories(report, "NFS stories", nfs);
        }
    }

    fn terraform(&mut self, report: &mut Report) {
        if !self.wants(report, |test| test.path.starts_with(ON_TERRAFORM)) {
            return;
        }
        if let Some(why) = terraform_bed::obstacle() {
            report.skip("Terraform", why);
            return;
        }
        self.terraform = report.part("OpenTofu", |_| terraform_bed::ensure());
        if self.terraform.is_some() {
            self.drivers(report, "Terraform", |test| test.path.starts_with(ON_TERRAFORM));
        }
    }

    fn ec2(&mut self, report: &mut Report) {
        self.drivers(report, "EC2 drivers", |test| test.binary.package == AWS);
        self.stories(report, "EC2 stories", |test| {
            test.binary.target == "stories" && test.path.starts_with(ON_EC2)
        });
    }

    /// The tests without hosts that `select` wants.
    fn drivers(&mut self, report: &mut Report, name: &'static str, select: impl Fn(&Test) -> bool) {
        let built = self.built(report).map(|built| built.tests.clone()).unwrap_or_default();
        let wanted = |test: &Test| !test.is_story() && select(test) && self.selected(test);
        let tests: Vec<Test> = built.into_iter().filter(wanted).collect();
        self.add_ec2(report, &tests);
        if !tests.is_empty() {
            self.tell(report, name, false, tests);
        }
    }

    /// Takes the Kubernetes for tests from the cache, or says what builds it.
    fn find_kubernetes(&mut self, report: &mut Report) {
        if self.kubernetes.is_none() {
            self.kubernetes = kubernetes_bed::there();
        }
        if self.kubernetes.is_none() {
            report.skip("Kubernetes", kubernetes_bed::HINT);
        }
    }

    fn kubernetes(&mut self, report: &mut Report) {
        if let Some(why) = kubernetes_bed::obstacle() {
            report.skip("Kubernetes", why);
            return;
        }
        // Where it was in the cache already, the unit tests of the same run had it.
        let told = self.kubernetes.is_some();
        let of_package = |test: &Test| test.binary.package == KUBERNETES;
        let stories = |test: &Test| test.binary.target == KUBERNETES_STORIES;
        if !self.wants(report, |test| of_package(test) || stories(test)) {
            return;
        }
        self.kubernetes = report.part("a Kubernetes for tests", |_| kubernetes_bed::ensure());
        if self.kubernetes.is_none() {
            return;
        }
        let built = self.built(report).map(|built| built.tests.clone()).unwrap_or_default();
        let tests: Vec<Test> =
            built.into_iter().filter(|test| !told && of_package(test) && self.selected(test)).collect();
        if !tests.is_empty() {
            self.tell(report, "Kubernetes drivers", false, tests);
        }
        self.kubernetes_stories(report, stories);
    }

    /// The stories on Kubernetes that `select` wants, where they can be told.
    fn kubernetes_stories(&mut self, report: &mut Report, select: impl Fn(&Test) -> bool) {
        if !self.wants(report, &select) {
            return;
        }
        if let Some(why) = kubernetes_bed::nodes_obstacle() {
            report.skip("Kubernetes stories", why);
            return;
        }
        self.find_kubernetes(report);
        if self.kubernetes.is_some() {
            self.stories(report, "Kubernetes stories", select);
        }
    }
}
