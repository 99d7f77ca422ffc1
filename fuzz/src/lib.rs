//! Feeds parsers with what should not come: seeds that are kept, and changes made to them.
//!
//! The parsers and their promises are listed in `tests/targets`. What is here knows nothing of them.

mod meter;
mod mutate;

use std::any::Any;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

pub use meter::Meter;
pub use mutate::Mutator;

/// A function of bytes that panics where a promise is broken.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, and that of its folder of seeds.
    pub name: &'static str,
    /// Runs it once.
    pub run: fn(&[u8]),
    /// What it may have reserved at any one time, in bytes, beyond [`Self::per_byte`].
    pub at_rest: usize,
    /// What it may have reserved in addition for each byte of the input.
    pub per_byte: usize,
    /// How many changed inputs a test gives it.
    pub cases: usize,
}

impl Target {
    /// Runs it once. Needs [`Meter`] as the global allocator.
    ///
    /// # Panics
    /// When a promise is broken, that of bounded memory too.
    pub fn check(&self, input: &[u8]) {
        let ((), peak) = Meter::peak_of(|| (self.run)(input));
        let most = self.at_rest + self.per_byte * input.len();
        assert!(
            peak <= most,
            "{} bytes of input made it reserve {peak} bytes, more than {most}",
            input.len()
        );
    }

    /// Runs every seed, and as many changed ones as it should be; always the same for the same `number`.
    ///
    /// # Errors
    /// The input that broke a promise and the file it was written to, and how it was broken.
    pub fn exercise(&self, seeds: &[Vec<u8>], number: u64, failures: &Path) -> Result<(), String> {
        seeds.iter().try_for_each(|seed| self.attempt(seed, failures))?;
        let mut mutator = Mutator::new(number, seeds);
        (0..self.cases).try_for_each(|_| self.attempt(&mutator.next_input(), failures))
    }

    fn attempt(&self, input: &[u8], failures: &Path) -> Result<(), String> {
        let panic = match catch_unwind(AssertUnwindSafe(|| self.check(input))) {
            Ok(()) => return Ok(()),
            Err(panic) => panic,
        };
        let file = failures.join(format!("{}-failed", self.name));
        let kept = fs::write(&file, input).map_or_else(|e| e.to_string(), |()| file.display().to_string());
        let shown = input.escape_ascii();
        Err(format!("{}: {}\ninput (in {kept}): {shown}", self.name, words(&*panic)))
    }
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked")
}

/// The inputs in a folder, by name; a file is one input.
///
/// # Errors
/// It cannot be read.
pub fn inputs(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    if path.is_file() {
        return Ok(vec![fs::read(path)?]);
    }
    let entries = fs::read_dir(path)?.map(|entry| entry.map(|e| e.path()));
    let mut paths: Vec<PathBuf> = entries.collect::<io::Result<_>>()?;
    paths.sort();
    paths.iter().map(fs::read).collect()
}
