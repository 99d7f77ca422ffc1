//! The client against a server that answers as a test says.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod cache;
mod calls;
mod parse;
mod repeat;
mod secrets;
mod server;
mod tls;
mod whole;
