//! Stories whose hosts have kernels of their own, on a real NFS server.

mod bed;
mod boot;
mod crash;
mod cut;
mod freeze;
mod lease;
mod ledger;
mod refused;
mod silly_rename;
