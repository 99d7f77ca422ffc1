//! Keeps secrets out of what is printed: which settings hold one, and in which forms others repeat it. And those that
//! systemd hands over.

mod credential;
mod names;
mod redact;

pub use credential::{NoCredential, credential};
pub use names::{in_settings, in_words, names_a_secret};
pub use redact::Secrets;
