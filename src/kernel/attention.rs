//! In: q, k and v as views with heads side by side; out: launches of `attention.wgsl`, of `attention_units.wgsl` where
//! matrix units make its products, or of `attention_direct.wgsl` on a CPU that acts as a GPU and where limits are too
//! small for tiles. Knows no other kernel.

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

/// All that changes the kernel's text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionKey {
    /// Stored type of q, k, v, mask and out.
    pub dtype: DType,
    /// q, k, v and out are bound as arrays of vec4.
    pub vec: bool,
    /// Groups of four columns of a head.
    pub columns: usize,
    /// How subgroups share the pairs of queries and keys where matrix units make the products.
    pub units: Option<Shares>,
    /// Queries and keys of a block; `None` is the direct kernel.
    pub block: Option<(usize, usize)>,
    /// Queries of an invocation of the direct kernel.
    pub own: usize,
    /// Keys in a query's future are hidden.
    pub causal: bool,
    /// An additive mask is bound.
    pub mask: bool,
    /// Lengths are bound.
    pub lengths: bool,
    /// Weights are dropped.
    pub dropout: Option<Draw>,
    /// The log-sum-exp is stored.
    pub lse: bool,
}

/// Invocations of a workgroup of the direct kernel.
const DIRECT: usize = 8;

/// Blocks of queries and keys, the preferred first.
const BLOCKS: [(usize, usize); 6] = [(64, 64), (64, 32), (32, 32), (32, 16), (16, 16), (16, 8)];

/// On matrix units, the preferred first: f16 numbers as they are.
const FORMS: [Form; 4] = [
    Form { subs: 8, rows: 16, step: 16, block: 64, ahead: true },
    Form { subs: 8, rows: 16, step: 16, block: 32, ahead: true },
    Form { subs: 4, rows: 16, step: 16, block: 32, ahead: true },
    Form { subs: 4, rows: 16, step: 16, block: 16, ahead: true },
];

/// The same for numbers that are split in two.
const SPLIT_FORMS: [Form; 4] = [
    Form { subs: 8, rows: 16, step: 16, block: 32, ahead: true },
    Form { subs: 4, rows: 16, step: 16, block: 16, ahead: true },
    Form { subs: 8, rows: 16, step: 16, block: 16, ahead: true },
    Form { subs: 2, rows: 16, step: 16, block: 16, ahead: false },
];

fn forms(units: Units) -> &'static [Form] {
    if units.split { &SPLIT_FORMS } else { &FORMS }
}

impl AttentionKey {
    /// The file stem.
    pub fn name(&self) -> &'static str {
        match (self.units, self.block) {
            (Some(_), _) => "attention_units",
            (None, Some(_)) => "attention",
            (None, None) => "attention_direct",
        }
    }

    /// The kernel as WGSL.
    pub fn source(&self, params: ParamSpace) -> String {
        let (br, bc) = self.block.unwrap_or((DIRECT, 4));
        let tx = bc / 4;
        let nc = self.columns.div_ceil(tx);
        let [tile_q, tile_kv] = tiles((br, bc), self.columns);
        let values = context! {
            f16 => self.dtype == DType::F16, scalar => wgsl_type(self.dtype), vec => self.vec,
            storage => super::chain_wgsl::vector(wgsl_type(self.dtype), if self.vec { 4 } else { 1 }),
            reads => ["q", "k", "v"], writes => ["out"], length => "lengths[p.lengths_offset + b]",
            mask => self.mask, lengths => self.lengths, causal => self.causal, lse => self.lse,
            out_binding => 4 + self.extras(),
            columns => self.columns, own => self.own, threads => self.workgroup_size(), br, bc, tx, nc,
            tile_q, tile_kv, across => across(tx, br / 4),
        };
        let values = context! { ..Draw::context(self.dropout), ..values };
        let values = match self.units {
            Some(shares) => context! { ..shares.context(self.columns, self.vec), ..values },
            None => context! { words => false, ..values },
        };
        render(self.name(), params, values)
    }

    fn extras(&self) -> usize {
        usize::from(self.mask) + usize::from(self.lengths) + usize::from(self.dropout.is_some())
    }

    /// How each storage binding is used.
    pub fn bindings(&self) -> Vec<Access> {
        let mut all = vec![Access::Read; 3 + self.extras()];
        all.extend(vec![Access::ReadWrite; 1 + usize::from(self.lse)]);
        all
    }

    /// Names of the words of the parameters.
    pub fn params(&self) -> Vec<String> {
        let mut names: Vec<String> = "groups heads sq sk d blocks scale zero".split(' ').map(String::from).collect();
        names.extend(["q", "k", "v", "o"].iter().flat_map(|t| heads::strides(t)));
        names.extend(self.mask.then(heads::mask_strides).into_iter().flatten());
        names.extend(self.lengths.then(|| "lengths_offset".into()));
        names.extend(self.lse.then(|| "lse_offset".into()));
        if self.dropout.is_some() {
            names.extend(["entry"].into_iter().chain(philox::PARAMS).map(String::from));
        }
        names
    }

    /// Bytes of workgroup memory.
    pub fn workgroup_bytes(&self) -> usize {
        match self.units {
            Some(shares) => shares.bytes(self.columns),
            None => self.block.map_or(0, |b| block_bytes(b, self.columns)),
        }
    }

    /// Invocations in a workgroup.
    pub fn workgroup_size(&self) -> u32 {
        match self.units {
            Some(shares) => shares.invocations() as u32,
            None => self.block.map_or(DIRECT, |(br, bc)| br * bc / 16) as u32,
        }
    }
}

impl AttentionKey {
    /// What a block is chosen for, or how many queries an invocation of the direct kernel has.
    pub(super) fn problem(&self, params: &[u32], groups: u64) -> Problem {
        let [heads, sq, sk, d, blocks] = [1, 2, 3, 4, 5].map(|i| params[i]);
        let batch = groups / u64::from(heads * blocks).max(1);
        let (dtype, four) = (self.dtype, if self.vec { "x4" } else { "" });
        let words = [
            (" causal", self.causal),
            (" mask", self.mask),
            (" lengths", self.lengths),
            (" dropout", self.dropout.is_some()),
            (" lse", self.lse),
        ];
        let words: String = words.iter().filter(|(_, on)| *on).map(|(word, _)| *word).collect();
        let units = self.units.map_or_else(String::new, Shares::words);
        Problem(format!("{} {dtype}{four} {batch}x{heads} {sq}x{sk}x{d}{words}{units}", self.name()))
    }

    /// What it was made with.
    pub(super) fn config(&self) -> Config {
        match (self.units, self.block) {
            (Some(shares), _) => Config::Subgroups(shares.form),
            (None, Some((queries, keys))) => Config::Block(queries, keys),
            (None, None) => Config::Rows(self.own),
        }
    }

    /// The blocks that a device can run, or the direct kernel's rows.
    pub(super) fn configs(&self, params: &[u32], caps: &DeviceCaps) -> Vec<Config> {
        let (sq, sk) = (params[2] as usize, params[3] as usize);
        if let Some(shares) = self.units {
            let all = shares.candidates(forms(shares.units), [self.columns, sq], caps, |s| s.bytes(self.columns));
            return all.into_iter().map(|s| Config::Subgroups(s.form)).collect();
        }
        match self.block {
            None => heads::direct_candidates(self.columns, sq).into_iter().map(Config::Rows).collect(),
            Some(_) => blocks(self.columns, sq, sk, caps).map(|(queries, keys)| Config::Block(queries, keys)).collect(),
        }
    }

    /// Takes another block or number of rows, changes what depends on it, and returns the number of workgroups.
    pub(super) fn configure(&mut self, params: &mut [u32], groups: u64, config: Config) -> u64 {
        match (&mut self.block, config) {
            (None, Config::Subgroups(form)) => self.units = self.units.map(|s| s.with(form)),
            (Some(block), Config::Block(queries, keys)) => *block = (queries, keys),
            (None, Config::Rows(own)) => self.own = own,
            _ => return groups,
        }
        heads::cut(params, groups, params[2], self.queries())
    }

    /// Queries of a workgroup.
    fn queries(&self) -> usize {
        match self.units {
            Some(shares) => shares.own(),
            None => self.block.map_or(DIRECT * self.own, |b| b.0),
        }
    }

    /// The stored type of each binding.
    pub(super) fn operand_types(&self) -> Vec<DType> {
        let mut all = vec![self.dtype; 3 + usize::from(self.mask)];
        all.extend(
            [(DType::I32, self.lengths), (DType::U32, self.dropout.is_some())].iter().filter(|t| t.1).map(|t| t.0),
        );
        all.push(self.dtype);
        all.extend(self.lse.then_some(DType::F32));
        all
    }
}

/// The blocks that a device can run for so many queries and keys, the preferred first.
fn blocks(columns: usize, sq: usize, sk: usize, caps: &DeviceCaps) -> impl Iterator<Item = (usize, usize)> {
    let (memory, invocations) = (caps.workgroup_bytes as usize, caps.max_invocations as usize);
    let fits = move |b: &(usize, usize)| block_bytes(*b, columns) <= memory && b.0 * b.1 / 16 <= invocations;
    // a block that is mostly padding would be slower than a smaller one
    let queries = move |b: &(usize, usize)| b.0 <= sq.next_multiple_of(16) || b.0 == 16;
    let keys = move |b: &(usize, usize)| b.1 <= sk.next_multiple_of(32) || b.1 <= 32;
    BLOCKS.into_iter().filter(fits).filter(move |b| queries(b) && keys(b))
}

/// vec4s of workgroup memory for a block's queries, and for its keys or values.
fn tiles((br, bc): (usize, usize), columns: usize) -> [usize; 2] {
    let tx = bc / 4;
    [heads::staged(br, columns), heads::staged(bc, columns).max(bc * tx * columns.div_ceil(tx))]
}

/// Bytes of workgroup memory that a block takes.
fn block_bytes(block: (usize, usize), columns: usize) -> usize {
    16 * (tiles(block, columns).iter().sum::<usize>() + block.0 * block.1 / 4)
}

/// Operands: q, k, v, mask, lengths and counter if any, out, log-sum-exp if it is stored.
pub struct Attention<'a> {
    /// Heads, scale and what is optional.
    pub attrs: AttentionAttrs,
    /// Stored type.
    pub dtype: DType,
    /// (B, Sq, H·D), neighbours in the width contiguous.
    pub q: &'a View,
    /// (B, Sk, H·D).
    pub k: &'a View,
    /// (B, Sk, H·D).
    pub v: &'a View,
    /// Stretched to (B, H, Sq, Sk).
    pub mask: Option<&'a View>,
    /// Whether the log-sum-exp is stored.
    pub lse: bool,
    /// Made by matrix units where a form for them is good; in multiply-adds without.
    pub units: Option<Units>,
}

impl Attention<'_> {
    /// The launches: one, or one a batch entry where a window would exceed the device's binding limit.
    pub fn launches(&self, caps: &DeviceCaps) -> Result<Vec<Launch<usize>>, KernelError> {
        heads::contiguous([(0, self.q), (1, self.k), (2, self.v)])?;
        heads::by_entries(self.q.dims[0], |entries| self.launch(entries, caps))
    }

    fn launch(&self, entries: Range<usize>, caps: &DeviceCaps) -> Result<Launch<usize>, KernelError> {
        const NAME: &str = "attention";
        let (heads, batch) = (self.attrs.heads, entries.len());
        let (sq, sk, width) = (self.q.dims[1], self.k.dims[1], self.q.dims[2]);
        let d = width / heads;
        let out = heads::dense(&self.q.dims);
        let vec = heads::vectors(d, &[self.q, self.k, self.v, &out]);
        let columns = d.div_ceil(4);
        let block = if caps.cpu { None } else { blocks(columns, sq, sk, caps).next() };
        let units = self.units.and_then(|units| {
            Shares::choose((units, self.dtype != DType::F16), forms(units), [columns, sq], caps, |s| s.bytes(columns))
        });
        let key = AttentionKey {
            dtype: self.dtype,
            vec,
            columns,
            units,
            block: block.filter(|_| units.is_none()),
            own: heads::direct_rows(columns, sq),
            causal: self.attrs.causal,
            mask: self.attrs.mask,
            lengths: self.attrs.lengths,
            dropout: self.attrs.dropout.map(|_| Draw::of(sk, caps)),
            lse: self.lse,
        };
        let blocks = sq.div_ceil(key.queries());
        let groups = (batch * heads * blocks) as u64;
        let rows = Heads { kernel: NAME, caps, entries: entries.clone(), size: self.dtype.size(), vec, d };
        let mut operands = Vec::new();
        let mut params = vec![groups as u32, heads as u32, sq as u32, sk as u32, d as u32, blocks as u32];
        params.extend([self.attrs.scale.get().to_bits(), 0]);
        for (position, what, view) in [(0, "q", self.q), (1, "k", self.k), (2, "v", self.v)] {
            operands.push(rows.rows(position, what, view, &mut params)?);
        }
        let made = self.attrs.inputs();
        let out = rows.rows(made, "the output", &out, &mut params)?;
        let mut others = 0;
        if let Some(mask) = self.mask {
            let mask = rows.mask(3, mask, &mut params)?;
            others += mask.bytes;
            operands.push(mask);
        }
        let mut next = 3 + usize::from(self.attrs.mask);
        if self.attrs.lengths {
            operands.push(rows.flat(next, "lengths", 1, 4, &mut params)?);
            next += 1;
        }
        let lse =
            if self.lse { Some(rows.flat(made + 1, "the log-sum-exp", heads * sq, 4, &mut params)?) } else { None };
        if let Some(dropout) = &self.attrs.dropout {
            operands.push(philox::counter(NAME, next, caps)?);
            philox::within(NAME, "weights of one head", self.q.dims[0] * sq * sk)?;
            params.push(entries.start as u32);
            params.extend(philox::words(dropout));
        }
        operands.push(out);
        others += lse.as_ref().map_or(0, |lse| lse.bytes);
        operands.extend(lse);
        let flops = 4.0 * (batch * heads * d) as f64 * heads::pairs(&self.attrs, sq, sk) as f64;
        let bytes = (batch * width * (2 * sq + 2 * sk) * self.dtype.size()) as f64 + others as f64;
        Ok(Launch { key: KernelKey::Attention(key), params, groups, operands, estimate: Estimate { flops, bytes } })
    }
}

/// One key of every form, for tests.
#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    use super::philox::{ACROSS, WHOLE};
    let mut keys = Vec::new();
    let tiled =
        [(None, 2), (None, 32), (Some((64, 64)), 16), (Some((64, 32)), 16), (Some((32, 16)), 3), (Some((16, 8)), 32)];
    let all = tiled.map(|(block, columns)| (block, columns, None)).into_iter();
    let on_units = super::attend_units::catalogue(&[&FORMS, &SPLIT_FORMS], |s, columns| s.bytes(columns));
    for (i, (block, columns, units)) in all.chain(on_units.map(|(s, c)| (None, c, Some(s)))).enumerate() {
        let all = (0..16).map(|f| (f, None)).chain([
            (0, Some(WHOLE)),
            (3, Some(ACROSS)),
            (13, Some(ACROSS)),
            (15, Some(WHOLE)),
        ]);
        // a few for each way to share
        for (flags, dropout) in all.filter(|(f, _)| units.is_none() || f % 8 == i % 8) {
            let on = |bit: usize| flags >> bit & 1 == 1;
            let f16 = units.map_or(on(0), |s| !s.scaled);
            let (dtype, vec) = if f16 { (DType::F16, true) } else { (DType::F32, columns != 3) };
            keys.push(KernelKey::Attention(AttentionKey {
                dtype,
                vec,
                columns,
                units,
                block,
                own: if block.is_some() || on(2) { 1 } else { 4 },
                causal: on(1),
                mask: on(2),
                lengths: on(3),
                dropout,
                lse: on(0),
            }));
        }
    }
    keys
}
