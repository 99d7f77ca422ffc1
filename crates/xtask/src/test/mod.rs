//! `cargo xtask test`: judges a change, in the order of what fails quickest. It gives the same answer twice: seeds and
//! stories are pinned ([`gate`]), and what looks for unknown faults is `cargo xtask search`.

mod gate;
mod parts;
mod quarantine;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;

use crate::preflight::{self, Missing, Scope};
use crate::report::{Report, Tally};
use crate::workspace::Workspace;
use crate::{kubernetes_bed, nfs_bed, speed, terraform_bed};

pub(crate) use parts::is_plain;
use parts::{Part, Runner};

/// Judge a change: format, lints, unit and property tests, doc tests, 2,000 simulated clusters, and seventeen
/// stories on a real Kafka. `--tier all` runs everything there is.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Everything, or one part of it.
    #[arg(long)]
    tier: Option<Tier>,
    /// Only tests with this in their names, of every tier or the one given; then nothing but tests is run.
    filter: Option<String>,
}

/// The parts of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Tier {
    /// All of them; takes hours, and builds what is missing.
    All,
    /// In process: format, lints, unit and property tests, doc tests.
    Unit,
    /// Every story on hosts in network namespaces and a real Kafka.
    Netns,
    /// Corners of one rule, on this Kafka and on 3.9, and the oldest supported agent beside this one.
    Corners,
    /// Some stories on Kafka 3.2.3 with ZooKeeper.
    Zookeeper,
    /// Every story on hosts with kernels of their own, and a real NFS server. As root.
    Nfs,
    /// Tests of the drivers for EC2 and their stories on a simulated one, and Terraform's configuration. Builds
    /// OpenTofu if need be, with Go.
    Ec2,
    /// Tests of the Kubernetes drivers on a real API server, and every story on real nodes. As root; builds Kubernetes
    /// if need be, with Go.
    Kubernetes,
    /// 20,000 simulated clusters.
    Simulation,
    /// Random faults on a real cluster under load, three minutes, always the same ones.
    Marathon,
    /// The vendor's Python client and Ansible modules against the fake ONTAP.
    Conformance,
    /// Licences, bans and sources of every dependency; builds cargo-deny if need be.
    Licences,
}

impl Args {
    fn parts(&self) -> Vec<Part> {
        use Part::{
            Clippy, Conformance, Corners, DocTests, Ec2, Format, GateStories, Kubernetes, KubernetesIfThere,
            Licences, LicencesIfChanged, Marathon, Nfs, Seeds, Stories, Terraform, Unit, ZooKeeper,
        };
        const ALL: u64 = 20_000;
        if self.filter.is_some() {
            return match self.tier {
                None | Some(Tier::All) => vec![Unit, Stories, Corners, Nfs, KubernetesIfThere],
                Some(Tier::Unit) => vec![Unit],
                Some(Tier::Netns) => vec![Stories],
                Some(Tier::Corners) => vec![Corners],
                Some(Tier::Zookeeper) => vec![ZooKeeper],
                Some(Tier::Nfs) => vec![Nfs],
                Some(Tier::Ec2) => vec![Terraform, Ec2],
                Some(Tier::Kubernetes) => vec![Kubernetes],
                Some(_) => Vec::new(),
            };
        }
        match self.tier {
            None => vec![Format, Clippy, LicencesIfChanged, Unit, DocTests, Seeds(gate::SEEDS), GateStories],
            Some(Tier::All) => vec![
                Format,
                Clippy,
                Licences,
                Unit,
                DocTests,
                Conformance,
                Seeds(ALL),
                Stories,
                Marathon,
                Corners,
                ZooKeeper,
                Terraform,
                Nfs,
                Kubernetes,
            ],
            Some(Tier::Unit) => vec![Format, Clippy, Unit, DocTests],
            Some(Tier::Netns) => vec![Stories],
            Some(Tier::Corners) => vec![Corners],
            Some(Tier::Zookeeper) => vec![ZooKeeper],
            Some(Tier::Nfs) => vec![Nfs],
            Some(Tier::Ec2) => vec![Terraform, Ec2],
            Some(Tier::Kubernetes) => vec![Kubernetes],
            Some(Tier::Simulation) => vec![Seeds(ALL)],
            Some(Tier::Marathon) => vec![Marathon],
            Some(Tier::Conformance) => vec![Conformance],
            Some(Tier::Licences) => vec![Licences],
        }
    }
}

/// Runs the command. Something that failed is in the exit code; an error is what kept us from trying.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let parts = args.parts();
    if let (Some(Tier::Nfs), Some(why)) = (args.tier, nfs_bed::obstacle()) {
        return Err(Missing(format!("the NFS tier cannot run here: {why}")).into());
    }
    if let (Some(Tier::Ec2), Some(why)) = (args.tier, terraform_bed::obstacle()) {
        return Err(Missing(format!("the EC2 tier cannot run here: {why}")).into());
    }
    let kubernetes = || kubernetes_bed::nodes_obstacle().or_else(kubernetes_bed::obstacle);
    if let (Some(Tier::Kubernetes), Some(why)) = (args.tier, kubernetes()) {
        return Err(Missing(format!("the Kubernetes tier cannot run here: {why}")).into());
    }
    preflight::ensure(if parts.iter().any(|part| part.takes_hosts()) {
        Scope::Stories
    } else {
        Scope::Build
    })?;
    if args.tier == Some(Tier::Kubernetes) {
        // Without it nothing of this tier can be judged.
        kubernetes_bed::ensure()
            .map_err(|error| Missing(format!("the Kubernetes tier cannot run: {error:#}")))?;
    }
    let speed = speed::measure();
    eprintln!("speed figure {:.2} s", speed.as_secs_f64());
    let mut runner = Runner::new(Workspace::find()?, args.filter.clone());
    let mut report = Report::default();
    for part in parts {
        runner.run(part, &mut report);
    }
    report.print();
    eprintln!(
        "speed figure {:.2} s at the start, {:.2} s now",
        speed.as_secs_f64(),
        speed::measure().as_secs_f64()
    );
    let mut total = report.total();
    if let Some(filter) = &args.filter
        && total == Tally::default()
    {
        eprintln!("no test has {filter:?} in its name");
        total.failed = 1;
    }
    report.print_unusual();
    writeln!(io::stdout(), "{} passed, {} failed", total.passed, total.failed)?;
    if args.tier == Some(Tier::Kubernetes) && total.failed == 0 && report.has_not_run() {
        return Ok(ExitCode::from(2));
    }
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(tier: Option<Tier>, filter: Option<&str>) -> Vec<Part> {
        Args { tier, filter: filter.map(str::to_owned) }.parts()
    }

    #[test]
    fn the_gate_builds_and_runs_nothing_that_judges_no_change() {
        let gate = parts(None, None);
        assert!(gate.contains(&Part::GateStories) && gate.contains(&Part::Unit));
        for other in [
            Part::Licences,
            Part::Conformance,
            Part::Marathon,
            Part::Nfs,
            Part::Corners,
            Part::Stories,
            Part::Kubernetes,
        ] {
            assert!(!gate.contains(&other), "{other:?}");
        }
    }

    #[test]
    fn a_filter_leaves_nothing_but_tests() {
        assert_eq!(parts(Some(Tier::Netns), Some("x")), [Part::Stories]);
        assert!(!parts(None, Some("x")).contains(&Part::Clippy));
    }

    #[test]
    fn everything_has_each_tier() {
        let all = parts(Some(Tier::All), None);
        for tier in <Tier as clap::ValueEnum>::value_variants() {
            // Those of EC2 are among the unit tests and the stories.
            let has = |part: &Part| all.contains(part) || *part == Part::Ec2;
            assert!(parts(Some(*tier), None).iter().all(has), "{tier:?}");
        }
    }
}
