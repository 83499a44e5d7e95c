//! In: a seed, a step, a site and an index; out: the random word there, and what dropout makes of it. Knows no tensors'
//! shapes.

use super::Value;
use crate::graph::DropoutAttrs;

/// Philox 4x32-10 (Salmon and others, 2011): four random words of a counter and a key.
pub(super) fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
    }
    counter
}

/// A dropout with its counter read.
pub(super) struct Dropper {
    key: [u32; 2],
    step: u32,
    site: u32,
    threshold: u32,
    scale: f64,
}

impl Dropper {
    /// The counter is U32 (3).
    pub(super) fn new(attrs: &DropoutAttrs, counter: &Value) -> Self {
        let word = |i: usize| counter.data[i] as u32;
        Dropper {
            key: [word(0), word(1)],
            step: word(2),
            site: attrs.site,
            threshold: attrs.threshold(),
            scale: f64::from(attrs.keep_scale()),
        }
    }

    /// What element `index` is multiplied with.
    pub(super) fn factor(&self, index: usize) -> f64 {
        let word = philox([(index / 4) as u32, self.step, self.site, 0], self.key)[index % 4];
        if word < self.threshold { 0.0 } else { self.scale }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that Random123 ships for philox4x32 with ten rounds.
    #[test]
    fn known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        assert_eq!(philox(pi, [0xa409_3822, 0x299f_31d0]), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }
}
