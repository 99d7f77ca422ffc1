//! Stories on a Kubernetes of real parts, with a Kafka in pods.

mod at_home;
mod bed;
mod brokers;
mod chart;
mod disturbed;
mod force_deleted;
mod moved;
mod node_power;
mod rescheduled;
mod sidecar;
mod standby;
