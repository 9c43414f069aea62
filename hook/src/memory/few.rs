//! A list that takes no memory of its own for its first element: most have one.

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Few<T> {
    first: Option<T>,
    rest: Vec<T>,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self {
            first: None,
            rest: Vec::new(),
        }
    }
}

impl<T> Few<T> {
    #[inline]
    pub(crate) fn push(&mut self, element: T) {
        match self.first {
            None => self.first = Some(element),
            Some(_) => self.rest.push(element),
        }
    }

    /// In the order that they were pushed in.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_in_order_and_one_takes_no_memory() {
        let mut few = Few::default();
        few.push(1);
        assert_eq!(few.rest.capacity(), 0);
        few.push(2);
        few.push(3);
        assert_eq!(few.iter().copied().collect::<Vec<_>>(), [1, 2, 3]);
    }
}
