//! The program's commands, one file each.

pub(crate) mod agent;
pub(crate) mod background;
pub(crate) mod bench;
pub(crate) mod convert;
pub(crate) mod devices;
pub(crate) mod embed;
pub(crate) mod export;
pub(crate) mod info;
pub(crate) mod memory;
pub(crate) mod models;
pub(crate) mod plan;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod serve;
pub(crate) mod train;
