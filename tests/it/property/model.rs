//! What should be allocated, as a program's own books have it: thirty lines of adding and taking away.

/// The number of every pool that is destroyed.
pub(super) const GONE: usize = usize::MAX;

/// How a block came to be, which is how it is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Linear,
    Managed,
    Array,
    Mipmapped,
    Host,
    Registered,
    /// From the pool of that number.
    Pool(usize),
}

/// A block, by the number of the variable that has its address or handle.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) variable: usize,
    pub(super) way: Way,
    pub(super) bytes: u64,
    /// Whether it is the second context's.
    pub(super) is_second: bool,
}

/// Physical memory, with the variables that have its handle and the places where it is mapped.
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
    /// The bytes of all blocks made in ways that `is_wanted`.
    pub(super) fn bytes(&self, is_wanted: impl Fn(Way) -> bool) -> u64 {
        let wanted = self.blocks.iter().filter(|block| is_wanted(block.way));
        wanted.map(|block| block.bytes).sum()
    }

    pub(super) fn physical(&self) -> u64 {
        self.objects.iter().map(|object| object.bytes).sum()
    }

    /// How many allocations live.
    pub(super) fn live(&self) -> u64 {
        (self.blocks.len() + self.objects.len()) as u64
    }

    /// A variable that has nothing, of so many.
    pub(super) fn free_variable(&self, of: usize) -> Option<usize> {
        let blocks = self.blocks.iter().map(|block| block.variable);
        let handles = self
            .objects
            .iter()
            .flat_map(|object| object.handles.iter().copied());
        let taken: Vec<usize> = blocks.chain(handles).collect();
        (0..of).find(|variable| !taken.contains(variable))
    }

    /// The second context is gone, and what it owned. A pool's blocks are the pool's.
    pub(super) fn second_context_gone(&mut self) {
        self.blocks
            .retain(|block| !block.is_second || matches!(block.way, Way::Pool(_)));
    }

    /// A pool is destroyed; its blocks are still there.
    pub(super) fn pool_gone(&mut self, pool: usize) {
        for block in self
            .blocks
            .iter_mut()
            .filter(|block| block.way == Way::Pool(pool))
        {
            block.way = Way::Pool(GONE);
        }
    }

    /// Lets go of physical memory that nobody holds.
    pub(super) fn sweep(&mut self) {
        self.objects
            .retain(|object| !object.handles.is_empty() || !object.mapped.is_empty());
    }
}
