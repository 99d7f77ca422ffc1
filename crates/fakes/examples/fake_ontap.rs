//! Serves the fake ONTAP by itself, so that any ONTAP client can be pointed at it.
//!
//! User `admin`, password `secret`. It ends with Ctrl-C, or when the process is killed.

use std::io::{self, Write};
use std::net::SocketAddr;

use clap::Parser;
use fakes::ontap::{Fake, Scheme, World};

/// An ONTAP that is not one: SVM `svm1`, aggregate `aggr1`, nodes `node-01` and `node-02`, data LIF `lif1`.
#[derive(Parser)]
struct Args {
    /// Where to listen; port 0 takes a free one, and the first line of output says which.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// HTTPS with a self-signed certificate, instead of HTTP.
    #[arg(long)]
    tls: bool,
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let args = Args::parse();
    let scheme = if args.tls { Scheme::Https } else { Scheme::Http };
    let fake = Fake::listen(World::small(), args.listen, scheme).await?;
    writeln!(io::stdout(), "listening on {}", fake.url())?;
    io::stdout().flush()?;
    tokio::signal::ctrl_c().await
}
