//! The client against a server that answers as a test says.

mod calls;
mod parse;
mod repeat;
mod server;
mod tls;
mod whole;
