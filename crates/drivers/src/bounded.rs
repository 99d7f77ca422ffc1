//! Reading files that others can write, up to a bound: no file on shared storage fills this agent's memory.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// The whole of `file`, from where it stands.
///
/// # Errors
/// [`ErrorKind::FileTooLarge`] if there are more than `limit` bytes; then no more than that were read.
pub(crate) fn read(file: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("it is longer than {limit} bytes")));
    }
    Ok(bytes)
}

/// The whole of the file at `path`, as [`read`].
pub(crate) fn read_file(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read(File::open(path)?, limit)
}

/// Reads a file that somebody else named, of at most `limit` bytes. A pipe is none: it may hang, and what is
/// read of it is lost to whom it is for.
///
/// # Errors
/// When it cannot be read, is longer, or is no regular file.
pub(crate) fn read_regular(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    if std::fs::metadata(path)?.is_file() {
        read_file(path, limit)
    } else {
        Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_an_end_is_not_read_to_its_end() {
        let error = read_file(Path::new("/dev/zero"), 1 << 20).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string()),
            (ErrorKind::FileTooLarge, "it is longer than 1048576 bytes".into())
        );
        assert_eq!(read(&b"four"[..], 4).unwrap(), b"four");
        assert!(read(&b"fives"[..], 4).is_err());
    }

    #[test]
    fn a_pipe_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, file) = (dir.path().join("pipe"), dir.path().join("file"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert_eq!(read_regular(&pipe, 4).unwrap_err().kind(), ErrorKind::InvalidInput);
        std::fs::write(&file, "four").unwrap();
        assert_eq!(read_regular(&file, 4).unwrap(), b"four");
    }
}
