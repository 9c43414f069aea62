//! The FUSE adapter: translates kernel requests into calls of the tree and replies. It is the only module
//! that imports fuser. It knows inodes, open files and replies, but no file by name and no controller. This
//! file has its parts and its start.
#![doc = include_str!("fuse.md")]
#![deny(unsafe_code)]

mod adapter;
mod ask;
mod connection;
mod deferred;
mod handles;
mod inode;
pub mod mount;
mod nodes;
mod outcome;
mod queue;
mod slots;
mod table;
mod takeover;
pub mod view;
mod wake;

use std::io;
use std::sync::Arc;
use std::thread;

use adapter::Adapter;
use ask::Asks;
use deferred::Deferred;
use gcgroupfs_model::tree::Tree;
use nodes::Nodes;
use queue::Queue;
use takeover::{Governed, Takeover};
use wake::Waker;

pub use connection::Connection;

/// Number of request loops. One, since no callback waits and a panic in one is caught. A second one costs
/// every `cat` a third more (25 us instead of 18): the kernel wakes it for the release, for which no process
/// waits.
const LOOPS: usize = 1;

/// Answers the requests of a mount on separate threads. Calls `ended` when the mount is gone, or
/// with the error that ended it.
///
/// # Errors
/// The kernel's first message is not understood, or no thread can be started.
pub fn serve(
    tree: Arc<Tree>,
    connection: &Connection,
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
    // The kernel checks access, by the mount's options.
    let session = takeover::session(adapter, connection, config)?;
    let takeover = Takeover::new(connection)?;
    nodes.handles.note_pollers(connection.pollers.clone());
    tree.listen(Arc::new(Governed(connection.processes.clone())));
    let takeover = connection.is_taken_over.then_some(takeover);
    tree.listen(Arc::new(Waker::start(nodes)?));
    thread::Builder::new().name("fuse".to_owned()).spawn(move || {
        if let Some(takeover) = takeover {
            takeover.finish(&tree, &session.notifier());
        }
        ended(session.run());
    })?;
    Ok(())
}
