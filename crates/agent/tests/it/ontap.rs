//! `understudy ontap …`: the real binary against the stateful fake of ONTAP, over HTTPS with a pinned
//! certificate.

mod audit;
mod bed;
mod provision;
mod secrets;
mod verify;
