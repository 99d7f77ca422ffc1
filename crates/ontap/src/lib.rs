//! The product at ONTAP: who is let in to a broker's volumes, the snapshot before a takeover, who is connected,
//! and how long locks wait.

pub mod clients;
pub mod export;
mod granted;
mod login;
mod moves;
pub mod snapshot;
mod snapshotted;
pub mod storage;

pub use export::{
    OntapExportConfig, OntapGrant, OntapGrantConfig, ProofLevel, ServingNodes, is_mark, of_trident,
    serving_nodes, single_address,
};
pub use login::OntapConfig;
pub use snapshot::SnapshotConfig;
