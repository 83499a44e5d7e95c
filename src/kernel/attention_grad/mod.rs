//! In: q, k, v and dout as views with heads side by side, and the statistics of rows; out: launches of
//! `attention_grad.wgsl` for the gradients of k and v or of q, of `attention_grad_units.wgsl` where matrix units make its
//! products, or of `attention_grad_direct.wgsl` on a CPU that acts as a GPU and where limits are too small for tiles.
//! Knows no other kernel.

mod tile;

use super::attend_units::{Form, Shares};
use super::heads::{self, Heads};
use super::philox::{self, Draw};
use super::rectangle::across;
use super::template::render;
use super::units::Units;
use super::{Access, Config, Estimate, KernelError, KernelKey, Launch, ParamSpace, Problem, View, wgsl_type};
use crate::caps::DeviceCaps;
use crate::graph::{AttentionAttrs, DType};
use minijinja::context;
use std::ops::Range;
pub use tile::{Side, Tiles};

/// All that changes the kernel's text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionGradKey {
    /// Stored type of q, k, v, mask, dout and the gradients.
    pub dtype: DType,
    /// They are bound as arrays of vec4, but for the mask.
    pub vec: bool,
    /// Groups of four columns of a head.
    pub columns: usize,
    /// Whose gradients.
    pub side: Side,
    /// How subgroups share the pairs of queries and keys where matrix units make the products.
    pub units: Option<Shares>,
    /// `None` is the direct kernel.
    pub tiles: Option<Tiles>,
    /// Rows of an invocation of the direct kernel.
    pub own: usize,
    /// Keys in a query's future are hidden.
    pub causal: bool,
    /// An additive mask is bound.
    pub mask: bool,
    /// Statistics hold lengths.
    pub lengths: bool,
    /// Weights are dropped, by a counter that statistics hold.
    pub dropout: Option<Draw>,
    /// dk and dv lie in one tensor, which is bound once.
    pub together: bool,
}

/// Invocations of a workgroup of the direct kernel.
const DIRECT: usize = 8;

/// On matrix units, the preferred first: f16 numbers as they are.
const FORMS: [Form; 4] = [
    Form { subs: 4, rows: 16, step: 16, block: 32, ahead: true },
    Form { subs: 8, rows: 16, step: 16, block: 64, ahead: true },
    Form { subs: 4, rows: 16, step: 16, block: 16, ahead: true },
    Form { subs: 1, rows: 16, step: 16, block: 16, ahead: false },
];

/// The same for numbers that are split in two.
const SPLIT_FORMS: [Form; 4] = [
    Form { subs: 4, rows: 16, step: 16, block: 16, ahead: true },
    Form { subs: 8, rows: 16, step: 16, block: 32, ahead: true },
    Form { subs: 2, rows: 16, step: 16, block: 16, ahead: true },
    Form { subs: 1, rows: 16, step: 16, block: 16, ahead: false },
];

fn forms(units: Units) -> &'static [Form] {
    if units.split { &SPLIT_FORMS } else { &FORMS }
}

impl AttentionGradKey {
    /// The file stem.
    pub fn name(&self) -> &'static str {
        match (self.units, self.tiles) {
            (Some(_), _) => "attention_grad_units",
            (None, Some(_)) => "attention_grad",
            (None, None) => "attention_grad_direct",
        }
    }

    /// The kernel as WGSL.
    pub fn source(&self, params: ParamSpace) -> String {
        let keys = self.side == Side::Keys;
        let length = "bitcast<i32>(stats[p.stats_offset + b * p.stats_batch].x)";
        let (ours, theirs) = if keys { (["k", "v"], ["q", "dout"]) } else { (["q", "dout"], ["k", "v"]) };
        let tiles = self.tiles.unwrap_or(Tiles { own: self.own, other: 4, chunk: Some(1) });
        let (tx, ty) = tiles.groups();
        let [own0, own1, other0, other1] = tiles.whole(self.columns, self.side);
        let values = context! {
            f16 => self.dtype == DType::F16, scalar => wgsl_type(self.dtype), vec => self.vec,
            storage => super::chain_wgsl::vector(wgsl_type(self.dtype), if self.vec { 4 } else { 1 }),
            reads => ["q", "k", "v", "dout"], writes => self.results(), bound => self.bound(), length, keys, ours, theirs,
            own_rows => if keys { "p.sk" } else { "p.sq" }, out_binding => 6 + usize::from(self.mask),
            mask => self.mask, lengths => self.lengths, causal => self.causal,
            columns => self.columns, threads => self.workgroup_size(), own => tiles.own, other => tiles.other,
            chunk => tiles.chunk, uncut => tiles.chunk.is_none(), own0, own1, other0, other1,
            across => across(tx, ty), tx, ty, nc => tiles.results(self.columns), rows => tiles.rows(self.columns),
            tile => tiles.tile(self.columns),
        };
        let values = context! { ..Draw::context(self.dropout), ..values };
        let values = match self.units {
            Some(shares) => context! { ..shares.context(self.columns, self.vec), ..values },
            None => context! { words => false, ..values },
        };
        render(self.name(), params, values)
    }

    /// What tiles are chosen for, or how many rows an invocation of the direct kernel has.
    pub(super) fn problem(&self, params: &[u32], groups: u64) -> Problem {
        let [heads, sq, sk, d, blocks] = [1, 2, 3, 4, 5].map(|i| params[i]);
        let batch = groups / u64::from(heads * blocks).max(1);
        let (dtype, four) = (self.dtype, if self.vec { "x4" } else { "" });
        let side = self.results().join(",");
        let words = [
            (" causal", self.causal),
            (" mask", self.mask),
            (" lengths", self.lengths),
            (" dropout", self.dropout.is_some()),
        ];
        let words: String = words.iter().filter(|(_, on)| *on).map(|(word, _)| *word).collect();
        let units = self.units.map_or_else(String::new, Shares::words);
        Problem(format!("{} {side} {dtype}{four} {batch}x{heads} {sq}x{sk}x{d}{words}{units}", self.name()))
    }

    /// What it was made with.
    pub(super) fn config(&self) -> Config {
        match (self.units, self.tiles) {
            (Some(shares), _) => Config::Subgroups(shares.form),
            (None, Some(tiles)) => Config::Tiles(tiles),
            (None, None) => Config::Rows(self.own),
        }
    }

    /// The tiles that a device can run, or the direct kernel's rows.
    pub(super) fn configs(&self, params: &[u32], caps: &DeviceCaps) -> Vec<Config> {
        let (sq, sk) = (params[2] as usize, params[3] as usize);
        let (own, other) = if self.side == Side::Keys { (sk, sq) } else { (sq, sk) };
        if let Some(shares) = self.units {
            let bytes = |s: Shares| s.grad_bytes(self.columns, self.side == Side::Keys);
            let all = shares.candidates(forms(shares.units), [self.columns, own], caps, bytes);
            return all.into_iter().map(|s| Config::Subgroups(s.form)).collect();
        }
        match self.tiles {
            None => heads::direct_candidates(self.columns, own).into_iter().map(Config::Rows).collect(),
            Some(_) => {
                Tiles::candidates(self.columns, own, other, self.side, caps).into_iter().map(Config::Tiles).collect()
            }
        }
    }

    /// Takes other tiles or another number of rows, changes what depends on them, and returns the number of workgroups.
    pub(super) fn configure(&mut self, params: &mut [u32], groups: u64, config: Config) -> u64 {
        match (&mut self.tiles, config) {
            (None, Config::Subgroups(form)) => self.units = self.units.map(|s| s.with(form)),
            (Some(tiles), Config::Tiles(other)) => *tiles = other,
            (None, Config::Rows(own)) => self.own = own,
            _ => return groups,
        }
        let own = if self.side == Side::Keys { params[3] } else { params[2] };
        heads::cut(params, groups, own, self.own_rows())
    }

    /// The stored type of each binding; statistics are bits.
    pub(super) fn operand_types(&self) -> Vec<DType> {
        let mut all = vec![self.dtype; 4 + usize::from(self.mask)];
        all.push(DType::U32);
        all.extend(vec![self.dtype; self.bound().len()]);
        all
    }

    fn results(&self) -> Vec<&'static str> {
        match self.side {
            Side::Keys => vec!["dk", "dv"],
            Side::Queries => vec!["dq"],
        }
    }

    /// The results that have a binding of their own.
    fn bound(&self) -> Vec<&'static str> {
        let mut all = self.results();
        all.truncate(if self.together { 1 } else { all.len() });
        all
    }

    /// Rows that a workgroup has.
    fn own_rows(&self) -> usize {
        match self.units {
            Some(shares) => shares.own(),
            None => self.tiles.map_or(DIRECT * self.own, |t| t.own),
        }
    }

    /// q, k, v, mask if any, dout, statistics, results.
    pub fn bindings(&self) -> Vec<Access> {
        let mut all = vec![Access::Read; 5 + usize::from(self.mask)];
        all.extend(vec![Access::ReadWrite; self.bound().len()]);
        all
    }

    /// Names of the words of the parameters.
    pub fn params(&self) -> Vec<String> {
        let mut names: Vec<String> = "groups heads sq sk d blocks scale".split(' ').map(String::from).collect();
        let results: &[&str] = if self.side == Side::Keys { &["o", "dv"] } else { &["o"] };
        names.extend(["q", "k", "v", "dout"].iter().chain(results).flat_map(|t| heads::strides(t)));
        names.extend(self.mask.then(heads::mask_strides).into_iter().flatten());
        names.extend(["stats_offset", "stats_batch"].map(String::from));
        if self.dropout.is_some() {
            names.extend(["entry"].into_iter().chain(philox::PARAMS).map(String::from));
        }
        names
    }

    /// Bytes of workgroup memory.
    pub fn workgroup_bytes(&self) -> usize {
        match self.units {
            Some(shares) => shares.grad_bytes(self.columns, self.side == Side::Keys),
            None => self.tiles.map_or(0, |t| t.bytes(self.columns, self.side)),
        }
    }

    /// Invocations in a workgroup.
    pub fn workgroup_size(&self) -> u32 {
        match self.units {
            Some(shares) => shares.invocations() as u32,
            None => self.tiles.map_or(DIRECT, Tiles::invocations) as u32,
        }
    }
}

/// Operands: the attention's inputs, out, log-sum-exp, dout, dq, dk, dv, stats; lengths, counter, out and log-sum-exp
/// are not bound, since stats hold what is needed of them.
pub struct AttentionGrad<'a> {
    /// Of the attention.
    pub attrs: AttentionAttrs,
    /// Stored type.
    pub dtype: DType,
    /// (B, Sq, H·D), neighbours in the width contiguous.
    pub q: &'a View,
    /// (B, Sk, H·D).
    pub k: &'a View,
    /// (B, Sk, H·D).
    pub v: &'a View,
    /// (B, Sq, H·D).
    pub dout: &'a View,
    /// Stretched to (B, H, Sq, Sk).
    pub mask: Option<&'a View>,
    /// Of dq, dk and dv, where they are made: a number that those in one tensor share, and the rows there, shaped as q, k
    /// and v, neighbours in the width contiguous.
    pub results: &'a [Option<(usize, View)>; 3],
    /// Made by matrix units where a form for them is good; in multiply-adds without.
    pub units: Option<Units>,
}

impl AttentionGrad<'_> {
    /// The launches: one, or one a batch entry where a window would exceed the device's binding limit.
    pub fn launches(&self, side: Side, caps: &DeviceCaps) -> Result<Vec<Launch<usize>>, KernelError> {
        let dout = self.attrs.inputs() + 2;
        heads::contiguous([(0, self.q), (1, self.k), (2, self.v), (dout, self.dout)])?;
        heads::by_entries(self.q.dims[0], |entries| self.launch(side, entries, caps))
    }

    fn launch(&self, side: Side, entries: Range<usize>, caps: &DeviceCaps) -> Result<Launch<usize>, KernelError> {
        const NAME: &str = "attention_grad";
        let (n, heads, batch) = (self.attrs.inputs(), self.attrs.heads, entries.len());
        let (sq, sk, width) = (self.q.dims[1], self.k.dims[1], self.q.dims[2]);
        let d = width / heads;
        let (own, other, results) = match side {
            Side::Keys => (sk, sq, &self.results[1..]),
            Side::Queries => (sq, sk, &self.results[..1]),
        };
        let results: Vec<&(usize, View)> = results.iter().flatten().collect();
        let together = matches!(results[..], [dk, dv] if dk.0 == dv.0);
        let mut views = vec![self.q, self.k, self.v, self.dout];
        views.extend(results.iter().map(|(_, view)| view));
        let vec = heads::vectors(d, &views);
        let columns = d.div_ceil(4);
        let units = self.units.and_then(|units| {
            let scaled = self.dtype != DType::F16;
            Shares::choose((units, scaled), forms(units), [columns, own], caps, |s| {
                s.grad_bytes(columns, side == Side::Keys)
            })
        });
        let key = AttentionGradKey {
            dtype: self.dtype,
            vec,
            columns,
            side,
            units,
            tiles: Tiles::candidates(columns, own, other, side, caps).first().copied().filter(|_| units.is_none()),
            own: heads::direct_rows(columns, own),
            causal: self.attrs.causal,
            mask: self.attrs.mask,
            lengths: self.attrs.lengths,
            dropout: self.attrs.dropout.map(|_| Draw::of(sk, caps)),
            together,
        };
        let blocks = own.div_ceil(key.own_rows());
        let groups = (batch * heads * blocks) as u64;
        let rows = Heads { kernel: NAME, caps, entries: entries.clone(), size: self.dtype.size(), vec, d };
        let mut params = vec![groups as u32, heads as u32, sq as u32, sk as u32, d as u32, blocks as u32];
        params.push(self.attrs.scale.get().to_bits());
        let mut operands = Vec::new();
        for (position, what, view) in [(0, "q", self.q), (1, "k", self.k), (2, "v", self.v)] {
            operands.push(rows.rows(position, what, view, &mut params)?);
        }
        let dout = rows.rows(n + 2, "dout", self.dout, &mut params)?;
        let names = if side == Side::Keys { [(n + 4, "dk"), (n + 5, "dv")] } else { [(n + 3, "dq"), (n + 3, "dq")] };
        let mut made = Vec::new();
        if together {
            made.push(rows.rows_of_one(n + 4, "dk and dv", [&results[0].1, &results[1].1], &mut params)?);
        } else {
            for ((position, what), (_, view)) in names.into_iter().zip(results) {
                made.push(rows.rows(position, what, view, &mut params)?);
            }
        }
        let mut others = 0;
        if let Some(mask) = self.mask {
            let mask = rows.mask(3, mask, &mut params)?;
            others += mask.bytes;
            operands.push(mask);
        }
        let entry = heads::stats_entry(heads, sq);
        let stats = rows.flat(n + 6, "statistics of rows", entry, 8, &mut params)?;
        params.push(entry as u32);
        if let Some(dropout) = &self.attrs.dropout {
            philox::within(NAME, "weights of one head", self.q.dims[0] * sq * sk)?;
            params.push(entries.start as u32);
            params.extend(philox::words(dropout));
        }
        others += stats.bytes;
        operands.extend([dout, stats]);
        operands.extend(made);
        // scores and their gradients, then a product a result
        let products = if side == Side::Keys { 4.0 } else { 3.0 };
        let flops = 2.0 * products * (batch * heads * d) as f64 * heads::pairs(&self.attrs, sq, sk) as f64;
        // two of the other side, two of its own and the results
        let results = if side == Side::Keys { 2 } else { 1 };
        let bytes = (batch * width * (2 * other + (2 + results) * own) * self.dtype.size()) as f64 + others as f64;
        let estimate = Estimate { flops, bytes };
        Ok(Launch { key: KernelKey::AttentionGrad(key), params, groups, operands, estimate })
    }
}

/// One key of every form, for tests.
#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    use super::philox::{ACROSS, WHOLE};
    let tiles = |own, other, chunk| Some(Tiles { own, other, chunk: Some(chunk) });
    let whole = Some(Tiles { own: 64, other: 32, chunk: None });
    let tiled = [
        (None, 2),
        (None, 9),
        (tiles(32, 64, 4), 16),
        (tiles(32, 64, 8), 32),
        (tiles(64, 32, 8), 8),
        (tiles(64, 16, 3), 3),
        (tiles(16, 16, 4), 5),
        (whole, 16),
        (whole, 3),
    ];
    let all = tiled.map(|(tiles, columns)| (tiles, columns, None)).into_iter();
    let on_units = super::attend_units::catalogue(&[&FORMS, &SPLIT_FORMS], |s, columns| s.grad_bytes(columns, true));
    let all = all.chain(on_units.map(|(s, columns)| (None, columns, Some(s))));
    let mut keys = Vec::new();
    for (i, ((tiles, columns, units), side)) in all.flat_map(|f| [(f, Side::Keys), (f, Side::Queries)]).enumerate() {
        let all =
            (0..8).map(|f| (f, None)).chain([(0, Some(WHOLE)), (1, Some(ACROSS)), (7, Some(WHOLE)), (6, Some(ACROSS))]);
        // a few for each way to share
        for (flags, dropout) in all.filter(|(f, _)| units.is_none() || f % 6 == i / 2 % 6) {
            let on = |bit: usize| flags >> bit & 1 == 1;
            let f16 = units.map_or(on(0), |s| !s.scaled);
            let (dtype, vec) = if f16 { (DType::F16, true) } else { (DType::F32, columns % 2 == 0) };
            let (causal, mask, lengths) = (on(0), on(1), on(2));
            let own = if columns == 2 && !on(1) { 4 } else { 1 };
            let together = side == Side::Keys && on(2);
            let key = AttentionGradKey {
                dtype,
                vec,
                columns,
                side,
                units,
                tiles,
                own,
                causal,
                mask,
                lengths,
                dropout,
                together,
            };
            keys.push(KernelKey::AttentionGrad(key));
        }
    }
    keys
}
