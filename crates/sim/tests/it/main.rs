//! Whole clusters: seeds and scenarios that must keep every promise, and planted bugs that must be found.

mod planted;
mod seeds;
