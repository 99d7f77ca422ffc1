//! Corners of one rule, on more than one Kafka, and of two versions of the agent.

mod combined;
mod on_any_kafka;
mod upgrade;
mod with_zookeeper;
