//! A class-data archive, so that a story's brokers need not load and link the same classes anew: 2.4 CPU
//! seconds for a start instead of 3.8 (OpenJDK 17, Kafka 4.3.1). Java itself refuses one that does not fit it
//! or its class path, and goes on without.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::fnv1a;
use crate::cache::Staging;
use crate::shell;

/// How long a broker may take to start, or to stop and write the archive.
const LIMIT: Duration = Duration::from_secs(120);

const LOG4J: &str = "status = error\nappender.console.type = Console\nappender.console.name = C\n\
                     rootLogger.level = INFO\nrootLogger.appenderRef.c.ref = C\n";

/// Returns the archive for the Kafka in `home` and the Java on the path; makes it if need be, from what a
/// broker that is started once and stopped has loaded.
///
/// # Errors
/// The broker does not start, or Java makes no archive of it.
pub(crate) fn ensure(home: &Path) -> Result<PathBuf> {
    let java = Command::new("java").arg("-version").output().context("cannot run java")?;
    let archive = home.join(format!("classes-{:016x}.jsa", fnv1a(&java.stderr)));
    if archive.exists() {
        return Ok(archive);
    }
    eprintln!("making a class-data archive for Kafka's brokers, once");
    let staging = Staging::new(home, "classes-staging-")?;
    let made = staging.path().join("classes.jsa");
    make(home, staging.path(), &made)
        .with_context(|| format!("cannot make {}: what the broker said is above", archive.display()))?;
    fs::rename(&made, &archive).with_context(|| format!("cannot put {} into place", archive.display()))?;
    Ok(archive)
}

fn make(home: &Path, staging: &Path, archive: &Path) -> Result<()> {
    let (log4j, properties) = (staging.join("log4j2.properties"), staging.join("server.properties"));
    fs::write(&log4j, LOG4J)?;
    fs::write(&properties, node(&staging.join("log"))?)?;
    let class_path = class_path(home)?;
    let java = |flags: &[String], main: &[&str]| {
        let mut java = Command::new("java");
        java.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
        java.arg(format!("-Dlog4j2.configurationFile=file:{}", log4j.display())).args(flags);
        java.args(["-cp", &class_path]).args(main).arg(&properties).stdin(Stdio::null());
        java
    };
    let format = ["kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAA", "-c"];
    shell::stdout_of(&mut java(&[], &format))?;
    let log = staging.join("broker.log");
    let mut broker = java(&[format!("-XX:ArchiveClassesAtExit={}", archive.display())], &["kafka.Kafka"]);
    let file = fs::File::create(&log)?;
    let mut child = broker.stdout(file.try_clone()?).stderr(file).spawn().context("cannot run java")?;
    let made = started(&mut child, &log).and_then(|()| stopped(&mut child));
    if made.is_err() {
        let _ = child.kill();
        let _ = child.wait();
        eprintln!("{}", fs::read_to_string(&log).unwrap_or_default());
    }
    made?;
    ensure!(archive.is_file(), "the broker ran, and Java left no archive");
    Ok(())
}

/// A broker and its controller in one, for loopback.
fn node(log_dir: &Path) -> Result<String> {
    // Both are held until both are known, so that they differ.
    let ports = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
    let [broker, controller] = [ports[0].local_addr()?, ports[1].local_addr()?];
    Ok(format!(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@{controller}\n\
         listeners=BROKER://{broker},CONTROLLER://{controller}\nadvertised.listeners=BROKER://{broker}\n\
         listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT\ncontroller.listener.names=CONTROLLER\n\
         inter.broker.listener.name=BROKER\nlog.dirs={}\n",
        log_dir.display()
    ))
}

/// As the stories give it: an archive fits one order of jars.
fn class_path(home: &Path) -> Result<String> {
    let libs = home.join("libs");
    let jars = super::list_jars(home)?.into_iter().map(|jar| libs.join(jar).display().to_string());
    Ok(jars.filter(|jar| jar.ends_with(".jar")).collect::<Vec<_>>().join(":"))
}

fn started(child: &mut Child, log: &Path) -> Result<()> {
    let begun = Instant::now();
    while !fs::read_to_string(log)?.contains("Kafka Server started") {
        if let Some(status) = child.try_wait()? {
            bail!("the broker ended with {status}");
        }
        ensure!(begun.elapsed() < LIMIT, "the broker did not start in {} s", LIMIT.as_secs());
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Java writes the archive when it ends by itself.
fn stopped(child: &mut Child) -> Result<()> {
    // The shell has a `kill` of its own on every machine.
    shell::run(Command::new("sh").args(["-c", &format!("kill {}", child.id())]))?;
    let begun = Instant::now();
    while child.try_wait()?.is_none() {
        ensure!(begun.elapsed() < LIMIT, "the broker did not stop in {} s", LIMIT.as_secs());
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
