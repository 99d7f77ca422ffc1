//! Runs in a guest, for the test bed outside: one command for each connection of the management link.

fn main() -> anyhow::Result<()> {
    e2e::nfs::serve_commands()
}
