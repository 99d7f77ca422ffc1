//! Commands over a guest's management link: one connection each, and one message each way.
//!
//! A message is a list of byte strings, each with its length before it; so is the list. To a guest goes what
//! standard input is to be, then the command line; back come the exit code, standard output and standard
//! error.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::host::Output;
use crate::machine::output_of;

/// Where a guest listens.
const PORT: u16 = 7000;
/// Nothing that is sent is longer.
const LONGEST: u32 = 256 << 20;

/// Serves, in a guest, until it is killed.
///
/// # Errors
/// When the port is taken.
pub fn serve_commands() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).context("cannot listen for commands")?;
    for connection in listener.incoming().flatten() {
        thread::spawn(move || {
            if let Err(error) = serve(connection) {
                eprintln!("a command could not be run: {error:#}");
            }
        });
    }
    Ok(())
}

fn serve(mut connection: TcpStream) -> Result<()> {
    let request = receive(&mut connection)?;
    let (input, command) = request.split_first().context("an empty request")?;
    let answer = match run(input, command) {
        Ok(output) => output,
        Err(error) => Output { code: 127, stdout: String::new(), stderr: format!("{error:#}\n") },
    };
    send(
        &mut connection,
        &[answer.code.to_string().as_bytes(), answer.stdout.as_bytes(), answer.stderr.as_bytes()],
    )?;
    Ok(())
}

fn run(input: &[u8], command: &[Vec<u8>]) -> Result<Output> {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let (program, arguments) = command.split_first().context("an empty command")?;
    let mut child = Command::new(OsStr::from_bytes(program))
        .args(arguments.iter().map(|argument| OsStr::from_bytes(argument)))
        .env("HOME", "/root")
        .env("LANG", "C.UTF-8")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", String::from_utf8_lossy(program)))?;
    if let Some(mut stdin) = child.stdin.take() {
        // Who does not read its input need not.
        let _ = stdin.write_all(input);
    }
    output_of(&child.wait_with_output()?)
}

/// Runs `command` in the guest at `guest`, and waits for its end at most `limit`.
pub(super) fn ask(guest: Ipv4Addr, input: &[u8], command: &[&[u8]], limit: Duration) -> Result<Output> {
    let mut connection = TcpStream::connect_timeout(&SocketAddr::from((guest, PORT)), Duration::from_secs(5))
        .context("the guest's management link does not answer")?;
    connection.set_read_timeout(Some(limit))?;
    connection.set_write_timeout(Some(limit))?;
    let mut request = vec![input];
    request.extend(command);
    send(&mut connection, &request)?;
    let answer =
        receive(&mut connection).with_context(|| format!("no answer from the guest in {limit:?}"))?;
    let [code, stdout, stderr] = answer.as_slice() else {
        anyhow::bail!("an answer of {} parts", answer.len())
    };
    Ok(Output {
        code: std::str::from_utf8(code)?.parse()?,
        stdout: String::from_utf8_lossy(stdout).into_owned(),
        stderr: String::from_utf8_lossy(stderr).into_owned(),
    })
}

fn send(connection: &mut impl Write, parts: &[&[u8]]) -> io::Result<()> {
    let length = |length: usize| u32::try_from(length).map(u32::to_be_bytes).map_err(io::Error::other);
    let mut message = length(parts.len())?.to_vec();
    for part in parts {
        message.extend(length(part.len())?);
        message.extend_from_slice(part);
    }
    connection.write_all(&message)
}

fn receive(connection: &mut impl Read) -> Result<Vec<Vec<u8>>> {
    let mut parts = Vec::new();
    for _ in 0..number(connection)? {
        let length = number(connection)?;
        ensure!(length <= LONGEST, "a part of {length} bytes");
        let mut part = vec![0; length as usize];
        connection.read_exact(&mut part)?;
        parts.push(part);
    }
    Ok(parts)
}

fn number(connection: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    connection.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_as_it_was_sent() {
        let parts: [&[u8]; 3] = [b"", b"echo", &[0, 10, 255]];
        let mut bytes = Vec::new();
        send(&mut bytes, &parts).unwrap();
        assert_eq!(receive(&mut bytes.as_slice()).unwrap(), parts);
        bytes.pop();
        assert!(receive(&mut bytes.as_slice()).is_err());
    }

    #[test]
    fn a_command_is_given_its_input_and_says_how_it_ended() {
        let output = run(b"seen", &[b"sh".to_vec(), b"-c".to_vec(), b"cat; echo no >&2; exit 3".to_vec()]);
        let expected = Output { code: 3, stdout: "seen".to_owned(), stderr: "no\n".to_owned() };
        assert_eq!(output.unwrap(), expected);
    }
}
