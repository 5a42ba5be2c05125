//! When a link is busy.

/// Times that are taken, in nanoseconds from the beginning: sorted, and none touches another's inside.
#[derive(Clone, Debug, Default)]
pub(super) struct Timeline {
    taken: Vec<(f64, f64)>,
}

impl Timeline {
    /// The first free `length` that begins at `from` or later, and when it ends.
    pub(super) fn first_free(&self, from: f64, length: f64) -> (f64, f64) {
        let mut begin = from;
        let first = self.taken.partition_point(|taken| taken.1 <= from);
        for &(taken, end) in &self.taken[first..] {
            if begin + length <= taken {
                break;
            }
            begin = begin.max(end);
        }
        (begin, begin + length)
    }

    /// The last free `length` that ends at `until` or earlier, and when it ends. It may begin before 0.
    pub(super) fn last_free(&self, until: f64, length: f64) -> (f64, f64) {
        let mut end = until;
        let last = self.taken.partition_point(|taken| taken.0 < until);
        for &(begin, taken) in self.taken[..last].iter().rev() {
            if end - length >= taken {
                break;
            }
            end = end.min(begin);
        }
        (end - length, end)
    }

    /// Takes what is free.
    pub(super) fn take(&mut self, slot: (f64, f64)) {
        let at = self.taken.partition_point(|taken| taken.0 < slot.0);
        self.taken.insert(at, slot);
    }

    /// Gives back what was taken.
    pub(super) fn give_back(&mut self, slot: (f64, f64)) {
        if let Some(at) = self.taken.iter().position(|taken| *taken == slot) {
            self.taken.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Timeline;

    #[test]
    fn what_is_free_is_found_from_both_ends() {
        let mut line = Timeline::default();
        line.take((10.0, 20.0));
        line.take((30.0, 40.0));
        assert_eq!(line.first_free(0.0, 10.0), (0.0, 10.0));
        assert_eq!(line.first_free(5.0, 10.0), (20.0, 30.0));
        assert_eq!(line.first_free(5.0, 11.0), (40.0, 51.0));
        assert_eq!(line.first_free(15.0, 1.0), (20.0, 21.0));
        assert_eq!(line.last_free(50.0, 10.0), (40.0, 50.0));
        assert_eq!(line.last_free(45.0, 10.0), (20.0, 30.0));
        assert_eq!(line.last_free(45.0, 11.0), (-1.0, 10.0));
        line.give_back((30.0, 40.0));
        assert_eq!(line.last_free(45.0, 11.0), (34.0, 45.0));
    }
}
