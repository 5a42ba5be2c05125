//! The timeline of a link: the times at which it is busy.

/// Busy intervals in nanoseconds from the beginning: sorted, and no two touch.
#[derive(Clone, Debug, Default)]
pub(super) struct Timeline {
    taken: Vec<(f64, f64)>,
}

impl Timeline {
    /// Returns the first free interval of `length` that begins at `from` or later: its begin and end.
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

    /// Returns the last free interval of `length` that ends at `until` or earlier: its begin and end. It may begin
    /// before 0.
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

    /// Takes a free interval.
    pub(super) fn take(&mut self, (mut begin, mut end): (f64, f64)) {
        // Adjacent intervals are merged, so that a busy link is searched as fast as an idle one.
        let first = self.taken.partition_point(|taken| taken.1 < begin);
        let last = self.taken.partition_point(|taken| taken.0 <= end);
        if first < last {
            (begin, end) = (begin.min(self.taken[first].0), end.max(self.taken[last - 1].1));
        }
        if begin < end {
            self.taken.splice(first..last, [(begin, end)]);
        }
    }

    /// Frees a taken interval.
    pub(super) fn give_back(&mut self, (begin, end): (f64, f64)) {
        let at = self.taken.partition_point(|taken| taken.1 < end);
        if let Some(&(first, last)) = self.taken.get(at).filter(|taken| begin < end && taken.0 <= begin) {
            let left = [(first, begin), (end, last)].into_iter().filter(|(begin, end)| begin < end);
            self.taken.splice(at..=at, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Timeline;

    #[test]
    fn free_time_is_found_from_both_ends() {
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

    #[test]
    fn adjacent_slots_merge_and_can_be_given_back_in_parts() {
        let mut line = Timeline::default();
        for slot in [(10.0, 20.0), (30.0, 40.0), (20.0, 30.0), (40.0, 40.0)] {
            line.take(slot);
        }
        assert_eq!(line.taken, [(10.0, 40.0)]);
        line.give_back((40.0, 40.0));
        line.give_back((20.0, 30.0));
        assert_eq!(line.taken, [(10.0, 20.0), (30.0, 40.0)]);
        line.give_back((10.0, 20.0));
        assert_eq!((line.first_free(0.0, 30.0), line.first_free(5.0, 30.0)), ((0.0, 30.0), (40.0, 70.0)));
    }
}
