//! `cargo xtask bench`: figures, with their reference in the same run.

mod render;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::bed::{Bed, Hosts};
use crate::demo::become_program;
use crate::preflight::{self, Missing, Scope};
use crate::report::Report;
use crate::workspace::{Profile, Workspace};
use crate::{ec2_bed, kafka, kubernetes_bed, nfs_bed, shell};

/// Measure, beside a reference taken in the same run.
#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    /// Several of the others, and what they measured as tables and pictures.
    Suite {
        /// Where everything goes. Figures of other benchmarks that are there already are shown as well.
        #[arg(long, value_name = "DIR", default_value = "docs/performance")]
        out: PathBuf,
        /// How many takeovers; of other recoveries fewer.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
        runs: u32,
        /// Only these [default: all], by name or by the letter of the list in docs/performance.md.
        #[arg(long, value_delimiter = ',', value_name = "NAME")]
        only: Option<Vec<Member>>,
        /// Measure nothing: only show anew what was measured.
        #[arg(long, conflicts_with_all = ["only", "runs"])]
        render: bool,
    },
    /// From the fault to the last partition back in ISR, beside a restart in place with stock settings.
    Takeover {
        /// What the hosts are. On EC2 a script that steals the address is a reference too; in Kubernetes there is none.
        #[arg(long, value_enum, default_value_t = Hosts::Rack)]
        bed: Hosts,
        /// How many takeovers, and as many restarts in place.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        runs: u32,
        /// Options for the Java that the standby starts, to see what they are good for; such as
        /// -XX:TieredStopAtLevel=1.
        #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
        java_options: Option<String>,
        /// A property for every broker, to see what it is good for; such as replica.fetch.backoff.ms=100.
        #[arg(long, value_name = "KEY=VALUE")]
        broker_property: Vec<String>,
        /// Which Kafka: that of today, 3.9.2, or 3.2.3 with ZooKeeper.
        #[arg(long, value_name = "VERSION", default_value = kafka::CURRENT.version, value_parser = kafka::VERSIONS)]
        kafka: String,
        /// How the cluster is secured. Each takeover then has one in plaintext beside it, on a cluster of its own.
        #[arg(long, value_name = "PROTOCOL", default_value = PLAINTEXT, value_parser = SECURITY)]
        security: String,
        /// Where the figures go.
        #[arg(long, value_name = "FILE")]
        json: PathBuf,
    },
    /// A takeover against a rebuild on an empty disk, with more and more data on each broker.
    Growth {
        /// GB on each broker. A takeover takes little disk, for its data is linked; a rebuild takes this
        /// much, and is left out where it does not fit.
        #[arg(long, value_delimiter = ',', default_value = SIZES, value_parser = clap::value_parser!(u32).range(1..=1000))]
        sizes: Vec<u32>,
        /// How often each size.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        runs: u32,
        /// Where the figures go.
        #[arg(long, value_name = "FILE")]
        json: PathBuf,
    },
    /// What a broker takes of the processor under one load: restarted in place, rebuilt, taken over.
    Cpu {
        /// Records a second.
        #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
        rate: u32,
        /// For how long each is watched.
        #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(5..=3600))]
        seconds: u32,
        /// Where the figures go.
        #[arg(long, value_name = "FILE")]
        json: PathBuf,
    },
    /// Takeovers on real NFS, by phase.
    Nfs {
        /// How many.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
        runs: u32,
        /// Where the figures go.
        #[arg(long, value_name = "FILE")]
        json: PathBuf,
    },
    /// False alarms and how soon a dead host is noticed, by settings of the policy and disturbances.
    Detection {
        /// For how long each disturbance is watched for false alarms.
        #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=86_400))]
        seconds: u32,
        /// How often the host dies under each.
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
        deaths: u32,
        /// Where the figures go.
        #[arg(long, value_name = "FILE")]
        json: PathBuf,
    },
    /// What the agent takes while it watches three real brokers: memory and processor; on EC2 calls of its API as well.
    Footprint {
        /// What the hosts are.
        #[arg(long, value_enum, default_value_t = Hosts::Rack)]
        bed: Hosts,
        /// For how long.
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(10..=3600))]
        seconds: u32,
        /// How the cluster is secured.
        #[arg(long, value_name = "PROTOCOL", default_value = PLAINTEXT, value_parser = SECURITY)]
        security: String,
        /// Where the figures go.
        #[arg(long, value_name = "FILE")]
        json: PathBuf,
    },
    /// The same, and how long a tick takes, while it watches a large cluster whose brokers answer and hold
    /// nothing.
    Scale {
        /// How many brokers.
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(16..50_000))]
        brokers: u32,
        /// How many partitions, with three replicas each.
        #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..=2_000_000))]
        partitions: u32,
        /// For how long.
        #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u32).range(30..=3600))]
        seconds: u32,
        /// Where the figures go.
        #[arg(long, value_name = "FILE")]
        json: PathBuf,
    },
    /// The daemon's reading of a ledger of many brokers, on each kind of ledger: time and threads.
    Ledger {
        /// How many brokers.
        #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=5000))]
        brokers: u32,
        /// An empty directory for the ledger `file`, such as one on NFS [default: beside the figures].
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// Where the figures go.
        #[arg(long, value_name = "FILE")]
        json: PathBuf,
    },
    /// The fence `ontap_export`, its proof and the grant, against the fake ONTAP: time and requests.
    Ontap {
        /// How many times.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
        runs: u32,
        /// Where the figures go.
        #[arg(long, value_name = "FILE")]
        json: PathBuf,
    },
}

/// How a cluster can be secured: with logins in TLS, and besides with clients' certificates.
const SECURITY: [&str; 3] = [PLAINTEXT, "sasl_ssl", "mutual_sasl_ssl"];
const PLAINTEXT: &str = "plaintext";

/// GB on each broker.
const SIZES: &str = "1,5,10,20,40";

/// The benchmarks of the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Member {
    /// A takeover against a restart in place; what producer and consumer wait for.
    #[value(aliases = ["a", "c"])]
    Takeover,
    /// A takeover against a rebuild.
    #[value(alias = "b")]
    Growth,
    /// The broker's use of the processor.
    #[value(alias = "d")]
    Cpu,
    /// The agent with three brokers.
    #[value(alias = "e")]
    Footprint,
    /// The agent with a thousand brokers.
    #[value(alias = "f")]
    Scale,
    /// A takeover on real NFS.
    #[value(alias = "g")]
    Nfs,
    /// False alarms and detection.
    #[value(alias = "h")]
    Detection,
}

impl Member {
    const ALL: [Self; 7] =
        [Self::Takeover, Self::Growth, Self::Cpu, Self::Footprint, Self::Scale, Self::Nfs, Self::Detection];

    /// With what it is run in the suite.
    fn call(self, runs: u32) -> Call {
        let number = |value: u32| value.to_string();
        match self {
            Self::Takeover => Call::new("takeover", &[("runs", &number(runs))]),
            Self::Growth => Call::new("growth", &[("sizes", SIZES), ("runs", &number(runs.div_ceil(3)))]),
            Self::Cpu => Call::new("cpu", &[("rate", "500"), ("seconds", "20")]),
            Self::Footprint => Call::new("footprint", &[("seconds", "30")]),
            Self::Scale => {
                Call::new("scale", &[("brokers", "1000"), ("partitions", "200000"), ("seconds", "60")])
            }
            Self::Nfs => Call { nfs: true, ..Call::new("nfs", &[("runs", &number(runs.div_ceil(2)))]) },
            Self::Detection => Call::new("detection", &[("seconds", "60"), ("deaths", "3")]),
        }
    }
}

/// A benchmark on the test bed, with its options.
struct Call {
    what: &'static str,
    options: Vec<(&'static str, String)>,
    /// It takes hosts with kernels of their own.
    nfs: bool,
    /// It takes a simulated EC2.
    ec2: bool,
    /// It takes nodes of Kubernetes.
    kubernetes: bool,
    /// Another Kafka than today's.
    kafka: Option<&'static kafka::Release>,
}

impl Call {
    fn new(what: &'static str, options: &[(&'static str, &str)]) -> Self {
        let options = options.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
        Self { what, options, nfs: false, ec2: false, kubernetes: false, kafka: None }
    }

    /// Why it cannot be run here.
    fn obstacle(&self) -> Option<String> {
        if !self.nfs {
            return None;
        }
        nfs_bed::obstacle().or_else(|| {
            let built = preflight::ensure(Scope::Nfs).and_then(|()| nfs_bed::ensure());
            built.err().map(|error| format!("its hosts cannot be built here: {error:#}"))
        })
    }

    /// The command that runs it.
    fn program(&self, json: &Path) -> Result<Command> {
        let json = std::path::absolute(json).context("--json is not a usable path")?;
        preflight::ensure(Scope::Stories)?;
        let workspace = Workspace::find()?;
        let mut bed = Bed::prepare(&workspace, &["understudy", "e2e"], Profile::Release)?;
        if let Some(release) = self.kafka {
            bed = bed.with_kafka(release)?;
        }
        if self.nfs {
            bed.add_nfs()?;
        }
        let mut program = bed.program("bench")?;
        program.arg(self.what);
        if self.ec2 {
            program.env(ec2_bed::VARIABLE, ec2_bed::ensure()?);
        }
        if self.kubernetes {
            program.env(kubernetes_bed::VARIABLE, kubernetes_bed::with_nodes()?);
        }
        for (option, value) in &self.options {
            program.arg(format!("--{option}")).arg(value);
        }
        program.arg("--json").arg(json);
        Ok(program)
    }
}

/// Runs the command. One on the test bed returns only when it could not be started.
pub(crate) fn run(bench: &Bench) -> Result<()> {
    let on_the_bed = |call: Call, json: &Path| become_program(&mut call.program(json)?);
    match bench {
        Bench::Suite { out, render: true, .. } => render::all(out),
        Bench::Suite { out, runs, only, .. } => suite(out, *runs, only.as_deref().unwrap_or(&Member::ALL)),
        Bench::Takeover { bed, runs, java_options, broker_property, kafka, security, json }
            if *bed != Hosts::Rack =>
        {
            let others = (java_options.as_ref(), broker_property.first(), kafka::other(kafka));
            let alone = matches!(others, (None, None, None)) && security == PLAINTEXT;
            ensure!(alone, "this --bed takes --runs and --json alone");
            let (what, ec2) = if *bed == Hosts::Ec2 { ("ec2", true) } else { ("kubernetes", false) };
            on_the_bed(
                Call { ec2, kubernetes: !ec2, ..Call::new(what, &[("runs", &runs.to_string())]) },
                json,
            )
        }
        Bench::Takeover { bed: _, runs, java_options, broker_property, kafka, security, json } => {
            let mut call = Call::new("takeover", &[("runs", &runs.to_string()), ("security", security)]);
            call.kafka = kafka::other(kafka);
            let old = call.kafka.is_some_and(|release| release.version == kafka::WITH_ZOOKEEPER.version);
            ensure!(!old || security == PLAINTEXT, "--security takes a Kafka without ZooKeeper here");
            call.options.extend(java_options.iter().map(|words| ("java-options", words.clone())));
            call.options.extend(broker_property.iter().map(|pair| ("broker-property", pair.clone())));
            on_the_bed(call, json)
        }
        Bench::Growth { sizes, runs, json } => {
            let sizes = sizes.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            on_the_bed(Call::new("growth", &[("sizes", &sizes), ("runs", &runs.to_string())]), json)
        }
        Bench::Cpu { rate, seconds, json } => {
            let options = [("rate", rate), ("seconds", seconds)].map(|(key, value)| (key, value.to_string()));
            on_the_bed(Call { options: options.into(), ..Call::new("cpu", &[]) }, json)
        }
        Bench::Nfs { runs, json } => {
            if let Some(why) = nfs_bed::obstacle() {
                return Err(
                    Missing(format!("there can be no hosts with kernels of their own here: {why}")).into()
                );
            }
            on_the_bed(Call { nfs: true, ..Call::new("nfs", &[("runs", &runs.to_string())]) }, json)
        }
        Bench::Detection { seconds, deaths, json } => {
            let options =
                [("seconds", seconds), ("deaths", deaths)].map(|(key, value)| (key, value.to_string()));
            on_the_bed(Call { options: options.into(), ..Call::new("detection", &[]) }, json)
        }
        Bench::Footprint { bed, seconds, security, json } => {
            ensure!(
                *bed != Hosts::Kubernetes,
                "`bench takeover --bed kubernetes` measures the sidecar as well"
            );
            let options = [("seconds", seconds.to_string()), ("security", security.clone())];
            let mut call = Call { options: options.into(), ..Call::new("footprint", &[]) };
            call.ec2 = *bed == Hosts::Ec2;
            call.options.extend(call.ec2.then(|| ("hosts", "ec2".to_owned())));
            on_the_bed(call, json)
        }
        Bench::Scale { brokers, partitions, seconds, json } => {
            let options = [("brokers", brokers), ("partitions", partitions), ("seconds", seconds)];
            let options = options.map(|(key, value)| (key, value.to_string()));
            on_the_bed(Call { options: options.into(), ..Call::new("scale", &[]) }, json)
        }
        Bench::Ledger { brokers, dir, json } => ledger(*brokers, dir.as_deref(), json),
        Bench::Ontap { runs, json } => ontap(*runs, json),
    }
}

fn ledger(brokers: u32, dir: Option<&Path>, json: &Path) -> Result<()> {
    let json = std::path::absolute(json).context("--json is not a usable path")?;
    preflight::ensure(Scope::Stories)?;
    let mut cargo = Workspace::find()?.cargo("run");
    cargo.args(["--release", "--package", "understudy-drivers"]);
    cargo.args(["--example", "bench_ledger", "--"]).arg(brokers.to_string()).arg(json).args(dir);
    shell::run(cargo.env("UNDERSTUDY_KAFKA_HOME", kafka::ensure(&kafka::CURRENT)?))
}

fn ontap(runs: u32, json: &Path) -> Result<()> {
    let json = std::path::absolute(json).context("--json is not a usable path")?;
    preflight::ensure(Scope::Build)?;
    let mut cargo = Workspace::find()?.cargo("run");
    cargo.args(["--release", "--package", "understudy-ontap", "--example", "bench_ontap", "--"]);
    shell::run(cargo.arg(runs.to_string()).arg(json))
}

/// Runs each of `members`, shows what was measured after each, and goes on after one that fails. One that
/// cannot be run here is left out, and says so.
fn suite(out: &Path, runs: u32, members: &[Member]) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let out = std::path::absolute(out).context("--out is not a usable path")?;
    let mut report = Report::default();
    for member in members {
        let call = member.call(runs);
        if let Some(why) = call.obstacle() {
            report.skip(call.what, why);
            continue;
        }
        report.part(call.what, |_| {
            shell::run(&mut call.program(&out.join(format!("{}.json", call.what)))?)?;
            render::all(&out)
        });
    }
    report.print();
    ensure!(report.total().failed == 0, "not everything was measured, see above");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(subcommand)]
        bench: Bench,
    }

    fn parsed(words: &str) -> Bench {
        Cli::try_parse_from(format!("bench {words}").split(' ')).unwrap().bench
    }

    #[test]
    fn a_benchmark_goes_by_its_name_and_by_its_letter() {
        let Bench::Suite { only, .. } = parsed("suite --only b,nfs,c") else { panic!("another command") };
        assert_eq!(only.unwrap(), [Member::Growth, Member::Nfs, Member::Takeover]);
        let Bench::Growth { sizes, .. } = parsed("growth --json f") else { panic!("another command") };
        assert_eq!(sizes, [1, 5, 10, 20, 40]);
        assert!(Cli::try_parse_from(["bench", "suite", "--only", "z"]).is_err());
    }

    #[test]
    fn every_benchmark_of_the_suite_is_called_by_a_name_of_its_own() {
        let mut names: Vec<&str> = Member::ALL.iter().map(|member| member.call(3).what).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Member::ALL.len());
        assert!(Member::Nfs.call(1).nfs && !Member::Takeover.call(1).nfs);
    }
}
