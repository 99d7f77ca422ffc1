//! Makes an archive: starts Kafka once as it is always started, but as a scratch node beside everything, and
//! stops it.
//!
//! What must not go wrong: a launch command that names a broker's log dirs by itself would have a second
//! Kafka work on them. So every Java that the command starts is held before its first instruction
//! (`-XX:+PauseAtStartup`), looked at, and let go only if all it was given is our configuration.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, kill_process, kill_process_group, set_parent_process_death_signal, setsid,
};

use super::super::problem::Problem;
use super::super::proc;
use super::super::user::User;
use super::environment::{for_scratch, own_choice};
use super::jvm::{self, Jvm, Purpose};
use super::record::Record;
use super::scratch::Scratch;
use super::{Made, Recipe, Stop};
use crate::command::{ending, last_words};

/// How long Kafka may take to start, and again to stop and write the archive: at the lowest priority, on a
/// host that may be busy.
const WITHIN: Duration = Duration::from_secs(600);

/// How often the processes are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How often Kafka is asked whether it serves.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// The first Java that makes archives of what it has loaded.
const OLDEST_JAVA: u32 = 13;

/// Makes an archive in `dir`, by `recipe`, and keeps it with its record.
pub(super) fn make(dir: &Path, recipe: &Recipe, launch: &str, stop: Stop<'_>) -> Result<Made, Problem> {
    let begun = Instant::now();
    refuse_own_choice(recipe)?;
    let scratch = Scratch::new(dir, recipe)?;
    let mut run = Run::begin(&scratch, recipe)?;
    let kafka = run.pass_the_gate(stop)?;
    let java = kafka.version().unwrap_or_else(|| "of unknown version".to_owned());
    run.refuse_old(&java, &kafka)?;
    run.open_gate()?;
    run.until_it_serves(stop)?;
    let mut record = Record::new(launch.to_owned(), java, kafka.found());
    // Taken before Kafka ends: what is changed meanwhile does not fit.
    record.take_in(&kafka.class_path().unwrap_or_default(), &kafka.working_dir);
    record.take_in_java(&kafka.program);
    run.stop_and_wait(stop)?;
    put_into_place(dir, &scratch, recipe, &mut record)?;
    record.took_seconds = begun.elapsed().as_secs_f64();
    record.keep(dir)?;
    forget_others(dir, &record.archive);
    Ok(Made {
        archive: dir.join(&record.archive),
        bytes: record.bytes,
        seconds: record.took_seconds,
        cpu_seconds: cpu_seconds(),
        java: jvm::shown(&kafka.program, &record.java),
        from: recipe.from.clone(),
    })
}

fn refuse_own_choice(recipe: &Recipe) -> Result<(), Problem> {
    let words = recipe.command.iter().chain(recipe.environment.values());
    if let Some(choice) = own_choice(words.map(String::as_str)) {
        return Err(Problem::Refused(format!(
            "{} says {choice} itself: there is nothing to do",
            recipe.from
        )));
    }
    if recipe.command.iter().any(|word| word.starts_with("--override")) {
        return Err(Problem::Refused(format!(
            "{} has `--override`, so Kafka cannot be started by it as a scratch node: put what it overrides into \
             [broker.properties], or set class_data = \"off\" in [broker_host]",
            recipe.from
        )));
    }
    Ok(())
}

/// A scratch Kafka under way. Dropped, it and whatever it started are killed: they have nothing that anybody
/// misses.
struct Run<'a> {
    scratch: &'a Scratch,
    from: &'a str,
    child: Child,
    ended: Option<ExitStatus>,
    begun: Instant,
}

impl<'a> Run<'a> {
    fn begin(scratch: &'a Scratch, recipe: &'a Recipe) -> Result<Self, Problem> {
        let properties = text(&scratch.properties())?;
        let options = format!(
            "-XX:ArchiveClassesAtExit={} -XX:+UnlockDiagnosticVMOptions -XX:+PauseAtStartup -XX:PauseAtStartupFile={}",
            text(&scratch.archive())?,
            text(&scratch.gate())?
        );
        let mut environment = recipe.environment.clone();
        for_scratch(&mut environment, &options, &text(&scratch.log_files())?);
        let words = recipe.arguments(&properties);
        let (program, arguments) =
            words.split_first().ok_or_else(|| Problem::Refused(format!("{} is empty", recipe.from)))?;
        let output = OpenOptions::new().create_new(true).append(true).mode(0o600).open(scratch.output());
        let output = output.map_err(Problem::io("making a file for Kafka's output"))?;
        let errors = output.try_clone().map_err(Problem::io("making a file for Kafka's output"))?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(environment).current_dir("/");
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let user = recipe.user.clone();
        let prepare = move || prepare(user.as_ref());
        // SAFETY: between fork and exec the closure makes system calls only; it does not allocate, lock or
        // touch anything that another thread of the parent may have held.
        #[allow(unsafe_code)]
        unsafe {
            command.pre_exec(prepare);
        }
        let child = command.spawn().map_err(Problem::io(format!("executing {program} ({})", recipe.from)))?;
        let run = Self { scratch, from: &recipe.from, child, ended: None, begun: Instant::now() };
        run.make_least();
        Ok(run)
    }

    /// What only its parent may say of it. Where the kernel has none of it there is less to be said.
    fn make_least(&self) {
        // A session is a group of its own to the scheduler, within which alone `nice` counts.
        for (file, value) in [("autogroup", "19"), ("oom_score_adj", "1000")] {
            let path = format!("/proc/{}/{file}", self.child.id());
            if let Err(error) = fs::write(&path, value) {
                tracing::debug!(path, %error, "the scratch Kafka keeps its own");
            }
        }
    }

    /// Waits until Kafka's Java stands at the gate. Whoever only asks for Java's version is let through
    /// before.
    fn pass_the_gate(&mut self, stop: Stop<'_>) -> Result<Jvm, Problem> {
        let properties = text(&self.scratch.properties())?;
        let mut stuck = String::new();
        loop {
            let javas = Jvm::of_session(self.leader());
            let paused = self.scratch.gate().exists();
            for java in &javas {
                match java.purpose(&properties) {
                    Purpose::Astray => return Err(self.astray(java)),
                    // One that does not wait has no gate, and so no archive either; it is told below why.
                    Purpose::Scratch if paused || self.scratch.serves() => return Ok(java.clone()),
                    Purpose::Version if paused => self.open_gate()?,
                    Purpose::Other if paused => stuck = self.scratch.hide(&java.words.join(" ")),
                    _ => {}
                }
            }
            let from = self.from;
            let instead = || if stuck.is_empty() { String::new() } else { format!(", but first `{stuck}`") };
            self.go_on(stop, || format!("{from} has not started Kafka{}", instead()))?;
            thread::sleep(LOOK_EVERY);
        }
    }

    fn astray(&self, java: &Jvm) -> Problem {
        let shown =
            java.words.iter().skip_while(|word| !word.contains("kafka.")).cloned().collect::<Vec<_>>();
        Problem::Refused(format!(
            "{} starts Kafka with more than the configuration it is given (`{}`), so what it would write to is not known; \
             it was ended before it began. Set class_data = \"off\" in [broker_host]",
            self.from,
            last_words(&self.scratch.hide(&shown.join(" ")))
        ))
    }

    fn refuse_old(&self, version: &str, java: &Jvm) -> Result<(), Problem> {
        match jvm::major(version) {
            Some(major) if major < OLDEST_JAVA => Err(Problem::Refused(format!(
                "{} is too old to make a class-data archive, which takes {OLDEST_JAVA} or later: Kafka starts without one",
                jvm::shown(&java.program, version)
            ))),
            _ => Ok(()),
        }
    }

    fn open_gate(&self) -> Result<(), Problem> {
        match fs::remove_file(self.scratch.gate()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Problem::io("letting the scratch Kafka begin")(error))
            }
            _ => Ok(()),
        }
    }

    fn until_it_serves(&mut self, stop: Stop<'_>) -> Result<(), Problem> {
        let mut asked = Instant::now();
        loop {
            if asked.elapsed() >= ASK_EVERY {
                if self.scratch.serves() || self.scratch.said().contains("Kafka Server started") {
                    return Ok(());
                }
                asked = Instant::now();
            }
            self.go_on(stop, || "the scratch Kafka does not serve yet".to_owned())?;
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Java writes the archive when it is asked to end.
    fn stop_and_wait(&mut self, stop: Stop<'_>) -> Result<(), Problem> {
        self.begun = Instant::now();
        // Java alone: a script that has not exec'd ends after it.
        for java in Jvm::of_session(self.leader()) {
            proc::terminate(java.id)?;
        }
        loop {
            if self.ended()?.is_some() {
                return Ok(());
            }
            if let Some(why) = stop() {
                return Err(stopped(&why));
            }
            if self.begun.elapsed() >= WITHIN {
                let what = "the scratch Kafka was asked to stop and has not".to_owned();
                return Err(Problem::Unconfirmed { what, limit: WITHIN });
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Errors when it ended, was asked to be given up, or took too long.
    fn go_on(&mut self, stop: Stop<'_>, what: impl FnOnce() -> String) -> Result<(), Problem> {
        if let Some(why) = stop() {
            return Err(stopped(&why));
        }
        if let Some(status) = self.ended()? {
            return Err(self.ended_early(status));
        }
        if self.begun.elapsed() >= WITHIN {
            let what = format!("{}: {}", what(), last_words(&self.scratch.said()));
            return Err(Problem::Unconfirmed { what, limit: WITHIN });
        }
        Ok(())
    }

    fn ended_early(&self, status: ExitStatus) -> Problem {
        let said = self.scratch.said();
        if said.contains("Unrecognized VM option") {
            return Problem::Refused(format!(
                "this Java makes no class-data archives of what it has loaded, which takes HotSpot {OLDEST_JAVA} or later: \
                 Kafka starts without one"
            ));
        }
        Problem::Refused(format!("the scratch Kafka ended early ({}): {}", ending(status), last_words(&said)))
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>, Problem> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().map_err(Problem::io("waiting for the scratch Kafka"))?;
        }
        Ok(self.ended)
    }

    fn leader(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or_default()
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if self.ended.is_some() {
            // Of a script that did not wait for its Java.
            for java in Jvm::of_session(self.leader()) {
                let _ = proc::terminate(java.id);
            }
            return;
        }
        // Not reaped, so its number is still its own, and its group's.
        if let Some(leader) = Pid::from_raw(self.leader()) {
            let _ = kill_process_group(leader, Signal::KILL);
            let _ = kill_process(leader, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// In the child: of its own session, of the least priority, Kafka's user, and gone when we are.
fn prepare(user: Option<&User>) -> io::Result<()> {
    /// Of `ioprio_set(2)`: a process, and the class that gets what nobody else wants.
    const WHO_PROCESS: libc::c_int = 1;
    const CLASS_IDLE: libc::c_int = 3 << 13;
    setsid()?;
    // SAFETY: system calls on the calling process, with a structure of its own. That they are refused in a
    // container is no reason not to go on.
    #[allow(unsafe_code)]
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, 19);
        libc::sched_setscheduler(0, libc::SCHED_IDLE, &libc::sched_param { sched_priority: 0 });
        libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, CLASS_IDLE);
    }
    if let Some(user) = user {
        user.become_user()?;
    }
    // After the user, for that undoes it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(())
}

/// What the children that we have waited for, and theirs, have cost so far.
fn cpu_seconds() -> f64 {
    // SAFETY: the kernel fills a structure that is ours and all zeroes, which is a value of it.
    #[allow(unsafe_code)]
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn stopped(why: &str) -> Problem {
    Problem::Refused(format!("it was given up: {why}"))
}

fn text(path: &Path) -> Result<String, Problem> {
    let plain = path.to_str().filter(|text| !text.contains(char::is_whitespace));
    plain.map(str::to_owned).ok_or_else(|| {
        Problem::Refused(format!("{} has blanks in its path: choose another agent.state_dir", path.display()))
    })
}

/// Copies what Kafka's user wrote to a file of our own, which nobody else can write.
fn put_into_place(
    dir: &Path,
    scratch: &Scratch,
    recipe: &Recipe,
    record: &mut Record,
) -> Result<(), Problem> {
    let made = scratch.archive();
    let open = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&made);
    let mut from = match open {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Problem::Refused(format!(
                "Kafka ran, and Java left no archive: {}",
                last_words(&scratch.said())
            )));
        }
        Err(error) => return Err(Problem::io("opening what Java wrote")(error)),
    };
    let found = from.metadata().map_err(Problem::io("reading what Java wrote"))?;
    let theirs = recipe.user.as_ref().is_none_or(|user| user.is(found.uid()));
    if !found.is_file() || !theirs || found.nlink() != 1 || found.len() == 0 {
        return Err(Problem::Refused(format!("{} is not what Java writes", made.display())));
    }
    record.archive = format!("kafka-{}.jsa", record.made.as_millisecond());
    let place = dir.join(&record.archive);
    let copied = copy(&mut from, &place).map_err(Problem::io(format!("writing {}", place.display())))?;
    (record.bytes, record.checksum) = copied;
    Ok(())
}

/// Readable for all, writable for us; either whole or not there.
fn copy(from: &mut File, place: &Path) -> io::Result<(u64, u32)> {
    let staging = place.with_extension("tmp");
    let mut to = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&staging)?;
    let (mut bytes, mut checksum, mut buffer) = (0, 0, vec![0; 256 * 1024]);
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        to.write_all(&buffer[..count])?;
        checksum = crc32c::crc32c_append(checksum, &buffer[..count]);
        bytes += count as u64;
    }
    to.set_permissions(fs::Permissions::from_mode(0o644))?;
    to.sync_all()?;
    fs::rename(&staging, place)?;
    Ok((bytes, checksum))
}

/// Removes archives that no record speaks of. A Kafka that has one mapped keeps it.
fn forget_others(dir: &Path, kept: &str) {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let is_other = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let ours = name.starts_with("kafka-") && (name.ends_with(".jsa") || name.ends_with(".tmp"));
        ours && name != kept
    };
    for path in entries.map(|entry| entry.path()).filter(is_other) {
        if let Err(error) = fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), %error, "an old class-data archive could not be removed");
        }
    }
}
