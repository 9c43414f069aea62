//! The FUSE adapter: translates kernel requests into calls of the tree and replies. It is the only module
//! that imports fuser. It knows inodes, open files and replies, but no file by name and no controller. This
//! file has its parts and its start.
#![doc = include_str!("fuse.md")]
#![deny(unsafe_code)]

mod adapter;
mod ask;
mod deferred;
mod handles;
mod inode;
pub mod mount;
mod nodes;
mod outcome;
mod queue;
pub mod supervisor_state;
mod table;
mod takeover;
mod triggers;
mod wake;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use fuser::{Session, SessionACL};

use crate::supervisor_state::Inherited;
use adapter::Adapter;
use ask::Asks;
use deferred::Deferred;
use gcgroupfs_model::tree::Tree;
use nodes::Nodes;
use queue::Queue;
use takeover::Takeover;
use wake::Waker;

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

/// Answers the requests of a mount on separate threads. Calls `ended` when the mount is gone, or
/// with the error that ended it.
///
/// # Errors
/// The kernel's first message is not understood, or no thread can be started.
pub fn serve(
    tree: Arc<Tree>,
    link: Link,
    ended: impl FnOnce(io::Result<()>) + Send + 'static,
) -> io::Result<()> {
    let nodes = Arc::new(Nodes::new(tree.clone()));
    let stores = Queue::start("fuse-store", nodes.clone())?;
    let deferred = Arc::new(Deferred::start(nodes.clone())?);
    let asks = Asks::start(nodes.clone(), deferred.clone())?;
    let adapter = Adapter {
        nodes: nodes.clone(),
        stores,
        deferred,
        asks,
    };
    let mut config = fuser::Config::default();
    config.n_threads = Some(LOOPS);
    let (session, takeover) = match link {
        // The kernel checks access, by the mount's options.
        Link::Fresh(device) => (Session::from_fd(adapter, device, SessionACL::All, config)?, None),
        Link::Inherited(inherited) => {
            let session = takeover::session(adapter, &inherited.device, &inherited.init, config)?;
            let takeover = Takeover::new(inherited.device, inherited.roster, inherited.pollers)?;
            nodes.handles.note_pollers(takeover.pollers());
            tree.listen(takeover.roster());
            (session, Some(takeover))
        }
    };
    tree.listen(Arc::new(Waker::start(nodes)?));
    thread::Builder::new().name("fuse".to_owned()).spawn(move || {
        if let Some(takeover) = takeover {
            takeover.finish(&tree, &session.notifier());
        }
        ended(session.run());
    })?;
    Ok(())
}

/// Reads FUSE_INIT, for daemons that replace one another.
///
/// # Errors
/// The kernel cannot resend requests left unanswered by an earlier daemon.
pub fn first_message(device: &OwnedFd) -> io::Result<Vec<u8>> {
    takeover::first_message(device)
}
