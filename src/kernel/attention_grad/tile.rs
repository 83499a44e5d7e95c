//! In: sizes of a head and of both sides, and a device's limits; out: how the pairs of queries and keys are cut where
//! multiply-adds make the products. Knows no launch.

use crate::caps::DeviceCaps;
use crate::kernel::heads;
use serde::{Deserialize, Serialize};

/// Whose gradients a launch makes, and so whose rows a workgroup has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// dk and dv: a workgroup has keys and walks over queries.
    Keys,
    /// dq: a workgroup has queries and walks over keys.
    Queries,
}

/// How the pairs of queries and keys are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tiles {
    /// Rows that a workgroup has.
    pub own: usize,
    /// Rows of a block of the other side.
    pub other: usize,
    /// Groups of four columns that are staged at once; `None` keeps whole rows of both sides.
    pub chunk: Option<usize>,
}

/// Blocks of (own, other) rows, the preferred first.
const BLOCKS: [(usize, usize); 7] = [(64, 32), (32, 64), (32, 32), (16, 64), (64, 16), (32, 16), (16, 16)];

impl Tiles {
    /// Groups of four rows: own, other.
    pub(super) fn groups(self) -> (usize, usize) {
        (self.own / 4, self.other / 4)
    }

    /// Groups of columns that an invocation has of a result.
    pub(super) fn results(self, columns: usize) -> usize {
        columns.div_ceil(self.other / 4)
    }

    /// vec4s of the tile while scores are made.
    pub(super) fn scores(self, columns: usize) -> usize {
        (self.own + self.other) / 4 * (4 * self.chunk.unwrap_or(columns) + 1)
    }

    /// vec4s of whole rows, own ones of both operands, then the block's. Weights and gradients of pairs take the place of
    /// one of these.
    pub(super) fn whole(self, columns: usize, side: Side) -> [usize; 4] {
        let (own, other) = (heads::staged(self.own, columns), heads::staged(self.other, columns));
        let pairs = self.own * self.other / 4;
        match side {
            Side::Keys => [own, own.max(2 * pairs), other, other],
            Side::Queries => [own, own, other, other.max(pairs)],
        }
    }

    /// Rows of a block that are staged at once for a result.
    pub(super) fn rows(self, columns: usize) -> usize {
        let fit = self.scores(columns) / self.width(columns);
        if fit == 0 { 1 } else { (1 << fit.ilog2()).min(self.other) }
    }

    /// vec4s of a staged row.
    pub(super) fn width(self, columns: usize) -> usize {
        self.other / 4 * self.results(columns)
    }

    /// vec4s of the tile.
    pub(super) fn tile(self, columns: usize) -> usize {
        self.scores(columns).max(self.rows(columns) * self.width(columns))
    }

    pub(super) fn invocations(self) -> usize {
        self.own * self.other / 16
    }

    /// Bytes of workgroup memory.
    pub(super) fn bytes(self, columns: usize, side: Side) -> usize {
        16 * match self.chunk {
            None => self.whole(columns, side).iter().sum(),
            Some(_) => self.tile(columns) + self.other * self.own / 4,
        }
    }

    /// What the device takes for so many rows of a workgroup's own.
    pub(super) fn fitting(columns: usize, own: usize, side: Side, caps: &DeviceCaps) -> impl Iterator<Item = Tiles> {
        let (limit, invocations) = (caps.workgroup_bytes as usize, caps.max_invocations as usize);
        // in smaller blocks, whole rows are slower than parts of them
        let whole = [Tiles { own: BLOCKS[0].0, other: BLOCKS[0].1, chunk: None }];
        let cut = BLOCKS.iter().flat_map(move |&(own, other)| {
            let of = |most: usize| Tiles { own, other, chunk: Some(columns.min(most)) };
            // so that two workgroups may share a processor
            if of(8).bytes(columns, side) <= limit / 2 { [of(8), of(4)] } else { [of(4), of(8)] }
        });
        (whole.into_iter().chain(cut))
            .filter(move |t| t.bytes(columns, side) <= limit && t.invocations() <= invocations)
            .filter(move |t| t.own == 16 || t.own <= own.next_multiple_of(16))
    }

    /// What the device can run for so many rows of both sides, the best first; only the direct kernel fits where there
    /// is none.
    pub(super) fn candidates(columns: usize, own: usize, other: usize, side: Side, caps: &DeviceCaps) -> Vec<Tiles> {
        if caps.cpu {
            return Vec::new();
        }
        let mut all: Vec<Tiles> =
            Tiles::fitting(columns, own, side, caps).filter(|t| t.results(columns) <= 4).collect();
        // those of a small head that differ in the chunk alone are the same
        all.dedup();
        // a block that is mostly padding, or has fewer columns than invocations for them, is slow; one whose results do
        // not fit into registers is slower
        let good = |t: &Tiles| t.other <= other.next_multiple_of(16).max(16) && t.other / 4 <= columns.max(4);
        all.sort_by_key(|t| match t.results(columns) {
            ..=2 => u8::from(!good(t)),
            _ => 2,
        });
        all
    }
}
