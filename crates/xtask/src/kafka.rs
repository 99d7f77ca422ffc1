//! A runnable Kafka, assembled once from Maven Central: `<cache>/kafka-<version>-<key>/libs/*.jar`.
//!
//! The key is a hash of the pom, so another pom means another directory. The directory appears by one rename,
//! when it is complete, with a list of every jar and its checksum that is verified on each use: what was cut
//! short, deleted, damaged or added since is noticed and fetched anew.

pub(crate) mod classes;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::cache::Staging;
use crate::{cache, shell};

/// A release, and the pom that it is assembled from.
pub(crate) struct Release {
    pub(crate) version: &'static str,
    pom: &'static str,
}

/// The one that all stories are told on.
pub(crate) const CURRENT: Release = Release { version: "4.3.1", pom: include_str!("../kafka-pom.xml") };
/// The last of the releases before 4.0.
pub(crate) const OLDER: Release = Release { version: "3.9.2", pom: include_str!("../kafka-3-pom.xml") };
/// One from before KRaft was ready, with the ZooKeeper that it needs.
pub(crate) const WITH_ZOOKEEPER: Release =
    Release { version: "3.2.3", pom: include_str!("../kafka-3.2-pom.xml") };

/// The versions of all of them.
pub(crate) const VERSIONS: [&str; 3] = [CURRENT.version, OLDER.version, WITH_ZOOKEEPER.version];

/// The one of this version, if it is not today's.
pub(crate) fn other(version: &str) -> Option<&'static Release> {
    [&OLDER, &WITH_ZOOKEEPER].into_iter().find(|release| release.version == version)
}

/// In the format of sha256sum, so that a person can check it too.
const MANIFEST: &str = "SHA256SUMS";

const ATTEMPTS: u32 = 3;
const ATTEMPT_LIMIT: Duration = Duration::from_secs(15 * 60);

/// Returns the directory of a complete, verified Kafka; fetches it if need be.
///
/// # Errors
/// Maven Central cannot be reached, or the cache directory cannot be written.
pub(crate) fn ensure(release: &Release) -> Result<PathBuf> {
    let Release { version, pom } = release;
    let cache = cache::dir()?;
    let home = cache.join(format!("kafka-{version}-{:016x}", fnv1a(pom.as_bytes())));
    if home.exists() {
        let Err(problem) = verify(&home, version) else { return Ok(home) };
        eprintln!("the cached Kafka is not usable, fetching it anew: {problem:#}");
        fs::remove_dir_all(&home)
            .with_context(|| format!("cannot remove {}: remove it by hand", home.display()))?;
    }
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let staging = Staging::new(&cache, "kafka-staging-")?;
    eprintln!("fetching Kafka {version} from Maven Central into {}", home.display());
    fetch(staging.path(), pom).context(
        "cannot fetch Kafka from Maven Central: check the network, or name a mirror or proxy in ~/.m2/settings.xml",
    )?;
    let assembled = staging.path().join("kafka");
    write_manifest(&assembled)?;
    verify(&assembled, version)?;
    starts(&assembled, version)?;
    if let Err(error) = fs::rename(&assembled, &home) {
        // Another run may have been quicker; then its copy serves as well.
        verify(&home, version)
            .with_context(|| format!("cannot put Kafka into place at {}: {error}", home.display()))?;
    }
    Ok(home)
}

fn fetch(staging: &Path, pom: &str) -> Result<()> {
    fs::write(staging.join("pom.xml"), pom)?;
    for attempt in 1.. {
        match run_maven(staging) {
            Ok(()) => break,
            Err(error) if attempt == ATTEMPTS => return Err(error),
            Err(error) => {
                let pause = Duration::from_secs(5 * u64::from(attempt));
                eprintln!(
                    "attempt {attempt} of {ATTEMPTS} failed, again in {} s: {error:#}",
                    pause.as_secs()
                );
                thread::sleep(pause);
            }
        }
    }
    Ok(())
}

/// What an attempt downloaded stays in the staging area's own Maven repository, so that the next one goes on
/// from there. The user's repository is not used: what another build left damaged in it must not get into our
/// cache.
fn run_maven(staging: &Path) -> Result<()> {
    let directory = |key: &str, path: &str| format!("-D{key}={}", staging.join(path).display());
    let mut maven = Command::new("mvn");
    maven
        .current_dir(staging)
        .stdin(Stdio::null())
        .args(["--batch-mode", "--quiet", "--strict-checksums", "--update-snapshots"])
        // Maven's own default is to wait half an hour for a server that says nothing.
        .args(["-Dmaven.wagon.rto=60000", "-Dmaven.wagon.http.retryHandler.count=3"])
        .arg(directory("maven.repo.local", "repository"))
        .arg(directory("outputDirectory", "kafka/libs"))
        .args(["-DincludeScope=runtime", "dependency:copy-dependencies"]);
    shell::run_within(ATTEMPT_LIMIT, &mut maven)
}

/// Java itself is the judge of whether the jars are enough to run.
fn starts(home: &Path, version: &str) -> Result<()> {
    let mut kafka = Command::new("java");
    kafka.arg("-cp").arg(home.join("libs/*")).args(["kafka.Kafka", "--version"]).stdin(Stdio::null());
    let said = shell::stdout_of(&mut kafka).context("the Kafka that was fetched does not start")?;
    ensure!(said.starts_with(version), "fetched Kafka {version}, and it calls itself {}", said.trim());
    Ok(())
}

fn write_manifest(home: &Path) -> Result<()> {
    let jars = list_jars(home)?;
    let sums =
        shell::stdout_of(Command::new("sha256sum").arg("--").args(&jars).current_dir(home.join("libs")))?;
    fs::write(home.join(MANIFEST), sums)?;
    Ok(())
}

/// Checks that the jars in `libs` are exactly those in the list, with the same content.
fn verify(home: &Path, version: &str) -> Result<()> {
    let manifest = home.join(MANIFEST);
    let sums =
        fs::read_to_string(&manifest).with_context(|| format!("cannot read {}", manifest.display()))?;
    let listed: BTreeSet<String> =
        sums.lines().filter_map(|line| line.split_once("  ")).map(|(_, jar)| jar.to_owned()).collect();
    let present = list_jars(home)?;
    if let Some(jar) = listed.difference(&present).next() {
        bail!("{jar} is missing");
    }
    if let Some(jar) = present.difference(&listed).next() {
        bail!("{jar} does not belong there");
    }
    let broker = format!("kafka_2.13-{version}.jar");
    ensure!(present.contains(&broker), "{broker} is not among its jars");
    let mut check = Command::new("sha256sum");
    check.args(["--check", "--quiet", "--strict"]).arg(&manifest).current_dir(home.join("libs"));
    shell::run(&mut check).context("a jar is damaged")
}

fn list_jars(home: &Path) -> Result<BTreeSet<String>> {
    let libs = home.join("libs");
    let entries = fs::read_dir(&libs).with_context(|| format!("cannot read {}", libs.display()))?;
    entries
        .map(|entry| {
            let name = entry?.file_name();
            name.into_string().map_err(|name| anyhow::anyhow!("{} is not a jar's name", name.display()))
        })
        .collect()
}

/// FNV-1a: a key for a directory's name needs to be stable, not secret.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that looks like a Kafka to `verify`.
    fn small_kafka() -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        let libs = home.path().join("libs");
        fs::create_dir(&libs).unwrap();
        for name in [format!("kafka_2.13-{}.jar", CURRENT.version), "a.jar".to_owned(), "b.jar".to_owned()] {
            fs::write(libs.join(&name), name.repeat(100)).unwrap();
        }
        write_manifest(home.path()).unwrap();
        verify(home.path(), CURRENT.version).unwrap();
        home
    }

    fn problem(home: &tempfile::TempDir) -> String {
        format!("{:#}", verify(home.path(), CURRENT.version).unwrap_err())
    }

    #[test]
    fn a_deleted_jar_is_noticed() {
        let home = small_kafka();
        fs::remove_file(home.path().join("libs/a.jar")).unwrap();
        assert_eq!(problem(&home), "a.jar is missing");
    }

    #[test]
    fn an_added_jar_is_noticed() {
        let home = small_kafka();
        fs::write(home.path().join("libs/z.jar"), "").unwrap();
        assert_eq!(problem(&home), "z.jar does not belong there");
    }

    #[test]
    fn a_jar_damaged_at_the_same_size_is_noticed() {
        let home = small_kafka();
        let jar = home.path().join("libs/b.jar");
        let mut bytes = fs::read(&jar).unwrap();
        bytes[17] ^= 1;
        fs::write(&jar, bytes).unwrap();
        assert!(problem(&home).starts_with("a jar is damaged"), "{}", problem(&home));
    }

    #[test]
    fn a_cache_without_its_list_is_not_trusted() {
        let home = small_kafka();
        fs::remove_file(home.path().join(MANIFEST)).unwrap();
        assert!(problem(&home).starts_with("cannot read"), "{}", problem(&home));
    }

    #[test]
    fn an_empty_list_over_no_jars_is_not_a_kafka() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("libs")).unwrap();
        fs::write(home.path().join(MANIFEST), "").unwrap();
        assert_eq!(problem(&home), format!("kafka_2.13-{}.jar is not among its jars", CURRENT.version));
    }

    #[test]
    fn the_key_is_fnv_1a_and_each_pom_names_its_version() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        for Release { version, pom } in [CURRENT, OLDER, WITH_ZOOKEEPER] {
            assert!(pom.contains(&format!("<kafka.version>{version}</kafka.version>")));
        }
    }
}
