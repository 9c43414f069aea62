//! The tree of competitors of one GPU: groups, with the processes in them as leaves.

use std::iter::successors;
use std::ops::{Index, Range};

use super::place::Place;

/// A competitor, or the root.
#[derive(Debug)]
pub(super) struct Node {
    /// `None`: it is a process, or the root.
    pub(super) group: Option<u64>,
    /// Priority among its siblings.
    pub(super) priority: u32,
    /// Its index in the list of all processes, if it is one.
    pub(super) leaf: Option<usize>,
    pub(super) parent: Option<usize>,
    /// Indices of its children.
    pub(super) children: Range<usize>,
}

/// Nodes by index: the root first, parents before their children, siblings beside each other.
#[derive(Debug, Default)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// The node of each process.
    leaves: Vec<usize>,
    /// Whether siblings may have different numbers of processes with work: one of them has several.
    pub(super) is_uneven: bool,
}

impl Tree {
    /// Returns the tree of the processes with these places.
    pub(super) fn new(places: &[Place]) -> Self {
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_by(|one, other| places[*one].in_order(&places[*other]));
        let root = Node {
            group: None,
            priority: 0,
            leaf: None,
            parent: None,
            children: 0..0,
        };
        let mut leaves = vec![0; places.len()];
        let (mut nodes, mut below) = (vec![root], vec![(order.as_slice(), 0)]);
        let mut is_uneven = false;
        for at in 0.. {
            let Some((processes, level)) = below.get(at).copied() else {
                break;
            };
            if nodes[at].leaf.is_some() {
                continue;
            }
            let first = nodes.len();
            let group = |leaf: &usize| places[*leaf].at(level).0;
            let is_same = |one: &usize, other: &usize| group(one).is_some() && group(one) == group(other);
            for run in processes.chunk_by(is_same) {
                let (group, priority) = places[run[0]].at(level);
                let leaf = group.is_none().then_some(run[0]);
                if let Some(leaf) = leaf {
                    leaves[leaf] = nodes.len();
                }
                nodes.push(Node {
                    group,
                    priority,
                    leaf,
                    parent: Some(at),
                    children: 0..0,
                });
                below.push((run, level + 1));
            }
            nodes[at].children = first..nodes.len();
            let nr_children = nodes[at].children.len();
            is_uneven |= nr_children > 1 && processes.len() > nr_children;
        }
        Self {
            nodes,
            leaves,
            is_uneven,
        }
    }

    /// Returns all nodes, parents before their children.
    pub(super) fn nodes(&self) -> impl DoubleEndedIterator<Item = (usize, &Node)> {
        self.nodes.iter().enumerate()
    }

    /// Returns the nodes that have children, parents before their children.
    pub(super) fn parents(&self) -> impl Iterator<Item = (usize, &Node)> {
        self.nodes().filter(|(_, node)| !node.children.is_empty())
    }

    /// Returns the node of a process.
    pub(super) fn leaf(&self, process: usize) -> usize {
        self.leaves[process]
    }

    /// Returns a node and those above, up to the root.
    pub(super) fn up(&self, node: usize) -> impl Iterator<Item = usize> {
        successors(Some(node), |node| self.nodes[*node].parent)
    }

    /// Returns the values of the processes' nodes, in the order of processes.
    pub(super) fn of_processes<T: Copy>(&self, of_nodes: &[T]) -> Vec<T> {
        self.leaves.iter().map(|node| of_nodes[*node]).collect()
    }

    /// Returns the values of all nodes: that of a process is `of` its index, that of a group those of its
    /// children, joined.
    pub(super) fn joined<T: Copy + Default>(
        &self,
        of: impl Fn(usize) -> T,
        join: impl Fn(T, T) -> T,
    ) -> Vec<T> {
        let mut values = vec![T::default(); self.nodes.len()];
        for (at, node) in self.nodes().rev() {
            let children = values[node.children.clone()].iter().copied();
            values[at] = match node.leaf {
                Some(leaf) => of(leaf),
                None => children.reduce(&join).unwrap_or_default(),
            };
        }
        values
    }
}

impl Index<usize> for Tree {
    type Output = Node;

    fn index(&self, node: usize) -> &Node {
        &self.nodes[node]
    }
}
