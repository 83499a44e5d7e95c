//! In: how many invocations of a workgroup lie side by side and above each other; out: how `shared/rectangle.wgsl`
//! numbers them. Knows no kernel.

/// Of 32 neighbours, how many lie side by side, the rest above each other: the nearer to a square, the fewer distinct
/// vec4s of workgroup memory do they read at once. 0 where they are no such rectangle, and rows follow each other.
pub(super) fn across(wide: usize, tall: usize) -> usize {
    [4, 8].into_iter().find(|a| wide.is_multiple_of(*a) && tall.is_multiple_of(32 / a)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::across;
    use std::collections::HashSet;

    /// x and y by the formulas of `shared/rectangle.wgsl`.
    fn place(lane: usize, wide: usize, across: usize) -> (usize, usize) {
        if across == 0 {
            return (lane % wide, lane / wide);
        }
        let bits = lane % 32;
        let x = lane / 32 % (wide / across) * across + ((bits & 1) | (bits / (64 / across) * 2));
        (x, lane / (32 * (wide / across)) * (32 / across) + bits / 2 % (32 / across))
    }

    #[test]
    fn every_place_is_taken_once() {
        for (wide, tall) in [(16, 16), (8, 16), (16, 8), (8, 4), (4, 8), (8, 32), (12, 16), (3, 5), (16, 4), (4, 4)] {
            let across = across(wide, tall);
            let places: HashSet<_> = (0..wide * tall).map(|lane| place(lane, wide, across)).collect();
            assert_eq!(places.len(), wide * tall, "{wide} × {tall}");
            assert!(places.iter().all(|(x, y)| *x < wide && *y < tall), "{wide} × {tall}");
            assert_eq!(across > 0, (wide * tall) % 32 == 0 && wide % 4 == 0 && tall % 4 == 0, "{wide} × {tall}");
        }
    }
}
