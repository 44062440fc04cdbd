//! The parts that an agent is made of.

use super::names::Names;
use super::outputs::Outputs;
use super::roots::Roots;
use super::stop::Stop;
use crate::cluster::node::Node;
use crate::held_dir::HeldDir;
use crate::tiering::TieringEngine;
use monarch_abi::control::ControlMap;
use rustix::fd::OwnedFd;
use std::sync::Arc;

/// The parts that an agent is made of.
pub(super) struct Parts {
    pub(super) dir: Arc<HeldDir>,
    pub(super) lock: OwnedFd,
    pub(super) ctl: ControlMap<'static>,
    pub(super) tiering: Arc<TieringEngine>,
    pub(super) roots: Arc<Roots>,
    pub(super) outputs: Arc<Outputs>,
    pub(super) names: Arc<Names>,
    pub(super) node: Option<Arc<Node>>,
    /// Why there is none, if the job names others.
    pub(super) alone_because: Option<String>,
    pub(super) stop: Stop,
}
