//! Model of the expected allocations.

/// Pool number of blocks whose pool was destroyed.
pub(super) const GONE: usize = usize::MAX;

/// Function that made a block, which determines how it is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Linear,
    Managed,
    Array,
    Mipmapped,
    Host,
    Registered,
    /// From the pool with this number.
    Pool(usize),
}

/// A block, identified by the number of the variable that holds its address or handle.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) variable: usize,
    pub(super) way: Way,
    pub(super) bytes: u64,
    /// Whether the second context owns the block.
    pub(super) is_second: bool,
}

/// Physical memory, with the variables that hold its handle and the addresses at which it is mapped.
#[derive(Debug, Clone, Default)]
pub(super) struct Object {
    pub(super) bytes: u64,
    pub(super) handles: Vec<usize>,
    pub(super) mapped: Vec<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) blocks: Vec<Block>,
    pub(super) objects: Vec<Object>,
}

impl Model {
    /// Returns the bytes of all blocks whose `way` satisfies `is_wanted`.
    pub(super) fn bytes(&self, is_wanted: impl Fn(Way) -> bool) -> u64 {
        let wanted = self.blocks.iter().filter(|block| is_wanted(block.way));
        wanted.map(|block| block.bytes).sum()
    }

    pub(super) fn physical(&self) -> u64 {
        self.objects.iter().map(|object| object.bytes).sum()
    }

    /// Returns the number of live allocations.
    pub(super) fn live(&self) -> u64 {
        (self.blocks.len() + self.objects.len()) as u64
    }

    /// Returns an unused variable among the first `of`.
    pub(super) fn free_variable(&self, of: usize) -> Option<usize> {
        let blocks = self.blocks.iter().map(|block| block.variable);
        let handles = self
            .objects
            .iter()
            .flat_map(|object| object.handles.iter().copied());
        let taken: Vec<usize> = blocks.chain(handles).collect();
        (0..of).find(|variable| !taken.contains(variable))
    }

    /// Removes the second context and what it owned. Blocks of pools belong to their pools.
    pub(super) fn second_context_gone(&mut self) {
        self.blocks
            .retain(|block| !block.is_second || matches!(block.way, Way::Pool(_)));
    }

    /// Marks a pool as destroyed; its blocks remain.
    pub(super) fn pool_gone(&mut self, pool: usize) {
        for block in self
            .blocks
            .iter_mut()
            .filter(|block| block.way == Way::Pool(pool))
        {
            block.way = Way::Pool(GONE);
        }
    }

    /// Releases physical memory without handles and mappings.
    pub(super) fn sweep(&mut self) {
        self.objects
            .retain(|object| !object.handles.is_empty() || !object.mapped.is_empty());
    }
}
