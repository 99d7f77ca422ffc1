//! `health_signal` drivers: dated looks at the cluster.

pub mod kafka_logs;
pub mod kafka_metadata;
pub mod kafka_probe;
pub mod kafka_quorum;
pub mod kafka_registration;
pub mod local_address;
pub mod local_process;
pub mod peer;
pub mod storage_canary;
