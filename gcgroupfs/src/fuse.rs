//! The FUSE adapter: kernel requests in, calls on the tree, replies out. The only module that imports fuser.
//! It knows inodes, open files and replies, and neither a file by name nor a controller. Here is what it
//! consists of, and how it begins.
//!
#![doc = include_str!("fuse/fuse.md")]

mod adapter;
mod announce;
mod ask;
mod backlog;
mod forget;
mod handles;
mod inode;
mod invalidate;
mod known;
mod long;
mod nodes;
mod outcome;
mod queue;
mod relay;
mod table;
mod takeover;
mod wake;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use fuser::{Session, SessionACL};

use crate::keep::Kept;
use crate::launch::Launcher;
use crate::tree::Tree;
use adapter::Adapter;
use announce::Announcer;
use ask::Asks;
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

/// Request loops. One, since no callback waits and a panic in one is caught. A second costs every `cat` a
/// third more (25 us instead of 18: the kernel wakes it for the release that nobody waits for, between two
/// requests that somebody does).
const LOOPS: usize = 1;

/// How the daemon came by its end of the mount, an open /dev/fuse.
#[derive(Debug)]
pub enum Link {
    /// Just mounted.
    Fresh(OwnedFd),
    /// Kept by a supervisor. Others may have answered over it before.
    Kept(Kept),
}

/// Answers the requests of what is mounted at `spot`, on threads of its own. Calls `ended` when the mount is
/// gone, or with the error that ended it. Gives what is to be stopped before it is unmounted.
///
/// # Errors
/// If the kernel's first message is not understood, or there are no threads to be had.
pub fn serve(
    tree: Arc<Tree>,
    link: Link,
    spot: Spot,
    launcher: Arc<Launcher>,
    ended: impl FnOnce(io::Result<()>) + Send + 'static,
) -> io::Result<Forgetter> {
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
        // Who may come in is the kernel's to say, by the mount's options.
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

/// Reads the kernel's first message, for daemons that are to take over from one another.
///
/// # Errors
/// The kernel does not send again what one of them has left unanswered.
pub fn first_message(device: &OwnedFd) -> io::Result<Vec<u8>> {
    takeover::first_message(device)
}
