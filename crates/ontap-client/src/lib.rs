#![doc = include_str!("../README.md")]

mod body;
mod client;
mod error;
mod job;
mod page;
mod query;
mod resources;
mod send;
mod tls;
mod unique;
mod value;

pub use client::{Client, ClientBuilder, Retry};
pub use error::{BoxError, Error, FailedJob, Refusal, Request, Result};
pub use job::JobState;
pub use resources::*;
pub use tls::{Auth, Fingerprint, Tls};
pub use value::Reference;
