//! The FUSE adapter: translates kernel requests into calls of the tree and replies. It is the only module
//! that imports fuser. It knows inodes, open files and replies, but no file by name and no controller. This
//! file has its parts and its start.
#![doc = include_str!("fuse.md")]
#![deny(unsafe_code)]

mod adapter;
mod ask;
mod backlog;
mod deferred;
mod handles;
mod inode;
pub mod inotify_helper;
mod inotify_replay;
mod invalidate;
mod invalidation_writer;
mod looked_up;
pub mod mount;
mod nodes;
mod outcome;
mod queue;
mod relay;
pub mod supervisor_state;
mod table;
mod takeover;
mod triggers;
mod wake;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use fuser::{Session, SessionACL};

use crate::supervisor_state::Inherited;
use adapter::Adapter;
use ask::Asks;
use deferred::Deferred;
use gcgroupfs_model::tree::Tree;
use gcgroupfs_sys::launch::Launcher;
use inotify_replay::Replayer;
use invalidate::Invalidator;
use nodes::Nodes;
use queue::Queue;
use relay::Relay;
use takeover::Takeover;
use wake::Waker;

pub use invalidation_writer::{InvalidationWriter, done, next};
pub use relay::{Attended, deliver};

/// Identifies the mount for helpers.
#[derive(Debug, Clone)]
pub struct Spot {
    /// The mount point.
    pub point: PathBuf,
    /// The mount's device number.
    pub device: u64,
}

/// Number of request loops. One, since no callback waits and a panic in one is caught. A second one costs
/// every `cat` a third more (25 us instead of 18): the kernel wakes it for the release, for which no process
/// waits.
const LOOPS: usize = 1;

/// Origin of the open /dev/fuse.
#[derive(Debug)]
pub enum Link {
    /// Just mounted.
    Fresh(OwnedFd),
    /// Kept by a supervisor; earlier daemons may have answered over it.
    Inherited(Inherited),
}

/// Parts that answering a mount works with.
#[derive(Debug)]
pub struct Options {
    pub tree: Arc<Tree>,
    pub link: Link,
    pub spot: Spot,
    /// Starts the helper processes.
    pub launcher: Arc<Launcher>,
}

/// Answers the requests of a mount on separate threads. Calls `ended` when the mount is gone, or
/// with the error that ended it. Returns the invalidation helper, to be stopped before unmounting.
///
/// # Errors
/// The kernel's first message is not understood, or no thread can be started.
pub fn serve(
    options: Options,
    ended: impl FnOnce(io::Result<()>) + Send + 'static,
) -> io::Result<InvalidationWriter> {
    let Options {
        tree,
        link,
        spot,
        launcher,
    } = options;
    let nodes = Arc::new(Nodes::new(tree.clone()));
    let replayer = Arc::new(Replayer::default());
    let invalidator = Arc::new(Invalidator::new(replayer.clone()));
    let stores = Queue::start("fuse-store", nodes.clone())?;
    let deferred = Arc::new(Deferred::start(nodes.clone())?);
    let asks = Asks::start(nodes.clone(), deferred.clone())?;
    let adapter = Adapter {
        nodes: nodes.clone(),
        invalidator: invalidator.clone(),
        replayer: replayer.clone(),
        stores,
        deferred,
        asks,
    };
    let mut config = fuser::Config::default();
    config.n_threads = Some(LOOPS);
    let (session, writer, takeover) = match link {
        // The kernel checks access, by the mount's options.
        Link::Fresh(device) => {
            let writer =
                InvalidationWriter::helped(Relay::new(launcher.clone(), device.try_clone()?, spot.clone()));
            let session = Session::from_fd(adapter, device, SessionACL::All, config)?;
            (session, writer, None)
        }
        Link::Inherited(inherited) => {
            let session = takeover::session(adapter, &inherited.device, &inherited.init, config)?;
            let writer = InvalidationWriter::Relayed(Arc::new(inherited.relay));
            let takeover = Takeover::new(inherited.device, inherited.roster, inherited.pollers)?;
            nodes.handles.note_pollers(takeover.pollers());
            replayer.inherit(takeover.entities());
            nodes.know_groups(&replayer.looked_up);
            tree.listen(takeover.roster());
            (session, writer, Some(takeover))
        }
    };
    invalidator.start(writer.clone(), session.notifier())?;
    replayer.start(launcher, spot, nodes.clone(), writer.clone())?;
    tree.listen(invalidator);
    tree.listen(replayer);
    tree.listen(Arc::new(Waker::start(nodes)?));
    let finisher = writer.clone();
    thread::Builder::new().name("fuse".to_owned()).spawn(move || {
        if let Some(takeover) = takeover {
            takeover.finish(&tree, finisher, &session.notifier());
        }
        ended(session.run());
    })?;
    Ok(writer)
}

/// Reads FUSE_INIT, for daemons that replace one another.
///
/// # Errors
/// The kernel cannot resend requests left unanswered by an earlier daemon.
pub fn first_message(device: &OwnedFd) -> io::Result<Vec<u8>> {
    takeover::first_message(device)
}
