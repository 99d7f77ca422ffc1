//! The configuration in `deploy/aws/terraform`, judged by OpenTofu with a provider that has the schema of the real one
//! and makes nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;
use understudy::config::Config;

/// The folder with OpenTofu and the provider, made by `cargo xtask setup --tier ec2`.
const VARIABLE: &str = "UNDERSTUDY_TERRAFORM_BED";

/// A copy of the configuration, with the units that it installs, and OpenTofu to judge it.
struct Bed {
    home: PathBuf,
    copy: TempDir,
}

impl Bed {
    /// `None`, told loudly, without OpenTofu.
    fn open() -> Option<Self> {
        let Some(home) = std::env::var_os(VARIABLE).map(PathBuf::from) else {
            eprintln!(
                "SKIPPED: no OpenTofu to judge with: run `cargo xtask setup --tier ec2`, and set {VARIABLE} to the \
                 folder it names"
            );
            return None;
        };
        let copy = tempfile::tempdir().unwrap();
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
        for part in ["aws", "systemd"] {
            let copied =
                Command::new("cp").arg("--recursive").arg(deploy.join(part)).arg(copy.path()).status();
            assert!(copied.unwrap().success());
        }
        let bed = Self { home, copy };
        let initialised = bed.tofu(&["init", "-no-color"]);
        assert!(initialised.status.success(), "{initialised:?}");
        Some(bed)
    }

    fn folder(&self) -> PathBuf {
        self.copy.path().join("aws/terraform")
    }

    fn tofu(&self, arguments: &[&str]) -> Output {
        let mut tofu = Command::new(self.home.join("bin/tofu"));
        // Nothing that somebody has set may make the answer another one.
        tofu.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", self.copy.path());
        tofu.env("TF_CLI_CONFIG_FILE", self.home.join("tofu.rc"));
        tofu.args(arguments).current_dir(self.folder()).output().unwrap()
    }

    /// Replaces a text of a file, which must be there.
    fn replace(&self, file: &str, was: &str, is: &str) {
        let path = self.folder().join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(was), "{file} has no {was}");
        fs::write(path, text.replace(was, is)).unwrap();
    }

    /// What the example of the tests would make: its outputs, by name.
    fn example(&self) -> BTreeMap<String, Value> {
        let tested = self.tofu(&["test", "-json", "-verbose"]);
        let lines = String::from_utf8(tested.stdout).unwrap();
        assert!(tested.status.success(), "{lines}");
        let said: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let summary = said.iter().find(|line| line["type"] == "test_summary").unwrap();
        assert_eq!(summary["test_summary"]["passed"], 3, "{summary}");
        let state = said.iter().find(|line| line["type"] == "test_state" && line["@testrun"] == "example");
        let outputs = state.unwrap()["test_state"]["values"]["outputs"].as_object().unwrap().clone();
        outputs.into_iter().map(|(name, mut output)| (name, output["value"].take())).collect()
    }
}

#[test]
fn it_is_formatted_and_fits_the_providers_schema() {
    let Some(bed) = Bed::open() else { return };
    let formatted = bed.tofu(&["fmt", "-check", "-recursive", "-diff", "-no-color"]);
    assert!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stdout));
    let valid = bed.tofu(&["validate", "-no-color"]);
    assert!(valid.status.success(), "{}", String::from_utf8_lossy(&valid.stderr));
}

/// What the other tests would pass over if the provider of the tests knew less than the real one.
#[test]
fn what_the_provider_does_not_know_is_found() {
    let Some(bed) = Bed::open() else { return };
    for (file, was, is, found) in [
        ("storage.tf", "junction_path", "junction", "Unsupported argument"),
        ("storage.tf", "  storage_virtual_machine_id =", "  #", "Missing required argument"),
        (
            "storage.tf",
            "size_in_megabytes          = 10240",
            "size_in_megabytes = \"ten\"",
            "Inappropriate value",
        ),
        ("hosts.tf", "metadata_options {", "metadata_option {", "Unsupported block type"),
        ("hosts.tf", "aws_subnet.hosts.id", "aws_subnet.hosts.name", "Unsupported attribute"),
        ("network.tf", "aws_vpc.kafka.id", "aws_vpc.other.id", "Reference to undeclared resource"),
    ] {
        let text = fs::read_to_string(bed.folder().join(file)).unwrap();
        bed.replace(file, was, is);
        let judged = bed.tofu(&["validate", "-no-color"]);
        let said = String::from_utf8_lossy(&judged.stderr);
        assert!(!judged.status.success() && said.contains(found), "{file} with {is}: {said}");
        fs::write(bed.folder().join(file), text).unwrap();
    }
}

/// What hosts are laid at their first boot is what the program takes.
#[test]
fn its_hosts_have_configurations_that_the_agent_takes() {
    let Some(bed) = Bed::open() else { return };
    let outputs = bed.example();
    let configurations = outputs["configurations"].as_object().unwrap();
    assert_eq!(configurations.len(), 4);
    for (host, text) in configurations {
        // As the first boot does.
        let text = text.as_str().unwrap().replace("@PIN@", &["AB"; 32].join(":"));
        let path = bed.copy.path().join(format!("{host}.toml"));
        fs::write(&path, text).unwrap();
        let config = Config::load(&path).unwrap_or_else(|error| panic!("{host}: {error}"));
        assert!(config.warnings.is_empty(), "{host}: {:?}", config.warnings);
        assert_eq!(config.topology.here.0, *host);
        for (fenced, ladder) in &config.topology.fences {
            assert_eq!(ladder, &["ontap_export", "ec2_stop"], "{host} fences {fenced}");
        }
        let (brokers, fences) = if host.starts_with("kafka-") { (1, 1) } else { (3, 3) };
        assert_eq!(
            (config.topology.brokers.len(), config.topology.fences.len()),
            (brokers, fences),
            "{host}"
        );
        // The program itself gets as far as to the ledger, which is not here.
        let broker = config.topology.brokers.keys().next().unwrap().0.to_string();
        let asked = Command::new(env!("CARGO_BIN_EXE_understudy"))
            .arg("--config")
            .arg(&path)
            .args(["plan", "--broker", &broker])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&asked.stderr);
        assert!(
            asked.status.code() == Some(1) && said.contains("/mnt/understudy/ledger"),
            "{host}: {asked:?}"
        );
    }
}

/// The command that the guide has people copy is one that the program knows.
#[test]
fn its_command_for_the_volumes_is_one_that_the_program_knows() {
    let Some(bed) = Bed::open() else { return };
    let command = bed.example()["provision"].as_str().unwrap().to_owned();
    let command =
        command.replace("$PIN", &["AB"; 32].join(":")).replace("$PWD/password", "/nonexistent/password");
    let mut words = command.split(' ');
    assert_eq!(words.next(), Some("understudy"));
    let asked = Command::new(env!("CARGO_BIN_EXE_understudy")).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&asked.stderr);
    assert!(asked.status.code() == Some(1) && said.contains("/nonexistent/password"), "{asked:?}");
}
