//! In: what each dispatch took in an earlier run; out: which of them are timed together in the next, and each one's part
//! of their time. Knows nothing else of the crate.

/// Nanoseconds of a run for each stamp: with so few they cost a large device less than 5 % (docs/performance.md,
/// "Timestamps").
const APART: f64 = 8e5;

/// One past the last dispatch of each one's group, with so few groups that their stamps cost little of the run. Short
/// neighbours are put together first: a group is the longest run of dispatches whose times stay within a limit, the
/// smallest of a series that is enough.
pub fn group_ends(times: &[u64]) -> Vec<usize> {
    let total: f64 = times.iter().map(|t| *t as f64).sum();
    let most = ((total / APART) as usize).max(1);
    let mut limit = 1e4;
    loop {
        let ends = ends_within(times, limit);
        if ends.iter().enumerate().filter(|(i, end)| **end == i + 1).count() <= most {
            return ends;
        }
        limit *= 1.2;
    }
}

/// One past the last of each one's group, where the times of a group stay within a limit or it is a single dispatch.
fn ends_within(times: &[u64], limit: f64) -> Vec<usize> {
    let mut ends = Vec::with_capacity(times.len());
    while ends.len() < times.len() {
        let first = ends.len();
        let mut sum = times[first] as f64;
        let more = times[first + 1..].iter().take_while(|t| {
            sum += **t as f64;
            sum <= limit
        });
        let end = first + 1 + more.count();
        ends.resize(end, end);
    }
    ends
}

/// Gives each dispatch of a group, whose times are all that of the group, its part of it: in order and without gaps, in
/// the ratio of what they took before. A group is a run of equal `stamps`. Returns the first and last of each group of
/// several that has a time.
pub fn divide(times: &mut [Option<(u64, u64)>], stamps: &[usize], before: &[u64]) -> Vec<(usize, usize)> {
    let mut shared = Vec::new();
    let mut first = 0;
    for group in stamps.chunk_by(|a, b| a == b) {
        let members = first..first + group.len();
        first = members.end;
        let (true, Some((begin, end))) = (group.len() > 1, times[members.start]) else { continue };
        // one of no time has a part still, so that there is a ratio
        let weight = |i: usize| u128::from(before[i % before.len()].max(1));
        let all: u128 = members.clone().map(weight).sum();
        let at = |passed: u128| begin + (u128::from(end - begin) * passed / all) as u64;
        let mut passed = 0;
        for i in members.clone() {
            let from = at(passed);
            passed += weight(i);
            times[i] = Some((from, at(passed)));
        }
        shared.push((members.start, members.end - 1));
    }
    shared
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begin and end of each group.
    fn groups(times: &[u64]) -> Vec<(usize, usize)> {
        let ends = group_ends(times);
        let mut groups: Vec<(usize, usize)> = Vec::new();
        while let Some(end) = ends.get(groups.last().map_or(0, |g| g.1)) {
            groups.push((groups.last().map_or(0, |g| g.1), *end));
        }
        groups
    }

    #[test]
    fn long_dispatches_are_timed_by_themselves() {
        assert_eq!(groups(&[900_000, 1_300_000, 850_000]), [(0, 1), (1, 2), (2, 3)]);
        assert_eq!(groups(&[]), []);
        assert_eq!(groups(&[5]), [(0, 1)]);
    }

    #[test]
    fn short_neighbours_are_put_together_first() {
        // a budget of three stamps: the short ones go together, and not with the long ones
        assert_eq!(groups(&[1_300_000, 10_000, 10_000, 10_000, 1_200_000]), [(0, 1), (1, 4), (4, 5)]);
        // and a run of nothing but short ones has as few as it can pay for
        assert_eq!(groups(&[1_000; 50]), [(0, 50)]);
        assert_eq!(groups(&[0; 3]), [(0, 3)]);
    }

    #[test]
    fn there_are_no_more_groups_than_the_run_is_long_for() {
        for n in [1, 7, 600, 12_000] {
            let times: Vec<u64> = (0..n).map(|i| 2_000 + (i * 7_919) % 97_000).collect();
            let total: u64 = times.iter().sum();
            let groups = groups(&times);
            assert!(groups.len() == 1 || groups.len() as f64 * APART <= total as f64, "{n}");
            assert_eq!(groups.last().map(|g| g.1), Some(n as usize));
        }
    }

    #[test]
    fn parts_follow_each_other_and_make_up_the_whole() {
        let mut times = vec![Some((5, 10)), Some((10, 111)), Some((10, 111)), Some((10, 111)), None, None];
        let shared = divide(&mut times, &[0, 1, 1, 1, 2, 2], &[50, 1, 2, 0, 7, 7]);
        assert_eq!(shared, [(1, 3)], "what has no time is divided by nobody");
        assert_eq!(times, [Some((5, 10)), Some((10, 35)), Some((35, 85)), Some((85, 111)), None, None]);
        let mut second = vec![Some((0, u64::MAX)); 4];
        assert_eq!(divide(&mut second, &[0, 0, 1, 1], &[1, 3]), [(0, 1), (2, 3)], "two runs");
        assert_eq!(second[1], Some((u64::MAX / 4, u64::MAX)));
        assert_eq!(second[3], second[1]);
    }
}
