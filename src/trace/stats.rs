//! In: durations of one thing over several runs; out: [`Stats`]. Knows nothing else of the crate.

use super::Trace;

/// What several durations have in common, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// How many.
    pub count: usize,
    /// The least.
    pub min: u64,
    /// Half are at most this: the middle one, of an even number the mean of the middle two.
    pub median: f64,
    /// The least that 95 % do not exceed (nearest rank).
    pub p95: u64,
    /// Their sum over their number.
    pub mean: f64,
    /// The largest.
    pub max: u64,
}

/// `None` of none.
pub fn stats(values: impl IntoIterator<Item = u64>) -> Option<Stats> {
    let mut sorted: Vec<u64> = values.into_iter().collect();
    sorted.sort_unstable();
    let count = sorted.len();
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    let median = (sorted[(count - 1) / 2] as f64 + sorted[count / 2] as f64) / 2.0;
    let rank = (count * 95).div_ceil(100).max(1);
    let mean = sorted.iter().map(|v| *v as f64).sum::<f64>() / count as f64;
    Some(Stats { count, min, median, p95: sorted[rank - 1], mean, max })
}

impl Trace {
    /// How long a dispatch took in each run that has its time.
    pub fn durations(&self, dispatch: usize) -> impl Iterator<Item = u64> + '_ {
        self.frames.iter().filter_map(move |f| f.times.get(dispatch).copied().flatten()).map(|(begin, end)| end - begin)
    }

    /// Of a dispatch over the runs.
    pub fn dispatch_stats(&self, dispatch: usize) -> Option<Stats> {
        stats(self.durations(dispatch))
    }

    /// From the first begin to the last end on the device, over the runs that have times.
    pub fn gpu_stats(&self) -> Option<Stats> {
        stats(self.frames.iter().filter_map(|f| f.gpu_ns()))
    }

    /// From submit to results, over the runs.
    pub fn wall_stats(&self) -> Option<Stats> {
        stats(self.frames.iter().map(|f| f.wall_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn middle_ends_and_nearest_rank() {
        let odd = stats([5, 1, 3]).unwrap();
        assert_eq!(odd, Stats { count: 3, min: 1, median: 3.0, p95: 5, mean: 3.0, max: 5 });
        let even = stats([1, 2, 3, 10]).unwrap();
        assert_eq!((even.median, even.mean), (2.5, 4.0));
        assert_eq!(stats(1..=100).unwrap().p95, 95);
        assert_eq!(stats(1..=20).unwrap().p95, 19);
        assert_eq!(stats([7]).unwrap(), Stats { count: 1, min: 7, median: 7.0, p95: 7, mean: 7.0, max: 7 });
        assert_eq!(stats([]), None);
        assert_eq!(stats([u64::MAX, u64::MAX]).unwrap().max, u64::MAX);
    }
}
