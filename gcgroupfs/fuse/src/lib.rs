//! The FUSE adapter: translates kernel requests into calls of the tree and replies. It is the only module
//! that imports fuser. It knows inodes, open files and replies, but no file by name and no controller. This
//! file has its parts and its start.
#![doc = include_str!("fuse.md")]
#![deny(unsafe_code)]

mod adapter;
mod announce;
mod ask;
mod backlog;
mod forget;
mod handles;
mod inode;
mod invalidate;
pub mod keep;
mod known;
mod long;
pub mod mount;
mod nodes;
mod outcome;
mod queue;
mod relay;
mod table;
mod takeover;
pub mod touch;
mod triggers;
mod wake;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use fuser::{Session, SessionACL};

use crate::keep::Kept;
use adapter::Adapter;
use announce::Announcer;
use ask::Asks;
use gcgroupfs_model::tree::Tree;
use gcgroupfs_sys::launch::Launcher;
use invalidate::Invalidator;
use long::Long;
use nodes::Nodes;
use queue::Queue;
use relay::Relay;
use takeover::Takeover;
use wake::Waker;

pub use announce::Spot;
pub use forget::{Forgetter, deliver, done, next};
pub use relay::Attended;

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
    Kept(Kept),
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
pub fn serve(options: Options, ended: impl FnOnce(io::Result<()>) + Send + 'static) -> io::Result<Forgetter> {
    let Options {
        tree,
        link,
        spot,
        launcher,
    } = options;
    let nodes = Arc::new(Nodes::new(tree.clone()));
    let announcer = Arc::new(Announcer::default());
    let invalidator = Arc::new(Invalidator::new(announcer.clone()));
    let stores = Queue::start("fuse-store", nodes.clone())?;
    let long = Arc::new(Long::start(nodes.clone())?);
    let asks = Asks::start(nodes.clone(), long.clone())?;
    let adapter = Adapter {
        nodes: nodes.clone(),
        invalidator: invalidator.clone(),
        announcer: announcer.clone(),
        stores,
        long,
        asks,
    };
    let mut config = fuser::Config::default();
    config.n_threads = Some(LOOPS);
    let (session, forgetter, takeover) = match link {
        // The kernel checks access, by the mount's options.
        Link::Fresh(device) => {
            let forgetter =
                Forgetter::helped(Relay::new(launcher.clone(), device.try_clone()?, spot.clone()));
            let session = Session::from_fd(adapter, device, SessionACL::All, config)?;
            (session, forgetter, None)
        }
        Link::Kept(kept) => {
            let session = takeover::session(adapter, &kept.device, &kept.init, config)?;
            let forgetter = Forgetter::Relayed(Arc::new(kept.relay));
            let takeover = Takeover::new(kept.device, kept.roster, kept.pollers)?;
            nodes.handles.note_pollers(takeover.pollers());
            announcer.inherit(takeover.entities());
            nodes.know_groups(&announcer.known);
            tree.listen(takeover.roster());
            (session, forgetter, Some(takeover))
        }
    };
    invalidator.start(forgetter.clone(), session.notifier())?;
    announcer.start(launcher, spot, nodes.clone(), forgetter.clone())?;
    tree.listen(invalidator);
    tree.listen(announcer);
    tree.listen(Arc::new(Waker::start(nodes)?));
    let finisher = forgetter.clone();
    thread::Builder::new().name("fuse".to_owned()).spawn(move || {
        if let Some(takeover) = takeover {
            takeover.finish(&tree, finisher, &session.notifier());
        }
        ended(session.run());
    })?;
    Ok(forgetter)
}

/// Reads FUSE_INIT, for daemons that replace one another.
///
/// # Errors
/// The kernel cannot resend requests left unanswered by an earlier daemon.
pub fn first_message(device: &OwnedFd) -> io::Result<Vec<u8>> {
    takeover::first_message(device)
}
