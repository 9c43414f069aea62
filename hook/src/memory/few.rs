//! A list whose first element needs no heap allocation; most lists have one element.

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Few<T> {
    first: Option<T>,
    /// Boxed to take one word while it is empty: such lists are made in every call.
    rest: Option<Box<Rest<T>>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rest<T>(Vec<T>);

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self {
            first: None,
            rest: None,
        }
    }
}

impl<T> Few<T> {
    #[inline]
    pub(crate) fn push(&mut self, element: T) {
        match self.first {
            None => self.first = Some(element),
            Some(_) => self.push_more(element),
        }
    }

    #[cold]
    fn push_more(&mut self, element: T) {
        let rest = self.rest.get_or_insert_with(|| Box::new(Rest(Vec::new())));
        rest.0.push(element);
    }

    /// Calls `show` with each element in the order of insertion.
    #[inline]
    pub(crate) fn for_each(&self, mut show: impl FnMut(&T)) {
        let Some(first) = &self.first else { return };
        show(first);
        if let Some(rest) = &self.rest {
            rest.0.iter().for_each(show);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_in_order_and_one_needs_no_heap() {
        let mut few = Few::default();
        few.push(1);
        assert_eq!(few.rest, None);
        few.push(2);
        few.push(3);
        let mut seen = Vec::new();
        few.for_each(|number| seen.push(*number));
        assert_eq!(seen, [1, 2, 3]);
    }
}
