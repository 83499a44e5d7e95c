//! In: stretches of time, in the order of their begins; out: for each a row in which none overlaps it. Knows nothing
//! else of the crate.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Rows of stretches that do not overlap, filled from the first on.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    busy: BinaryHeap<Reverse<(u64, usize)>>,
    free: BinaryHeap<Reverse<usize>>,
    count: usize,
}

impl Rows {
    /// The first row that is free from `begin` on, taken until `end`. Begins may not fall from call to call. Costs the
    /// logarithm of the number of rows.
    pub fn place(&mut self, begin: u64, end: u64) -> usize {
        while let Some(&Reverse((until, row))) = self.busy.peek()
            && until <= begin
        {
            self.busy.pop();
            self.free.push(Reverse(row));
        }
        let row = self.free.pop().map_or(self.count, |Reverse(row)| row);
        self.count = self.count.max(row + 1);
        self.busy.push(Reverse((end, row)));
        row
    }

    /// Rows in use.
    pub fn count(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_goes_to_the_first_row_that_is_free() {
        let mut rows = Rows::default();
        let spans = [(0, 10), (2, 4), (3, 20), (5, 9), (10, 10), (10, 12), (12, 30)];
        assert_eq!(spans.map(|(begin, end)| rows.place(begin, end)), [0, 1, 2, 1, 0, 0, 0]);
        assert_eq!(rows.count(), 3);
    }
}
