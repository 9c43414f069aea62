//! Talks to the kubelet and the API server. Nothing here knows the daemon.

mod checkpoint;
mod pods;
mod registration;
mod service;
#[rustfmt::skip]
#[allow(
    dead_code,
    unreachable_pub,
    missing_debug_implementations,
    clippy::all,
    reason = "generated: proto/deviceplugin.proto"
)]
mod v1beta1;

pub(crate) use self::checkpoint::read as read_checkpoint;
pub(crate) use self::pods::{Pod, PodSource};
pub(crate) use self::registration::serve;
pub(crate) use self::service::{Devices, Node};

#[cfg(test)]
pub(crate) use self::pods::tests;
