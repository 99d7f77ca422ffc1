//! Keeps secrets out of what is printed: which settings hold one, and in which forms others repeat it.

mod names;
mod redact;

pub use names::{in_settings, in_words, names_a_secret};
pub use redact::Secrets;
