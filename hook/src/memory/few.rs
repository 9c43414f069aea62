//! A list that takes no memory of its own for its first element: most have one.

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Few<T> {
    first: Option<T>,
    /// One word while there is nothing: such lists come and go in every call.
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

    /// In the order that they were pushed in.
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
    fn elements_are_in_order_and_one_takes_no_memory() {
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
