//! Tells a hook which devices its process may use, before the driver or NVML lists them.

use std::sync::Arc;
use std::time::Instant;

use gcgroup_abi::message::{Answer, GroupName, Request};
use nix::errno::Errno;

use super::request::refused;
use super::{Kind, governs_user};
use crate::socket::Server;
use crate::socket::initial_group::Prospect;
use crate::socket::rule_queries::DevicesRequest;
use gcgroupfs_model::rules::Verdict;
use gcgroupfs_sys::process;

impl Server {
    /// Answers, or queues the request where the rules decide. Returns whether the connection stays open.
    pub(super) fn ask_for_devices(&mut self, number: u64, request: &Request<'_>) -> bool {
        match self.queue_devices(number, request) {
            Ok(()) => true,
            Err(errno) => {
                let (errno, why) = refused(errno);
                self.send_answer(number, &Answer::refusal(errno, &why))
            }
        }
    }

    fn queue_devices(&mut self, number: u64, request: &Request<'_>) -> nix::Result<()> {
        let visible = match request.value {
            [] => None,
            // A text that is not UTF-8 names no device.
            [b'=', text @ ..] => Some(str::from_utf8(text).unwrap_or_default().to_owned()),
            _ => return Err(Errno::EINVAL),
        };
        let group = GroupName::new(request.name).ok_or(Errno::EINVAL)?;
        let connection = self.connections.get(&number).ok_or(Errno::ENOTCONN)?;
        let socket = Arc::clone(&connection.socket);
        // Without lists neither a full queue nor a lack of descriptors hides a device, and no group is made.
        if !self.rule_queries.may_limit_devices() && !self.tree.has_device_lists() {
            return self.show_all_devices(number);
        }
        let peer = process::peer(&*socket)?;
        if !governs_user(peer.uid) {
            return self.show_all_devices(number);
        }
        let is_known = self.registry.is_known(&peer);
        let request = DevicesRequest {
            number,
            wish: self.registry.original_wish(group),
            peer,
            group,
            visible,
        };
        if is_known || !self.rule_queries.are_needed() {
            self.tell_devices(request, Ok(Verdict::default()));
            return Ok(());
        }
        self.rule_queries.ask_for_devices(request)?;
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.kind = Kind::Beginner;
        }
        Ok(())
    }

    /// Answers as if there were no daemon.
    fn show_all_devices(&mut self, number: u64) -> nix::Result<()> {
        let is_answered = self.send_answer(number, &Answer::part(&[], 0));
        if is_answered { Ok(()) } else { Err(Errno::EPIPE) }
    }

    /// Answers after the verdict of the rules. The time is charged to the user.
    pub(in crate::socket) fn tell_devices(&mut self, request: DevicesRequest, verdict: nix::Result<Verdict>) {
        let (number, begun_at) = (request.number, Instant::now());
        let is_waiting =
            |connection: &super::Connection| matches!(connection.kind, Kind::Beginner | Kind::Client(_));
        if !self.connections.get(&number).is_some_and(is_waiting) {
            return;
        }
        let visible = request.visible.clone();
        let prospect = verdict.map(|verdict| self.registry.would_begin(request, &verdict));
        match prospect {
            Ok(Prospect { group, devices }) => {
                let visible = self
                    .tree
                    .visible_devices(group, devices.as_deref(), visible.as_deref());
                let text = visible.map(|visible| format!("{}\n{}", visible.allowed.join(","), visible.value));
                let text = text.unwrap_or_default();
                self.end_request(number, begun_at, &Answer::part(text.as_bytes(), 0));
            }
            Err(errno) => {
                let (errno, why) = refused(errno);
                self.end_request(number, begun_at, &Answer::refusal(errno, &why));
            }
        }
    }
}
