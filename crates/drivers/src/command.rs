//! Runs a helper program to its end: with input, bounded output and a deadline, in a process group of its
//! own.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

/// Bytes kept of each of stdout and stderr; of more, the end.
const KEPT_BYTES: usize = 256 * 1024;
/// How long output is still read once the program itself has ended: a process that it left behind may
/// hold the pipe open for ever.
const LINGER: Duration = Duration::from_millis(100);
/// How long to wait for a killed program to be gone. One that hangs in the kernel is left behind.
const GONE_AFTER: Duration = Duration::from_secs(1);

/// How a program ended, and what it said.
#[derive(Debug)]
pub(crate) struct Ended {
    /// How it ended.
    pub status: ExitStatus,
    /// The end of its standard output.
    pub stdout: String,
    /// The end of its standard error.
    pub stderr: String,
    /// How long it ran.
    pub took: Duration,
}

/// Why a program gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// It could not be started.
    #[error("{program} could not be started")]
    NotStarted {
        /// The program.
        program: String,
        /// The cause.
        source: io::Error,
    },
    /// The deadline passed; the whole process group was killed.
    #[error("{program} did not end within {limit:?} and was killed")]
    TimedOut {
        /// The program.
        program: String,
        /// The deadline.
        limit: Duration,
        /// What it had said by then, stdout before stderr.
        said: String,
    },
}

/// Runs `program` with `input` on its standard input, for at most `limit`.
///
/// At the deadline, and when the future is dropped, its process group is killed.
pub(crate) async fn run<A: AsRef<OsStr>>(
    program: &Path,
    arguments: &[A],
    input: &[u8],
    limit: Duration,
) -> Result<Ended, CommandError> {
    let begun = Instant::now();
    let name = program.display().to_string();
    let not_started = |source| CommandError::NotStarted { program: name.clone(), source };
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/").process_group(0).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(not_started)?;
    // Declared after the child, so dropped before it: while the leader is not reaped, its id is its own.
    let mut group = Group::of(&child);
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    match supervise(&mut child, input, limit, (&mut stdout, &mut stderr)).await {
        Some(status) => {
            group.0 = None;
            let status = status.map_err(not_started)?;
            Ok(Ended { status, stdout: text(&stdout), stderr: text(&stderr), took: begun.elapsed() })
        }
        None => {
            drop(group);
            // Its fate is reported whether or not it could be reaped in time.
            let _ = timeout(GONE_AFTER, child.wait()).await;
            let said = format!("{}\n{}", text(&stdout), text(&stderr));
            Err(CommandError::TimedOut { program: name, limit, said })
        }
    }
}

/// What `program` prints before it exits with 0, for whoever may wait: on a thread of its own, so that it may be called
/// from anywhere.
pub(crate) fn run_now(program: &Path, input: &[u8], limit: Duration) -> Option<String> {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        let ended = runtime.block_on(run::<&str>(program, &[], input, limit)).ok()?;
        ended.status.success().then_some(ended.stdout)
    };
    thread::scope(|scope| scope.spawn(run).join().ok().flatten())
}

/// Feeds and reads the program until it ends; `None` when `limit` passes first.
async fn supervise(
    child: &mut Child,
    input: &[u8],
    limit: Duration,
    (stdout, stderr): (&mut Vec<u8>, &mut Vec<u8>),
) -> Option<io::Result<ExitStatus>> {
    let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let mut streams = pin!(async { tokio::join!(feed(stdin, input), pump(out, stdout), pump(err, stderr)) });
    let mut streaming = true;
    let ended = timeout(limit, async {
        loop {
            tokio::select! {
                status = child.wait() => break status,
                _ = &mut streams, if streaming => streaming = false,
            }
        }
    });
    let status = ended.await.ok()?;
    if streaming {
        let _ = timeout(LINGER, streams).await;
    }
    Some(status)
}

async fn feed(stdin: Option<ChildStdin>, input: &[u8]) {
    if let Some(mut stdin) = stdin {
        // A program may end without having read its input. What it answers is what counts.
        let _ = stdin.write_all(input).await;
    }
}

async fn pump(stream: Option<impl AsyncRead + Unpin>, kept: &mut Vec<u8>) {
    let Some(mut stream) = stream else { return };
    while let Ok(1..) = stream.read_buf(kept).await {
        let excess = kept.len().saturating_sub(KEPT_BYTES);
        kept.drain(..excess);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The program's process group, killed when dropped unless the program was reaped.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // An empty group is as good as a killed one.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// How a program ended, in words: `exit code 1`, `signal 9`.
pub(crate) fn ending(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// The end of what a program said, as one line of at most 400 characters.
pub(crate) fn last_words(said: &str) -> String {
    const KEPT_CHARS: usize = 400;
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let line = lines.join(" | ");
    let excess = line.chars().count().saturating_sub(KEPT_CHARS);
    match excess {
        0 => line,
        _ => format!("…{}", line.chars().skip(excess).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    async fn sh(script: &str, input: &[u8], limit: Duration) -> Result<Ended, CommandError> {
        run(Path::new("/bin/sh"), &["-c", script], input, limit).await
    }

    fn is_gone(pid: &str) -> bool {
        // A killed orphan may stay a zombie for a while where nobody reaps it.
        match std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())) {
            Ok(stat) => stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')),
            Err(_) => true,
        }
    }

    #[tokio::test]
    async fn input_goes_in_and_output_comes_out() {
        let ended = sh("cat; echo oops >&2; exit 3", b"hello", LONG).await.unwrap();
        assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("hello", "oops\n"));
        assert_eq!(ending(ended.status), "exit code 3");
    }

    #[tokio::test]
    async fn a_program_that_does_not_read_its_input_is_no_error() {
        let input = vec![b'x'; 1 << 20];
        assert!(sh("exit 0", &input, LONG).await.unwrap().status.success());
    }

    #[tokio::test]
    async fn of_endless_output_the_end_is_kept() {
        let ended = sh("head -c 3000000 /dev/zero; echo the end", b"", LONG).await.unwrap();
        assert_eq!(ended.stdout.len(), KEPT_BYTES);
        assert!(ended.stdout.ends_with("the end\n"));
    }

    #[tokio::test]
    async fn at_the_deadline_the_whole_group_is_killed() {
        let script = "sleep 1000 & echo $!; wait";
        let Err(CommandError::TimedOut { said, .. }) = sh(script, b"", Duration::from_millis(200)).await
        else {
            panic!("it ended by itself");
        };
        let begun = Instant::now();
        while !is_gone(&said) {
            assert!(begun.elapsed() < LONG, "process {said} outlived its group");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_dropped_call_kills_the_group() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script = format!("echo $$ > {0}.new; mv {0}.new {0}; sleep 1000", file.display());
        let call = sh(&script, b"", LONG);
        let pid = async {
            loop {
                match std::fs::read_to_string(&file) {
                    Ok(pid) => break pid,
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        let pid = tokio::select! { _ = call => panic!("it ended by itself"), pid = pid => pid };
        let begun = Instant::now();
        while !is_gone(&pid) {
            assert!(begun.elapsed() < LONG, "process {pid} outlived its call");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_process_left_behind_with_the_pipe_does_not_hold_up_the_answer() {
        let ended = sh("sleep 5 & echo done; exit 0", b"", LONG).await.unwrap();
        assert_eq!(ended.stdout, "done\n");
        assert!(ended.took < Duration::from_secs(4));
    }

    #[tokio::test]
    async fn what_cannot_be_started_says_why() {
        let error = run(Path::new("/nonexistent/agent"), &[""; 0], b"", LONG).await.unwrap_err();
        let text = recovery::ports::chain(&error);
        assert!(text.contains("/nonexistent/agent could not be started: No such file"), "{text}");
    }

    #[test]
    fn last_words_are_one_short_line() {
        assert_eq!(last_words("a\n\n  b \n"), "a | b");
        let long = last_words(&"ä".repeat(5000));
        assert_eq!(long.chars().count(), 401);
    }
}
