//! The fake keeps its promises: what each fault does, how pages go, who is let in when, and what jobs come
//! to.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod answers;
mod bed;
mod faults;
